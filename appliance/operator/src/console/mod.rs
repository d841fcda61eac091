//! The console: a line editor and the commands, on a serial port.
//!
//! An engine: bytes that arrived go in by [`Console::handle_input`], bytes to send come out by
//! [`Console::output`], and [`Console::poll`] does a bounded piece of work in between. Whatever is
//! typed or pasted, memory and work per poll stay bounded: when output has not been sent yet, input
//! waits, first here, then in the serial port's FIFO.

mod command;
mod commands;
mod complete;
mod editor;
mod execute;
mod keys;
mod output;
mod parse;
mod report;
mod secrets;
mod system;

pub use report::row as log_row;
pub use system::{Managed, Progress, SmcTopic, System, Topic};

use crate::log_ring::{Cursor, Entry};
use core::time::Duration;
use editor::{Editor, Event};
use output::Output;
use report::Report;
use std::collections::VecDeque;

/// Bytes that wait here to be handled.
const INBOX: usize = 256;
/// Bytes that one poll handles at most.
const BUDGET: usize = 64;
/// Candidates that Tab shows at most.
const SHOWN: usize = 64;
const INTERRUPT: u8 = 3;
/// How often the wait for a stalled reader doubles.
const LONGEST_STALL: u32 = 7;

/// One console.
#[derive(Debug, Default)]
pub struct Console {
    inbox: VecDeque<u8>,
    editor: Editor,
    output: Output,
    log: Cursor,
    state: State,
    /// While it is being shown.
    report: Option<Report>,
    /// Times in a row that the line took nothing of what there is to send.
    stalled: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Says hello at the first poll.
    #[default]
    New,
    /// The prompt is shown.
    Prompt,
    /// A task runs, whose progress is shown.
    Task,
    /// A long report is being shown.
    Report,
    /// When all output was sent, the machine starts anew.
    Rebooting,
    /// When all output was sent, the machine is switched off.
    PoweringOff,
}

impl Console {
    /// How many bytes [`Console::handle_input`] would take.
    pub fn room(&self) -> usize {
        INBOX - self.inbox.len()
    }

    /// Takes bytes that were typed, as many as there is room for; returns how many. Ctrl-C drops
    /// what was typed before and was not handled yet.
    pub fn handle_input(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room());
        for &byte in &bytes[..taken] {
            if byte == INTERRUPT {
                self.inbox.clear();
            }
            self.inbox.push_back(byte);
        }
        taken
    }

    /// Bytes to send, as many as lie together.
    pub fn output(&self) -> &[u8] {
        self.output.next()
    }

    /// `count` bytes of the output were sent.
    pub fn sent(&mut self, count: usize) {
        let stalls = count == 0 && !self.output.is_empty();
        self.stalled = if stalls { self.stalled.saturating_add(1) } else { 0 };
        self.output.sent(count);
    }

    /// How long a loop with nothing else to do may leave [`Console::is_busy`] alone, if `look` is right for a
    /// line that takes its FIFO at each look: longer and longer while it takes nothing, because its reader has
    /// stalled. What is typed ends the wait.
    pub fn patience(&self, look: Duration) -> Duration {
        look * (1 << self.stalled.saturating_sub(2).min(LONGEST_STALL))
    }

    /// Whether there is something to do without further input: output to send, a task to ask for
    /// its progress, bytes that wait. A loop that halts looks here first.
    pub fn is_busy(&self) -> bool {
        !self.output.is_empty()
            || !matches!(self.state, State::Prompt | State::Task)
            || (self.state == State::Prompt && !self.inbox.is_empty())
    }

    /// Does a bounded piece of work: shows log messages, handles some input, at most one command.
    /// Returns whether there was anything to do.
    pub fn poll(&mut self, system: &mut dyn System) -> bool {
        if !self.output.has_room() {
            return false;
        }
        // Nothing comes between the rows of a report.
        let shown = self.state != State::Report && self.show_log(system);
        match self.state {
            State::New => {
                self.output.text("\n");
                self.prompt();
                true
            }
            State::Prompt => self.handle_typed(system) || shown,
            State::Task => self.follow_task(system) || shown,
            State::Report => self.follow_report(system),
            State::Rebooting if self.output.is_empty() => {
                system.reboot();
                true
            }
            State::PoweringOff if self.output.is_empty() => {
                system.power_off();
                true
            }
            State::Rebooting | State::PoweringOff => shown,
        }
    }

    /// Shows what was logged, and nothing else: no input is handled while the machine ends.
    /// Whether all that there is to show was sent.
    fn poll_at_the_end(&mut self, system: &mut dyn System) -> bool {
        let shown = self.show_log(system);
        !shown && self.output.is_empty()
    }

    fn prompt(&mut self) {
        self.state = State::Prompt;
        self.editor.draw(&mut self.output);
    }

    fn handle_typed(&mut self, system: &mut dyn System) -> bool {
        let mut worked = false;
        for _ in 0..BUDGET {
            if !self.output.has_room() {
                break;
            }
            let Some(byte) = self.inbox.pop_front() else { break };
            worked = true;
            match self.editor.push(byte, &mut self.output) {
                None => {}
                Some(Event::Complete) => self.complete(system),
                Some(Event::Refused(why)) => {
                    self.output.text(&format!("line ignored: {why}\n"));
                    self.prompt();
                    break;
                }
                Some(Event::Line(line)) => {
                    self.state =
                        execute::execute(&line, system, &mut self.output, &mut self.report);
                    if self.state == State::Prompt {
                        // What the command has logged belongs to its answer.
                        self.print_log(system);
                        self.prompt();
                    }
                    break;
                }
            }
        }
        worked
    }

    fn follow_report(&mut self, system: &mut dyn System) -> bool {
        let interrupted = self.inbox.front() == Some(&INTERRUPT);
        if interrupted {
            self.inbox.pop_front();
            self.output.text("^C\n");
        }
        let report = self.report.as_mut().filter(|_| !interrupted);
        if report.is_none_or(|report| report.poll(system, &mut self.output)) {
            self.report = None;
            // What the command has logged belongs to its answer.
            self.print_log(system);
            self.prompt();
        }
        true
    }

    fn follow_task(&mut self, system: &mut dyn System) -> bool {
        if self.inbox.front() == Some(&INTERRUPT) {
            self.inbox.pop_front();
            self.output.text("^C\n");
            system.cancel_task();
        }
        match system.poll_task() {
            None => return false,
            Some(Progress::Line(line)) => self.output.text(&format!("{line}\n")),
            Some(Progress::Done(Ok(line))) => {
                self.output.text(&format!("{line}\n"));
                self.prompt();
            }
            Some(Progress::Done(Err(why))) => {
                self.output.text(&format!("error: {why}\n"));
                self.prompt();
            }
        }
        true
    }

    fn complete(&mut self, system: &mut dyn System) {
        let before = self.editor.before_cursor().to_string();
        let word = before.rsplit(char::is_whitespace).next().unwrap_or_default();
        let found = complete::candidates(&before, system);
        let more = complete::common(&found, word.len()).to_string();
        if !more.is_empty() {
            self.editor.insert_text(&more, &mut self.output);
        }
        match found.as_slice() {
            [] => {}
            [only] if only.ends_with(['.', '/']) => {}
            [_] => self.editor.insert_text(" ", &mut self.output),
            several if more.is_empty() => {
                self.output.text("\n");
                let shown = several.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>();
                self.output.text(&shown.join("  "));
                self.output.text(if several.len() > SHOWN { " …\n" } else { "\n" });
                self.editor.draw(&mut self.output);
            }
            _ => {}
        }
    }

    /// Shows log messages above the line that is being edited.
    fn show_log(&mut self, system: &mut dyn System) -> bool {
        let mut shown = false;
        while self.output.has_room_for_log() {
            let Some((entry, missed)) = system.log().next(&mut self.log) else { break };
            if !shown && self.state == State::Prompt {
                self.editor.wipe(&mut self.output);
            }
            shown = true;
            self.print_entry(&entry, missed);
        }
        if shown && self.state == State::Prompt {
            self.editor.draw(&mut self.output);
        }
        shown
    }

    /// Shows log messages where no line is being edited.
    fn print_log(&mut self, system: &mut dyn System) {
        while self.output.has_room_for_log() {
            let Some((entry, missed)) = system.log().next(&mut self.log) else { break };
            self.print_entry(&entry, missed);
        }
    }

    fn print_entry(&mut self, entry: &Entry, missed: u64) {
        if missed > 0 {
            self.output.text(&format!("({missed} messages were not shown)\n"));
        }
        self.output.text(&format!("{entry}\n"));
    }
}

/// The serial line.
pub trait Line {
    /// Whether something has arrived since it was read, as far as interrupts tell. Accesses no device.
    fn console_has_rung(&self) -> bool;

    /// Takes what has arrived; never blocks. Returns how many bytes.
    fn console_read(&mut self, into: &mut [u8]) -> usize;

    /// Gives bytes; never blocks. Returns how many it took (at most its FIFO).
    fn console_write(&mut self, bytes: &[u8]) -> usize;
}

/// Moves bytes between the serial line and the console, and lets it work. Returns
/// whether there was anything to do.
pub fn pump(console: &mut Console, line: &mut dyn Line, system: &mut dyn System) -> bool {
    let mut bytes = [0; BUDGET];
    let room = console.room().min(BUDGET);
    let read = line.console_read(&mut bytes[..room]).min(room);
    console.handle_input(&bytes[..read]);
    let worked = console.poll(system);
    let sent = line.console_write(console.output());
    console.sent(sent);
    read > 0 || worked || sent > 0
}

/// The same while the machine ends, for output alone: what is logged then is told. Whether all of it was sent.
pub fn pump_at_the_end(
    console: &mut Console,
    line: &mut dyn Line,
    system: &mut dyn System,
) -> bool {
    let told = console.poll_at_the_end(system);
    let sent = line.console_write(console.output());
    console.sent(sent);
    told
}

#[cfg(test)]
mod tests;
