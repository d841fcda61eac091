//! Block DMA channels (Linux `tsi721_dma.c`): one for maintenance requests, one for data.

use super::Error;
use super::engine::{Descriptor, Engine, Layout, WANTS_INTERRUPT};
use super::registers::{Tsi721Registers, halves};
use crate::hal::{Arena, Instant};
use crate::rapidio::{
    Busy, Direction, Fault, IdSize, Maintained, Maintenance, MaintenanceError, Transfer,
    Transferred,
};
use alloc::collections::VecDeque;
use core::time::Duration;

/// Channel for maintenance requests, as in Linux.
pub const MAINTENANCE_CHANNEL: u16 = 7;
/// Channel for data.
pub const DATA_CHANNEL: u16 = 0;
/// Maximum number of transfers in flight.
pub const TRANSFERS: usize = 63;
/// Maximum length of a transfer in bytes.
const MAX_BYTES: usize = (1 << 26) - 1;
/// Timeout of a request. The port's own timeout for a response is shorter, but switches may retry.
const TIMEOUT: Duration = Duration::from_secs(5);

static LAYOUT: Layout = Layout {
    descriptor: 32,
    link: 3 << 29,
    start: 1,
    pointer: [0x24, 0x28],
    fifo: [0x2c, 0x30],
    fifo_size: 0x34,
    fifo_read: 0x38,
};

/// First register of a channel.
pub const fn base(channel: u16) -> usize {
    0x51000 + 0x1000 * channel as usize
}

// First word: type of descriptor.
const TYPE_DATA: u32 = 1 << 29;
const TYPE_IMMEDIATE: u32 = 2 << 29;

/// The maintenance channel: one request at a time.
pub struct MaintenanceChannel {
    engine: Engine<bool>,
    result: Option<Maintained>,
}

impl MaintenanceChannel {
    /// Allocates and starts the channel.
    pub fn new(arena: &mut Arena, registers: &Tsi721Registers) -> Result<Self, Error> {
        let base = base(MAINTENANCE_CHANNEL);
        let engine = Engine::new(&LAYOUT, base, 3, TIMEOUT, arena, registers)?;
        Ok(MaintenanceChannel { engine, result: None })
    }

    /// See [`Engine::free`].
    pub fn free(self, arena: &mut Arena) {
        self.engine.free(arena);
    }

    /// Starts a request.
    pub fn start(
        &mut self,
        size: IdSize,
        request: &Maintenance,
        registers: &Tsi721Registers,
    ) -> Result<(), Busy> {
        if !self.engine.is_idle() || self.result.is_some() {
            return Err(Busy);
        }
        let kind = if request.write.is_some() { 5 } else { 4 };
        let mut descriptor: Descriptor = [0; 8];
        descriptor[0] = TYPE_IMMEDIATE | WANTS_INTERRUPT | kind << 19 | u32::from(request.to);
        descriptor[1] = size.code() << 26 | 4;
        descriptor[2] = u32::from(request.hops) << 24 | request.offset & 0x00ff_fffc;
        // Data is big-endian, as on the wire.
        descriptor[4] = request.write.unwrap_or(u32::MAX).swap_bytes();
        self.engine.push(descriptor, request.write.is_some());
        self.engine.notify(registers);
        Ok(())
    }

    /// Runs the engine's checks. `has_error`: an interrupt has reported an error.
    pub fn watch(&mut self, now: Instant, has_error: bool, registers: &Tsi721Registers) {
        let result = &mut self.result;
        self.engine.watch(
            now,
            has_error,
            registers,
            |_| None,
            |_, _| *result = Some(Err(MaintenanceError::NoAnswer)),
        );
    }

    /// Result of the request, returned once.
    pub fn take(&mut self, registers: &Tsi721Registers) -> Option<Maintained> {
        if let Some((slot, is_write)) = self.engine.take(registers) {
            let value = self.engine.word(slot, 4).swap_bytes();
            self.result = Some(Ok(if is_write { 0 } else { value }));
        }
        self.result.take()
    }

    /// Fails the request in flight.
    pub fn fail(&mut self, registers: &Tsi721Registers) {
        self.result = self.take(registers);
        let result = &mut self.result;
        self.engine.fail_all(registers, |_| *result = Some(Err(MaintenanceError::PortDown)));
    }

    /// Whether [`MaintenanceChannel::take`] has a result.
    pub fn pending(&self) -> bool {
        self.result.is_some() || self.engine.pending()
    }

    /// See [`Engine::arm`].
    pub fn arm(&mut self, registers: &Tsi721Registers) -> bool {
        self.engine.arm(registers)
    }

    /// See [`Engine::start_over`].
    pub fn start_over(&mut self, registers: &Tsi721Registers) {
        self.engine.start_over(registers);
    }

    /// The channel's engine.
    pub fn engine(&self) -> &Engine<bool> {
        &self.engine
    }
}

/// The channel for data.
pub struct DataChannel {
    engine: Engine<u64>,
    failed: VecDeque<Transferred>,
}

impl DataChannel {
    /// Allocates and starts the channel.
    pub fn new(arena: &mut Arena, registers: &Tsi721Registers) -> Result<Self, Error> {
        let base = base(DATA_CHANNEL);
        let engine = Engine::new(&LAYOUT, base, TRANSFERS, TIMEOUT, arena, registers)?;
        Ok(DataChannel { engine, failed: VecDeque::with_capacity(TRANSFERS) })
    }

    /// See [`Engine::free`].
    pub fn free(self, arena: &mut Arena) {
        self.engine.free(arena);
    }

    /// Starts a transfer.
    pub fn start(&mut self, size: IdSize, transfer: &Transfer) -> Result<(), Busy> {
        let len = transfer.memory.len();
        if self.engine.room() <= self.failed.len() {
            return Err(Busy);
        }
        if len == 0 || len > MAX_BYTES {
            self.failed.push_back(Transferred { tag: transfer.tag, result: Err(Fault::Refused) });
            return Ok(());
        }
        let kind = match transfer.direction {
            Direction::Read => 0,
            Direction::WriteWithResponse => 1,
            Direction::Write => 2,
        };
        let [remote_low, remote_high] = halves(transfer.address >> 2);
        let [low, high] = halves(transfer.memory.bus_address());
        let descriptor = [
            TYPE_DATA | WANTS_INTERRUPT | kind << 19 | u32::from(transfer.device),
            (transfer.address as u32 & 3) << 30 | size.code() << 26 | len as u32,
            remote_low,
            remote_high,
            low,
            high,
            0,
            0,
        ];
        self.engine.push(descriptor, transfer.tag);
        Ok(())
    }

    /// Notifies the device of new transfers.
    pub fn notify(&mut self, registers: &Tsi721Registers) {
        self.engine.notify(registers);
    }

    /// Runs the engine's checks. `has_error`: an interrupt has reported an error.
    pub fn watch(&mut self, now: Instant, has_error: bool, registers: &Tsi721Registers) {
        let failed = &mut self.failed;
        self.engine.watch(
            now,
            has_error,
            registers,
            |_| None,
            |tag, fault| {
                failed.push_back(Transferred { tag, result: Err(fault) });
            },
        );
    }

    /// Fails all transfers in flight.
    pub fn fail(&mut self, registers: &Tsi721Registers) {
        let failed = &mut self.failed;
        self.engine.fail_all(registers, |tag| {
            failed.push_back(Transferred { tag, result: Err(Fault::LinkLost) });
        });
    }

    /// The next completed or failed transfer.
    pub fn take(&mut self, registers: &Tsi721Registers) -> Option<Transferred> {
        if let Some(failed) = self.failed.pop_front() {
            return Some(failed);
        }
        let (_, tag) = self.engine.take(registers)?;
        Some(Transferred { tag, result: Ok(()) })
    }

    /// Whether [`DataChannel::take`] has a transfer.
    pub fn pending(&self) -> bool {
        !self.failed.is_empty() || self.engine.pending()
    }

    /// See [`Engine::arm`].
    pub fn arm(&mut self, registers: &Tsi721Registers) -> bool {
        self.engine.arm(registers)
    }

    /// See [`Engine::start_over`].
    pub fn start_over(&mut self, registers: &Tsi721Registers) {
        self.engine.start_over(registers);
    }

    /// The channel's engine.
    pub fn engine(&self) -> &Engine<u64> {
        &self.engine
    }
}
