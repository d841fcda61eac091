//! A mirror of two volumes of any kind. Writes go to both members, reads to the faster member in
//! sync. A member that fails is left out; when it returns, the regions that were written
//! meanwhile are copied to it. Records on the members (`superblock`, `log`) list these regions, and regions that may
//! differ after a power cut. A region is marked there before it is written. That a member is left out is recorded
//! before any write that it missed completes.
//!
//! Reads never return stale data: requests that overlap a write wait for its end, a member that was left out is not
//! read before all of it is copied, and after a power cut a single member is not used unless its record
//! says that the other one was left out.
//!
//! A member that does not respond is left out like a failed one, if the other one responds
//! (`patience`). Its requests, record and copy are abandoned, and nothing waits for them. A disk may access the
//! memory of abandoned requests, so data for disks is copied once through bounce buffers (`buffers`).
//!
//! The mirror supports discard and write-zeroes if both members do. It grows on the operator's request (`grow`). Its
//! owner sets its [`Clock`], and calls [`Volume::tend`] at the clock's deadline and about once a second.

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

/// Most requests in flight.
const DEPTH: usize = 64;
/// Sectors at the start of a member that the mirror reserves for its records.
pub const RESERVED: u64 = 64;

/// Identity and size of a mirror, as in the members' records.
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
    /// The only member in sync, while the other one is not.
    source: usize,
    slots: Slots,
    buffers: Buffers,
    /// Requests that have not been issued, in order.
    waiting: VecDeque<usize>,
    /// Requests that wait only for the record.
    unlogged: VecDeque<usize>,
    /// Jobs to submit to members.
    todo: VecDeque<(usize, Job)>,
    ended: VecDeque<Ended>,
    done: VecDeque<Completion>,
    log: Log,
    /// Regions written since the last flush began.
    unflushed: Bitmap,
    /// Regions written before the flush in flight.
    flushing: Bitmap,
    /// Regions in which the member that is not in sync may differ.
    stale: Bitmap,
    resync: Resync,
    /// Operations that a member rejected although its geometry advertises them.
    refused: Features,
    /// Acknowledged writes may be lost on both members, and no flush has reported it yet.
    lost: bool,
    status: Rc<Cell<Status>>,
    clock: Clock,
    /// Timeout of a member while the other one responds.
    timeout: Duration,
    /// The operator's request to start from the one member that can be read.
    forced: Rc<Cell<bool>>,
    /// The operator's request to dissolve the mirror: no more parts are copied.
    ending: Rc<Cell<bool>>,
    /// The operator's request to leave out these members.
    detached: Rc<Cell<[bool; 2]>>,
    /// The operator's request to grow to the size of the members.
    growing: Rc<Cell<bool>>,
    /// All of its memory.
    memory: Window,
}

impl Mirror {
    /// Bytes of memory that a mirror needs.
    pub const MEMORY: usize = assemble::MEMORY + resync::MEMORY;

    /// A mirror of two members whose records belong to one mirror. It has no sectors before it
    /// has read them. `memory` has at least [`Mirror::MEMORY`] bytes. The rest is for bounce buffers, which are needed
    /// for a member that does not [release memory](Volume::releases_memory): without them the mirror waits for such a
    /// member however long it takes.
    pub fn assemble(members: [Box<dyn Volume>; 2], memory: Window) -> Self {
        Self::new(members, memory, Start::Assemble { force: false })
    }

    /// A new mirror with that UUID: the first member is copied to the second one.
    /// The contents of the first 64 sectors of both are lost.
    pub fn create(members: [Box<dyn Volume>; 2], memory: Window, uuid: [u8; 16]) -> Self {
        Self::new(members, memory, Start::Create(uuid))
    }

    /// Default timeout of a member.
    pub const TIMEOUT: Duration = Duration::from_secs(5);

    /// Sets the owner's clock, and the timeout of a member while the other one responds.
    pub fn with_timeout(self, clock: Clock, timeout: Duration) -> Self {
        Mirror { clock, timeout, ..self }
    }

    /// Starts from the one member that can be read, although the other may be newer.
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

    /// Status for the console; the mirror updates it.
    pub fn status(&self) -> Rc<Cell<Status>> {
        self.status.clone()
    }

    /// Request of the operator. If set to true, the next `tend` does what [`Mirror::force`] does.
    pub fn forced(&self) -> Rc<Cell<bool>> {
        self.forced.clone()
    }

    /// Request of the operator. If set to true, the mirror copies no more parts, so that it becomes idle.
    pub fn ending(&self) -> Rc<Cell<bool>> {
        self.ending.clone()
    }

    /// Request of the operator. If set to true, the mirror grows to the size of its members, if both are in sync.
    pub fn growing(&self) -> Rc<Cell<bool>> {
        self.growing.clone()
    }

    /// Request of the operator. A member whose entry is true is left out once the other one has responded, until the
    /// entry is false again. The last member in sync is not left out: the mirror sets its entry to false.
    pub fn detached(&self) -> Rc<Cell<[bool; 2]>> {
        self.detached.clone()
    }

    /// Whether any member may lose unflushed writes.
    fn is_cached(&self) -> bool {
        self.members
            .iter()
            .any(|member| member.volume.geometry().features.contains(Features::VOLATILE_CACHE))
    }

    /// The regions of a range of sectors.
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
        // An operation has to be supported by both members.
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
        self.make_progress();
        Ok(Submitted::Pending)
    }

    /// `make_progress` flushes the queues of the members.
    fn flush_queue(&mut self) {}

    fn poll(&mut self) -> Option<Completion> {
        if self.done.is_empty() {
            self.take_completions();
            self.make_progress();
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
        self.check_members(now);
        self.start_growing();
        self.make_progress();
        self.check_timeouts(now);
        self.make_progress();
        self.publish_status();
    }
}
