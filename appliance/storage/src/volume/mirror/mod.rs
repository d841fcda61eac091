//! Two volumes of any kind that hold the same. Writes go to both, reads to the faster one that is
//! in sync. A member that fails is left out; when it is back, the regions that were written
//! meanwhile are copied to it. Which regions those are, and which may differ after a power cut, is
//! kept on the members themselves (`superblock`, `log`): a region is marked there before it is written, and
//! that a member is left out is written down before any write is answered that it has missed.
//!
//! Never stale: requests that overlap a write wait for its end, a member that was left out is not
//! read before all of it is copied, and after a power cut a member alone is not used unless it
//! knows that the other one was left out.
//!
//! A member that does not answer is left out as one that failed, if the other one is there
//! (`patience`). What it has of requests, record and copy is let go of, and nothing waits for that. A disk keeps the
//! memory of what it has, so that data for disks goes through memory of the mirror's own (`buffers`): one copy.
//!
//! It discards and zeroes if both members can. It grows when its operator wants that (`grow`). Its owner sets its [`Clock`],
//! and calls [`Volume::tend`] when that says so, and about once a second.

mod assemble;
mod bitmap;
mod buffers;
mod clock;
mod grow;
mod issue;
mod log;
mod member;
mod patience;
mod requests;
mod resync;
mod slots;
mod status;
mod superblock;
#[cfg(test)]
mod tests;

pub use clock::Clock;
pub use status::{MemberState, MirrorState, Status, Why};

use super::{Completion, Parts, Request, Submitted, Volume, VolumeError, check};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use assemble::Start;
use bitmap::Bitmap;
use buffers::Buffers;
use core::cell::Cell;
use core::time::Duration;
use drivers::hal::{Features, Geometry, Instant, Window};
use issue::{Ended, Job};
use log::Log;
use member::Member;
use requests::Slot;
use resync::Resync;
use slots::Slots;

/// Requests at a time.
const DEPTH: usize = 64;
/// Sectors at the start of a member that are the mirror's own.
pub const RESERVED: u64 = 64;

/// What the members' records say of the mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    uuid: [u8; 16],
    sectors: u64,
    region_sectors: u64,
}

/// A mirror of two volumes.
pub struct Mirror {
    members: [Member; 2],
    /// None before the members' records were read.
    shape: Option<Shape>,
    start: Start,
    /// The member that is in sync, if only one is.
    source: usize,
    slots: Slots,
    buffers: Buffers,
    /// Requests that have not been issued, in order.
    waiting: VecDeque<usize>,
    /// Requests that are done but for the log.
    unlogged: VecDeque<usize>,
    /// What a member had no room for.
    todo: VecDeque<(usize, Job)>,
    ended: VecDeque<Ended>,
    done: VecDeque<Completion>,
    log: Log,
    /// Regions written since the last flush, and before a flush that is under way.
    unflushed: Bitmap,
    flushing: Bitmap,
    /// Regions in which the member that is not in sync may differ.
    stale: Bitmap,
    resync: Resync,
    /// What a member has refused although its shape says that it can.
    refused: Features,
    /// Acknowledged writes may be lost on both members, and the user was not told.
    lost: bool,
    status: Rc<Cell<Status>>,
    clock: Clock,
    /// How long a member is waited for while the other one is there.
    timeout: Duration,
    /// The operator wants the member used that can be read.
    forced: Rc<Cell<bool>>,
    /// The operator wants it taken apart: no more is copied.
    ending: Rc<Cell<bool>>,
    /// The operator wants to do without these members.
    detached: Rc<Cell<[bool; 2]>>,
    /// The operator wants it to take the space that its members have.
    growing: Rc<Cell<bool>>,
    /// All of its memory.
    memory: Window,
}

impl Mirror {
    /// Bytes of memory that a mirror needs.
    pub const MEMORY: usize = assemble::MEMORY + resync::MEMORY;

    /// A mirror of two members whose records say that they are one. It has no sectors before it
    /// has read them. `memory` is of [`Mirror::MEMORY`] bytes; more is for data under way, which a member needs that
    /// does not [release memory](Volume::releases_memory). Without it the mirror waits for such a member.
    pub fn assemble(members: [Box<dyn Volume>; 2], memory: Window) -> Self {
        Self::new(members, memory, Start::Assemble { force: false })
    }

    /// A new mirror with that name: what the first member holds is copied to the second one.
    /// What lies in the first 64 sectors of both is lost.
    pub fn create(members: [Box<dyn Volume>; 2], memory: Window, uuid: [u8; 16]) -> Self {
        Self::new(members, memory, Start::Create(uuid))
    }

    /// How long a member is waited for, unless [`Mirror::with_timeout`] says something else.
    pub const TIMEOUT: Duration = Duration::from_secs(5);

    /// The same with a clock of its owner's, and another patience with a member that does not answer
    /// while the other one does.
    pub fn with_timeout(self, clock: Clock, timeout: Duration) -> Self {
        Mirror { clock, timeout, ..self }
    }

    /// Uses the one member that can be read, although the other may be newer.
    pub fn force(mut self) -> Self {
        self.start = Start::Assemble { force: true };
        self
    }

    fn new(members: [Box<dyn Volume>; 2], memory: Window, start: Start) -> Self {
        let part = |at, len| memory.slice(at, len).unwrap_or(Window::empty());
        let [first, second] = members;
        let records = superblock::SIZE_ON_DISK;
        let rest = memory.len().saturating_sub(Self::MEMORY);
        Mirror {
            members: [
                Member::new(first, part(0, records)),
                Member::new(second, part(records, records)),
            ],
            shape: None,
            start,
            source: 0,
            slots: Slots::new(DEPTH),
            buffers: Buffers::new(part(Self::MEMORY, rest)),
            waiting: VecDeque::with_capacity(DEPTH),
            unlogged: VecDeque::with_capacity(DEPTH),
            todo: VecDeque::with_capacity(2 * DEPTH + 4),
            ended: VecDeque::with_capacity(2 * DEPTH + 4),
            done: VecDeque::with_capacity(DEPTH),
            log: Log::new(part(2 * records, records)),
            unflushed: Bitmap::new(),
            flushing: Bitmap::new(),
            stale: Bitmap::new(),
            resync: Resync::new(part(assemble::MEMORY, resync::MEMORY)),
            refused: Features::empty(),
            lost: false,
            status: Rc::new(Cell::new(Status::default())),
            clock: Clock::default(),
            timeout: Self::TIMEOUT,
            forced: Rc::default(),
            ending: Rc::default(),
            detached: Rc::default(),
            growing: Rc::default(),
            memory,
        }
    }

    /// How it stands, for the console; changes as the mirror does.
    pub fn status(&self) -> Rc<Cell<Status>> {
        self.status.clone()
    }

    /// Set to true, it has the mirror do what [`Mirror::force`] does, when it is next tended.
    pub fn forced(&self) -> Rc<Cell<bool>> {
        self.forced.clone()
    }

    /// Set to true, it has the mirror copy no more, so that it comes to be idle.
    pub fn ending(&self) -> Rc<Cell<bool>> {
        self.ending.clone()
    }

    /// Set to true, it has the mirror take the space that its members have got, if both are in sync.
    pub fn growing(&self) -> Rc<Cell<bool>> {
        self.growing.clone()
    }

    /// Members for which it is true are left out when the mirror is next tended and the other one answers, until it is
    /// false again. The last one in sync is not left out: then it is set to false.
    pub fn detached(&self) -> Rc<Cell<[bool; 2]>> {
        self.detached.clone()
    }

    /// Whether any member may lose what was not flushed.
    fn is_cached(&self) -> bool {
        self.members
            .iter()
            .any(|member| member.volume.geometry().features.contains(Features::VOLATILE_CACHE))
    }

    /// The regions of a stretch of sectors.
    fn regions(&self, sector: u64, sectors: u64) -> core::ops::Range<usize> {
        let size = self.shape.map_or(1, |shape| shape.region_sectors);
        (sector / size) as usize..(sector + sectors).div_ceil(size) as usize
    }
}

impl Volume for Mirror {
    fn geometry(&self) -> Geometry {
        let shapes = [0, 1].map(|n| self.members[n].volume.geometry());
        let in_use = |n: usize| shapes[n].sectors > 0;
        let known = shapes.iter().filter(|shape| shape.sectors > 0);
        let mut geometry = shapes[usize::from(!in_use(0))];
        geometry.sectors = self.shape.map_or(0, |shape| shape.sectors);
        geometry.logical_block = known.clone().map(|s| s.logical_block).max().unwrap_or(512);
        geometry.physical_block = known.clone().map(|s| s.physical_block).max().unwrap_or(512);
        geometry.max_transfer = known.clone().map(|s| s.max_transfer).min().unwrap_or(512);
        // What one of them cannot do would not be done to both.
        let offered = Features::DISCARD | Features::WRITE_ZEROES;
        let common = known.clone().map(|shape| shape.features).reduce(|all, other| all & other);
        geometry.features = common.unwrap_or(Features::empty()) & (offered - self.refused);
        let can = |feature| geometry.features.contains(feature);
        let (discards, zeroes) = (can(Features::DISCARD), can(Features::WRITE_ZEROES));
        let least = |sectors: fn(&Geometry) -> u32| known.clone().map(sectors).min().unwrap_or(0);
        geometry.max_discard_sectors = if discards { least(|s| s.max_discard_sectors) } else { 0 };
        geometry.max_write_zeroes_sectors =
            if zeroes { least(|s| s.max_write_zeroes_sectors) } else { 0 };
        geometry.discard_granularity =
            known.map(|s| s.discard_granularity).max().unwrap_or_default();
        geometry.features.set(Features::VOLATILE_CACHE, self.is_cached());
        geometry
    }

    fn submit(&mut self, request: &Request) -> Result<Submitted, VolumeError> {
        check(&self.geometry(), request)?;
        if self.buffers.capacity() > 0 && request.data.len() > self.buffers.capacity() {
            return Err(VolumeError::Invalid);
        }
        let slot = Slot::new(*request, self.clock.now());
        let slot = self.slots.insert(slot).ok_or(VolumeError::Busy)?;
        self.waiting.push_back(slot);
        self.go_on();
        Ok(Submitted::Pending)
    }

    /// Members are told when they are given something.
    fn flush_queue(&mut self) {}

    fn poll(&mut self) -> Option<Completion> {
        if self.done.is_empty() {
            self.take_completions();
            self.go_on();
        }
        self.done.pop_front()
    }

    fn wants_turn(&self) -> bool {
        self.resync.wants_turn() || self.members.iter().any(|m| m.volume.wants_turn())
    }

    fn is_idle(&self) -> bool {
        self.slots.is_empty() && self.members.iter().all(|m| m.in_flight == 0 && m.volume.is_idle())
    }

    fn into_parts(self: Box<Self>) -> Parts {
        let members = self.members.map(|member| member.volume);
        Parts { memory: Some(self.memory), shared: None, members: members.into() }
    }

    fn tend(&mut self, now: Instant) {
        self.clock.set(now);
        for member in &mut self.members {
            member.volume.tend(now);
        }
        self.take_completions();
        if self.forced.take() && matches!(self.start, Start::Assemble { .. }) {
            self.start = Start::Assemble { force: true };
        }
        self.detach(now);
        self.tend_members(now);
        self.start_growing();
        self.go_on();
        self.lose_patience(now);
        self.go_on();
        self.tell();
    }
}
