//! The record is kept up to date: which regions may differ, and who is left out.

use super::issue::Job;
use super::status::{MemberState, Why};
use super::superblock::{DISTANCE, SIZE, Superblock};
use super::{Bitmap, Mirror};
use crate::volume::{Operation, Request, Tag, VolumeError};
use drivers::hal::{Instant, Window};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    /// Members that write it (so many have not ended), and those that have done it.
    Writing {
        left: usize,
        writers: [bool; 2],
        done: [bool; 2],
        /// When they were given it, and when the first of them had done it.
        since: Instant,
        answered: Option<Instant>,
    },
}

/// The record as it is on the members, and as it is to be.
pub(super) struct Log {
    /// Room for two records: a member that was let go of may still read one of them.
    memory: Window,
    /// Where in it the record is that is being written, …
    place: usize,
    /// … and the one that such a member may read.
    held: Option<usize>,
    state: State,
    /// Generations: on the members, being written (or written last), and wanted.
    pub durable: u64,
    writing: u64,
    wanted: u64,
    /// Regions marked on the members, also by the record that is being written.
    pub marked: Bitmap,
    next: Bitmap,
    /// The next record says that one member is left out.
    pub alone: bool,
    /// Generation that says of the last member that was left out that it is.
    pub dropped: u64,
    /// The last member could not write it; it is tried again when the mirror is tended.
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
            dropped: 0,
            failed: false,
        }
    }

    /// Goes on from a generation that is on the members, with these marks.
    pub fn begin(&mut self, generation: u64, marked: &Bitmap, alone: bool) {
        (self.durable, self.writing, self.wanted) = (generation, generation, generation);
        self.marked.copy(marked);
        self.alone = alone;
    }

    /// Whether a record that is on its way, or will be, marks these regions.
    fn will_mark(&self, regions: core::ops::Range<usize>) -> bool {
        self.wanted > self.writing || self.state != State::Idle && self.next.contains(regions)
    }

    /// Whether these regions are marked; if not, sees to it.
    pub fn mark(&mut self, regions: core::ops::Range<usize>) -> bool {
        let marked = self.marked.contains(regions.clone());
        if !marked && !self.will_mark(regions) {
            self.want();
        }
        marked
    }

    /// Since when the other member has done its part of a record that this one still writes.
    pub fn waits_for(&self, member: usize) -> Option<Instant> {
        match self.state {
            State::Writing { left: 1, writers, done, answered, .. } if writers[member] => {
                answered.filter(|_| !done[member])
            }
            _ => None,
        }
    }

    /// Since when a record is being written.
    pub fn under_way(&self) -> Option<Instant> {
        match self.state {
            State::Writing { since, .. } => Some(since),
            State::Idle => None,
        }
    }

    /// A member that has not written its record yet is let go of: it may still read it.
    pub fn let_go(&mut self, member: usize) {
        if let State::Writing { writers, done, .. } = self.state
            && writers[member]
            && !done[member]
        {
            self.held = Some(self.place);
        }
    }

    /// No member reads a record any more that was let go of.
    pub fn take_back(&mut self) {
        self.held = None;
    }

    /// The record that is being written.
    fn record(&self) -> Window {
        self.memory.slice(self.place * DISTANCE, SIZE).unwrap_or(Window::empty())
    }

    /// Wants the record written as things stand now; the generation that says so.
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

    /// Regions in which members may differ, or come to differ by what is about to be done.
    pub(super) fn differing(&self, into: &mut Bitmap) {
        into.copy(&self.stale);
        into.add(&self.unflushed);
        into.add(&self.flushing);
        into.add(&self.resync.copied_regions);
        for slot in self.slots.iter().filter(|slot| slot.writes()) {
            into.set_all(self.regions(slot.request.sector, slot.sectors()));
        }
    }

    /// Writes the record, if that is wanted.
    pub(super) fn go_on_log(&mut self) -> bool {
        let Some(shape) = self.shape else { return false };
        let idle = self.log.state == State::Idle && !self.log.failed;
        if !idle || self.log.wanted <= self.log.writing {
            return false;
        }
        let mut next = core::mem::replace(&mut self.log.next, Bitmap::new());
        self.differing(&mut next);
        self.log.writing += 1;
        // Until it is written, only what both records mark is marked for sure.
        self.log.marked.keep(&next);
        let (generation, alone) = (self.log.writing, self.log.alone);
        let record = Superblock { shape, generation, alone, dirty: next };
        self.log.place = self.log.held.map_or(0, |held| 1 - held);
        // A window of ours, of that size.
        let _ = self.log.record().write(0, &record.emit());
        self.log.next = record.dirty;
        let writers = [0, 1].map(|n| self.members[n].is_in_sync());
        let left = writers.iter().filter(|writes| **writes).count();
        let since = self.clock.now();
        self.log.state = State::Writing { left, writers, done: [false; 2], since, answered: None };
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
            // It may be torn, and is written again before the one that is whole.
            Err(VolumeError::Lost) => {
                self.lose(member);
                if self.members[member].is_in_sync() {
                    // The last one: it writes it, and the next flush tells.
                    return self.issue(member, Job::Log);
                }
            }
            Err(error) => self.drop_member(member, Why::Failed(error)),
        }
        let State::Writing { left, writers, mut done, since, answered } = self.log.state else {
            return;
        };
        done[member] = result.is_ok();
        if left > 1 {
            let now = self.clock.now();
            let answered = answered.or(result.is_ok().then_some(now));
            let left = left - 1;
            self.log.state = State::Writing { left, writers, done, since, answered };
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
        // Requests that wait for it fail.
        self.log.failed = true;
        self.log.want();
        self.log.marked.clear_all();
    }

    /// A member may have lost what was not flushed. It is left out; if it is the last one, nobody
    /// else has that, and the user hears of it with the next flush.
    pub(super) fn lose(&mut self, member: usize) {
        let [one, other] = [member, 1 - member].map(|n| self.members[n].is_in_sync());
        self.lost |= one && !other;
        self.drop_member(member, Why::Failed(VolumeError::Lost));
    }

    /// A member failed: it gets nothing any more, and that is written down before anything else
    /// is answered that it may have missed. The last member stays.
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
            self.log.dropped = self.log.want();
        }
        self.set_member(member, MemberState::Out);
        self.members[member].retry_at = self.resync.not_before;
        let mut status = self.status.get();
        status.dropped += 1;
        status.why[member] = Some(why);
        self.status.set(status);
        self.tell();
    }
}
