//! Keeps the record on the members up to date: which regions may differ, and whether a member is left out.

use super::issue::Job;
use super::status::{MemberState, Why};
use super::superblock::{DISTANCE, SIZE, Superblock};
use super::{Bitmap, Mirror};
use crate::volume::{Operation, Request, Tag, VolumeError};
use drivers::hal::{Instant, Window};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    /// The record is being written.
    Writing {
        /// Members that have not ended.
        left: usize,
        /// Members that the record was sent to.
        writers: [bool; 2],
        /// Members that have written it.
        done: [bool; 2],
        /// When it was sent.
        since: Instant,
        /// When the first member had written it.
        first_done: Option<Instant>,
    },
}

/// The record on the members, and the next one.
pub(super) struct Log {
    /// Memory for two records: an abandoned member may still read one of them.
    memory: Window,
    /// Which of the two is the record that is being written.
    place: usize,
    /// Which of the two an abandoned member may still read.
    held: Option<usize>,
    state: State,
    /// Generation of the record on the members.
    pub durable: u64,
    /// Generation of the record that is being written, or was written last.
    writing: u64,
    /// Generation that is to be written.
    wanted: u64,
    /// Regions marked by both the record on the members and the one that is being written.
    pub marked: Bitmap,
    next: Bitmap,
    /// The next record says that the other member is left out.
    pub alone: bool,
    /// First generation that records the last drop of a member.
    pub drop_generation: u64,
    /// The last member failed to write the record; `tend` tries again.
    pub failed: bool,
}

impl Log {
    pub fn new(memory: Window) -> Self {
        Log {
            memory,
            place: 0,
            held: None,
            state: State::Idle,
            durable: 0,
            writing: 0,
            wanted: 0,
            marked: Bitmap::new(),
            next: Bitmap::new(),
            alone: false,
            drop_generation: 0,
            failed: false,
        }
    }

    /// Continues from a generation that is on the members, with these marks.
    pub fn begin(&mut self, generation: u64, marked: &Bitmap, alone: bool) {
        (self.durable, self.writing, self.wanted) = (generation, generation, generation);
        self.marked.copy(marked);
        self.alone = alone;
    }

    /// Whether the record that is being written, or a later one that is wanted, marks these regions.
    fn will_mark(&self, regions: core::ops::Range<usize>) -> bool {
        self.wanted > self.writing || self.state != State::Idle && self.next.contains(regions)
    }

    /// Whether these regions are marked. If not, requests a record that marks them.
    pub fn mark(&mut self, regions: core::ops::Range<usize>) -> bool {
        let marked = self.marked.contains(regions.clone());
        if !marked && !self.will_mark(regions) {
            self.want();
        }
        marked
    }

    /// When the other member finished a record that this member still writes.
    pub fn waits_for(&self, member: usize) -> Option<Instant> {
        match self.state {
            State::Writing { left: 1, writers, done, first_done, .. } if writers[member] => {
                first_done.filter(|_| !done[member])
            }
            _ => None,
        }
    }

    /// When the write of the current record began; None if no record is being written.
    pub fn writing_since(&self) -> Option<Instant> {
        match self.state {
            State::Writing { since, .. } => Some(since),
            State::Idle => None,
        }
    }

    /// Keeps the record's memory if an abandoned member has not finished writing it, because the member may still read
    /// it.
    pub fn abandon(&mut self, member: usize) {
        if let State::Writing { writers, done, .. } = self.state
            && writers[member]
            && !done[member]
        {
            self.held = Some(self.place);
        }
    }

    /// Releases the memory of a record that an abandoned member could read.
    pub fn reclaim(&mut self) {
        self.held = None;
    }

    /// The record that is being written.
    fn record(&self) -> Window {
        self.memory.slice(self.place * DISTANCE, SIZE).unwrap_or(Window::empty())
    }

    /// Requests a record of the current state; returns its generation.
    pub fn want(&mut self) -> u64 {
        self.wanted = self.wanted.max(self.writing + 1);
        self.wanted
    }
}

impl Mirror {
    pub(super) fn log_request(&self, member: usize) -> Request {
        let sector = (self.members[member].next_record * DISTANCE / 512) as u64;
        let data = self.log.record();
        Request { tag: Tag::default(), operation: Operation::Write { durable: true }, sector, data }
    }

    /// Regions in which members may differ, or may come to differ by requests in flight.
    pub(super) fn differing(&self, into: &mut Bitmap) {
        into.copy(&self.stale);
        into.add(&self.unflushed);
        into.add(&self.flushing);
        into.add(&self.resync.copied_regions);
        for slot in self.slots.iter().filter(|slot| slot.writes()) {
            into.set_all(self.regions(slot.request.sector, slot.sectors()));
        }
    }

    /// Writes the record, if one is wanted.
    pub(super) fn advance_log(&mut self) -> bool {
        let Some(shape) = self.shape else { return false };
        let idle = self.log.state == State::Idle && !self.log.failed;
        if !idle || self.log.wanted <= self.log.writing {
            return false;
        }
        let mut next = core::mem::replace(&mut self.log.next, Bitmap::new());
        self.differing(&mut next);
        self.log.writing += 1;
        // Until the record is written, only regions that both records mark are certain to be marked.
        self.log.marked.keep(&next);
        let (generation, alone) = (self.log.writing, self.log.alone);
        let record = Superblock { shape, generation, alone, dirty: next };
        self.log.place = self.log.held.map_or(0, |held| 1 - held);
        // The window has the size of a record.
        let _ = self.log.record().write(0, &record.emit());
        self.log.next = record.dirty;
        let writers = [0, 1].map(|n| self.members[n].is_in_sync());
        let left = writers.iter().filter(|writes| **writes).count();
        let since = self.clock.now();
        self.log.state =
            State::Writing { left, writers, done: [false; 2], since, first_done: None };
        for (member, writes) in writers.into_iter().enumerate() {
            if writes {
                self.issue(member, Job::Log);
            }
        }
        true
    }

    pub(super) fn end_log(&mut self, member: usize, result: Result<(), VolumeError>) {
        match result {
            Ok(()) => self.members[member].next_record ^= 1,
            // After an error the record may be torn. `next_record` stays, so that the next write replaces it and not
            // the valid one.
            Err(VolumeError::Lost) => {
                self.handle_loss(member);
                if self.members[member].is_in_sync() {
                    // The last member in sync: it writes the record again, and the next flush reports the loss.
                    return self.issue(member, Job::Log);
                }
            }
            Err(error) => self.drop_member(member, Why::Failed(error)),
        }
        let State::Writing { left, writers, mut done, since, first_done } = self.log.state else {
            return;
        };
        done[member] = result.is_ok();
        if left > 1 {
            let now = self.clock.now();
            let first_done = first_done.or(result.is_ok().then_some(now));
            let left = left - 1;
            self.log.state = State::Writing { left, writers, done, since, first_done };
            self.clock.wake_at(now + self.timeout);
            return;
        }
        self.log.state = State::Idle;
        let in_sync = [0, 1].map(|n| self.members[n].is_in_sync() && writers[n]);
        if in_sync.contains(&true) && (0..2).all(|n| !in_sync[n] || done[n]) {
            self.log.durable = self.log.writing;
            self.log.marked.copy(&self.log.next);
            return;
        }
        // Requests that wait for the record fail.
        self.log.failed = true;
        self.log.want();
        self.log.marked.clear_all();
    }

    /// A member may have lost unflushed writes. It is left out. If it is the last one in sync, no copy
    /// exists, and the user's next flush fails.
    pub(super) fn handle_loss(&mut self, member: usize) {
        let [one, other] = [member, 1 - member].map(|n| self.members[n].is_in_sync());
        self.lost |= one && !other;
        self.drop_member(member, Why::Failed(VolumeError::Lost));
    }

    /// Leaves out a member: it gets no more requests, and that is recorded before any write that it may have missed
    /// completes. The last member in sync stays.
    pub(super) fn drop_member(&mut self, member: usize, why: Why) {
        let other = 1 - member;
        let in_sync = self.members[member].is_in_sync();
        if in_sync && !self.members[other].is_in_sync() || !self.members[member].is_written() {
            return;
        }
        let mut stale = Bitmap::new();
        self.differing(&mut stale);
        stale.add(&self.log.marked);
        self.stale = stale;
        self.source = other;
        self.resync.growth = None;
        if in_sync || !self.log.alone {
            self.log.alone = true;
            self.log.drop_generation = self.log.want();
        }
        self.set_member(member, MemberState::Out);
        self.members[member].retry_at = self.resync.not_before;
        let mut status = self.status.get();
        status.dropped += 1;
        status.why[member] = Some(why);
        self.status.set(status);
        self.publish_status();
    }
}
