//! Requests of the mirror's user: their order, their steps on the members, and their completion.

use super::buffers::Piece;
use super::issue::Job;
use super::status::Why;
use super::{Mirror, Resync};
use crate::volume::{Completion, Operation, Request, VolumeError};
use drivers::hal::{Features, Instant, Window};

/// State of a request on a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    None,
    Sent,
    Ended(Result<(), VolumeError>),
}

/// A request of the user.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub request: Request,
    steps: [Step; 2],
    /// Bounce buffer for its data; None if members access the user's memory.
    piece: Option<Piece>,
    /// It was issued to members.
    issued: bool,
    /// A flush that makes the regions in [`Mirror::flushing`] durable.
    flushes: bool,
    /// When it was issued to members, or before that when it arrived.
    pub since: Instant,
    /// When the first member completed it.
    first_done: Option<Instant>,
}

impl Slot {
    pub fn new(request: Request, now: Instant) -> Self {
        let steps = [Step::None; 2];
        let (piece, first_done) = (None, None);
        Slot { request, steps, piece, issued: false, flushes: false, since: now, first_done }
    }

    /// Allows a retry on a member that is in sync again. Not for writes, which it has got while it was syncing.
    pub fn allow_retry(&mut self, member: usize) {
        if let (false, Step::Ended(_)) = (self.writes(), self.steps[member]) {
            self.steps[member] = Step::None;
        }
    }

    /// Whether it is a read.
    pub fn reads(&self) -> bool {
        self.request.operation == Operation::Read
    }

    /// Whether a member reads straight into the user's memory.
    pub fn reads_into_users_memory(&self) -> bool {
        self.issued && self.reads() && self.piece.is_none()
    }

    /// Since when the request waits for this member alone; None if it does not.
    pub fn waits_for(&self, member: usize) -> Option<Instant> {
        match self.steps {
            steps if steps[member] != Step::Sent => None,
            _ if self.reads() => Some(self.since),
            steps => self.first_done.filter(|_| steps[1 - member] == Step::Ended(Ok(()))),
        }
    }

    /// Whether it changes sectors.
    pub fn writes(&self) -> bool {
        match self.request.operation {
            Operation::Read | Operation::Flush => false,
            Operation::Write { .. }
            | Operation::Discard { .. }
            | Operation::WriteZeroes { .. }
            | Operation::SecureErase { .. } => true,
        }
    }

    pub fn sectors(&self) -> u64 {
        match self.request.operation {
            Operation::Read | Operation::Write { .. } | Operation::Flush => {
                self.request.data.len() as u64 / 512
            }
            Operation::Discard { sectors }
            | Operation::WriteZeroes { sectors }
            | Operation::SecureErase { sectors } => sectors.into(),
        }
    }

    /// Feature that a member needs for it.
    fn feature(&self) -> Features {
        match self.request.operation {
            Operation::Discard { .. } => Features::DISCARD,
            Operation::WriteZeroes { .. } => Features::WRITE_ZEROES,
            _ => Features::empty(),
        }
    }

    fn is_flush(&self) -> bool {
        self.request.operation == Operation::Flush
    }

    /// Whether its success promises that earlier writes are durable.
    fn is_durable(&self) -> bool {
        self.is_flush() || self.request.operation == Operation::Write { durable: true }
    }

    fn overlaps(&self, sector: u64, sectors: u64) -> bool {
        !self.is_flush()
            && self.request.sector < sector + sectors
            && sector < self.request.sector + self.sectors()
    }
}

/// Reason for leaving out a member with this result of a request.
fn why(result: Option<Result<(), VolumeError>>) -> Why {
    match result {
        Some(Err(error)) => Why::Failed(error),
        _ => Why::Failed(VolumeError::Io),
    }
}

/// Whether the request caused the error, not the member.
fn is_request_error(error: VolumeError) -> bool {
    match error {
        VolumeError::Busy | VolumeError::Io | VolumeError::Lost => false,
        VolumeError::Invalid
        | VolumeError::PastEnd
        | VolumeError::ReadOnly
        | VolumeError::Reserved
        | VolumeError::Unsupported => true,
    }
}

impl Mirror {
    pub(super) fn user_request(&self, slot: usize) -> Result<Request, VolumeError> {
        let slot = self.slots.get(slot).ok_or(VolumeError::Invalid)?;
        let sector = if slot.is_flush() { 0 } else { Self::on_member(slot.request.sector) };
        let data = self.data_of(&slot);
        Ok(Request { sector, data, ..slot.request })
    }

    /// The memory that members access for a request.
    fn data_of(&self, slot: &Slot) -> Window {
        let data = slot.request.data;
        slot.piece.map_or(data, |piece| self.buffers.window(piece, data.len()))
    }

    /// Whether a request needs a bounce buffer, because a member that may access the memory of given-up requests may
    /// have to be abandoned. The only member in use is never abandoned.
    fn needs_piece(&self, slot: &Slot) -> bool {
        let needs =
            |member: &super::Member| member.is_written() && !member.volume.releases_memory();
        !slot.request.data.is_empty()
            && self.members.iter().all(super::Member::is_written)
            && self.members.iter().any(needs)
            && self.buffers.capacity() > 0
    }

    /// Allocates the bounce buffer that a request needs; false if none is free now.
    fn take_piece(&mut self, number: usize, slot: &Slot) -> bool {
        if !self.needs_piece(slot) {
            return true;
        }
        let Some(piece) = self.buffers.take(slot.request.data.len()) else { return false };
        let window = self.buffers.window(piece, slot.request.data.len());
        // Both have the same length.
        let copied = !slot.writes() || window.write_window(0, &slot.request.data).is_ok();
        debug_assert!(copied, "no request is larger than the memory");
        if let Some(known) = self.slots.get_mut(number) {
            known.piece = Some(piece);
        }
        true
    }

    /// Releases the bounce buffer of a request, unless an abandoned member may still access it.
    fn give_piece(&mut self, slot: &Slot) {
        let Some(piece) = slot.piece else { return };
        let user = (0..2).find(|&n| self.members[n].abandoned && slot.steps[n] != Step::None);
        match user {
            Some(member) => self.members[member].held.push(piece),
            None => self.buffers.give(piece),
        }
    }

    /// Whether an issued write overlaps a range of sectors.
    pub(super) fn is_written_to(&self, sector: u64, sectors: u64) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|slot| slot.issued && slot.writes() && slot.overlaps(sector, sectors))
    }

    /// Issues waiting requests that can start.
    pub(super) fn start_waiting(&mut self) -> bool {
        let mut moved = false;
        let mut at = 0;
        // A request that waits for a bounce buffer is not overtaken by later requests that need a smaller one.
        let mut short = false;
        while let Some(&number) = self.waiting.get(at) {
            let Some(slot) = self.slots.get(number) else { break };
            if self.log.failed && slot.writes() {
                self.waiting.remove(at);
                self.finish(number, Err(VolumeError::Io));
                moved = true;
                continue;
            }
            let startable = self.may_start(&slot, at) && !(short && self.needs_piece(&slot));
            if startable && self.take_piece(number, &slot) {
                self.waiting.remove(at);
                self.start(number);
                moved = true;
            } else {
                short |= startable;
                at += 1;
            }
        }
        moved
    }

    /// Whether the request at a place of the queue may be issued: no earlier request overlaps it, and the record marks
    /// the regions that it writes.
    fn may_start(&mut self, slot: &Slot, place: usize) -> bool {
        if slot.is_flush() {
            return true;
        }
        let (sector, sectors) = (slot.request.sector, slot.sectors());
        let mut earlier = self.waiting.iter().take(place);
        let overtakes = earlier.any(|&other| {
            self.slots.get(other).is_some_and(|other| {
                (other.writes() || slot.writes()) && other.overlaps(sector, sectors)
            })
        });
        if overtakes || self.is_written_to(sector, sectors) {
            return false;
        }
        if !slot.writes() {
            return true;
        }
        !self.resync.claims(sector, sectors) && self.log.mark(self.regions(sector, sectors))
    }

    fn start(&mut self, number: usize) {
        let Some(slot) = self.slots.get(number) else { return };
        let mut steps = [Step::None; 2];
        let mut flushes = false;
        if slot.writes() || slot.is_flush() {
            for (member, step) in steps.iter_mut().enumerate() {
                if self.members[member].is_written() {
                    *step = Step::Sent;
                }
            }
            if slot.writes() && steps.contains(&Step::None) {
                let regions = self.regions(slot.request.sector, slot.sectors());
                self.stale.set_all(regions);
            }
            if slot.is_flush() && self.flushing.first().is_none() {
                core::mem::swap(&mut self.flushing, &mut self.unflushed);
                flushes = true;
            }
        } else {
            steps[self.fastest()] = Step::Sent;
        }
        let now = self.clock.now();
        if let Some(known) = self.slots.get_mut(number) {
            *known = Slot { steps, issued: true, flushes, since: now, ..slot };
        }
        if slot.reads() {
            // The timeout of a write begins with the first member's completion.
            self.clock.wake_at(now + self.timeout);
        }
        for (member, step) in steps.into_iter().enumerate() {
            if step == Step::Sent {
                self.issue(member, Job::User(number));
            }
        }
    }

    /// The member to read from: the one with fewer jobs in flight, or else the one that completes
    /// most writes first.
    fn fastest(&self) -> usize {
        if !self.members.iter().all(super::Member::is_in_sync) {
            return self.source;
        }
        let burden = |n: usize| 8 * self.members[n].in_flight as i32 - self.members[n].lead / 8;
        usize::from(burden(1) < burden(0))
    }

    /// Handles the end of a request on a member.
    pub(super) fn end_step(
        &mut self,
        number: usize,
        member: usize,
        result: Result<(), VolumeError>,
    ) {
        if result == Err(VolumeError::Lost) {
            self.handle_loss(member);
            if self.members[member].is_in_sync() {
                // The last member in sync: it executes the request again, and the next flush reports the loss.
                return self.issue(member, Job::User(number));
            }
        }
        let Some(mut slot) = self.slots.get(number) else { return };
        if result == Err(VolumeError::Unsupported) {
            // No later request may cost a member for this.
            self.refused |= slot.feature();
        }
        if result.is_ok() {
            slot.first_done.get_or_insert(self.clock.now());
        }
        let first = slot.steps[1 - member] == Step::Sent;
        slot.steps[member] = Step::Ended(result);
        if let Some(known) = self.slots.get_mut(number) {
            *known = slot;
        }
        if slot.writes() && first {
            self.members[member].lead = (self.members[member].lead + 1).min(64);
            self.members[1 - member].lead = (self.members[1 - member].lead - 1).max(-64);
        }
        if slot.steps.contains(&Step::Sent) {
            self.clock.wake_at(self.clock.now() + self.timeout);
            return;
        }
        if slot.writes() || slot.is_flush() {
            self.end_write(number, &slot);
        } else {
            self.end_read(number, member, result);
        }
    }

    fn end_read(&mut self, number: usize, member: usize, result: Result<(), VolumeError>) {
        let in_sync = self.members[member].is_in_sync();
        let other = 1 - member;
        let tried = self.slots.get(number).is_some_and(|slot| slot.steps[other] != Step::None);
        match result {
            Ok(()) if in_sync => self.finish(number, Ok(())),
            // Data from a member that was left out meanwhile may be stale.
            _ if self.members[other].is_in_sync() && !tried => {
                if self.members[member].abandoned
                    && let Some(slot) = self.slots.get(number)
                {
                    // The abandoned member may still read into the piece. The other one is the last in sync and is
                    // not abandoned, so it needs no piece.
                    self.give_piece(&slot);
                    if let Some(slot) = self.slots.get_mut(number) {
                        slot.piece = None;
                    }
                }
                if let Some(slot) = self.slots.get_mut(number) {
                    slot.steps[other] = Step::Sent;
                }
                self.issue(other, Job::User(number));
            }
            Ok(()) => self.finish(number, Err(VolumeError::Io)),
            Err(error) => self.finish(number, Err(error)),
        }
    }

    /// Handles the end of a write or a flush on all members.
    fn end_write(&mut self, number: usize, slot: &Slot) {
        let ended = |n: usize| match slot.steps[n] {
            Step::Ended(result) => Some(result),
            Step::None | Step::Sent => None,
        };
        let succeeded = (0..2).any(|n| self.members[n].is_in_sync() && ended(n) == Some(Ok(())));
        // A member came back into sync after the request was issued, and the one that executed it was left out.
        let untried = (0..2).find(|&n| self.members[n].is_in_sync() && slot.steps[n] == Step::None);
        if let (false, Some(member)) = (succeeded, untried) {
            if let Some(known) = self.slots.get_mut(number) {
                known.steps[member] = Step::Sent;
            }
            return self.issue(member, Job::User(number));
        }
        let error = (0..2).find_map(|n| ended(n).and_then(Result::err));
        let reports_loss = slot.is_durable() && core::mem::take(&mut self.lost);
        let result = match (succeeded, error) {
            (true, _) if reports_loss => Err(VolumeError::Io),
            (true, _) => Ok(()),
            (false, error) => Err(error.unwrap_or(VolumeError::Io)),
        };
        if succeeded {
            (0..2)
                .filter(|&n| ended(n).is_some_and(|r| r.is_err()))
                .for_each(|n| self.drop_member(n, why(ended(n))));
        } else if !result.is_err_and(is_request_error) {
            // Members may differ now, and the request fails.
            let other = 1 - self.source;
            self.drop_member(other, why(ended(other)));
            if slot.writes() {
                self.stale.set_all(self.regions(slot.request.sector, slot.sectors()));
            }
        }
        if slot.writes() && self.is_cached() {
            self.unflushed.set_all(self.regions(slot.request.sector, slot.sectors()));
        }
        if slot.flushes {
            if result.is_err() {
                self.unflushed.add(&self.flushing);
            }
            self.flushing.clear_all();
        }
        if result.is_ok() && self.log.drop_generation > self.log.durable {
            self.unlogged.push_back(number);
        } else {
            self.finish(number, result);
        }
    }

    /// Completes requests that waited for a record that a member is left out.
    pub(super) fn complete_logged(&mut self) -> bool {
        let result = match (self.log.drop_generation <= self.log.durable, self.log.failed) {
            (true, _) => Ok(()),
            (false, true) => Err(VolumeError::Io),
            (false, false) => return false,
        };
        let mut moved = false;
        while let Some(number) = self.unlogged.pop_front() {
            self.finish(number, result);
            moved = true;
        }
        moved
    }

    fn finish(&mut self, number: usize, result: Result<(), VolumeError>) {
        if let Some(slot) = self.slots.remove(number) {
            if result.is_ok() && slot.reads() && slot.piece.is_some() {
                // Both have the same length.
                let _ = slot.request.data.write_window(0, &self.data_of(&slot));
            }
            self.give_piece(&slot);
            // The user cannot act on a member's `Lost` or `Busy`.
            let result = result.map_err(|error| match error {
                VolumeError::Lost | VolumeError::Busy => VolumeError::Io,
                error => error,
            });
            self.done.push_back(Completion { tag: slot.request.tag, result });
        }
    }
}

impl Resync {
    /// Whether a range of sectors is being copied, so that no write to it may start.
    pub fn claims(&self, sector: u64, sectors: u64) -> bool {
        self.claimed().is_some_and(|claim| sector < claim.end && claim.start < sector + sectors)
    }
}
