//! The mirror finds out what its members hold, at the start and when one comes back.

use super::bitmap::Bitmap;
use super::issue::Job;
use super::status::{MemberState, MirrorState};
use super::superblock::{SIZE_ON_DISK, Superblock};
use super::{Mirror, RESERVED, Shape};
use crate::volume::VolumeError;
use core::time::Duration;
use drivers::hal::Instant;

/// Both members' records, and the one that is written.
pub(super) const MEMORY: usize = 3 * SIZE_ON_DISK;
/// Smallest region in sectors.
pub(super) const MIN_REGION: u64 = 8;
/// Pause before a member that is out is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// How often it is written down how far a copy has come.
const CHECKPOINT: Duration = Duration::from_secs(2);

/// How the mirror starts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    /// A new one, with this name.
    Create([u8; 16]),
    /// From the members' records; from that of one alone, if it must be.
    Assemble { force: bool },
}

impl Mirror {
    /// Looks after members whose records are not known, and after those that are out.
    pub(super) fn tend_members(&mut self, now: Instant) {
        self.resync.not_before = now + PAUSE;
        self.log.failed = false;
        if now >= self.resync.checkpoint_at {
            self.resync.checkpoint_at = now + CHECKPOINT;
            self.resync.checkpoint = self.resync.copied_regions.first().is_some();
        }
        if self.shape.is_none() {
            self.decide();
        }
        for n in 0..2 {
            self.take_back(n);
            let running = self.shape.is_some();
            let member = &mut self.members[n];
            let wanted = match member.state {
                MemberState::Unknown => !member.was_read || running,
                MemberState::Out => running && !self.detached.get()[n],
                MemberState::InSync | MemberState::Syncing => false,
            };
            // What was given up may still be done by whoever was asked: only then it is over.
            let over = member.in_flight == 0 && member.volume.is_idle();
            let idle = over && !member.reading && member.retry_at <= now;
            let enough = self.shape.map_or(RESERVED + MIN_REGION, |s| RESERVED + s.sectors);
            if wanted && idle && member.volume.geometry().sectors >= enough {
                member.reading = true;
                self.issue(n, Job::Records);
            }
        }
    }

    pub(super) fn end_records(&mut self, n: usize, result: Result<(), VolumeError>) {
        let not_before = self.resync.not_before;
        let member = &mut self.members[n];
        member.reading = false;
        member.retry_at = not_before;
        let mut bytes = [0; SIZE_ON_DISK];
        if result.is_err() || member.records.read(0, &mut bytes).is_err() {
            return;
        }
        let newest = Superblock::newest(&bytes);
        let there = member.volume.geometry().sectors;
        if newest.as_ref().is_some_and(|(_, record)| RESERVED + record.shape.sectors > there) {
            // It is smaller than it was: that is waited for.
            return;
        }
        member.was_read = true;
        member.next_record = newest.as_ref().map_or(0, |(place, _)| 1 - place);
        member.record = newest.map(|(_, record)| record);
        let Some(shape) = self.shape else { return self.decide() };
        // Back again: its own, or one with nothing on it, or with what is left of a record.
        let zeroes = bytes.iter().all(|byte| *byte == 0);
        let blank = member.record.is_none() && (zeroes || Superblock::is_left(&bytes));
        let ours = match &member.record {
            Some(record) => record.grown_to(shape).is_some(),
            None => blank,
        };
        if ours && !member.is_written() {
            self.resync.stamp = blank;
            self.set_member(n, MemberState::Syncing);
            if zeroes {
                // A new disk, or memory that was lost: all of it is to be copied, and that is written
                // down before it has a record again.
                self.stale.set_all(0..shape.sectors.div_ceil(shape.region_sectors) as usize);
                self.log.alone = true;
                self.log.dropped = self.log.want();
            }
        }
    }

    /// It has shown by its answer that it is there.
    fn set_state(&mut self, state: MirrorState) {
        let mut status = self.status.get();
        status.state = state;
        self.status.set(status);
    }

    /// Starts the mirror, if enough is known of its members.
    fn decide(&mut self) {
        let read = [0, 1].map(|n| self.members[n].was_read);
        let records = [0, 1].map(|n| self.members[n].record.clone());
        let generations = records.iter().flatten().map(|record| record.generation);
        let generation = generations.max().unwrap_or(0);
        let force = match self.start {
            Start::Create(uuid) if read == [true; 2] => return self.make(uuid, generation),
            Start::Create(_) => return,
            Start::Assemble { force } => force,
        };
        match records {
            [Some(first), Some(second)] => {
                // One may be from before the mirror has grown.
                let shapes = [first.shape, second.shape];
                let shape = shapes[usize::from(shapes[1].sectors > shapes[0].sectors)];
                match (first.grown_to(shape), second.grown_to(shape)) {
                    (Some(first), Some(second)) => self.join(&first, &second, generation),
                    _ => self.set_state(MirrorState::Strangers),
                }
            }
            [None, None] if read == [true; 2] => self.set_state(MirrorState::Strangers),
            [None, None] => {}
            [Some(record), None] => self.start_alone(0, &record, force),
            [None, Some(record)] => self.start_alone(1, &record, force),
        }
    }

    fn make(&mut self, uuid: [u8; 16], generation: u64) {
        let sectors = |n: usize| self.members[n].volume.geometry().sectors;
        let shape = Shape::of(uuid, sectors(0).min(sectors(1)));
        self.stale.set_all(0..shape.sectors.div_ceil(shape.region_sectors) as usize);
        self.run(shape, 0, generation);
        self.resync.stamp = true;
        self.set_member(1, MemberState::Syncing);
    }

    /// Both members are there.
    fn join(&mut self, first: &Superblock, second: &Superblock, generation: u64) {
        let mut dirty = first.dirty.clone();
        dirty.add(&second.dirty);
        let source = match (first.alone, second.alone) {
            (true, false) => 0,
            (false, true) => 1,
            // The other record is from before it was left out itself.
            _ => usize::from(second.generation > first.generation),
        };
        let same = !first.alone && !second.alone && dirty == Bitmap::new();
        self.stale = dirty;
        self.run(first.shape, source, generation);
        if same {
            self.set_member(1 - source, MemberState::InSync);
            self.log.alone = false;
        } else {
            self.set_member(1 - source, MemberState::Syncing);
        }
    }

    /// One member is there. If it does not know that the other one was left out, that may be newer.
    fn start_alone(&mut self, source: usize, record: &Superblock, force: bool) {
        if !record.alone && !force {
            return self.set_state(MirrorState::Alone);
        }
        self.stale = record.dirty.clone();
        if !record.alone {
            // Nobody knows what the other one has.
            let regions = record.shape.sectors.div_ceil(record.shape.region_sectors);
            self.stale.set_all(0..regions as usize);
        }
        self.run(record.shape, source, record.generation);
        self.set_member(1 - source, MemberState::Out);
    }

    /// Runs with one member in sync. That it is alone is written down before anything is answered.
    fn run(&mut self, shape: Shape, source: usize, generation: u64) {
        self.shape = Some(shape);
        self.source = source;
        self.set_member(source, MemberState::InSync);
        self.log.begin(generation, &Bitmap::new(), true);
        self.log.dropped = self.log.want();
        self.set_state(MirrorState::Running);
        for member in &mut self.members {
            // Not needed any more.
            member.record = None;
        }
    }
}
