//! Requests in the table: their steps, results, and losses.

use super::{Client, Notice};
use crate::Losses;
use crate::coverage::Coverage;
use crate::request::{Active, Error, Operation};
use crate::wire::flag;
use drivers::hal::{Instant, Window};

impl<T: Copy> Client<T> {
    /// Puts a request into the table.
    pub(super) fn insert(
        &mut self,
        tag: Option<T>,
        operation: Operation,
        offset: u64,
        data: Window,
    ) -> Option<u16> {
        let slot = self.free.pop()?;
        self.turn += 1;
        let active = Active {
            tag,
            operation,
            offset,
            data,
            turn: self.turn,
            done: 0,
            part: 0,
            flushing: false,
            on: None,
            is_sent: false,
            cookie: 0,
            sent_at: Instant::ZERO,
            mark: self.acknowledged,
            known_losses: self.losses_reported,
            waiting_since: None,
            coverage: Coverage::default(),
            chunks: 0,
            error: None,
        };
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            *place = Some(active);
        }
        Some(slot)
    }

    pub(super) fn active(&mut self, slot: u16) -> Option<&mut Active<T>> {
        self.slots.get_mut(usize::from(slot))?.as_mut()
    }

    /// Whether the step of a request carries FUA.
    pub(super) fn carries_fua(&self, active: &Active<T>) -> bool {
        let durable = matches!(active.operation, Operation::Write { durable: true });
        let changes = !matches!(active.operation, Operation::Read) && !active.is_flush();
        changes && self.offers(flag::FUA) && (durable || self.writes_through())
    }

    /// Handles the complete reply to the step of a request, which is not in flight any more.
    pub(super) fn end_step(&mut self, slot: u16) {
        let Some(Some(active)) = self.slots.get(usize::from(slot)).copied() else { return };
        if let Some(number) = active.error {
            self.stats.errors += 1;
            self.notice(Notice::Failed(number));
            return self.finish(slot, Err(Error::of(number)));
        }
        if active.is_flush() {
            self.stable = self.stable.max(active.mark);
            return self.finish(slot, Ok(()));
        }
        let fua = self.carries_fua(&active);
        let changes = active.operation != Operation::Read;
        self.acknowledged += u64::from(changes && !fua && self.has_cache());
        let durable = matches!(active.operation, Operation::Write { durable: true });
        // The write itself is durable with FUA; earlier writes may not be.
        let flushes = durable && self.has_cache() && (!fua || self.stable < active.mark);
        let Some(active) = self.active(slot) else { return };
        active.done += active.part as usize;
        active.waiting_since = None;
        let moves_data = matches!(active.operation, Operation::Read | Operation::Write { .. });
        let is_whole = !moves_data || active.done >= active.data.len();
        if is_whole && !flushes {
            return self.finish(slot, Ok(()));
        }
        active.restart();
        active.flushing = is_whole;
        match is_whole {
            true => self.flushes.push_back(slot),
            false => self.waiting.push_front(slot),
        }
    }

    /// Ends a request, and queues its completion.
    pub(super) fn finish(&mut self, slot: u16, result: Result<(), Error>) {
        let Some(place) = self.slots.get_mut(usize::from(slot)) else { return };
        let Some(active) = place.take() else { return };
        self.free.push(slot);
        let Some(tag) = active.tag else { return };
        let result = result.and_then(|()| self.report_loss(&active));
        self.done.push_back((tag, result));
    }

    /// The result of a successful request with regard to losses. All requests that were submitted before the first
    /// report of a loss report it.
    fn report_loss(&mut self, active: &Active<T>) -> Result<(), Error> {
        if active.known_losses == self.losses {
            return Ok(());
        }
        let error = match self.loss_reporting {
            Losses::ToFlush if !active.is_durable() => return Ok(()),
            Losses::ToFlush => Error::Io,
            Losses::ToAll => Error::Lost,
        };
        self.losses_reported = self.losses;
        Err(error)
    }

    /// Records a loss if no connection lives any more that was open when the server acknowledged the unflushed writes.
    pub(super) fn note_loss(&mut self) {
        let ready = self.connections.iter().filter(|connection| connection.is_ready());
        let floor = ready.map(|connection| connection.since).min().unwrap_or(self.acknowledged);
        if self.stable < floor {
            self.stable = floor;
            self.losses += 1;
            self.stats.losses += 1;
            self.notice(Notice::WritesLost);
        }
    }

    /// Puts the requests of a connection that has ended back into the queues, in the order of their submission.
    pub(super) fn take_back(&mut self, connection: usize, now: Instant) {
        for (slot, active) in (0u16..).zip(&mut self.slots) {
            let Some(active) = active else { continue };
            if active.on != Some(connection as u16) {
                continue;
            }
            active.restart();
            active.waiting_since.get_or_insert(now);
            self.stats.replays += 1;
            match active.is_flush() {
                true => self.flushes.push_back(slot),
                false => self.waiting.push_back(slot),
            }
        }
        let slots = &self.slots;
        let turn = |slot: &u16| {
            slots.get(usize::from(*slot)).and_then(Option::as_ref).map_or(0, |active| active.turn)
        };
        self.waiting.make_contiguous().sort_unstable_by_key(turn);
        self.flushes.make_contiguous().sort_unstable_by_key(turn);
    }

    /// Fails the queued requests that have waited too long for a connection. Returns when the next one has.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Instant> {
        let is_up = self.connections.iter().any(|connection| connection.is_ready());
        let mut next = None;
        self.stamped = self.turn;
        for slot in 0..self.slots.len() as u16 {
            let give_up = self.settings.give_up;
            let Some(active) = self.active(slot).filter(|active| active.on.is_none()) else {
                continue;
            };
            if active.waiting_since.is_none() && is_up {
                continue;
            }
            let end = *active.waiting_since.get_or_insert(now) + give_up;
            if end <= now {
                self.waiting.retain(|other| *other != slot);
                self.flushes.retain(|other| *other != slot);
                self.finish(slot, Err(Error::Io));
            } else {
                next = Instant::first([next, Some(end)]);
            }
        }
        next
    }
}
