//! Configuration space in memory (PCI Express Base, 7.2.2): 4 KiB for each function, 1 MiB for each bus.

use crate::hal::{PciAddress, Registers};

/// Buses of a segment whose configuration space lies in one range of memory.
#[derive(Debug)]
pub struct Ecam<R> {
    registers: R,
    segment: u16,
    first_bus: u8,
}

impl<R: Registers> Ecam<R> {
    /// Bytes of configuration space per bus.
    pub const BUS: usize = 1 << 20;

    /// `registers` are the configuration space from `first_bus` on.
    pub fn new(registers: R, segment: u16, first_bus: u8) -> Self {
        Ecam { registers, segment, first_bus }
    }

    /// Reads 32 bits. None if they lie outside.
    pub fn read(&self, address: PciAddress, offset: u16) -> Option<u32> {
        self.place(address, offset).map(|at| self.registers.read32(at))
    }

    /// Writes 32 bits. False if they lie outside.
    pub fn write(&self, address: PciAddress, offset: u16, value: u32) -> bool {
        let place = self.place(address, offset);
        place.inspect(|&at| self.registers.write32(at, value)).is_some()
    }

    fn place(&self, address: PciAddress, offset: u16) -> Option<usize> {
        let bus = address.bus().checked_sub(self.first_bus)?;
        let at = usize::from(bus) * Self::BUS
            + (usize::from(address.device()) << 15)
            + (usize::from(address.function()) << 12)
            + usize::from(offset & 0xffc);
        (address.segment() == self.segment && at < self.registers.len()).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Registers that read as their own offset, and remember the last write.
    struct Offsets(usize, Mutex<(usize, u32)>);

    impl Registers for Offsets {
        fn len(&self) -> usize {
            self.0
        }
        fn read8(&self, _: usize) -> u8 {
            unreachable!()
        }
        fn read16(&self, _: usize) -> u16 {
            unreachable!()
        }
        fn read32(&self, offset: usize) -> u32 {
            offset as u32
        }
        fn read64(&self, _: usize) -> u64 {
            unreachable!()
        }
        fn write8(&self, _: usize, _: u8) {
            unreachable!()
        }
        fn write16(&self, _: usize, _: u16) {
            unreachable!()
        }
        fn write64(&self, _: usize, _: u64) {
            unreachable!()
        }
        fn write32(&self, offset: usize, value: u32) {
            *self.1.lock().unwrap() = (offset, value);
        }
    }

    #[test]
    fn only_functions_on_the_buses_are_accessed() {
        let two = Offsets(2 << 20, Mutex::default());
        let ecam = Ecam::new(two, 3, 0x40);
        let at = |segment, bus| PciAddress::new(segment, bus, 31, 7);
        assert_eq!(ecam.read(at(3, 0x40), 0xffc), Some(0xf_fffc));
        assert_eq!(ecam.read(at(3, 0x41), 0x10), Some(0x1f_f010));
        for (segment, bus) in [(3, 0x3f), (3, 0x42), (3, 0), (0, 0x40), (2, 0x41)] {
            assert_eq!(ecam.read(at(segment, bus), 0), None);
            assert!(!ecam.write(at(segment, bus), 0, 1));
        }
        assert!(ecam.write(at(3, 0x41), 0x10, 7));
        assert_eq!(*ecam.registers.1.lock().unwrap(), (0x1f_f010, 7));
    }
}
