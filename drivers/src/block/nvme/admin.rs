//! The admin queue (NVMe 1.4, 5): one command at a time.

use super::Error;
use super::command::with_identifier;
use super::identify::LEN;
use super::queue::{Command, Queue};
use super::registers::ControllerRegisters;
use crate::hal::Window;

/// Entries of the queue.
pub const ENTRIES: u16 = 8;

/// Purpose of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Identifies the controller at bring-up and after a reset.
    Identify,
    /// Requests a number of I/O queues.
    Queues,
    /// Creates the owner's I/O completion queue.
    Completions,
    /// Creates the owner's I/O submission queue.
    Submissions,
    /// Creates the I/O completion queue of another core, by the number of its line.
    LineCompletions(u8),
    /// Creates the I/O submission queue of another core, by the number of its line.
    LineSubmissions(u8),
    /// Aborts a request.
    Abort,
    /// Reads the health log page.
    Health,
    /// Re-reads the size of the unit with this number.
    Size(usize),
    /// A command at bring-up whose caller polls for the completion: its name.
    Query(&'static str),
}

impl Work {
    /// Name of the command.
    pub fn command(self) -> &'static str {
        match self {
            Work::Identify | Work::Size(_) => "Identify",
            Work::Queues => "Set Features (Number of Queues)",
            Work::Completions | Work::LineCompletions(_) => "Create I/O Completion Queue",
            Work::Submissions | Work::LineSubmissions(_) => "Create I/O Submission Queue",
            Work::Abort => "Abort",
            Work::Health => "Get Log Page (SMART / Health Information)",
            Work::Query(command) => command,
        }
    }
}

/// The admin queue, and a page for the data of its commands.
pub struct Admin {
    queue: Queue,
    page: Window,
    work: Option<Work>,
    cid: u16,
}

impl Admin {
    /// Takes a queue of [`ENTRIES`] and a page for the data of commands.
    pub fn new(queue: Queue, page: Window) -> Self {
        Admin { queue, page, work: None, cid: 0 }
    }

    /// The queue.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The page for the data of commands, [`LEN`] bytes.
    pub fn page(&self) -> Window {
        self.page
    }

    /// Whether no command is in flight.
    pub fn is_idle(&self) -> bool {
        self.work.is_none()
    }

    /// The command in flight.
    pub fn work(&self) -> Option<Work> {
        self.work
    }

    /// Clears the queue after the controller has been disabled.
    pub fn restart(&mut self) {
        self.queue.restart();
        self.work = None;
    }

    /// Starts a command; no other may be in flight.
    pub fn start(&mut self, work: Work, command: Command, registers: &ControllerRegisters) {
        debug_assert!(self.page.len() >= LEN && self.is_idle());
        self.cid = self.cid.wrapping_add(1);
        self.work = Some(work);
        self.queue.push(&with_identifier(command, self.cid));
        self.queue.ring_doorbell(registers);
    }

    /// Takes the completion of the command in flight, if it has arrived: its purpose and status field.
    pub fn take(&mut self, registers: &ControllerRegisters) -> Result<Option<(Work, u16)>, Error> {
        let Some(entry) = self.queue.take() else { return Ok(None) };
        self.queue.give_back(1, registers);
        match self.work.take() {
            Some(work) if entry.cid == self.cid => Ok(Some((work, entry.status))),
            _ => Err(Error::InvalidCompletion),
        }
    }
}
