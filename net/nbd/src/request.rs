//! Requests of the user, and their steps on the wire.

use crate::coverage::Coverage;
use crate::wire::errno;
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

/// A request. Offsets and lengths are multiples of the export's block.
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
    /// The server calls the request invalid.
    Invalid,
    /// The server refuses writes.
    ReadOnly,
    /// The server does not support the operation.
    Unsupported,
    /// The medium failed, or the request was given up.
    Io,
    /// The server may have lost writes that it had acknowledged.
    Lost,
}

impl Error {
    /// From an errno of the wire. Unknown ones are [`Error::Io`], as the protocol demands of EINVAL for servers.
    pub(crate) fn of(number: u32) -> Error {
        match number {
            errno::EPERM => Error::ReadOnly,
            errno::EINVAL | errno::EOVERFLOW => Error::Invalid,
            errno::ENOTSUP => Error::Unsupported,
            _ => Error::Io,
        }
    }
}

/// A request in the table of the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Active<T> {
    /// None for a flush of the client's own.
    pub tag: Option<T>,
    pub operation: Operation,
    pub offset: u64,
    pub data: Window,
    /// Order of submission.
    pub turn: u64,
    /// Bytes that earlier steps moved.
    pub done: usize,
    /// Bytes that the current step moves.
    pub part: u32,
    /// The current step is the flush behind a durable write.
    pub flushing: bool,
    /// Connection that the current step was, or is being, sent on.
    pub on: Option<u16>,
    /// The current step was sent completely.
    pub is_sent: bool,
    pub cookie: u64,
    pub sent_at: Instant,
    /// [`crate::Client`]'s count of acknowledged writes when its flush was sent.
    pub mark: u64,
    /// Losses that were reported when it was submitted.
    pub known_losses: u64,
    /// Since when it could not be sent, or was sent in vain.
    pub waiting_since: Option<Instant>,
    /// Parts of a read that have arrived.
    pub coverage: Coverage,
    /// Chunks of the reply so far.
    pub chunks: u32,
    /// First error in the reply.
    pub error: Option<u32>,
}

impl<T> Active<T> {
    /// Whether the current step is a flush.
    pub fn is_flush(&self) -> bool {
        self.flushing || self.operation == Operation::Flush
    }

    /// Whether the current step sends data.
    pub fn sends_data(&self) -> bool {
        !self.flushing && matches!(self.operation, Operation::Write { .. })
    }

    /// Whether the current step receives data.
    pub fn receives_data(&self) -> bool {
        self.operation == Operation::Read
    }

    /// Whether its success promises that earlier writes are durable.
    pub fn is_durable(&self) -> bool {
        matches!(self.operation, Operation::Flush | Operation::Write { durable: true })
    }

    /// Prepares a step to be sent from its beginning.
    pub fn restart(&mut self) {
        (self.on, self.is_sent) = (None, false);
        (self.coverage, self.chunks, self.error) = (Coverage::default(), 0, None);
    }
}
