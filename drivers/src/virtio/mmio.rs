//! Virtio over memory-mapped registers (virtio 1.2, 4.2), versions 2 and 1 (4.2.4, the legacy interface, QEMU's default
//! for its microvm machine).

use super::transport::Transport;
use super::{Error, Ring};
use crate::driver::Slot;
use crate::hal::{Interrupt, Platform, Registers};
use alloc::boxed::Box;

/// Size of a slot's registers in bytes.
pub const SLOT_LEN: usize = 0x200;

const MAGIC: u32 = 0x7472_6976;

const MAGIC_VALUE: usize = 0x000;
const VERSION: usize = 0x004;
const DEVICE_ID: usize = 0x008;
const DEVICE_FEATURES: usize = 0x010;
const DEVICE_FEATURES_SEL: usize = 0x014;
const DRIVER_FEATURES: usize = 0x020;
const DRIVER_FEATURES_SEL: usize = 0x024;
const GUEST_PAGE_SIZE: usize = 0x028;
const QUEUE_SEL: usize = 0x030;
const QUEUE_NUM_MAX: usize = 0x034;
const QUEUE_NUM: usize = 0x038;
const QUEUE_ALIGN: usize = 0x03c;
const QUEUE_PFN: usize = 0x040;
const QUEUE_READY: usize = 0x044;
const QUEUE_NOTIFY: usize = 0x050;
const INTERRUPT_STATUS: usize = 0x060;
const INTERRUPT_ACK: usize = 0x064;
const STATUS: usize = 0x070;
const QUEUE_DESC: usize = 0x080;
const QUEUE_DRIVER: usize = 0x090;
const QUEUE_DEVICE: usize = 0x0a0;
const CONFIG_GENERATION: usize = 0x0fc;
const CONFIG: usize = 0x100;

/// The type of the device in a slot; None if the slot is empty.
pub fn device_type(slot: Slot, platform: &mut dyn Platform) -> Result<Option<u32>, Error> {
    let registers = registers(slot, platform)?;
    let device_type = registers.read32(DEVICE_ID);
    if registers.read32(MAGIC_VALUE) != MAGIC || device_type == 0 {
        return Ok(None);
    }
    version(&*registers).map(|_| Some(device_type))
}

fn registers(slot: Slot, platform: &mut dyn Platform) -> Result<Box<dyn Registers>, Error> {
    platform.map_registers(slot.address, SLOT_LEN).ok_or(Error::Registers("register block"))
}

/// Version of the register interface, 1 or 2.
fn version(registers: &dyn Registers) -> Result<u32, Error> {
    match registers.read32(VERSION) {
        version @ 1..=2 => Ok(version),
        other => Err(Error::Version(other)),
    }
}

/// A virtio device behind memory-mapped registers.
pub struct MmioTransport {
    registers: Box<dyn Registers>,
    config: Box<dyn Registers>,
    legacy: bool,
    wakes: bool,
    interrupts: u64,
}

impl MmioTransport {
    /// The device in `slot`.
    pub fn open(slot: Slot, platform: &mut dyn Platform) -> Result<Self, Error> {
        let registers = registers(slot, platform)?;
        let legacy = version(&*registers)? == 1;
        let config = platform
            .map_registers(slot.address + CONFIG as u64, SLOT_LEN - CONFIG)
            .ok_or(Error::Registers("configuration"))?;
        Ok(MmioTransport { registers, config, legacy, wakes: slot.wakes, interrupts: 0 })
    }

    fn write_address(&self, offset: usize, address: u64) {
        self.registers.write32(offset, address as u32);
        self.registers.write32(offset + 4, (address >> 32) as u32);
    }
}

impl Transport for MmioTransport {
    fn device_type(&self) -> u32 {
        self.registers.read32(DEVICE_ID)
    }

    fn legacy(&self) -> bool {
        self.legacy
    }

    fn status(&self) -> u8 {
        self.registers.read32(STATUS) as u8
    }

    fn set_status(&mut self, status: u8) {
        self.registers.write32(STATUS, status.into());
    }

    fn offered_features(&mut self) -> u64 {
        self.registers.write32(DEVICE_FEATURES_SEL, 0);
        let low = self.registers.read32(DEVICE_FEATURES);
        if self.legacy {
            return low.into();
        }
        self.registers.write32(DEVICE_FEATURES_SEL, 1);
        u64::from(self.registers.read32(DEVICE_FEATURES)) << 32 | u64::from(low)
    }

    fn accept_features(&mut self, features: u64) {
        self.registers.write32(DRIVER_FEATURES_SEL, 0);
        self.registers.write32(DRIVER_FEATURES, features as u32);
        if !self.legacy {
            self.registers.write32(DRIVER_FEATURES_SEL, 1);
            self.registers.write32(DRIVER_FEATURES, (features >> 32) as u32);
        }
    }

    fn queue_capacity(&mut self, index: u16) -> u16 {
        self.registers.write32(QUEUE_SEL, index.into());
        self.registers.read32(QUEUE_NUM_MAX).try_into().unwrap_or(1 << 15)
    }

    fn enable_queue(&mut self, index: u16, ring: &Ring, _interrupts: bool) -> Result<(), Error> {
        let refused = Error::QueueRefused { index, entries: ring.size() };
        self.registers.write32(QUEUE_SEL, index.into());
        self.registers.write32(QUEUE_NUM, ring.size().into());
        if self.legacy {
            let page = Ring::ALIGN as u32;
            let frame = u32::try_from(ring.table_address() / u64::from(page));
            self.registers.write32(GUEST_PAGE_SIZE, page);
            self.registers.write32(QUEUE_ALIGN, page);
            self.registers.write32(QUEUE_PFN, frame.map_err(|_| refused)?);
        } else {
            self.write_address(QUEUE_DESC, ring.table_address());
            self.write_address(QUEUE_DRIVER, ring.available_address());
            self.write_address(QUEUE_DEVICE, ring.used_address());
            self.registers.write32(QUEUE_READY, 1);
        }
        Ok(())
    }

    fn notify(&self, index: u16) {
        self.registers.write32(QUEUE_NOTIFY, index.into());
    }

    fn config_generation(&self) -> u32 {
        if self.legacy { 0 } else { self.registers.read32(CONFIG_GENERATION) }
    }

    fn config(&self) -> &dyn Registers {
        &*self.config
    }

    fn route(&mut self, _: &Interrupt) -> bool {
        // The device has an interrupt line, not messages.
        false
    }

    fn wakes(&self) -> bool {
        self.wakes
    }

    fn acknowledge(&mut self) {
        let raised = self.registers.read32(INTERRUPT_STATUS);
        if raised != 0 {
            self.registers.write32(INTERRUPT_ACK, raised);
            self.interrupts += 1;
        }
    }

    fn interrupts(&self) -> u64 {
        self.interrupts
    }
}
