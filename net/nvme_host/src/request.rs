//! Requests of the user, and their steps on the wire.

use drivers::hal::{Instant, Window};

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads into the window.
    Read,
    /// Writes from the window.
    Write {
        /// On stable storage when it completes, as are all writes that completed before it was submitted.
        durable: bool,
    },
    /// Makes all completed writes durable.
    Flush,
    /// Deallocates this many bytes.
    Discard(u32),
    /// Zeroes this many bytes.
    WriteZeroes(u32),
}

/// A request. Offsets and lengths are multiples of the namespace's block.
#[derive(Clone, Copy, Debug)]
pub struct Request<T> {
    /// The user's tag; the completion has the same.
    pub tag: T,
    /// Operation.
    pub operation: Operation,
    /// First byte; unused by flush.
    pub offset: u64,
    /// Memory to read into or write from; unused by the others.
    pub data: Window,
}

/// Why a request was refused, or failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The client has the most requests that it can hold.
    Busy,
    /// The controller calls the request invalid.
    Invalid,
    /// Behind the end of the namespace.
    PastEnd,
    /// The namespace is read-only.
    ReadOnly,
    /// The controller does not support the operation.
    Unsupported,
    /// The medium failed, or the request was given up.
    Io,
    /// A controller may have lost writes that it had acknowledged.
    Lost,
    /// A reservation of another host excludes the request.
    Reserved,
}

/// A command of a request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub path: u16,
    /// Number of the queue, from 1.
    pub queue: u16,
}

/// A request in the table of the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Active<T> {
    pub tag: T,
    pub operation: Operation,
    pub offset: u64,
    pub data: Window,
    /// Order of submission.
    pub turn: u64,
    /// Bytes that earlier steps moved, zeroed or deallocated.
    pub done: u32,
    /// Bytes of the current step.
    pub part: u32,
    /// Paths that are still to be flushed, a bit for each. Set when the step is a flush.
    pub flushes: u16,
    /// The current step is the flush behind a durable write.
    pub flushing: bool,
    /// Queue that the current step is in flight on.
    pub on: Option<Place>,
    pub sent_at: Instant,
    /// The path's count of acknowledged writes when its flush was sent.
    pub mark: u64,
    /// Losses that were reported when it was submitted.
    pub known_losses: u64,
    /// Since when it could not be sent, or was sent in vain.
    pub waiting_since: Option<Instant>,
    /// Time before which it is not sent, except over this path.
    pub held: Option<(Instant, Option<u16>)>,
    /// Attempts that a controller answered with an error.
    pub retries: u8,
}

impl<T> Active<T> {
    /// Whether the current step is a flush.
    pub fn is_flush(&self) -> bool {
        self.flushing || self.operation == Operation::Flush
    }

    /// Whether its success promises that earlier writes are durable.
    pub fn is_durable(&self) -> bool {
        matches!(self.operation, Operation::Flush | Operation::Write { durable: true })
    }

    /// Whether the current step changes blocks.
    pub fn changes(&self) -> bool {
        !self.is_flush() && self.operation != Operation::Read
    }

    /// Bytes of the whole request, apart from flushes.
    pub fn length(&self) -> u32 {
        match self.operation {
            Operation::Read | Operation::Write { .. } => self.data.len() as u32,
            Operation::Flush => 0,
            Operation::Discard(bytes) | Operation::WriteZeroes(bytes) => bytes,
        }
    }
}
