//! A mapped device: its state, and its requests.

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

/// Number of a device. It is reused after the device was unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u32);

/// Which requests report that a server may have lost acknowledged writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Losses {
    /// The next flush or durable write fails with `Io`, as file systems expect.
    ToFlush,
    /// All requests submitted before the first report fail with `Lost`. For a user with another copy of the data.
    ToAll,
}

/// Sectors of the largest request without data: its length in bytes is a 32-bit field.
const MAX_SECTORS: u32 = u32::MAX / 512;

/// Sectors of the largest device: its size in bytes has to fit in 63 bits.
const MAX_SIZE: u64 = i64::MAX as u64 / 512;

#[derive(Debug)]
pub(super) struct Device {
    pub name: Name,
    pub mode: AccessMode,
    pub loss_reporting: Losses,
    pub state: DeviceState,
    /// Device id of the server.
    pub id: u32,
    /// An OPEN is in flight.
    pub opening: bool,
    /// [`super::Client::paths_up`] when it was last opened.
    pub opened_at: u64,
    /// When OPEN is sent again after a refusal.
    pub retry_at: Instant,
    pub last_error: Option<Errno>,
    /// Buffer for the response to OPEN.
    pub answer: Window,
    pub queue: Rc<RefCell<Queue>>,
    pub active: Vec<Option<Active>>,
    pub free: Vec<u32>,
    /// Requests whose next step is not sent yet.
    pub waiting: VecDeque<u32>,
    /// Completed steps that need a flush to be durable.
    pub written: u64,
    /// How many of `written` a flush made durable.
    pub stable: u64,
    /// Times that the server may have lost some of `written`.
    pub losses: u64,
    /// How many of `losses` a request reported to the user.
    pub losses_reported: u64,
    /// Paths that were down when requests were given up. The server lets a path come up again only after the
    /// requests that arrived over it have ended.
    pub down_paths: Vec<PathId>,
    /// When the wait for the paths in `down_paths` ends.
    pub down_paths_deadline: Instant,
    /// The device is to be closed and removed once its requests in flight have ended.
    pub unmapping: bool,
}

impl Device {
    pub fn new(
        name: Name,
        mode: AccessMode,
        loss_reporting: Losses,
        depth: usize,
        answer: Window,
    ) -> Self {
        let depth = depth.max(1);
        Device {
            name,
            mode,
            loss_reporting,
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
            losses_reported: 0,
            down_paths: Vec::new(),
            down_paths_deadline: Instant::ZERO,
            unmapping: false,
        }
    }

    /// Geometry that the server reported last; without sectors before the first OPEN.
    pub fn geometry(&self) -> Geometry {
        self.queue.borrow().geometry
    }

    /// Fails all requests. The caller must have revoked the server's access to their memory.
    pub fn fail_all(&mut self) {
        self.waiting.clear();
        for slot in 0..self.active.len() as u32 {
            self.finish(slot, Err(VolumeError::Io));
        }
        self.end_queue();
    }

    /// Adopts the geometry in the server's response; false if it is invalid.
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

    /// Ends a request and reports the result to its user, unless the user has given it up.
    pub fn finish(&mut self, slot: u32, result: Result<(), VolumeError>) {
        let Some(active) = self.active.get_mut(slot as usize).and_then(Option::take) else {
            return;
        };
        self.free.push(slot);
        if active.given_up {
            self.count_unsettled();
            return;
        }
        self.complete(active.request.tag, result);
    }

    /// Drops the given-up requests after the session was established anew: the server has none of them any more.
    pub fn drop_given_up(&mut self) {
        for slot in 0..self.active.len() as u32 {
            let active = self.active.get(slot as usize).copied().flatten();
            if active.is_some_and(|active| active.given_up) {
                self.waiting.retain(|other| *other != slot);
                self.finish(slot, Ok(()));
            }
        }
    }

    /// Updates the volume's count of unsettled requests and paths.
    pub fn count_unsettled(&mut self) {
        let given_up = self.active.iter().flatten().filter(|active| active.given_up).count();
        self.queue.borrow_mut().unsettled = given_up + self.down_paths.len();
    }

    /// Starts the wait time of queued requests, because the device is not open any more.
    pub fn start_waiting(&mut self, now: Instant) {
        for &slot in &self.waiting {
            if let Some(Some(active)) = self.active.get_mut(slot as usize) {
                active.waiting_since.get_or_insert(now);
            }
        }
    }

    /// Puts a request back into the queue until the device is open. It goes to the front, because requests
    /// that were never sent wait for permits, and this request may hold one.
    pub fn park(&mut self, slot: u32, now: Instant) {
        self.waiting.push_front(slot);
        if let Some(Some(active)) = self.active.get_mut(slot as usize) {
            active.waiting_since.get_or_insert(now);
        }
    }

    /// Whether no request is in flight or queued.
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.active.len()
    }

    /// Records that the server may have lost unflushed writes.
    pub fn may_have_lost(&mut self) {
        self.losses += u64::from(self.stable < self.written);
        self.stable = self.written;
    }

    /// The result of a request with regard to losses. All requests that arrived before the first report of a loss
    /// report it.
    pub fn report_loss(&mut self, active: &Active) -> Result<(), VolumeError> {
        let error = match self.loss_reporting {
            Losses::ToFlush if !active.is_durable() => return Ok(()),
            Losses::ToFlush => VolumeError::Io,
            Losses::ToAll => VolumeError::Lost,
        };
        self.losses_reported = self.losses;
        if active.known_losses < self.losses { Err(error) } else { Ok(()) }
    }

    /// Queues the completion of a request for the volume's user.
    pub fn complete(&mut self, tag: Tag, result: Result<(), VolumeError>) {
        self.queue.borrow_mut().done.push_back(Completion { tag, result });
    }

    /// Rejects requests from now on, and fails those in the submission queue.
    pub fn end_queue(&mut self) {
        self.queue.borrow_mut().ended = true;
        self.refuse_submitted();
    }

    /// Fails the requests in the submission queue.
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
    fn adopt_rejects_invalid_geometry() {
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
