//! Submission and completion queues, on the controller's side.

use crate::{Machine, Unreachable};

/// A submission queue.
#[derive(Clone, Copy, Debug)]
pub struct Submissions {
    pub base: u64,
    pub entries: u32,
    pub head: u32,
    pub tail: u32,
    /// Its completion queue.
    pub completions: u16,
}

impl Submissions {
    pub fn new(base: u64, entries: u32, completions: u16) -> Self {
        Submissions { base, entries, head: 0, tail: 0, completions }
    }

    /// Takes the next submitted command.
    pub fn fetch(&mut self, machine: &mut dyn Machine) -> Option<Result<[u8; 64], Unreachable>> {
        if self.head == self.tail {
            return None;
        }
        let mut command = [0; 64];
        let read = machine.read(self.base + 64 * u64::from(self.head), &mut command);
        self.head = (self.head + 1) % self.entries;
        Some(read.map(|()| command))
    }
}

/// A completion queue.
#[derive(Clone, Copy, Debug)]
pub struct Completions {
    pub base: u64,
    pub entries: u32,
    /// The driver has consumed completions up to here.
    pub head: u32,
    pub tail: u32,
    phase: bool,
    /// The interrupt vector.
    pub vector: Option<u16>,
}

impl Completions {
    pub fn new(base: u64, entries: u32, vector: Option<u16>) -> Self {
        Completions { base, entries, head: 0, tail: 0, phase: true, vector }
    }

    pub fn is_full(&self) -> bool {
        (self.tail + 1) % self.entries == self.head
    }

    /// Writes a completion. The word with the phase bit is written last.
    pub fn post(&mut self, done: Completion, machine: &mut dyn Machine) -> Result<(), Unreachable> {
        let at = self.base + 16 * u64::from(self.tail);
        let last = u32::from(done.cid)
            | u32::from(self.phase) << 16
            | u32::from(done.status & 0x7fff) << 17;
        let upper =
            u64::from(last) << 32 | u64::from(done.queue) << 16 | u64::from(done.head & 0xffff);
        machine.write(at, &u64::from(done.result).to_le_bytes())?;
        machine.write(at + 8, &upper.to_le_bytes())?;
        self.tail += 1;
        if self.tail == self.entries {
            self.tail = 0;
            self.phase = !self.phase;
        }
        Ok(())
    }
}

/// The completion of a command.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    pub result: u32,
    pub queue: u16,
    pub head: u32,
    pub cid: u16,
    pub status: u16,
}
