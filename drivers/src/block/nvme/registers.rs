//! Registers of a controller (NVMe 1.4, 3.1) in BAR 0: little-endian, accessed in 32 bits, which all controllers
//! support.

use super::Error;
use crate::hal::{Platform, Registers};
use crate::pci::Bar;
use alloc::boxed::Box;
use core::time::Duration;

const CAP: usize = 0x00;
const VERSION: usize = 0x08;
const INTERRUPT_MASK_SET: usize = 0x0c;
const INTERRUPT_MASK_CLEAR: usize = 0x10;
const CONFIGURATION: usize = 0x14;
const STATUS: usize = 0x1c;
const ADMIN_ATTRIBUTES: usize = 0x24;
const ADMIN_SUBMISSIONS: usize = 0x28;
const ADMIN_COMPLETIONS: usize = 0x30;
const DOORBELLS: usize = 0x1000;

// CC (3.1.5).
const ENABLE: u32 = 1;
const SHUT_DOWN: u32 = 1 << 14;
/// Entries of submission queues have 2^6 bytes, of completion queues 2^4.
const ENTRY_SIZES: u32 = 6 << 16 | 4 << 20;

/// Value of a register of an absent device.
pub const ALL_ONES: u32 = u32::MAX;

/// Smallest page that a controller can have, as log2.
const PAGE_SHIFT: u32 = 12;
/// Largest supported smallest page of a controller (CAP.MPSMIN), as log2: 64 KiB.
const MOST_PAGE_SHIFT: u32 = 16;

/// CSTS (3.1.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(u32);

impl Status {
    /// The controller takes commands (RDY).
    pub fn is_ready(self) -> bool {
        self.0 & 1 != 0
    }

    /// The controller has a fatal error, which requires a reset (CFS).
    pub fn is_fatal(self) -> bool {
        self.0 & 2 != 0
    }

    /// The controller is ready for power-off (SHST).
    pub fn is_shut_down(self) -> bool {
        self.0 >> 2 & 3 == 2
    }

    /// The drive or its link is gone.
    pub fn is_absent(self) -> bool {
        self.0 == ALL_ONES
    }
}

/// The used fields of CAP (3.1.1), checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Most entries of a queue (CAP.MQES + 1).
    pub entries: u32,
    /// Longest time to become ready, or to stop (CAP.TO): up to 127.5 s, which drives need after a power cut.
    pub timeout: Duration,
    /// Bytes from one doorbell to the next.
    pub stride: usize,
    /// Bytes of a page of memory, as log2 (CAP.MPSMIN).
    pub page_shift: u32,
    /// Namespaces may be of command sets other than NVM (CAP.CSS bit 6).
    pub has_command_sets: bool,
}

impl Capabilities {
    /// Checks CAP. An error if the driver does not support the controller.
    fn of(cap: u64) -> Result<Self, Error> {
        if cap == u64::MAX || cap == 0 {
            return Err(Error::Absent);
        }
        let field = |shift: u32, bits: u32| (cap >> shift) as u32 & ((1 << bits) - 1);
        // CAP.CSS bit 0: the NVM command set.
        if field(37, 1) == 0 {
            return Err(Error::NoCommandSet);
        }
        let page_shift = PAGE_SHIFT + field(48, 4);
        if page_shift > MOST_PAGE_SHIFT {
            return Err(Error::PageSize { log2: page_shift });
        }
        let entries = field(0, 16) + 1;
        if entries < 2 {
            return Err(Error::Registers("CAP.MQES"));
        }
        let timeout = Duration::from_millis(500) * field(24, 8).max(1);
        let stride = 4 << field(32, 4);
        let has_command_sets = field(43, 1) != 0;
        Ok(Capabilities { entries, timeout, stride, page_shift, has_command_sets })
    }
}

/// The registers of a controller, mapped.
pub struct ControllerRegisters {
    registers: Box<dyn Registers>,
    capabilities: Capabilities,
}

impl ControllerRegisters {
    /// Maps the registers, with doorbells of queues 0 to `last`.
    pub fn map(bar: Bar, last: u16, platform: &mut dyn Platform) -> Result<Self, Error> {
        let mut map = |len: usize| {
            let address = bar.range(0, len as u64).ok_or(Error::NoRegisters)?;
            platform.map_registers(address, len).ok_or(Error::NoRegisters)
        };
        let first = map(DOORBELLS)?;
        let cap = u64::from(first.read32(CAP + 4)) << 32 | u64::from(first.read32(CAP));
        let capabilities = Capabilities::of(cap)?;
        let registers = map(DOORBELLS + 2 * (usize::from(last) + 1) * capabilities.stride)?;
        let version = registers.read32(VERSION);
        if version == ALL_ONES {
            return Err(Error::Absent);
        }
        if version >> 16 == 0 {
            return Err(Error::Version(version));
        }
        Ok(ControllerRegisters { registers, capabilities })
    }

    /// The controller's capabilities.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// VS: major version in the upper half, minor one in bits 8 to 15.
    pub fn version(&self) -> u32 {
        self.registers.read32(VERSION)
    }

    /// CSTS.
    pub fn status(&self) -> Status {
        Status(self.registers.read32(STATUS))
    }

    /// Whether the device is absent. VS of a present controller is neither 0 nor all ones.
    pub fn is_absent(&self) -> bool {
        matches!(self.version(), 0 | ALL_ONES)
    }

    /// CC.EN = 0: the controller drops its queues, and touches no memory once CSTS.RDY is 0.
    pub fn disable(&self) {
        self.registers.write32(CONFIGURATION, 0);
    }

    /// Sets the admin queue, with `entries` entries at these bus addresses, and CC.EN.
    pub fn enable(&self, submissions: u64, completions: u64, entries: u16) {
        let last = u32::from(entries - 1);
        let registers = &self.registers;
        registers.write32(ADMIN_ATTRIBUTES, last << 16 | last);
        for (at, address) in [(ADMIN_SUBMISSIONS, submissions), (ADMIN_COMPLETIONS, completions)] {
            registers.write32(at, address as u32);
            registers.write32(at + 4, (address >> 32) as u32);
        }
        registers.write32(CONFIGURATION, self.configuration());
        registers.write32(CONFIGURATION, self.configuration() | ENABLE);
    }

    /// CC without CC.EN.
    fn configuration(&self) -> u32 {
        ENTRY_SIZES | (self.capabilities.page_shift - PAGE_SHIFT) << 7
    }

    /// CC.SHN = 1: notifies the controller of the coming power-off (3.1.5, 7.6.2).
    pub fn shut_down(&self) {
        self.registers.write32(CONFIGURATION, self.configuration() | ENABLE | SHUT_DOWN);
    }

    /// Offset of a doorbell: submission queue tail, or completion queue head (3.1.24, 3.1.25).
    pub fn doorbell(&self, queue: u16, completions: bool) -> usize {
        DOORBELLS + (2 * usize::from(queue) + usize::from(completions)) * self.capabilities.stride
    }

    /// Rings a doorbell.
    #[inline]
    pub fn ring(&self, doorbell: usize, index: u16) {
        self.registers.write32(doorbell, index.into());
    }

    /// Unmasks or masks the interrupts of vector 0. Must not be used with MSI-X (3.1.3).
    pub fn set_interrupts(&self, wanted: bool) {
        let at = if wanted { INTERRUPT_MASK_CLEAR } else { INTERRUPT_MASK_SET };
        self.registers.write32(at, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_checked() {
        // QEMU 7.2: 2,048 entries, contiguous, 7.5 s, NVM and admin-only command sets.
        let qemu = 0x0010_4020_0f01_07ff;
        let found = Capabilities::of(qemu).unwrap();
        assert_eq!((found.entries, found.stride, found.page_shift), (2048, 4, 12));
        assert_eq!(found.timeout, Duration::from_millis(7500));
        let with = |at: u32, bits: u64| Capabilities::of(qemu & !(0xf << at) | bits << at);
        assert_eq!(with(32, 15).unwrap().stride, 4 << 15);
        assert_eq!(with(48, 4).unwrap().page_shift, 16);
        assert_eq!(with(48, 5), Err(Error::PageSize { log2: 17 }));
        assert_eq!(Capabilities::of(qemu & !(1 << 37)), Err(Error::NoCommandSet));
        assert_eq!(Capabilities::of(qemu & !0xffff), Err(Error::Registers("CAP.MQES")));
        assert_eq!(Capabilities::of(u64::MAX), Err(Error::Absent));
        let slowest = Capabilities::of(qemu | 0xff << 24).unwrap().timeout;
        assert_eq!(slowest, Duration::from_millis(127_500));
    }
}
