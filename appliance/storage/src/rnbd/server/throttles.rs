//! Requests that wait for the limits of their export. A request that waits keeps its chunk, which no other client can
//! use, and is bound by the queue depth. It is answered with an error as soon as its device is closed or its path ends.

use super::session::Device;
use crate::limits::{Class, Limiter, Throttle};
use crate::rnbd::wire::{Io, Operation};
use alloc::sync::Arc;
use alloc::vec::Vec;
use drivers::hal::Instant;
use rtrs::server::{RequestId, SessionId};

/// A device of a session. Devices take turns.
pub(super) type Owner = (SessionId, u32);

/// A request that has to wait.
pub(super) struct Delayed {
    pub place: usize,
    pub class: Class,
    pub owner: Owner,
}

/// Requests of a loop that wait, by the limits of exports.
#[derive(Debug, Default)]
pub(super) struct Throttles {
    all: Vec<Throttle<Owner, RequestId>>,
    /// Requests whose device was closed.
    pub refused: Vec<RequestId>,
    /// When the next turn is due.
    pub due: Option<Instant>,
    /// The limits whose turn it is: the request at hand has waited for them.
    turn_of: Option<usize>,
    /// Time of the last poll.
    pub now: Instant,
    /// Number of paths that had ended at the last poll.
    ended_paths: u64,
}

/// Class and bytes of an I/O, if it is limited.
fn class_of(io: &Io) -> Option<(Class, u64)> {
    match io.operation {
        Operation::Read => Some((Class::Read, io.size.into())),
        Operation::Write | Operation::WriteZeroes => Some((Class::Write, io.size.into())),
        Operation::Discard | Operation::SecureErase => Some((Class::Write, 0)),
        Operation::Flush => None,
    }
}

impl Throttles {
    /// The place of an export's limits, for a device that is opened.
    pub fn place(&mut self, limiter: &Arc<Limiter>) -> usize {
        let same = |one: &Throttle<_, _>| Arc::ptr_eq(one.limiter(), limiter);
        if let Some(place) = self.all.iter().position(same) {
            return place;
        }
        let new = Throttle::new(limiter.clone());
        // No device and no export has the limits any more.
        let unused = |one: &Throttle<_, _>| Arc::strong_count(one.limiter()) == 1 && one.is_empty();
        match self.all.iter().position(unused) {
            Some(place) => {
                self.all[place] = new;
                place
            }
            None => {
                self.all.push(new);
                self.all.len() - 1
            }
        }
    }

    /// Whether an I/O has to wait.
    #[cold]
    pub fn delays(&mut self, session: SessionId, device: &Device, io: &Io) -> Option<Delayed> {
        let (class, _) = class_of(io)?;
        let place = device.opened.throttle;
        let throttle = self.all.get_mut(place)?;
        let waits = match self.turn_of == Some(place) {
            // It has waited.
            true => throttle.limiter().credit(class, self.now).is_none(),
            false => throttle.must_wait(class, self.now),
        };
        waits.then_some(Delayed { place, class, owner: (session, device.id) })
    }

    /// Counts an I/O that a volume has taken.
    #[cold]
    pub fn charge(&self, device: &Device, io: &Io) {
        if let Some((class, bytes)) = class_of(io) {
            device.opened.limiter.charge(class, bytes, self.now);
        }
    }

    /// Makes a request wait.
    pub fn wait(&mut self, delayed: &Delayed, id: RequestId) {
        let Some(throttle) = self.all.get_mut(delayed.place) else { return };
        let due = throttle.wait(delayed.class, delayed.owner, id, self.now);
        self.due = Some(self.due.map_or(due, |at| at.min(due)));
    }

    /// A device was closed.
    pub fn close(&mut self, owner: Owner) {
        for throttle in &mut self.all {
            self.refused.extend(throttle.forget(owner, self.now));
        }
    }

    /// Begins the turn of the limits at `place`. False if it is not due.
    pub fn begin_turn(&mut self, place: usize) -> bool {
        let now = self.now;
        let Some(throttle) = self.all.get_mut(place) else { return false };
        if throttle.due().is_none_or(|due| due > now) {
            return false;
        }
        throttle.begin_turn(now);
        self.turn_of = Some(place);
        true
    }

    /// The next request of the turn.
    pub fn next(&mut self) -> Option<RequestId> {
        let now = self.now;
        self.all.get_mut(self.turn_of?)?.next(now).map(|(_, id)| id)
    }

    /// Ends the turn. `more`: the budget of the round is used.
    pub fn end_turn(&mut self, more: bool) {
        if let Some(throttle) = self.turn_of.take().and_then(|place| self.all.get_mut(place)) {
            throttle.end_turn(more, self.now);
        }
    }

    /// Number of places.
    pub fn places(&self) -> usize {
        self.all.len()
    }

    /// Computes when the next turn is due.
    pub fn settle(&mut self) {
        self.due = self.all.iter().filter_map(Throttle::due).min();
    }

    /// Removes requests of ended paths, if any path has ended since the last call. `is_gone` looks at a request.
    pub fn drop_ended(&mut self, ended_paths: u64, mut is_gone: impl FnMut(RequestId) -> bool) {
        let before = core::mem::replace(&mut self.ended_paths, ended_paths);
        if before == ended_paths || self.due.is_none() {
            return;
        }
        for throttle in &mut self.all {
            self.refused.extend(throttle.extract(self.now, |_, id| is_gone(id)));
        }
    }
}
