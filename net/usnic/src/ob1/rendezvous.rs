//! State of messages in parts, in tables with a fixed capacity.

use super::header::Envelope;
use alloc::vec::Vec;
use drivers::hal::Instant;

/// No index.
pub(super) const NONE: u32 = u32::MAX;

/// A table with a limit.
#[derive(Debug)]
pub(super) struct Places<T> {
    all: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Places<T> {
    pub fn new(most: usize) -> Self {
        let all = (0..most).map(|_| None).collect();
        Places { all, free: (0..most as u32).rev().collect() }
    }

    /// Adds a value; returns it if the table is full.
    pub fn insert(&mut self, value: T) -> Result<u32, T> {
        let Some(place) = self.free.pop() else { return Err(value) };
        if let Some(slot) = self.all.get_mut(place as usize) {
            *slot = Some(value);
        }
        Ok(place)
    }

    pub fn get(&self, place: u32) -> Option<&T> {
        self.all.get(place as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, place: u32) -> Option<&mut T> {
        self.all.get_mut(place as usize)?.as_mut()
    }

    pub fn remove(&mut self, place: u32) -> Option<T> {
        let removed = self.all.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(removed)
    }

    pub fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }

    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// The indices in use.
    pub fn places(&self) -> impl Iterator<Item = u32> + '_ {
        self.all.iter().enumerate().filter(|(_, it)| it.is_some()).map(|(place, _)| place as u32)
    }

    /// The first index in use.
    pub fn first(&self) -> Option<u32> {
        self.all.iter().position(Option::is_some).map(|place| place as u32)
    }
}

/// A part of a message.
#[derive(Debug)]
pub(super) struct Part<M> {
    pub message: M,
    /// Offset of its data in the message.
    pub offset: u64,
    /// The next part of the same message.
    pub next: u32,
}

/// Phase of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It waits for memory: its rest was not requested.
    Waits,
    /// Its rest was requested and is arriving.
    Arriving,
    /// It is complete, and its beginning was returned: the peer has not requested the rest.
    Offered,
    /// Its rest is being returned.
    Returning,
}

/// A message in parts.
#[derive(Debug)]
pub(super) struct Rendezvous<M> {
    /// Unique value by which the peer refers to the message.
    pub token: u64,
    pub phase: Phase,
    pub envelope: Envelope,
    /// Its beginning, until that is returned.
    pub beginning: Option<M>,
    /// Bytes of data in the beginning.
    pub begun: u64,
    pub length: u64,
    /// Bytes of data that have arrived, including those in the beginning.
    pub received: u64,
    /// The peer's request for sending the message.
    pub sender: u64,
    /// The peer's request for receiving the returned message.
    pub receiver: u64,
    /// First of its parts, in order of arrival.
    pub first: u32,
    /// Last of its parts.
    pub last: u32,
    /// Returned parts that are not acknowledged, including the beginning.
    pub unacknowledged: u32,
    /// Memory reserved for it.
    pub reserved: u64,
    /// Memory that its parts occupy.
    pub takes: u64,
    /// When it began to arrive, or was complete.
    pub since: Instant,
}
