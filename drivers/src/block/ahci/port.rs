//! A port with a drive: takes requests, and completes them. Resets, the drive's failures and its removal are in `life`
//! and `recovery`.

use super::command::{self, Transfer};
use super::controller::Controller;
use super::identify::{Identity, TRIM_BLOCKS};
use super::life::Life;
use super::memory::PortMemory;
use super::recovery::Suspects;
use super::registers::PortRegisters;
use super::signal::Signal;
use super::slots::{Kind, Slots};
use crate::block::age::Age;
use crate::block::blocks;
use crate::hal::{
    Completion, DiskError, Features, Geometry, Health, Notice, Operation, Request, SubmitError,
};
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use core::sync::atomic::{Ordering, fence};

const SECTOR: usize = 512;
/// Most notices that are kept for the caller.
const NOTICES: usize = 16;
/// Polls without a completion after which the port's causes are read: each read of a register takes a microsecond.
const POLLS_PER_LOOK: u32 = 256;
/// What the controller can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Command slots of a port.
    pub slots: u8,
    /// It has native command queuing.
    pub queues: bool,
    /// It reaches memory below this bus address.
    pub reach: u64,
}

/// A port and its drive.
pub struct Port {
    pub(super) registers: PortRegisters,
    pub(super) memory: PortMemory,
    pub(super) controller: Rc<Controller>,
    /// Resets of the controller when the port was last set up.
    pub(super) controller_resets: u32,
    pub(super) signal: Signal,
    pub(super) slots: Slots,
    pub(super) life: Life,
    /// What the drive reports about itself, once it was read.
    pub(super) identity: Option<Identity>,
    pub(super) geometry: Geometry,
    pub(super) limits: Limits,
    pub(super) age: Age,
    /// Commands that the drive has completed, to be polled.
    ready: u32,
    /// Completions of requests that ended otherwise.
    ended: VecDeque<Completion>,
    empty_polls: u32,
    /// The port's causes are to be read with the next poll.
    pub(super) look: bool,
    pub(super) suspects: Suspects,
    /// Writes have completed since the last flush, on a drive with a volatile cache.
    pub(super) dirty: bool,
    /// The drive may have lost such writes: the next flush fails, even if the drive completes it.
    pub(super) lost: bool,
    pub(super) wants_interrupts: bool,
    pub(super) changed: bool,
    notices: VecDeque<Notice>,
}

impl Drop for Port {
    /// Stops the port, so that the controller does not use its memory any more.
    fn drop(&mut self) {
        self.registers.stop();
    }
}

impl Port {
    /// A port whose drive is to be brought up (`life`).
    pub fn new(
        registers: PortRegisters,
        memory: PortMemory,
        controller: Rc<Controller>,
        signal: Signal,
        limits: Limits,
    ) -> Port {
        Port {
            registers,
            memory,
            controller_resets: controller.resets(),
            controller,
            signal,
            slots: Slots::new(1),
            life: Life::default(),
            identity: None,
            geometry: Geometry::ABSENT,
            limits,
            age: Age::default(),
            ready: 0,
            ended: VecDeque::with_capacity(2 * usize::from(super::memory::SLOTS)),
            empty_polls: 0,
            look: false,
            suspects: Suspects::default(),
            dirty: false,
            lost: false,
            wants_interrupts: false,
            changed: false,
            notices: VecDeque::with_capacity(NOTICES),
        }
    }

    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Most requests in flight.
    pub fn depth(&self) -> usize {
        let slots = self.limits.slots.min(super::memory::SLOTS);
        // A drive without a queue has one command at a time; the others wait here.
        let queue = self.identity.as_ref().map_or(0, |identity| identity.queue);
        usize::from(if queue == 0 { slots } else { queue.min(slots) })
    }

    /// Whether commands with data go to the drive's queue.
    #[inline]
    fn is_queued(&self) -> bool {
        self.identity.as_ref().is_some_and(|identity| identity.queue > 0)
    }

    /// Takes a request.
    #[inline]
    pub fn submit(&mut self, request: &Request) -> Result<(), SubmitError> {
        // Requests to a drive that is away end at once: no more of them than the caller has room for.
        if self.life.is_out() && self.ended.len() >= self.depth() {
            return Err(SubmitError::Full);
        }
        match request.operation {
            Operation::Read => self.transfer(request, Kind::Read, Transfer::Read),
            Operation::Write => self.transfer(request, Kind::Write, Transfer::Write),
            Operation::WriteThrough => {
                if !self.geometry.features.contains(Features::WRITE_THROUGH) {
                    return Err(SubmitError::Unsupported);
                }
                self.transfer(request, Kind::WriteThrough, Transfer::WriteThrough)
            }
            Operation::Flush => self.flush(request.tag),
            Operation::Discard { sectors } => self.discard(request, sectors),
            Operation::WriteZeroes { .. } => Err(SubmitError::Unsupported),
        }
    }

    #[inline]
    fn transfer(
        &mut self,
        request: &Request,
        kind: Kind,
        as_: Transfer,
    ) -> Result<(), SubmitError> {
        let (bytes, address) = (request.data.len(), request.data.bus_address());
        if !bytes.is_multiple_of(SECTOR) || bytes > self.geometry.max_transfer as usize {
            return Err(SubmitError::Range);
        }
        let (lba, count) = blocks(&self.geometry, request.sector, (bytes / SECTOR) as u64)?;
        if address % 2 != 0 || address + bytes as u64 > self.limits.reach {
            return Err(SubmitError::Range);
        }
        let slot = self.slots.next().ok_or(SubmitError::Full)?;
        let queued = self.is_queued();
        let fis = match queued {
            true => command::queued(as_, lba, count as u16, slot),
            false => command::transfer(as_, lba, count as u16),
        };
        self.memory.put(slot, fis, Some((address, bytes)));
        self.slots.put(slot, request.tag, kind, queued);
        self.start(slot);
        Ok(())
    }

    #[inline(never)]
    fn flush(&mut self, tag: u64) -> Result<(), SubmitError> {
        if !self.geometry.features.contains(Features::VOLATILE_CACHE) && !self.lost {
            // Nothing can be lost. A drive that is away fails its flushes nevertheless.
            let result = if self.life.is_out() { Err(DiskError::Broken) } else { Ok(()) };
            return self.end_at_once(tag, result);
        }
        let slot = self.slots.next().ok_or(SubmitError::Full)?;
        self.memory.put(slot, command::flush(), None);
        self.slots.put(slot, tag, Kind::Flush, false);
        self.start(slot);
        Ok(())
    }

    fn end_at_once(&mut self, tag: u64, result: Result<(), DiskError>) -> Result<(), SubmitError> {
        if self.ended.len() >= self.depth() {
            return Err(SubmitError::Full);
        }
        self.ended.push_back(Completion { tag, result });
        Ok(())
    }

    #[inline(never)]
    fn discard(&mut self, request: &Request, sectors: u32) -> Result<(), SubmitError> {
        if !self.geometry.features.contains(Features::DISCARD) {
            return Err(SubmitError::Unsupported);
        }
        if sectors > self.geometry.max_discard_sectors {
            return Err(SubmitError::Range);
        }
        let (mut lba, count) = blocks(&self.geometry, request.sector, sectors.into())?;
        let slot = self.slots.next().ok_or(SubmitError::Full)?;
        let list = self.memory.data(slot);
        list.fill(0);
        let (mut at, mut left) = (0, u64::from(count));
        while left > 0 && at < list.len() {
            let part = left.min(TRIM_BLOCKS);
            list.store64(at, command::trim_range(lba, part as u16));
            (at, lba, left) = (at + 8, lba + part, left - part);
        }
        self.memory.put(slot, command::trim(), Some((list.bus_address(), list.len())));
        self.slots.put(slot, request.tag, Kind::Discard, false);
        self.start(slot);
        Ok(())
    }

    /// Sends a request with the next doorbell, or lets it wait, or ends it if the drive is away.
    #[inline]
    fn start(&mut self, slot: u8) {
        if self.life.is_live() && self.slots.takes(slot) {
            self.send(slot);
        } else if self.life.is_out() {
            self.end(slot, Err(DiskError::Broken));
        } else {
            self.slots.wait(slot);
        }
    }

    #[inline]
    fn send(&mut self, slot: u8) {
        let direction = self.slots.slot(slot).kind.direction();
        self.memory.refer(slot, slot, direction);
        self.slots.send(slot, self.age.millis());
    }

    /// Rings the doorbell for commands that the drive does not have yet.
    #[inline]
    pub fn kick(&mut self) {
        // While the port stops, no command may be issued (AHCI 1.3.1, 3.3.14). Those that wait are taken back.
        if !self.life.is_live() {
            return;
        }
        if self.controller.resets() != self.controller_resets {
            return self.was_reset();
        }
        let fresh = core::mem::take(&mut self.slots.fresh);
        if fresh != 0 {
            fence(Ordering::Release);
            self.registers.issue(fresh & self.slots.queued, fresh);
        }
    }

    /// Sends requests that wait, as far as the drive can take them.
    pub(super) fn send_waiting(&mut self) {
        if !self.life.is_live() {
            return;
        }
        while let Some(slot) = self.slots.next_waiting() {
            self.send(slot);
        }
        self.kick();
    }

    /// The next completion.
    #[inline]
    pub fn poll(&mut self) -> Option<Completion> {
        if self.ready == 0 {
            if let Some(done) = self.ended.pop_front() {
                return Some(done);
            }
            self.collect();
            if self.ready == 0 {
                return self.ended.pop_front();
            }
        }
        let slot = self.ready.trailing_zeros() as u8;
        self.ready &= self.ready - 1;
        let ended = self.slots.end(slot);
        Some(Completion { tag: ended.tag, result: Ok(()) })
    }

    /// Looks for commands that the drive has completed.
    #[inline]
    pub(super) fn collect(&mut self) {
        if !self.life.is_steady() {
            self.step();
        }
        if self.slots.sent & !self.slots.fresh != 0 && self.life.is_live() {
            self.collect_sent();
        }
    }

    #[inline]
    fn collect_sent(&mut self) {
        let flying = self.slots.sent & !self.slots.fresh;
        let (queued, alone) = (flying & self.slots.queued, flying & !self.slots.queued);
        let mut done = 0;
        if queued != 0 {
            done = queued & !self.registers.queued();
        }
        if alone != 0 && self.registers.issued() & alone == 0 {
            done |= alone;
        }
        if done != 0 {
            // After a reset by others the registers show no command in flight, completed or not.
            if !self.registers.is_running() {
                return self.was_reset();
            }
            if done & alone != 0 && self.registers.error().is_some() {
                return self.recover(true);
            }
            self.empty_polls = 0;
            self.have_completed(done);
            if self.slots.has_waiting() {
                self.send_waiting();
            }
            return;
        }
        self.empty_polls = self.empty_polls.wrapping_add(1);
        let due = self.empty_polls.is_multiple_of(POLLS_PER_LOOK);
        if due || self.look || self.memory.has_error() {
            self.look_for_errors();
        }
    }

    /// Commands of the native queue that were completed before an error: they are good.
    pub(super) fn keep_completed(&mut self) {
        let flying = self.slots.sent & !self.slots.fresh & self.slots.queued;
        let done = flying & !self.registers.queued();
        self.have_completed(done);
    }

    /// The drive has completed these commands well. A flush is the only one then.
    #[inline]
    fn have_completed(&mut self, done: u32) {
        self.slots.sent &= !done;
        self.ready |= done;
        self.dirty |= done & self.slots.cached != 0;
        if done & !self.slots.queued != 0 {
            self.has_completed_alone(done.trailing_zeros() as u8);
        }
    }

    fn has_completed_alone(&mut self, slot: u8) {
        if self.slots.slot(slot).kind != Kind::Flush {
            return;
        }
        self.dirty = false;
        // What the drive has lost cannot be made durable any more.
        if core::mem::take(&mut self.lost) {
            self.ready &= !(1 << slot);
            self.end(slot, Err(DiskError::Io));
        }
    }

    /// Ends a request. The drive must not have it any more.
    pub(super) fn end(&mut self, slot: u8, result: Result<(), DiskError>) {
        self.slots.stop_waiting(slot);
        let ended = self.slots.end(slot);
        self.ended.push_back(Completion { tag: ended.tag, result });
    }

    /// Whether a completion may be waiting, or the drive needs a step of a reset.
    pub fn pending(&self) -> bool {
        if self.ready != 0 || !self.ended.is_empty() || !self.life.is_steady() {
            return true;
        }
        let flying = self.slots.sent & !self.slots.fresh;
        let (queued, alone) = (flying & self.slots.queued, flying & !self.slots.queued);
        self.life.is_live()
            && (queued != 0 && queued & !self.registers.queued() != 0
                || alone != 0 && alone & !self.registers.issued() != 0
                || flying != 0 && (self.look || self.memory.has_error()))
    }

    /// Enables the interrupt, or disables it.
    pub fn set_interrupts(&mut self, wanted: bool) {
        if wanted == self.wants_interrupts {
            return;
        }
        self.wants_interrupts = wanted;
        if self.life.is_live() {
            self.registers.set_interrupts(wanted);
        }
        // The interrupt may have been an error's.
        self.look |= !wanted && self.slots.sent != 0;
    }

    /// Health of the drive, as far as the driver knows it.
    pub fn health(&self) -> Health {
        let (aborts, resets) = self.life.counted();
        Health { aborts, resets, gone: self.life.is_out(), ..Health::default() }
    }

    pub fn notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Keeps a notice, if there is room.
    pub(super) fn note(&mut self, notice: Notice) {
        if self.notices.len() < NOTICES {
            self.notices.push_back(notice);
        }
    }

    /// Whether the drive's size has changed since the last call.
    pub fn take_changed(&mut self) -> bool {
        core::mem::take(&mut self.changed)
    }
}
