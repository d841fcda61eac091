//! The console: a line editor and commands on a serial port.
//!
//! An engine without I/O: received bytes go to [`Console::handle_input`], bytes to send come from [`Console::output`],
//! and [`Console::poll`] does a bounded piece of work in between. Memory and work per poll are bounded for any input:
//! while output waits to be sent, input waits, first in the inbox, then in the serial port's FIFO.

mod command;
mod commands;
mod complete;
mod editor;
mod execute;
mod keys;
mod login;
mod output;
mod parse;
mod report;
mod run;
mod secrets;
mod support;
mod system;
mod verbs;

pub use command::Verb;
pub use commands::COMMANDS;
pub use login::Session;
pub use report::row as log_row;
pub use run::{Ended, Run, is_for_programs};
pub use support::{Made, MetricsPlace, Support};
pub use system::{Managed, Progress, SmcTopic, System, Topic};
pub use verbs::{
    ConfigureVerb, DeviceVerb, ExportVerb, MirrorVerb, NameVerb, NtbVerb, NvmeVerb, ObjectVerb,
    PathVerb, RemoteVerb, SessionVerb, UpgradeVerb, UsnicVerb, VolumeVerb,
};

use crate::config::MAX_DOCUMENT;
use crate::log_ring::{Cursor, Entry, Filter};
use core::time::Duration;
use editor::{Editor, Event};
use login::Login;
use output::Output;
use report::Report;
use std::collections::VecDeque;

/// Size of the inbox in bytes.
const INBOX: usize = 256;
/// Maximum bytes handled by one poll.
const BUDGET: usize = 64;
/// Maximum candidates shown by Tab.
const SHOWN: usize = 64;
const INTERRUPT: u8 = 3;
/// Maximum doublings of the poll interval for a stalled reader.
const LONGEST_STALL: u32 = 7;

/// One console.
#[derive(Debug, Default)]
pub struct Console {
    inbox: VecDeque<u8>,
    editor: Editor,
    output: Output,
    log: Cursor,
    state: State,
    /// The report in progress, if any.
    report: Option<Report>,
    /// The lines of a document so far, while one is entered.
    pasted: Option<String>,
    login: Login,
    /// Consecutive times that the line accepted none of the pending output.
    stalled: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Before the first poll, which draws the prompt.
    #[default]
    New,
    /// The prompt is shown.
    Prompt,
    /// A task runs, and its progress is shown.
    Task,
    /// A long report is in progress.
    Report,
    /// Messages of the log are shown as they come.
    Follow(Filter),
    /// The lines of a document follow.
    Paste,
    /// A name or a token is entered.
    Login,
    /// The session ends.
    LoggingOut,
    /// The machine reboots when all output is sent.
    Rebooting,
    /// The machine powers off when all output is sent.
    PoweringOff,
    /// The machine ends. No input is handled.
    Ended,
}

impl Console {
    /// Number of bytes that [`Console::handle_input`] accepts.
    pub fn room(&self) -> usize {
        INBOX - self.inbox.len()
    }

    /// Accepts typed bytes up to the free room. Returns how many. Ctrl-C drops typed bytes that are not yet handled.
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

    /// The next contiguous bytes to send.
    pub fn output(&self) -> &[u8] {
        self.output.next()
    }

    /// Removes `count` sent bytes from the output.
    pub fn sent(&mut self, count: usize) {
        let stalls = count == 0 && !self.output.is_empty();
        self.stalled = if stalls { self.stalled.saturating_add(1) } else { 0 };
        self.output.sent(count);
    }

    /// Poll interval for an otherwise idle loop while [`Console::is_busy`]. `look` is the interval for a line that
    /// drains its FIFO. The interval grows while the line accepts nothing because its reader has stalled. Typed input
    /// ends the wait.
    pub fn patience(&self, look: Duration) -> Duration {
        look * (1 << self.stalled.saturating_sub(2).min(LONGEST_STALL))
    }

    /// Whether there is work without further input: output to send, a report, or typed bytes to handle. A loop checks
    /// this before it halts.
    pub fn is_busy(&self) -> bool {
        !self.output.is_empty()
            || !matches!(self.state, State::Prompt | State::Task | State::Follow(_) | State::Login)
            || (matches!(self.state, State::Prompt | State::Login) && !self.inbox.is_empty())
    }

    /// Does a bounded piece of work: shows log messages, handles some input, executes at most one command. Returns
    /// whether there was work.
    pub fn poll(&mut self, system: &mut dyn System) -> bool {
        if !self.output.has_room() {
            return false;
        }
        self.check_login(system);
        // Log messages must not interrupt a report.
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
            State::Follow(_) => self.end_following(system) || shown,
            State::Login => self.handle_login(system),
            State::LoggingOut => {
                self.log_out_by_command(system);
                true
            }
            State::Paste => {
                self.pasted = Some(String::new());
                self.editor.set_verbatim(true);
                self.prompt();
                true
            }
            State::Rebooting if self.output.is_empty() => {
                system.reboot();
                self.state = State::Ended;
                true
            }
            State::PoweringOff if self.output.is_empty() => {
                system.power_off();
                self.state = State::Ended;
                true
            }
            State::Rebooting | State::PoweringOff | State::Ended => shown,
        }
    }

    /// Shows log messages while the machine shuts down, and handles no input. Returns whether all output was sent.
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
            self.note_typed(system);
            let event = self.editor.push(byte, &mut self.output);
            if !self.editor.is_verbatim() {
                // Ctrl-C discards the document.
                self.pasted = None;
            }
            match event {
                None => {}
                Some(Event::Complete) => self.complete(system),
                Some(Event::Refused(why)) => {
                    if self.pasted.take().is_some() {
                        self.editor.set_verbatim(false);
                        self.output.text("error: document discarded: ");
                    }
                    self.output.text(&format!("line ignored: {why}\n"));
                    self.prompt();
                    break;
                }
                Some(Event::Line(line)) if self.pasted.is_some() => {
                    self.take_document_line(&line, system);
                    break;
                }
                Some(Event::Line(line)) => {
                    self.state =
                        execute::execute(&line, system, &mut self.output, &mut self.report);
                    if self.state == State::Prompt {
                        // Messages that the command logged are part of its reply.
                        self.print_log(system);
                        self.prompt();
                    }
                    break;
                }
            }
        }
        worked
    }

    /// Adds a line to the document that is entered. A line with a single dot ends it.
    fn take_document_line(&mut self, line: &str, system: &mut dyn System) {
        let Some(text) = &mut self.pasted else { return };
        let is_last = line.trim() == ".";
        if !is_last && text.len() + line.len() < MAX_DOCUMENT {
            text.push_str(line);
            text.push('\n');
            return self.prompt();
        }
        let result = match is_last {
            true => system.manage(ObjectVerb::Configure(ConfigureVerb::Load), text),
            false => Err(format!("document discarded: more than {MAX_DOCUMENT} bytes")),
        };
        self.pasted = None;
        self.editor.set_verbatim(false);
        match result {
            Ok(Managed::Told(text)) => self.output.text(&text),
            Ok(Managed::Started) => {}
            Err(why) => self.output.text(&format!("error: {why}\n")),
        }
        self.print_log(system);
        self.prompt();
    }

    fn follow_report(&mut self, system: &mut dyn System) -> bool {
        let interrupted = self.inbox.front() == Some(&INTERRUPT);
        if interrupted {
            self.inbox.pop_front();
            self.output.text("^C\n");
        }
        let waits = self.report.as_ref().is_some_and(Report::waits);
        let report = self.report.as_mut().filter(|_| !interrupted);
        if report.is_none_or(|report| report.poll(system, &mut self.output)) {
            self.report = None;
            // Messages that the command logged are part of its reply.
            self.print_log(system);
            self.prompt();
            return true;
        }
        !waits
    }

    /// Ends `log follow` on Ctrl-C. Other input is dropped.
    fn end_following(&mut self, system: &dyn System) -> bool {
        let typed = !self.inbox.is_empty();
        if typed {
            self.note_typed(system);
        }
        if self.inbox.drain(..).any(|byte| byte == INTERRUPT) {
            self.output.text("^C\n");
            self.prompt();
        }
        typed
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

    /// Shows log messages above the edited line.
    fn show_log(&mut self, system: &mut dyn System) -> bool {
        if self.is_locked() {
            return false;
        }
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

    /// Shows log messages while no line is edited.
    fn print_log(&mut self, system: &mut dyn System) {
        while self.output.has_room_for_log() {
            let Some((entry, missed)) = system.log().next(&mut self.log) else { break };
            self.print_entry(&entry, missed);
        }
    }

    fn print_entry(&mut self, entry: &Entry, missed: u64) {
        if let State::Follow(filter) = self.state
            && !filter.wants(entry.kind)
        {
            return;
        }
        if missed > 0 {
            self.output.text(&format!("({missed} messages lost)\n"));
        }
        self.output.text(&format!("{entry}\n"));
    }
}

/// The serial line.
pub trait Line {
    /// Whether an interrupt has signalled input since the last read. Accesses no device.
    fn console_has_rung(&self) -> bool;

    /// Reads received bytes without blocking. Returns how many.
    fn console_read(&mut self, into: &mut [u8]) -> usize;

    /// Writes bytes without blocking. Returns how many were accepted, at most the FIFO's size.
    fn console_write(&mut self, bytes: &[u8]) -> usize;
}

/// Moves bytes between the serial line and the console, and polls the console. Returns whether there was work.
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

/// Sends log messages to the serial line while the machine shuts down, and reads no input. Returns whether all output
/// was sent.
pub fn pump_at_the_end(
    console: &mut Console,
    line: &mut dyn Line,
    system: &mut dyn System,
) -> bool {
    let is_done = console.poll_at_the_end(system);
    let sent = line.console_write(console.output());
    console.sent(sent);
    is_done
}

#[cfg(test)]
mod tests;
