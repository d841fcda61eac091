//! The admin queue (NVMe 1.4, 5): one command at a time.

use super::Error;
use super::command::with_identifier;
use super::identify::LEN;
use super::queue::{Command, Queue};
use super::registers::ControllerRegisters;
use crate::hal::Window;

/// Entries of the queue.
pub const ENTRIES: u16 = 8;

/// What a command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Which drive it is, after a reset.
    Identify,
    /// How many queues there are to be.
    Queues,
    /// The I/O completion queue is made.
    Completions,
    /// The I/O submission queue is made.
    Submissions,
    /// The same for another core, by the number of its line.
    LineCompletions(u8),
    /// See there.
    LineSubmissions(u8),
    /// A request is aborted.
    Abort,
    /// How the drive fares.
    Health,
    /// The shape of the unit of this number.
    Shape(usize),
    /// Somebody waits for the answer.
    Question(&'static str),
}

impl Work {
    /// Name of the command.
    pub fn command(self) -> &'static str {
        match self {
            Work::Identify | Work::Shape(_) => "Identify",
            Work::Queues => "Set Features (Number of Queues)",
            Work::Completions | Work::LineCompletions(_) => "Create I/O Completion Queue",
            Work::Submissions | Work::LineSubmissions(_) => "Create I/O Submission Queue",
            Work::Abort => "Abort",
            Work::Health => "Get Log Page (SMART / Health Information)",
            Work::Question(command) => command,
        }
    }
}

/// The admin queue, and memory for what is asked.
pub struct Admin {
    queue: Queue,
    page: Window,
    work: Option<Work>,
    cid: u16,
}

impl Admin {
    /// Over a queue of [`ENTRIES`] and a page of memory for answers.
    pub fn new(queue: Queue, page: Window) -> Self {
        Admin { queue, page, work: None, cid: 0 }
    }

    /// The queue.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Where answers go, [`LEN`] bytes.
    pub fn page(&self) -> Window {
        self.page
    }

    /// Whether no command is under way.
    pub fn is_idle(&self) -> bool {
        self.work.is_none()
    }

    /// What is under way.
    pub fn work(&self) -> Option<Work> {
        self.work
    }

    /// As new: the controller has forgotten the queue.
    pub fn restart(&mut self) {
        self.queue.restart();
        self.work = None;
    }

    /// Starts a command; none is under way.
    pub fn start(&mut self, work: Work, command: Command, registers: &ControllerRegisters) {
        debug_assert!(self.page.len() >= LEN && self.is_idle());
        self.cid = self.cid.wrapping_add(1);
        self.work = Some(work);
        self.queue.push(&with_identifier(command, self.cid));
        self.queue.tell(registers);
    }

    /// What was done, and its status field, if it was.
    pub fn take(&mut self, registers: &ControllerRegisters) -> Result<Option<(Work, u16)>, Error> {
        let Some(entry) = self.queue.take() else { return Ok(None) };
        self.queue.give_back(1, registers);
        match self.work.take() {
            Some(work) if entry.cid == self.cid => Ok(Some((work, entry.status))),
            _ => Err(Error::Nonsense),
        }
    }
}
