//! [`Run`]: one command of a program, without a terminal. Its output is taken in pieces.

use super::State;
use super::command::Verb;
use super::execute::try_execute;
use super::output::Output;
use super::report::Report;
use super::system::{Progress, System};

/// A command that is executed.
#[derive(Debug)]
pub struct Run {
    state: State,
    output: Output,
    report: Option<Report>,
}

/// Whether a program can execute a command: it reads no further lines, ends, and needs no session.
pub fn is_for_programs(verb: Verb) -> bool {
    !matches!(verb, Verb::Paste | Verb::LogOut | Verb::LogFollow)
}

impl Run {
    /// Executes a command, or starts to. The error is the reason of a refusal.
    pub fn start(line: &str, system: &mut dyn System) -> Result<Run, String> {
        let (mut output, mut report) = (Output::default(), None);
        let state = try_execute(line, system, &mut output, &mut report)?;
        if state == State::Paste {
            return Err("a program sends the document: PUT /api/v1/config/candidate".into());
        }
        if state == State::LoggingOut {
            return Err("only the console has sessions".into());
        }
        if let State::Follow(_) = state {
            return Err("a program follows the log with GET /api/v1/log?follow".into());
        }
        Ok(Run { state, output, report })
    }

    /// Follows the task that a write to an object has started.
    pub fn of_task() -> Run {
        Run { state: State::Task, output: Output::default(), report: None }
    }

    /// Whether the command runs longer than this call.
    pub fn is_long(&self) -> bool {
        matches!(self.state, State::Task | State::Report)
    }

    /// Whether the command is a task of the appliance, which ends by itself or is cancelled.
    pub fn is_task(&self) -> bool {
        self.state == State::Task
    }

    /// Appends the next piece of output. False if there is none at present.
    ///
    /// # Errors
    ///
    /// The end of the command: `Ok`, or the reason of its failure.
    pub fn poll(&mut self, system: &mut dyn System, into: &mut String) -> Result<bool, Ended> {
        let before = into.len();
        let mut bytes = Vec::new();
        match self.state {
            State::Task => match system.poll_task() {
                None => {}
                Some(Progress::Line(line)) => self.output.text(&format!("{line}\n")),
                Some(Progress::Done(Ok(line))) => {
                    self.output.text(&format!("{line}\n"));
                    self.state = State::Prompt;
                }
                Some(Progress::Done(Err(why))) => return Err(Ended(Err(why))),
            },
            State::Report => {
                let report = self.report.as_mut();
                if report.is_none_or(|report| report.poll(system, &mut self.output)) {
                    self.state = State::Prompt;
                }
            }
            _ if self.output.is_empty() => {
                match self.state {
                    State::Rebooting => system.reboot(),
                    State::PoweringOff => system.power_off(),
                    _ => {}
                }
                return Err(Ended(Ok(())));
            }
            _ => {}
        }
        while !self.output.is_empty() {
            let piece = self.output.next();
            let count = piece.len();
            bytes.extend(piece.iter().filter(|&&byte| byte != b'\r'));
            self.output.sent(count);
        }
        into.push_str(&String::from_utf8_lossy(&bytes));
        let works = self.report.as_ref().is_some_and(|report| !report.waits());
        Ok(into.len() > before || (self.state == State::Report && works))
    }
}

/// The end of a command, with the reason of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended(pub Result<(), String>);
