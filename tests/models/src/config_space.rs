//! PCI configuration space (PCI Local Bus 3.0 chapter 6, PCI Express Base chapter 7): 4 KiB, with a mask of
//! the bits that a driver may write, and the function-level reset.

use crate::Nanoseconds;

/// Bytes of configuration space.
const SIZE: usize = 4096;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const CAPABILITY_POINTER: usize = 0x34;

/// Command: I/O, memory, bus master, parity error response, SERR#, interrupt disable.
const COMMAND_WRITABLE: u16 = 0x0547;
const MEMORY_SPACE: u8 = 1 << 1;
const BUS_MASTER: u8 = 1 << 2;
const CAPABILITY_LIST: u8 = 1 << 4;

/// Device Control, in the PCI Express capability.
const DEVICE_CONTROL: usize = 0x08;
const RELAXED_ORDERING: u16 = 1 << 4;
const NO_SNOOP: u16 = 1 << 11;
const FUNCTION_RESET: u16 = 1 << 15;
/// Vendor ID while the function answers configuration requests with retries, as root ports return it if software has
/// made retries visible.
const RETRY: u16 = 1;

/// Device/port type in the PCI Express capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortType {
    /// Behind a root port or a switch.
    Endpoint = 0,
    /// On the root bus.
    IntegratedEndpoint = 9,
}

/// Configuration space of a function.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    bytes: Vec<u8>,
    writable: Vec<u8>,
    /// Bits that writing a 1 clears.
    clearable: Vec<u8>,
    next_capability: usize,
    /// Offset of the last capability's next pointer.
    link: usize,
    last_extended: usize,
    /// Offset of the PCI Express capability; 0: none.
    express: usize,
    /// The bytes before the first write.
    power_on: Option<Vec<u8>>,
    /// The driver has started a function-level reset that was not carried out yet.
    reset_started: bool,
    /// End of the last function-level reset.
    silent_until: Nanoseconds,
}

impl ConfigSpace {
    /// The configuration space of a function without capabilities. `class` is base class, subclass and programming
    /// interface, of 8 bits each.
    pub fn new(vendor: u16, device: u16, class: u32, revision: u8) -> Self {
        let mut space = ConfigSpace {
            bytes: vec![0; SIZE],
            writable: vec![0; SIZE],
            clearable: vec![0; SIZE],
            next_capability: 0x50,
            link: CAPABILITY_POINTER,
            last_extended: 0,
            express: 0,
            power_on: None,
            reset_started: false,
            silent_until: 0,
        };
        space.put(0x00, &vendor.to_le_bytes());
        space.put(0x02, &device.to_le_bytes());
        space.put(0x08, &[revision]);
        space.put(0x09, &class.to_le_bytes()[..3]);
        space.allow(COMMAND, &COMMAND_WRITABLE.to_le_bytes());
        space.allow(0x0c, &[0xff]); // cache line size
        space.allow(0x3c, &[0xff]); // interrupt line
        space
    }

    /// Sets the subsystem's vendor and device.
    pub fn subsystem(mut self, vendor: u16, device: u16) -> Self {
        self.put(0x2c, &vendor.to_le_bytes());
        self.put(0x2e, &device.to_le_bytes());
        self
    }

    /// Adds a 64-bit memory BAR of `size` bytes, a power of two, that is not prefetchable.
    pub fn memory_bar(mut self, index: u8, size: u64) -> Self {
        let offset = 0x10 + 4 * usize::from(index);
        self.put(offset, &4u32.to_le_bytes());
        self.allow(offset, &(!(size - 1) & !0xf).to_le_bytes());
        self
    }

    /// Adds a 32-bit memory BAR of `size` bytes, a power of two, that is not prefetchable.
    pub fn memory_bar_32(mut self, index: u8, size: u32) -> Self {
        let offset = 0x10 + 4 * usize::from(index);
        self.allow(offset, &(!(size - 1) & !0xf).to_le_bytes());
        self
    }

    /// Adds an I/O BAR of `size` ports, a power of two.
    pub fn io_bar(mut self, index: u8, size: u32) -> Self {
        let offset = 0x10 + 4 * usize::from(index);
        self.put(offset, &1u32.to_le_bytes());
        self.allow(offset, &(!(size - 1) & !3).to_le_bytes());
        self
    }

    /// Sets the offset of the next capability, which must be after the earlier ones.
    pub fn capability_at(mut self, offset: usize) -> Self {
        self.next_capability = offset;
        self
    }

    /// Adds an MSI-X capability. Its table and pending bits are at these offsets of the BAR.
    pub fn msix(mut self, vectors: u16, bar: u8, table: u32, pending: u32) -> Self {
        let offset = self.capability(0x11, 12);
        self.put(offset + 2, &(vectors - 1).to_le_bytes());
        self.allow(offset + 2, &0xc000u16.to_le_bytes());
        self.put(offset + 4, &(table | u32::from(bar)).to_le_bytes());
        self.put(offset + 8, &(pending | u32::from(bar)).to_le_bytes());
        self
    }

    /// Adds an MSI capability of 2^`log2` vectors with 64-bit addresses.
    pub fn msi(mut self, log2: u16) -> Self {
        let offset = self.capability(0x05, 14);
        self.put(offset + 2, &(0x80 | log2 << 1).to_le_bytes());
        self.allow(offset + 2, &0x71u16.to_le_bytes());
        self.allow(offset + 4, &(!3u64).to_le_bytes());
        self.allow(offset + 12, &[0xff; 2]);
        self
    }

    /// Adds a power management capability, version 3, without soft reset.
    pub fn power_management(mut self) -> Self {
        let offset = self.capability(0x01, 8);
        self.put(offset + 2, &3u16.to_le_bytes());
        self.put(offset + 4, &8u16.to_le_bytes());
        self.allow(offset + 4, &3u16.to_le_bytes());
        self
    }

    /// Adds a PCI Express capability, version 2: payloads of 256 bytes, function-level reset.
    pub fn express(mut self, port: PortType) -> Self {
        let offset = self.capability(0x10, 0x3c);
        self.express = offset;
        self.put(offset + 2, &(2 | (port as u16) << 4).to_le_bytes());
        self.put(offset + 4, &0x1000_8001u32.to_le_bytes());
        self.allow(offset + 8, &0x7fffu16.to_le_bytes());
        // Device Status: errors are cleared by writing ones.
        self.clearable[offset + 10] = 0xf;
        self.put(offset + 8, &0x2810u16.to_le_bytes());
        self.put(offset + 0x0c, &0x412u32.to_le_bytes()); // one lane, 5 GT/s
        self.put(offset + 0x12, &0x12u16.to_le_bytes());
        self.put(offset + 0x24, &0x1fu32.to_le_bytes());
        self.allow(offset + 0x10, &0x0fffu16.to_le_bytes());
        self.allow(offset + 0x28, &0x1fu16.to_le_bytes());
        self.allow(offset + 0x30, &0x0fffu16.to_le_bytes());
        self
    }

    /// Adds Advanced Error Reporting at 0x100, version 1, with the masks of PCI Express Base 5.0, 7.8.4.
    pub fn error_reporting(self) -> Self {
        let mut space = self
            .extended(1, 1, 0x100)
            .write_one_to_clear(0x104, 0x01ff_f030)
            .writable(0x108, 0x01ff_f030)
            .writable(0x10c, 0x01ff_f030)
            .write_one_to_clear(0x110, 0xf1c1)
            .writable(0x114, 0xf1c1)
            .writable(0x118, 0x140);
        space.put(0x10c, &0x0046_2030u32.to_le_bytes());
        space.put(0x114, &0x2000u32.to_le_bytes());
        space
    }

    /// Adds a PCI Express capability with this link status: speed in bits 3 to 0, lanes in bits 9 to 4.
    pub fn express_at_speed(self, port: PortType, status: u16) -> Self {
        let mut space = self.express(port);
        // `express` has added the capability last.
        let offset = space.link - 1;
        space.put(offset + 0x12, &status.to_le_bytes());
        space
    }

    /// Adds a vendor-specific capability of `length` bytes, all 0 after its header.
    pub fn vendor_specific(mut self, length: usize) -> Self {
        let offset = self.capability(0x09, length);
        self.put(offset + 2, &[length as u8]);
        self
    }

    /// Adds an extended capability at an offset from 0x100 on. The first must be at 0x100.
    pub fn extended(mut self, id: u16, version: u16, offset: usize) -> Self {
        self.put(offset, &id.to_le_bytes());
        self.put(offset + 2, &version.to_le_bytes());
        if self.last_extended != 0 {
            // The upper 12 bits of the previous header are this capability's offset.
            let link = u16::from_le_bytes([
                self.bytes[self.last_extended + 2],
                self.bytes[self.last_extended + 3],
            ]);
            let link = link | (offset as u16) << 4;
            self.put(self.last_extended + 2, &link.to_le_bytes());
        }
        self.last_extended = offset;
        self
    }

    /// Makes these bits at `offset` writable for a driver.
    pub fn writable(mut self, offset: usize, bits: u32) -> Self {
        self.allow(offset, &bits.to_le_bytes());
        self
    }

    /// Makes these bits at `offset` write-one-to-clear.
    pub fn write_one_to_clear(mut self, offset: usize, bits: u32) -> Self {
        self.clearable[offset..offset + 4].copy_from_slice(&bits.to_le_bytes());
        self
    }

    /// Whether the driver has enabled bus mastering.
    pub fn is_bus_master(&self) -> bool {
        self.bytes[COMMAND] & BUS_MASTER != 0
    }

    /// Whether the driver has enabled the decoding of memory BARs.
    pub fn decodes_memory(&self) -> bool {
        self.bytes[COMMAND] & MEMORY_SPACE != 0
    }

    fn device_control(&self) -> u16 {
        match self.express {
            0 => 0,
            at => u16::from_le_bytes([
                self.bytes[at + DEVICE_CONTROL],
                self.bytes[at + DEVICE_CONTROL + 1],
            ]),
        }
    }

    /// Whether the function may let its writes to memory overtake each other (Relaxed Ordering).
    pub fn may_reorder(&self) -> bool {
        self.device_control() & RELAXED_ORDERING != 0
    }

    /// Whether the function may bypass the CPU's caches (No Snoop).
    pub fn may_bypass_caches(&self) -> bool {
        self.device_control() & NO_SNOOP != 0
    }

    /// Takes a function-level reset that the driver has started.
    pub(crate) fn take_reset(&mut self) -> bool {
        std::mem::take(&mut self.reset_started)
    }

    /// Restores the registers after power-on. Until `end` the function answers no access.
    pub(crate) fn power_on(&mut self, end: Nanoseconds) {
        if let Some(power_on) = &self.power_on {
            for (at, byte) in self.bytes.iter_mut().enumerate() {
                let mask = self.writable[at];
                *byte = *byte & !mask | power_on[at] & mask;
            }
        }
        self.silent_until = end;
    }

    /// Whether the function is in a function-level reset: it answers configuration requests with retries, and no
    /// others.
    pub fn is_silent(&self, now: Nanoseconds) -> bool {
        now < self.silent_until
    }

    /// A driver's read at the time `now`.
    pub fn read_at(&self, now: Nanoseconds, offset: u64, into: &mut [u8]) {
        if !self.is_silent(now) {
            return self.read(offset, into);
        }
        into.fill(0xff);
        let [low, high] = RETRY.to_le_bytes();
        for (at, place) in (offset..).zip(into) {
            match at {
                0 => *place = low,
                1 => *place = high,
                _ => {}
            }
        }
    }

    /// A driver's write at the time `now`.
    pub fn write_at(&mut self, now: Nanoseconds, offset: u64, bytes: &[u8]) {
        if !self.is_silent(now) {
            self.write(offset, bytes);
        }
    }

    /// Sets the bytes at `offset`, also those that a driver cannot write.
    pub fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// A driver's read. Bytes beyond the end are 0xff.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        for (at, place) in (offset as usize..).zip(into) {
            *place = self.bytes.get(at).copied().unwrap_or(0xff);
        }
    }

    /// A driver's write. Read-only bits keep their value.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        if self.power_on.is_none() {
            self.power_on = Some(self.bytes.clone());
        }
        for (at, &byte) in (offset as usize..).zip(bytes).take_while(|(at, _)| *at < SIZE) {
            let [_, reset] = FUNCTION_RESET.to_le_bytes();
            if self.express != 0 && at == self.express + DEVICE_CONTROL + 1 && byte & reset != 0 {
                self.reset_started = true;
            }
            let mask = self.writable[at];
            let kept = self.bytes[at] & !(byte & self.clearable[at]);
            self.bytes[at] = kept & !mask | byte & mask;
        }
    }

    /// Appends a capability and returns its offset.
    fn capability(&mut self, id: u8, length: usize) -> usize {
        let offset = self.next_capability;
        self.bytes[offset] = id;
        self.bytes[self.link] = offset as u8;
        self.link = offset + 1;
        self.next_capability = (offset + length).next_multiple_of(4);
        self.bytes[STATUS] |= CAPABILITY_LIST;
        offset
    }

    fn allow(&mut self, offset: usize, bits: &[u8]) {
        self.writable[offset..offset + bits.len()].copy_from_slice(bits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read32(space: &ConfigSpace, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        space.read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn a_driver_can_size_a_bar() {
        let mut space = ConfigSpace::new(0x8086, 0x0e20, 0x08_80_00, 4).memory_bar(0, 0x4000);
        space.write(0x10, &[0xff; 8]);
        assert_eq!((read32(&space, 0x10), read32(&space, 0x14)), (0xffff_c004, 0xffff_ffff));
        assert_eq!(read32(&space, 0x08), 0x0880_0004);
        space.write(0x00, &[0; 4]);
        assert_eq!(read32(&space, 0x00), 0x0e20_8086, "vendor and device id are read-only");
        assert_eq!(read32(&space, SIZE as u64), u32::MAX);
        space.write(SIZE as u64 - 2, &[0; 4]);
    }

    #[test]
    fn capabilities_are_a_list() {
        let space = ConfigSpace::new(1, 2, 3, 4)
            .msix(4, 0, 0x2000, 0x3000)
            .express(PortType::IntegratedEndpoint)
            .power_management()
            .extended(1, 1, 0x100)
            .extended(3, 1, 0x200);
        let mut found = Vec::new();
        let mut at = read32(&space, CAPABILITY_POINTER as u64) & 0xff;
        while at != 0 {
            let header = read32(&space, at.into());
            found.push(header & 0xff);
            at = header >> 8 & 0xff;
        }
        assert_eq!(found, [0x11, 0x10, 0x01]);
        assert_eq!(read32(&space, 0x100), 0x2001_0001);
        assert_eq!(read32(&space, 0x200), 0x0001_0003);
        assert_eq!(read32(&space, 0x50) >> 16, 3, "the number of vectors less one");
    }

    #[test]
    fn write_one_to_clear_bits_are_cleared_by_ones() {
        let mut space = ConfigSpace::new(1, 2, 3, 4).write_one_to_clear(0x148, !0);
        space.put(0x148, &[0xff; 4]);
        space.write(0x148, &0x0f0f_0000u32.to_le_bytes());
        assert_eq!(read32(&space, 0x148), 0xf0f0_ffff);
    }
}
