//! Messages that come in parts: what is kept of each, in tables that are made once.

use super::header::Envelope;
use alloc::vec::Vec;
use drivers::hal::Instant;

/// No place.
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

    /// Puts something there, if there is room.
    pub fn insert(&mut self, what: T) -> Result<u32, T> {
        let Some(place) = self.free.pop() else { return Err(what) };
        if let Some(slot) = self.all.get_mut(place as usize) {
            *slot = Some(what);
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
        let gone = self.all.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(gone)
    }

    pub fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }

    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// The places that are taken.
    pub fn places(&self) -> impl Iterator<Item = u32> + '_ {
        self.all.iter().enumerate().filter(|(_, it)| it.is_some()).map(|(place, _)| place as u32)
    }

    /// The first place that is taken.
    pub fn first(&self) -> Option<u32> {
        self.all.iter().position(Option::is_some).map(|place| place as u32)
    }
}

/// A part that is kept.
#[derive(Debug)]
pub(super) struct Part<M> {
    pub message: M,
    /// Where in the message its data belong.
    pub offset: u64,
    /// The next part of the same message.
    pub next: u32,
}

/// How far a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is no memory for it yet: the sender was told nothing.
    Waits,
    /// Its rest is coming.
    Arriving,
    /// It is complete, and its beginning is on the way back: the peer has not asked for the rest.
    Offered,
    /// Its rest goes back, as there is room.
    Returning,
}

/// A message that comes in parts.
#[derive(Debug)]
pub(super) struct Rendezvous<M> {
    /// By which the peer names it towards us; another for each.
    pub token: u64,
    pub phase: Phase,
    pub envelope: Envelope,
    /// Its beginning, until that goes back; and bytes of data in it.
    pub beginning: Option<M>,
    pub begun: u64,
    pub length: u64,
    /// Bytes of data that have come, with those in the beginning.
    pub received: u64,
    /// The peer's requests: of its message, and of where it takes that back.
    pub sender: u64,
    pub receiver: u64,
    /// Its parts, in the order in which they came.
    pub first: u32,
    pub last: u32,
    /// Parts that are on the way and not acknowledged, the beginning among them.
    pub on_the_way: u32,
    /// Memory that it may take, and that its parts take.
    pub reserved: u64,
    pub takes: u64,
    /// When it began to arrive, or was complete.
    pub since: Instant,
}
