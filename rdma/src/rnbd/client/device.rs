//! A device: its state, and its requests.

use super::queue::Queue;
use super::request::Active;
use super::state::DeviceState;
use crate::rnbd::wire::{AccessMode, CachePolicy, OpenResponse};
use crate::rtrs::{Errno, Name};
use crate::volume::{Completion, VolumeError};
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use drivers::hal::{Features, Geometry, Instant, Window};

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
        if !block.is_power_of_two() || block < 512 || block > max_io_size || response.sectors == 0 {
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
        let completion = Completion { tag: active.request.tag, result };
        self.queue.borrow_mut().done.push_back(completion);
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

    /// Takes no requests any more; those that were not taken yet fail.
    pub fn end_queue(&mut self) {
        let queue = &mut *self.queue.borrow_mut();
        queue.ended = true;
        for request in queue.submitted.drain(..) {
            let result = Err(VolumeError::Io);
            queue.done.push_back(Completion { tag: request.tag, result });
        }
    }
}
