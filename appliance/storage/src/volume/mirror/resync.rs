//! Resynchronisation: copies stale regions to a member that missed writes.

use super::bitmap::Bitmap;
use super::grow::Growth;
use super::issue::Job;
use super::requests::Slot;
use super::status::{MemberState, Why};
use super::superblock::{DISTANCE, SIZE_ON_DISK, Superblock};
use super::{Mirror, Shape};
use crate::volume::{Operation, Request, Tag, VolumeError};
use core::ops::Range;
use drivers::hal::{Instant, Window};

/// Bytes copied at a time, and at most in one round of the loop: members in memory complete at once,
/// and would delay all other work of the loop until all regions are copied.
pub(super) const MEMORY: usize = 64 << 10;

/// Region of a part that is copied while the mirror grows: the part has no region yet.
const NO_REGION: usize = usize::MAX;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// A member without a record gets one, in both places.
    Stamping,
    /// A part of a region is to be copied once no write to it is in flight.
    Claimed(usize, Range<u64>),
    Reading(usize, Range<u64>),
    Writing(usize, Range<u64>),
    /// The copy is flushed: at checkpoints, so that a copy resumes there after a power
    /// cut, and when all regions are copied.
    Flushing,
    /// The space that the mirror grows by is copied and durable.
    Growing,
    /// All regions are copied. The record of that generation says that no member is left out.
    Recording(u64),
}

impl Phase {
    /// Whether the phase belongs to growth.
    fn is_of_growth(&self) -> bool {
        match self {
            Phase::Claimed(region, _) | Phase::Reading(region, _) | Phase::Writing(region, _) => {
                *region == NO_REGION
            }
            Phase::Growing => true,
            Phase::Idle | Phase::Stamping | Phase::Flushing | Phase::Recording(_) => false,
        }
    }
}

/// State of the copy.
pub(super) struct Resync {
    buffer: Window,
    phase: Phase,
    /// Member that got the last job of the copy.
    member: usize,
    /// When it got that job.
    since: Instant,
    /// The mirror grows.
    pub growth: Option<Growth>,
    /// A checkpoint is due: the copy is to be flushed and recorded.
    pub checkpoint: bool,
    pub checkpoint_at: Instant,
    /// A part may be copied in this round of the loop.
    pub may_copy: bool,
    /// Regions that were copied and not flushed.
    pub copied_regions: Bitmap,
    pub copied: u64,
    /// The member that is copied to has no record of this mirror.
    pub stamp: bool,
    /// When a member that fails now is tried again.
    pub not_before: Instant,
}

impl Resync {
    pub fn new(buffer: Window) -> Self {
        Resync {
            buffer,
            phase: Phase::Idle,
            member: 0,
            since: Instant::ZERO,
            growth: None,
            checkpoint: false,
            checkpoint_at: Instant::ZERO,
            may_copy: false,
            copied_regions: Bitmap::new(),
            copied: 0,
            stamp: false,
            not_before: Instant::ZERO,
        }
    }

    /// Sectors that are being copied and must not be written.
    pub fn claimed(&self) -> Option<Range<u64>> {
        match &self.phase {
            Phase::Claimed(_, part) | Phase::Reading(_, part) | Phase::Writing(_, part) => {
                Some(part.clone())
            }
            Phase::Idle
            | Phase::Stamping
            | Phase::Flushing
            | Phase::Growing
            | Phase::Recording(_) => None,
        }
    }

    /// Whether a job of the copy is in flight.
    fn is_in_flight(&self) -> bool {
        matches!(
            self.phase,
            Phase::Stamping | Phase::Reading(..) | Phase::Writing(..) | Phase::Flushing
        )
    }

    /// Whether the next part waits only for the next round of the loop.
    pub fn wants_turn(&self) -> bool {
        !self.may_copy && matches!(self.phase, Phase::Claimed(..))
    }

    fn part_sectors(&self) -> u64 {
        self.buffer.len() as u64 / 512
    }
}

impl Mirror {
    /// The member that is copied to: a syncing one, or one of the two members in sync while the mirror grows.
    fn target(&self) -> Option<usize> {
        let behind = self.members.iter().position(|member| member.state == MemberState::Syncing);
        behind.or(self.resync.growth.is_some().then_some(1 - self.source))
    }

    fn issue_resync(&mut self, member: usize) {
        (self.resync.member, self.resync.since) = (member, self.clock.now());
        self.issue(member, Job::Resync);
    }

    /// Since when this member has a job of the copy.
    pub(super) fn resync_waits_for(&self, member: usize) -> Option<Instant> {
        let waits = self.resync.is_in_flight() && self.resync.member == member;
        waits.then_some(self.resync.since)
    }

    pub(super) fn resync_request(&self) -> Request {
        if self.resync.phase == Phase::Stamping {
            let data = self.resync.buffer.slice(0, SIZE_ON_DISK).unwrap_or(Window::empty());
            return Request {
                tag: Tag::default(),
                operation: Operation::Write { durable: true },
                sector: 0,
                data,
            };
        }
        let (operation, part) = match &self.resync.phase {
            Phase::Reading(_, part) => (Operation::Read, part.clone()),
            Phase::Writing(_, part) => (Operation::Write { durable: false }, part.clone()),
            _ => (Operation::Flush, 0..0),
        };
        let bytes = (part.end - part.start) as usize * 512;
        let data = self.resync.buffer.slice(0, bytes).unwrap_or(Window::empty());
        let sector = if bytes > 0 { Self::on_member(part.start) } else { 0 };
        Request { tag: Tag::default(), operation, sector, data }
    }

    /// Writes a record to a member that has none.
    fn stamp(&mut self, shape: Shape, target: usize) {
        let (generation, dirty) = (self.log.durable, Bitmap::new());
        let record = Superblock { shape, generation, alone: false, dirty }.emit();
        // The buffer is large enough for both writes.
        self.resync.buffer.fill(0);
        let _ = self.resync.buffer.write(0, &record);
        let _ = self.resync.buffer.write(DISTANCE, &record);
        self.resync.phase = Phase::Stamping;
        self.issue_resync(target);
    }

    /// Growth: copies the next part, or flushes the copy.
    fn copy_more(&mut self, target: usize) {
        let growth = self.resync.growth.as_ref();
        match growth.and_then(|growth| growth.part(self.resync.part_sectors())) {
            Some(part) => self.resync.phase = Phase::Claimed(NO_REGION, part),
            None => {
                self.resync.phase = Phase::Flushing;
                self.issue_resync(target);
            }
        }
    }

    /// Starts the next step, if no job of the copy is in flight.
    pub(super) fn advance_resync(&mut self) -> bool {
        let Some(shape) = self.shape else { return false };
        let Some(target) = self.target() else {
            if !self.resync.is_in_flight() {
                self.resync.phase = Phase::Idle;
            }
            return false;
        };
        match self.resync.phase.clone() {
            Phase::Idle | Phase::Claimed(..) if self.ending.get() => false,
            // Only once the member in sync has a record that it is alone.
            Phase::Idle if self.resync.stamp && self.log.durable < self.log.drop_generation => {
                false
            }
            Phase::Idle if self.resync.stamp => {
                self.stamp(shape, target);
                true
            }
            Phase::Idle if self.resync.growth.is_some() => {
                self.copy_more(target);
                true
            }
            Phase::Growing if self.resync.growth.is_none() || self.finish_growing() => {
                self.resync.phase = Phase::Idle;
                true
            }
            Phase::Idle => match self.stale.first() {
                Some(region) if !self.resync.checkpoint => {
                    let start = region as u64 * shape.region_sectors;
                    let end = (start + shape.region_sectors).min(shape.sectors);
                    let part = start..end.min(start + self.resync.part_sectors());
                    self.resync.phase = Phase::Claimed(region, part);
                    true
                }
                _ => {
                    self.resync.checkpoint = false;
                    self.resync.phase = Phase::Flushing;
                    self.issue_resync(target);
                    true
                }
            },
            Phase::Claimed(region, part) => {
                if self.is_written_to(part.start, part.end - part.start)
                    || !core::mem::take(&mut self.resync.may_copy)
                {
                    return false;
                }
                self.resync.phase = Phase::Reading(region, part);
                self.issue_resync(self.source);
                true
            }
            Phase::Recording(_) if self.stale.first().is_some() => {
                // The member in sync failed a write that this member executed.
                self.log.alone = true;
                self.log.drop_generation = self.log.want();
                self.resync.phase = Phase::Idle;
                true
            }
            // The source cannot be abandoned while it reads into users' memory. That is safe only while it is the only
            // member in sync.
            Phase::Recording(_) if self.source_uses_users_memory() => false,
            Phase::Recording(generation) if self.log.durable >= generation => {
                self.set_member(target, MemberState::InSync);
                self.slots.for_each(|slot| slot.allow_retry(target));
                self.resync.copied_regions.clear_all();
                self.log.want();
                self.resync.phase = Phase::Idle;
                true
            }
            Phase::Stamping
            | Phase::Reading(..)
            | Phase::Writing(..)
            | Phase::Flushing
            | Phase::Growing
            | Phase::Recording(_) => false,
        }
    }

    /// Whether the member in sync reads into the memory of users, and may still do so after the request was given up.
    fn source_uses_users_memory(&self) -> bool {
        !self.members[self.source].volume.releases_memory()
            && self.slots.iter().any(Slot::reads_into_users_memory)
    }

    pub(super) fn end_resync(&mut self, member: usize, result: Result<(), VolumeError>) {
        let phase = core::mem::replace(&mut self.resync.phase, Phase::Idle);
        let Some(target) = self.target() else { return };
        if self.resync.growth.is_none() && phase.is_of_growth() {
            // A member was left out meanwhile.
            return;
        }
        if let Err(error) = result {
            if error == VolumeError::Lost && member != target {
                // The source is the last member in sync: it is read again, and the next flush reports the loss.
                self.handle_loss(member);
                self.resync.phase = phase;
                return self.issue_resync(member);
            }
            if self.resync.growth.is_some() && member != target {
                // The growth ends, and the mirror keeps its size.
                self.resync.growth = None;
                return;
            }
            // The copy failed: the target is left out, and the copy is tried again later.
            return self.drop_member(target, Why::Failed(error));
        }
        match phase {
            Phase::Reading(region, part) => {
                self.resync.phase = Phase::Writing(region, part);
                self.issue_resync(target);
            }
            Phase::Writing(region, part) => {
                let Some(shape) = self.shape else { return };
                if let Some(growth) = &mut self.resync.growth {
                    return growth.copied(&part);
                }
                // Before the region is removed from `stale`.
                self.resync.copied_regions.set(region);
                let end = ((region as u64 + 1) * shape.region_sectors).min(shape.sectors);
                if part.end < end {
                    let next = part.end..end.min(part.end + self.resync.part_sectors());
                    self.resync.phase = Phase::Claimed(region, next);
                } else {
                    self.stale.clear(region);
                    self.resync.copied += 1;
                }
            }
            Phase::Flushing if self.resync.growth.is_some() => self.resync.phase = Phase::Growing,
            Phase::Flushing if self.stale.first().is_none() => {
                self.log.alone = false;
                self.resync.phase = Phase::Recording(self.log.want());
            }
            Phase::Flushing => {
                // The copy so far is durable: record it, and continue after it.
                self.resync.copied_regions.clear_all();
                self.log.want();
            }
            Phase::Stamping => self.resync.stamp = false,
            Phase::Idle | Phase::Claimed(..) | Phase::Growing | Phase::Recording(_) => {}
        }
    }
}
