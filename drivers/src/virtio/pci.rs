//! Virtio over PCI (virtio 1.2, 4.1): registers in memory BARs, found through capabilities. Devices with only the port
//! I/O interface from before virtio 1.0 are not supported.

use super::transport::{DRIVER_OK, NoConfig, Transport};
use super::{Dialect, Error, Ring};
use crate::hal::{Interrupt, Platform, Registers};
use crate::pci::{Bars, Function, Msix};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

/// Vendor of all virtio devices.
pub const VENDOR: u16 = 0x1af4;
const CAPABILITY: u8 = 9;
const COMMON: u8 = 1;
const NOTIFY: u8 = 2;
const DEVICE: u8 = 4;

// struct virtio_pci_common_cfg (4.1.4.3).
const DEVICE_FEATURE_SELECT: usize = 0x00;
const DEVICE_FEATURE: usize = 0x04;
const DRIVER_FEATURE_SELECT: usize = 0x08;
const DRIVER_FEATURE: usize = 0x0c;
const CONFIG_MSIX_VECTOR: usize = 0x10;
const DEVICE_STATUS: usize = 0x14;
const CONFIG_GENERATION: usize = 0x15;
const QUEUE_SELECT: usize = 0x16;
const QUEUE_SIZE: usize = 0x18;
const QUEUE_MSIX_VECTOR: usize = 0x1a;
const QUEUE_ENABLE: usize = 0x1c;
const QUEUE_NOTIFY_OFF: usize = 0x1e;
const QUEUE_DESC: usize = 0x20;
const QUEUE_DRIVER: usize = 0x28;
const QUEUE_DEVICE: usize = 0x30;
const COMMON_LEN: usize = 0x38;

const NO_VECTOR: u16 = 0xffff;
const VECTOR: u16 = 0;

/// The virtio device type of a PCI function, if it is one (4.1.2).
pub fn device_type(function: &Function<'_>) -> Option<u32> {
    if function.vendor() != VENDOR {
        return None;
    }
    match function.device() {
        0x1000 => Some(super::NETWORK),
        0x1001 => Some(super::BLOCK),
        0x1003 => Some(super::CONSOLE),
        0x1004 => Some(super::SCSI),
        0x1005 => Some(super::ENTROPY),
        id @ 0x1040..=0x107f => Some(u32::from(id - 0x1040)),
        _ => None,
    }
}

/// A virtio device that is a PCI function.
pub struct PciTransport {
    device_type: u32,
    common: Box<dyn Registers>,
    notify: Box<dyn Registers>,
    config: Option<Box<dyn Registers>>,
    /// Doorbell of each enabled queue: offset in `notify` in bytes.
    doorbells: Vec<usize>,
    notify_multiplier: u32,
    msix: Option<Msix>,
    interrupt: Option<Interrupt>,
    dialect: Dialect,
    /// The driver has set DRIVER_OK.
    is_live: bool,
}

impl PciTransport {
    /// Enables the function and maps its registers. Its interrupts are routed to a free interrupt of the platform, if
    /// there is one and the function has MSI-X.
    pub fn open(function: &Function<'_>, platform: &mut dyn Platform) -> Result<Self, Error> {
        let bars = function.bars();
        function.prepare();
        let mut transport = Self::open_polled(function, &bars, platform)?;
        // An earlier system may have left the device running.
        if !transport.dialect.is_uhyve() {
            transport.set_status(0);
        }
        function.enable_bus_master();
        if let Some(mut msix) = Msix::open(function, &bars, platform) {
            let interrupt = platform.allocate_interrupt();
            transport.interrupt = interrupt.filter(|i| msix.route(VECTOR, i));
            transport.msix = Some(msix);
        }
        if transport.dialect.is_uhyve() {
            transport.interrupt = function.allow_line().and_then(|line| platform.route_line(line));
        }
        Ok(transport)
    }

    /// Maps the registers of an enabled function, whose memory regions are `bars`. The transport raises no interrupts.
    pub fn open_polled(
        function: &Function<'_>,
        bars: &Bars,
        platform: &mut dyn Platform,
    ) -> Result<Self, Error> {
        let device_type = device_type(function).ok_or(Error::Registers("virtio device ID"))?;
        let mut map = |kind, least| map(function, bars, platform, kind, least);
        let common = map(COMMON, COMMON_LEN).ok_or(Error::Registers("common configuration"))?.0;
        let (notify, at) = map(NOTIFY, 2).ok_or(Error::Registers("notification area"))?;
        let notify_multiplier = function.read32(at + 16);
        let config = map(DEVICE, 1).map(|(registers, _)| registers);
        Ok(PciTransport {
            device_type,
            common,
            notify,
            config,
            // Queues 0 to 2 (those of SCSI) can be enabled without an allocation, which a crash writer may not make.
            doorbells: Vec::with_capacity(3),
            notify_multiplier,
            msix: None,
            interrupt: None,
            dialect: Dialect::of(function),
            is_live: false,
        })
    }

    fn features(&self, select: usize, value: usize, half: u32) -> u32 {
        self.common.write32(select, half);
        self.common.read32(value)
    }

    fn write_address(&self, offset: usize, address: u64) {
        self.common.write32(offset, address as u32);
        self.common.write32(offset + 4, (address >> 32) as u32);
    }
}

/// Offset of the common configuration in its BAR, by the function's capability.
pub(super) fn common_offset(function: &Function<'_>) -> Option<u32> {
    let mine = |c: &crate::pci::Capability| c.id == CAPABILITY && (c.extra >> 8) as u8 == COMMON;
    function.capabilities().find(mine).map(|c| function.read32(c.offset + 8))
}

/// Maps the first usable structure of `kind` that has `least` bytes or more (4.1.4). Also returns the offset of its
/// capability.
fn map(
    function: &Function<'_>,
    bars: &Bars,
    platform: &mut dyn Platform,
    kind: u8,
    least: usize,
) -> Option<(Box<dyn Registers>, u16)> {
    // After the link: the capability's length (8 bits), then the kind of structure.
    let mine = |c: &crate::pci::Capability| c.id == CAPABILITY && (c.extra >> 8) as u8 == kind;
    function.capabilities().filter(mine).find_map(|c| {
        let bar = bars.get(function.read32(c.offset + 4) as u8)?;
        let offset = function.read32(c.offset + 8);
        let len = function.read32(c.offset + 12);
        let address = bar.range(u64::from(offset), u64::from(len))?;
        let len = usize::try_from(len).ok().filter(|&l| l >= least && offset.is_multiple_of(4))?;
        Some((platform.map_registers(address, len)?, c.offset))
    })
}

impl Transport for PciTransport {
    fn device_type(&self) -> u32 {
        self.device_type
    }

    fn legacy(&self) -> bool {
        false
    }

    fn status(&self) -> u8 {
        self.common.read8(DEVICE_STATUS)
    }

    fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn set_status(&mut self, status: u8) {
        if self.dialect.is_uhyve() {
            if self.is_live {
                return;
            }
            self.is_live = status & DRIVER_OK != 0;
        }
        self.common.write8(DEVICE_STATUS, status);
        if status == 0 {
            self.doorbells.clear();
        }
    }

    fn offered_features(&mut self) -> u64 {
        let low = self.features(DEVICE_FEATURE_SELECT, DEVICE_FEATURE, 0);
        let high = self.features(DEVICE_FEATURE_SELECT, DEVICE_FEATURE, 1);
        u64::from(high) << 32 | u64::from(low)
    }

    fn accept_features(&mut self, features: u64) {
        self.common.write32(DRIVER_FEATURE_SELECT, 0);
        self.common.write32(DRIVER_FEATURE, features as u32);
        self.common.write32(DRIVER_FEATURE_SELECT, 1);
        self.common.write32(DRIVER_FEATURE, (features >> 32) as u32);
    }

    fn queue_capacity(&mut self, index: u16) -> u16 {
        self.common.write16(QUEUE_SELECT, index);
        self.common.read16(QUEUE_SIZE)
    }

    fn enable_queue(&mut self, index: u16, ring: &Ring, interrupts: bool) -> Result<(), Error> {
        let refused = Error::QueueRefused { index, entries: ring.size() };
        self.common.write16(QUEUE_SELECT, index);
        if !self.dialect.is_uhyve() {
            self.common.write16(QUEUE_SIZE, ring.size());
        }
        if self.common.read16(QUEUE_SIZE) != ring.size() {
            return Err(refused);
        }
        if self.msix.is_some() {
            let vector = if self.interrupt.is_some() { VECTOR } else { NO_VECTOR };
            self.common.write16(CONFIG_MSIX_VECTOR, vector);
            let vector = if interrupts { vector } else { NO_VECTOR };
            self.common.write16(QUEUE_MSIX_VECTOR, vector);
            if self.common.read16(QUEUE_MSIX_VECTOR) != vector {
                // The device has no room for the vector: it is polled.
                self.interrupt = None;
            }
        }
        self.write_address(QUEUE_DESC, ring.table_address());
        self.write_address(QUEUE_DRIVER, ring.available_address());
        self.write_address(QUEUE_DEVICE, ring.used_address());
        let place = u64::from(self.common.read16(QUEUE_NOTIFY_OFF));
        let doorbell = place * u64::from(self.notify_multiplier);
        let doorbell = usize::try_from(doorbell)
            .ok()
            .filter(|&d| d.is_multiple_of(2) && d + 2 <= self.notify.len())
            .ok_or(Error::Registers("notification area"))?;
        self.doorbells.resize(self.doorbells.len().max(usize::from(index) + 1), usize::MAX);
        if let Some(place) = self.doorbells.get_mut(usize::from(index)) {
            *place = doorbell;
        }
        self.common.write16(QUEUE_ENABLE, 1);
        Ok(())
    }

    fn notify(&self, index: u16) {
        if let Some(&doorbell) = self.doorbells.get(usize::from(index)) {
            self.notify.write16(doorbell, index);
        }
    }

    fn config_generation(&self) -> u32 {
        self.common.read8(CONFIG_GENERATION).into()
    }

    fn config(&self) -> &dyn Registers {
        self.config.as_deref().unwrap_or(&NoConfig)
    }

    fn route(&mut self, interrupt: &Interrupt) -> bool {
        // Without an interrupt at setup the queues have no vector.
        let routed = self.interrupt.is_some()
            && self.msix.as_mut().is_some_and(|msix| msix.route(VECTOR, interrupt));
        if routed {
            self.interrupt = Some(*interrupt);
        }
        routed
    }

    fn wakes(&self) -> bool {
        self.interrupt.is_some()
    }

    fn acknowledge(&mut self) {
        // Messages need no acknowledgement.
    }

    fn interrupts(&self) -> u64 {
        self.interrupt.map_or(0, |i| i.raised().load(Ordering::Relaxed))
    }
}
