//! Reads the records of the members, at the start and when a member returns, and starts the mirror from them.

use super::bitmap::Bitmap;
use super::issue::Job;
use super::status::{MemberState, MirrorState};
use super::superblock::{SIZE_ON_DISK, Superblock};
use super::{Mirror, RESERVED, Shape};
use crate::volume::VolumeError;
use core::time::Duration;
use drivers::hal::Instant;

/// Bytes for both members' records, and for the one that is written.
pub(super) const MEMORY: usize = 3 * SIZE_ON_DISK;
/// Smallest region in sectors.
pub(super) const MIN_REGION: u64 = 8;
/// Delay before a member that is out is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// Interval at which the progress of a copy is recorded.
const CHECKPOINT: Duration = Duration::from_secs(2);

/// How the mirror starts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    /// A new mirror with this UUID.
    Create([u8; 16]),
    /// From the members' records. With `force`, the record of one member is enough.
    Assemble { force: bool },
}

impl Mirror {
    /// Reads the records of members that are unknown or out, once that is possible.
    pub(super) fn check_members(&mut self, now: Instant) {
        self.resync.not_before = now + PAUSE;
        self.log.failed = false;
        if now >= self.resync.checkpoint_at {
            self.resync.checkpoint_at = now + CHECKPOINT;
            self.resync.checkpoint = self.resync.copied_regions.first().is_some();
        }
        if self.shape.is_none() {
            self.try_start();
        }
        for n in 0..2 {
            self.reclaim(n);
            let running = self.shape.is_some();
            let member = &mut self.members[n];
            let wanted = match member.state {
                MemberState::Unknown => !member.was_read || running,
                MemberState::Out => running && !self.detached.get()[n],
                MemberState::InSync | MemberState::Syncing => false,
            };
            // The member may still execute given-up requests until it is idle.
            let settled = member.in_flight == 0 && member.volume.is_idle();
            let idle = settled && !member.reading && member.retry_at <= now;
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
            // The member is smaller than its record says: wait until it has its size again.
            return;
        }
        member.was_read = true;
        member.next_record = newest.as_ref().map_or(0, |(place, _)| 1 - place);
        member.record = newest.map(|(_, record)| record);
        let Some(shape) = self.shape else { return self.try_start() };
        // A member returned. It is accepted if it has a record of this mirror, is blank, or has the remnant of a
        // record.
        let zeroes = bytes.iter().all(|byte| *byte == 0);
        let blank = member.record.is_none() && (zeroes || Superblock::has_remnant(&bytes));
        let ours = match &member.record {
            Some(record) => record.grown_to(shape).is_some(),
            None => blank,
        };
        if ours && !member.is_written() {
            self.resync.stamp = blank;
            self.set_member(n, MemberState::Syncing);
            if zeroes {
                // A new disk, or memory that was lost: all regions are to be copied, which is recorded
                // on the other member before this one gets a record again.
                self.stale.set_all(0..shape.sectors.div_ceil(shape.region_sectors) as usize);
                self.log.alone = true;
                self.log.drop_generation = self.log.want();
            }
        }
    }

    /// Publishes the state of the mirror.
    fn set_state(&mut self, state: MirrorState) {
        let mut status = self.status.get();
        status.state = state;
        self.status.set(status);
    }

    /// Starts the mirror, if enough records were read.
    fn try_start(&mut self) {
        let read = [0, 1].map(|n| self.members[n].was_read);
        let records = [0, 1].map(|n| self.members[n].record.clone());
        let generations = records.iter().flatten().map(|record| record.generation);
        let generation = generations.max().unwrap_or(0);
        let force = match self.start {
            Start::Create(uuid) if read == [true; 2] => return self.start_new(uuid, generation),
            Start::Create(_) => return,
            Start::Assemble { force } => force,
        };
        match records {
            [Some(first), Some(second)] => {
                // One record may be from before the mirror grew.
                let shapes = [first.shape, second.shape];
                let shape = shapes[usize::from(shapes[1].sectors > shapes[0].sectors)];
                match (first.grown_to(shape), second.grown_to(shape)) {
                    (Some(first), Some(second)) => self.start_both(&first, &second, generation),
                    _ => self.set_state(MirrorState::Strangers),
                }
            }
            [None, None] if read == [true; 2] => self.set_state(MirrorState::Strangers),
            [None, None] => {}
            [Some(record), None] => self.start_alone(0, &record, force),
            [None, Some(record)] => self.start_alone(1, &record, force),
        }
    }

    fn start_new(&mut self, uuid: [u8; 16], generation: u64) {
        let sectors = |n: usize| self.members[n].volume.geometry().sectors;
        let shape = Shape::of(uuid, sectors(0).min(sectors(1)));
        self.stale.set_all(0..shape.sectors.div_ceil(shape.region_sectors) as usize);
        self.run(shape, 0, generation);
        self.resync.stamp = true;
        self.set_member(1, MemberState::Syncing);
    }

    /// Starts with both members.
    fn start_both(&mut self, first: &Superblock, second: &Superblock, generation: u64) {
        let mut dirty = first.dirty.clone();
        dirty.add(&second.dirty);
        let source = match (first.alone, second.alone) {
            (true, false) => 0,
            (false, true) => 1,
            // If both say that they are alone, the older record is from before its member was left out.
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

    /// Starts with one member. If its record does not say that the other one was left out, the other one may be newer,
    /// and only `force` starts the mirror.
    fn start_alone(&mut self, source: usize, record: &Superblock, force: bool) {
        if !record.alone && !force {
            return self.set_state(MirrorState::Alone);
        }
        self.stale = record.dirty.clone();
        if !record.alone {
            // It is unknown where the other member differs.
            let regions = record.shape.sectors.div_ceil(record.shape.region_sectors);
            self.stale.set_all(0..regions as usize);
        }
        self.run(record.shape, source, record.generation);
        self.set_member(1 - source, MemberState::Out);
    }

    /// Runs with one member in sync. A record that says so is written before any request completes.
    fn run(&mut self, shape: Shape, source: usize, generation: u64) {
        self.shape = Some(shape);
        self.source = source;
        self.set_member(source, MemberState::InSync);
        self.log.begin(generation, &Bitmap::new(), true);
        self.log.drop_generation = self.log.want();
        self.set_state(MirrorState::Running);
        for member in &mut self.members {
            member.record = None;
        }
    }
}
