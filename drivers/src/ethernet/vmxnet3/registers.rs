//! Registers of a device (Linux: `drivers/net/vmxnet3/vmxnet3_defs.h`): 32 bits each, every 8 bytes. BAR 0 has
//! doorbells and masks, BAR 1 commands.

use super::Error;
use crate::hal::{Platform, Registers};
use crate::pci::Bars;
use alloc::boxed::Box;
use core::sync::atomic::{Ordering, fence};

/// Bytes of each BAR.
const BYTES: usize = 4096;

// BAR 0.
const INTERRUPT_MASK: usize = 0;
const TRANSMIT: usize = 0x600;
const RECEIVE: usize = 0x800;

// BAR 1.
const VERSIONS: usize = 0x00;
const UPT_VERSIONS: usize = 0x08;
const SHARED_LOW: usize = 0x10;
const SHARED_HIGH: usize = 0x18;
const COMMAND: usize = 0x20;
const MAC_LOW: usize = 0x28;
const MAC_HIGH: usize = 0x30;

const ACTIVATE: u32 = 0xcafe_0000;
const QUIESCE: u32 = 0xcafe_0001;
const RESET: u32 = 0xcafe_0002;
const GET_QUEUE_STATUS: u32 = 0xf00d_0000;
const GET_STATISTICS: u32 = 0xf00d_0001;
const GET_LINK: u32 = 0xf00d_0002;

/// The registers, mapped.
pub struct DeviceRegisters {
    doorbells: Box<dyn Registers>,
    commands: Box<dyn Registers>,
}

impl DeviceRegisters {
    pub fn map(bars: &Bars, platform: &mut dyn Platform) -> Result<Self, Error> {
        let mut map = |index| {
            let bar = bars.get(index).ok_or(Error::NoRegisters)?;
            let address = bar.range(0, BYTES as u64).ok_or(Error::NoRegisters)?;
            platform.map_registers(address, BYTES).ok_or(Error::NoRegisters)
        };
        Ok(DeviceRegisters { doorbells: map(0)?, commands: map(1)? })
    }

    /// Selects version 1 of both interfaces.
    pub fn select_versions(&self) -> Result<(), Error> {
        for at in [VERSIONS, UPT_VERSIONS] {
            match self.commands.read32(at) {
                u32::MAX => return Err(Error::Absent),
                versions if versions & 1 == 0 => return Err(Error::Version(versions)),
                _ => self.commands.write32(at, 1),
            }
        }
        Ok(())
    }

    /// Executes a command; its answer.
    fn command(&self, command: u32) -> u32 {
        fence(Ordering::SeqCst);
        self.commands.write32(COMMAND, command);
        self.commands.read32(COMMAND)
    }

    /// Resets the device: it drops its queues, and accesses no memory any more.
    pub fn reset(&self) {
        self.command(QUIESCE);
        self.command(RESET);
    }

    pub fn mac(&self) -> [u8; 6] {
        let (low, high) = (self.commands.read32(MAC_LOW), self.commands.read32(MAC_HIGH));
        let bytes = (u64::from(high & 0xffff) << 32 | u64::from(low)).to_le_bytes();
        core::array::from_fn(|i| bytes[i])
    }

    /// Activates the device with the shared memory at this bus address; false if that fails. Interrupts are masked.
    pub fn activate(&self, shared: u64, mac: [u8; 6]) -> bool {
        self.commands.write32(SHARED_LOW, shared as u32);
        self.commands.write32(SHARED_HIGH, (shared >> 32) as u32);
        if self.command(ACTIVATE) != 0 {
            return false;
        }
        let [a, b, c, d, e, f] = mac;
        self.commands.write32(MAC_LOW, u32::from_le_bytes([a, b, c, d]));
        self.commands.write32(MAC_HIGH, u32::from_le_bytes([e, f, 0, 0]));
        true
    }

    /// Whether the link is up; None if the device is absent.
    pub fn link(&self) -> Option<bool> {
        match self.command(GET_LINK) {
            u32::MAX => None,
            link => Some(link & 1 != 0),
        }
    }

    /// Makes the device write queue status and statistics to shared memory. These commands have no answer.
    pub fn request_statistics(&self) {
        self.commands.write32(COMMAND, GET_QUEUE_STATUS);
        self.commands.write32(COMMAND, GET_STATISTICS);
    }

    pub fn set_masked(&self, interrupt: u8, masked: bool) {
        self.doorbells.write32(INTERRUPT_MASK + 8 * usize::from(interrupt), masked.into());
    }

    #[inline]
    pub fn ring_transmit(&self, pair: usize, producer: u32) {
        fence(Ordering::Release);
        self.doorbells.write32(TRANSMIT + 8 * pair, producer);
    }

    #[inline]
    pub fn ring_receive(&self, pair: usize, producer: u32) {
        fence(Ordering::Release);
        self.doorbells.write32(RECEIVE + 8 * pair, producer);
    }
}
