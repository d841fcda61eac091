//! Requests in the table: their steps, results, losses, and the paths that they may take.

use super::{Client, Notice};
use crate::Losses;
use crate::controller::Path;
use crate::request::{Active, Error, Operation};
use core::time::Duration;
use drivers::hal::{Instant, Window};

/// Attempts that a controller may answer with an error before the request fails.
const MOST_RETRIES: u8 = 5;
/// Delay before the first of them; the later ones wait longer.
const RETRY: Duration = Duration::from_millis(100);

impl<T: Copy> Client<T> {
    /// Puts a request into the table.
    pub(super) fn insert(
        &mut self,
        tag: T,
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
            flushes: if operation == Operation::Flush { self.unflushed() } else { 0 },
            flushing: false,
            on: None,
            sent_at: Instant::ZERO,
            mark: 0,
            known_losses: self.losses_reported,
            waiting_since: None,
            held: None,
            retries: 0,
        };
        *self.slots.get_mut(usize::from(slot))? = Some(active);
        Some(slot)
    }

    pub(super) fn slot(&self, slot: u16) -> Option<&Active<T>> {
        self.slots.get(usize::from(slot))?.as_ref()
    }

    pub(super) fn active(&mut self, slot: u16) -> Option<&mut Active<T>> {
        self.slots.get_mut(usize::from(slot))?.as_mut()
    }

    /// The paths with writes that no flush has covered, a bit for each.
    fn unflushed(&self) -> u16 {
        let is_dirty = |path: &Path| path.stable < path.acknowledged;
        let paths = self.paths.iter().enumerate().filter(|(_, path)| is_dirty(path));
        paths.fold(0, |bits, (number, _)| bits | 1 << number)
    }

    /// Whether the step of a request carries FUA.
    pub(super) fn carries_fua(&self, active: &Active<T>) -> bool {
        let durable = matches!(active.operation, Operation::Write { durable: true });
        let can_carry =
            matches!(active.operation, Operation::Write { .. } | Operation::WriteZeroes(_));
        can_carry && !active.flushing && (durable || self.shared.settings.write_through)
    }

    /// Handles the success of the step of a request, which is not in flight any more.
    pub(super) fn end_step(&mut self, slot: u16, path: usize) {
        let Some(active) = self.slot(slot).copied() else { return };
        if active.is_flush() {
            return self.end_flush(slot, path, active.mark);
        }
        let counts = active.changes() && !self.carries_fua(&active) && self.needs_flush(path);
        if counts && let Some(path) = self.paths.get_mut(path) {
            path.acknowledged += 1;
        }
        let durable = matches!(active.operation, Operation::Write { durable: true });
        // The write itself is durable with FUA; earlier writes may not be.
        let unflushed = if durable && self.has_cache() { self.unflushed() } else { 0 };
        let Some(active) = self.active(slot) else { return };
        active.done += active.part;
        (active.waiting_since, active.retries) = (None, 0);
        if active.done < active.length() {
            return self.waiting.push_front(slot);
        }
        if unflushed == 0 {
            return self.finish(slot, Ok(()));
        }
        (active.flushing, active.flushes) = (true, unflushed);
        self.flushes.push_back(slot);
    }

    /// A flush of a path is complete. It covers what the path had acknowledged when it was sent.
    fn end_flush(&mut self, slot: u16, path: usize, mark: u64) {
        if let Some(path) = self.paths.get_mut(path) {
            path.stable = path.stable.max(mark);
        }
        let Some(active) = self.active(slot) else { return };
        active.flushes &= !(1 << path);
        match active.flushes {
            0 => self.finish(slot, Ok(())),
            _ => self.flushes.push_back(slot),
        }
    }

    /// Sends the step of a request again after a while, or fails it. `status` is the controller's.
    pub(super) fn retry(&mut self, slot: u16, status: u16, now: Instant) {
        let Some(active) = self.active(slot) else { return };
        active.retries += 1;
        if active.retries > MOST_RETRIES {
            return self.reject(slot, status, Error::Io);
        }
        active.held = Some((now + RETRY * active.retries.into(), None));
        self.stats.retries += 1;
        self.held.push(slot);
    }

    /// Fails a request by a controller's status.
    pub(super) fn reject(&mut self, slot: u16, status: u16, error: Error) {
        self.stats.errors += 1;
        self.notice(Notice::Failed(status));
        self.finish(slot, Err(error));
    }

    /// Ends a request, and queues its completion.
    pub(super) fn finish(&mut self, slot: u16, result: Result<(), Error>) {
        let Some(place) = self.slots.get_mut(usize::from(slot)) else { return };
        let Some(active) = place.take() else { return };
        self.free.push(slot);
        let result = result.and_then(|()| self.report_loss(&active));
        self.done.push_back((active.tag, result));
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

    /// Records a loss if a path that has ended had unflushed writes. Flushes that were to cover them fail.
    pub(super) fn note_loss(&mut self, path: usize) {
        let Some(one) = self.paths.get_mut(path) else { return };
        let is_loss = one.stable < one.acknowledged;
        one.stable = one.acknowledged;
        if is_loss {
            self.losses += 1;
            self.stats.losses += 1;
            self.notice(Notice::WritesLost);
        }
        for slot in 0..self.slots.len() as u16 {
            let Some(active) = self.active(slot) else { continue };
            let was_to_cover = active.is_flush() && active.flushes & 1 << path != 0;
            active.flushes &= !(1 << path);
            if was_to_cover && is_loss && active.flushes == 0 && active.on.is_none() {
                self.flushes.retain(|other| *other != slot);
                self.held.retain(|other| *other != slot);
                self.finish(slot, Ok(()));
            }
        }
    }

    /// Puts the requests of a path that has ended back into the queues, in the order of their submission.
    pub(super) fn take_back(&mut self, path: usize, now: Instant) {
        let again = now + self.shared.settings.keepalive;
        for (slot, active) in (0u16..).zip(&mut self.slots) {
            let Some(active) = active else { continue };
            if active.on.is_none_or(|place| usize::from(place.path) != path) {
                continue;
            }
            active.on = None;
            active.waiting_since.get_or_insert(now);
            self.stats.replays += 1;
            if active.is_flush() {
                self.flushes.push_back(slot);
            } else if active.changes() {
                // The controller may still execute it.
                active.held = Some((again, Some(path as u16)));
                self.held.push(slot);
            } else {
                self.waiting.push_back(slot);
            }
        }
        self.sort();
    }

    fn sort(&mut self) {
        let slots = &self.slots;
        let turn = |slot: &u16| {
            slots.get(usize::from(*slot)).and_then(Option::as_ref).map_or(0, |active| active.turn)
        };
        self.waiting.make_contiguous().sort_unstable_by_key(turn);
        self.flushes.make_contiguous().sort_unstable_by_key(turn);
    }

    /// Queues the held steps whose time has come, or whose path is back.
    pub(super) fn release_held(&mut self, back: Option<u16>, now: Instant) {
        let mut is_changed = false;
        let mut place = 0;
        while let Some(&slot) = self.held.get(place) {
            let Some(active) = self.active(slot) else { break };
            let is_due =
                active.held.is_none_or(|(at, home)| at <= now || back.is_some() && home == back);
            if !is_due {
                place += 1;
                continue;
            }
            active.held = None;
            let is_flush = active.is_flush();
            self.held.swap_remove(place);
            if is_flush { &mut self.flushes } else { &mut self.waiting }.push_back(slot);
            is_changed = true;
        }
        if is_changed {
            self.sort();
        }
    }

    /// The ANA state of a path may have changed. Unflushed writes of a live path that is not usable are flushed over one
    /// that is: the subsystem has moved the namespace, with what its cache holds.
    pub(super) fn note_access(&mut self, path: usize, now: Instant) {
        self.timer = Some(now);
        if let Some(one) = self.paths.get_mut(path)
            && one.announced != Some(one.access)
        {
            let was_known = one.announced.replace(one.access).is_some();
            let access = one.access;
            if was_known || !access.is_usable() {
                self.notice(Notice::Access { path: path as u16, access });
            }
        }
        let Some(heir) = self.paths.iter().position(Path::is_usable) else { return };
        for number in 0..self.paths.len() {
            let Some(one) = self.paths.get_mut(number) else { break };
            if !one.is_ready() || one.is_usable() || one.stable == one.acknowledged {
                continue;
            }
            let moved = one.acknowledged - one.stable;
            one.stable = one.acknowledged;
            if let Some(heir) = self.paths.get_mut(heir) {
                heir.acknowledged += moved;
            }
            for active in self.slots.iter_mut().flatten().filter(|active| active.on.is_none()) {
                if active.flushes & 1 << number != 0 {
                    active.flushes = active.flushes & !(1 << number) | 1 << heir;
                }
            }
        }
    }

    /// Fails the queued requests that have waited too long for a path. Returns when the next one has.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Instant> {
        let is_up = self.paths.iter().any(Path::is_usable);
        let give_up = self.shared.settings.give_up;
        let mut next = None;
        self.stamped = self.turn;
        for slot in 0..self.slots.len() as u16 {
            let Some(active) = self.active(slot).filter(|active| active.on.is_none()) else {
                continue;
            };
            // A flush may wait for one path while another is up.
            if active.waiting_since.is_none() && is_up && !active.is_flush() {
                continue;
            }
            let end = *active.waiting_since.get_or_insert(now) + give_up;
            if end <= now {
                self.waiting.retain(|other| *other != slot);
                self.flushes.retain(|other| *other != slot);
                self.held.retain(|other| *other != slot);
                self.finish(slot, Err(Error::Io));
            } else {
                next = Instant::first([next, Some(end)]);
            }
        }
        next
    }
}
