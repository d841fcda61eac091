//! A queue of a path: its TCP connection, and the commands in flight on it.

use crate::failure::Failure;
use alloc::boxed::Box;
use alloc::vec::Vec;
use drivers::hal::Window;
use nvme_tcp::host::{Connection, Event};
use nvme_tcp::wire::{CQE, SQE};

/// State of the TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tcp {
    Closed,
    /// The caller is to open it.
    Wanted,
    Opening,
    Open,
}

/// A completion of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub cqe: [u8; CQE],
    /// Bytes of data that were moved.
    pub data: usize,
}

impl Answer {
    /// Status, without the phase.
    pub fn status(&self) -> u16 {
        crate::status::of(&self.cqe)
    }

    /// The first eight bytes.
    pub fn result(&self) -> u64 {
        self.cqe.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

/// A queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub tcp: Tcp,
    /// The caller has to close the TCP connection: by a reset, or else after the data that was written.
    pub to_close: Option<bool>,
    pub connection: Option<Box<Connection>>,
    /// Slots of the client by identifier of the command, of an I/O queue.
    slots: Vec<Option<u16>>,
    free: Vec<u16>,
}

impl Queue {
    pub fn new() -> Queue {
        Queue {
            tcp: Tcp::Closed,
            to_close: None,
            connection: None,
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Ends the TCP connection, and forgets its commands.
    pub fn reset(&mut self, abort: bool) {
        if matches!(self.tcp, Tcp::Opening | Tcp::Open) {
            self.to_close = Some(abort);
        }
        self.tcp = Tcp::Closed;
        self.connection = None;
        self.slots.clear();
        self.free.clear();
    }

    /// Whether the parameters of the connection were exchanged.
    pub fn is_open(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.is_open())
    }

    /// Allows that many I/O commands at a time.
    pub fn allow(&mut self, depth: u16) {
        self.slots.clear();
        self.slots.resize(depth.into(), None);
        self.free.clear();
        self.free.extend((0..depth).rev());
    }

    /// Commands of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether another I/O command may be sent.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// An identifier for the command of a request.
    pub fn take(&mut self, slot: u16) -> Option<u16> {
        let cid = self.free.pop()?;
        *self.slots.get_mut(usize::from(cid))? = Some(slot);
        Some(cid)
    }

    /// The request of a completed command.
    pub fn release(&mut self, cid: u16) -> Option<u16> {
        let slot = self.slots.get_mut(usize::from(cid))?.take()?;
        self.free.push(cid);
        Some(slot)
    }

    /// Sends a command. False if the connection does not take it.
    pub fn submit(&mut self, sqe: &[u8; SQE], data: Window, reads: bool, in_capsule: bool) -> bool {
        self.connection
            .as_mut()
            .is_some_and(|connection| connection.submit(sqe, data, reads, in_capsule))
    }

    /// Takes received bytes, up to the next event.
    pub fn receive(&mut self, bytes: &mut &[u8]) -> Result<Option<(u16, Answer)>, Failure> {
        let Some(connection) = &mut self.connection else {
            *bytes = &[];
            return Ok(None);
        };
        let (taken, event) = connection.receive(bytes);
        *bytes = bytes.get(taken..).unwrap_or_default();
        match event {
            None | Some(Event::Open) => Ok(None),
            Some(Event::Completed { intact: false, .. }) => Err(Failure::DataDigest),
            Some(Event::Completed { cqe, data, .. }) => {
                let cid = u16::from_le_bytes([cqe[12], cqe[13]]);
                Ok(Some((cid, Answer { cqe, data })))
            }
            Some(Event::Over) => Err(match (connection.reported(), connection.fault()) {
                (Some(status), _) => Failure::Terminated(status),
                (None, Some(fault)) => Failure::Pdu(fault),
                (None, None) => Failure::Closed,
            }),
        }
    }
}
