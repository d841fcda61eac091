//! A device: its state, and its requests.

use super::queue::Queue;
use super::request::Active;
use super::state::DeviceState;
use crate::rnbd::wire::{AccessMode, CachePolicy, OpenResponse};
use crate::volume::{Completion, Tag, VolumeError};
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use drivers::hal::{Features, Geometry, Instant, Window};
use rtrs::client::PathId;
use rtrs::{Errno, Name};

/// Name of a device. It is used again once the device is unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u32);

/// To whom it is told that a server may have lost what it had acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Losses {
    /// To the next flush, as file systems expect it: it fails with `Io`.
    ToFlush,
    /// To all requests until one was told: they fail with `Lost`. For who has the data elsewhere.
    ToAll,
}

/// Sectors of the largest request without data: its bytes are said in 32 bits.
const MAX_SECTORS: u32 = u32::MAX / 512;

/// Sectors of the largest device: its bytes are counted in 63 bits.
const MAX_SIZE: u64 = i64::MAX as u64 / 512;

#[derive(Debug)]
pub(super) struct Device {
    pub name: Name,
    pub mode: AccessMode,
    pub losses_told: Losses,
    pub state: DeviceState,
    /// As the server calls it.
    pub id: u32,
    /// An OPEN is on its way.
    pub opening: bool,
    /// [`super::Client::paths_up`] when it was last opened.
    pub opened_at: u64,
    /// When it is tried again, while refused.
    pub retry_at: Instant,
    pub last_error: Option<Errno>,
    /// The answer of OPEN.
    pub answer: Window,
    pub queue: Rc<RefCell<Queue>>,
    pub active: Vec<Option<Active>>,
    pub free: Vec<u32>,
    /// Requests whose next step is to be sent.
    pub waiting: VecDeque<u32>,
    /// Steps done that a flush has to make durable, and how many of them one has.
    pub written: u64,
    pub stable: u64,
    /// How often some of them may have been lost, and how often that was told.
    pub losses: u64,
    pub told: u64,
    /// Paths that were down when requests were given up: what they had brought is over when they are up
    /// again, because the server lets them come up only then.
    pub behind: Vec<PathId>,
    /// When that is so by all means.
    pub behind_until: Instant,
    /// It is to be closed and forgotten once what is on its way has ended.
    pub ending: bool,
}

impl Device {
    pub fn new(
        name: Name,
        mode: AccessMode,
        losses_told: Losses,
        depth: usize,
        answer: Window,
    ) -> Self {
        let depth = depth.max(1);
        Device {
            name,
            mode,
            losses_told,
            state: DeviceState::Disconnected,
            id: 0,
            opening: false,
            opened_at: 0,
            retry_at: Instant::ZERO,
            last_error: None,
            answer,
            queue: Rc::new(RefCell::new(Queue::new(depth))),
            active: alloc::vec![None; depth],
            free: (0..depth as u32).rev().collect(),
            waiting: VecDeque::with_capacity(depth),
            written: 0,
            stable: 0,
            losses: 0,
            told: 0,
            behind: Vec::new(),
            behind_until: Instant::ZERO,
            ending: false,
        }
    }

    /// Shape of the device, as far as it is known.
    pub fn geometry(&self) -> Geometry {
        self.queue.borrow().geometry
    }

    /// Ends all requests. Their memory must be out of the server's reach.
    pub fn fail_all(&mut self) {
        self.waiting.clear();
        for slot in 0..self.active.len() as u32 {
            self.finish(slot, Err(VolumeError::Io));
        }
        self.end_queue();
    }

    /// Takes what the server says of the device; false if that makes no sense.
    pub fn adopt(&mut self, response: &OpenResponse, max_io_size: u32) -> bool {
        let block = u32::from(response.logical_block);
        let block_fits = block.is_power_of_two() && block >= 512 && block <= max_io_size;
        if !block_fits || !(1..=MAX_SIZE).contains(&response.sectors) {
            return false;
        }
        let mut features = Features::empty();
        features.set(Features::READ_ONLY, self.mode == AccessMode::ReadOnly);
        let write_back = response.cache_policy.contains(CachePolicy::WRITEBACK);
        features.set(Features::VOLATILE_CACHE, write_back);
        features.set(Features::DISCARD, response.max_discard_sectors > 0);
        features.set(Features::WRITE_ZEROES, response.max_write_zeroes_sectors > 0);
        let erases = response.secure_discard && response.max_discard_sectors > 0;
        features.set(Features::SECURE_ERASE, erases);
        self.id = response.device;
        self.queue.borrow_mut().geometry = Geometry {
            sectors: response.sectors,
            logical_block: block,
            physical_block: u32::from(response.physical_block).max(block),
            max_transfer: max_io_size / block * block,
            max_discard_sectors: response.max_discard_sectors.min(MAX_SECTORS),
            discard_granularity: response.discard_granularity,
            max_write_zeroes_sectors: response.max_write_zeroes_sectors.min(MAX_SECTORS),
            features,
        };
        true
    }

    /// Ends a request.
    pub fn finish(&mut self, slot: u32, result: Result<(), VolumeError>) {
        let Some(active) = self.active.get_mut(slot as usize).and_then(Option::take) else {
            return;
        };
        self.free.push(slot);
        if active.given_up {
            self.count_unsettled();
            return;
        }
        self.tell(active.request.tag, result);
    }

    /// The session was made anew: the server has nothing of what was given up.
    pub fn forget_given_up(&mut self) {
        for slot in 0..self.active.len() as u32 {
            let active = self.active.get(slot as usize).copied().flatten();
            if active.is_some_and(|active| active.given_up) {
                self.waiting.retain(|other| *other != slot);
                self.finish(slot, Ok(()));
            }
        }
    }

    /// Tells the volume how much is unsettled.
    pub fn count_unsettled(&mut self) {
        let given_up = self.active.iter().flatten().filter(|active| active.given_up).count();
        self.queue.borrow_mut().unsettled = given_up + self.behind.len();
    }

    /// The device is not open any more: patience with what waits begins to run.
    pub fn start_waiting(&mut self, now: Instant) {
        for &slot in &self.waiting {
            if let Some(Some(active)) = self.active.get_mut(slot as usize) {
                active.waiting_since.get_or_insert(now);
            }
        }
    }

    /// Puts a request back among those that wait for the device to be open: before those that were
    /// never sent, which wait for permits that it may hold.
    pub fn park(&mut self, slot: u32, now: Instant) {
        self.waiting.push_front(slot);
        if let Some(Some(active)) = self.active.get_mut(slot as usize) {
            active.waiting_since.get_or_insert(now);
        }
    }

    /// Whether no request is being worked on or waits.
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.active.len()
    }

    /// What was not flushed may be gone.
    pub fn may_have_lost(&mut self) {
        self.losses += u64::from(self.stable < self.written);
        self.stable = self.written;
    }

    /// What a request has to tell of losses: all do that arrived before one of them had told it.
    pub fn tell_loss(&mut self, active: &Active) -> Result<(), VolumeError> {
        let error = match self.losses_told {
            Losses::ToFlush if !active.is_durable() => return Ok(()),
            Losses::ToFlush => VolumeError::Io,
            Losses::ToAll => VolumeError::Lost,
        };
        self.told = self.losses;
        if active.known_losses < self.losses { Err(error) } else { Ok(()) }
    }

    /// Tells a request's user how it ended.
    pub fn tell(&mut self, tag: Tag, result: Result<(), VolumeError>) {
        self.queue.borrow_mut().done.push_back(Completion { tag, result });
    }

    /// Takes no requests any more; those that were not taken yet fail.
    pub fn end_queue(&mut self) {
        self.queue.borrow_mut().ended = true;
        self.refuse_submitted();
    }

    /// Fails the requests that were not taken yet.
    pub fn refuse_submitted(&mut self) {
        let queue = &mut *self.queue.borrow_mut();
        for request in queue.submitted.drain(..) {
            let result = Err(VolumeError::Io);
            queue.done.push_back(Completion { tag: request.tag, result });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_device_has_is_not_taken() {
        let sane = OpenResponse {
            device: 0,
            sectors: 8,
            max_hw_sectors: 0,
            max_write_zeroes_sectors: u32::MAX,
            max_discard_sectors: u32::MAX,
            discard_granularity: 0,
            discard_alignment: u32::MAX,
            physical_block: 0,
            logical_block: 512,
            max_segments: 0,
            secure_discard: true,
            cache_policy: CachePolicy::WRITEBACK,
        };
        let mut device = Device::new(
            Name::new("v0").unwrap(),
            AccessMode::ReadWrite,
            Losses::ToFlush,
            4,
            Window::empty(),
        );
        assert!(device.adopt(&sane, 16 << 10));
        let geometry = device.geometry();
        assert_eq!((geometry.physical_block, geometry.max_discard_sectors), (512, MAX_SECTORS));
        for bad in [
            OpenResponse { logical_block: 0, ..sane },
            OpenResponse { logical_block: 511, ..sane },
            OpenResponse { logical_block: 768, ..sane },
            OpenResponse { logical_block: 32_768, ..sane },
            OpenResponse { sectors: 0, ..sane },
            OpenResponse { sectors: u64::MAX, ..sane },
            OpenResponse { sectors: u64::MAX / 512, ..sane },
        ] {
            assert!(!device.adopt(&bad, 16 << 10), "{bad:?}");
            assert_eq!(device.geometry(), geometry);
        }
    }
}
