//! MSI (PCI 3.0, 6.8.1): one message interrupt, for functions without MSI-X.

use super::Function;
use crate::hal::Interrupt;

const ID: u8 = 0x05;
/// Message control, in the upper half of the capability's first 32 bits.
const ENABLE: u32 = 1 << 16;
const VECTORS: u32 = 7 << 20;
const ADDRESS_64: u16 = 1 << 7;

impl Function<'_> {
    /// Routes the function's interrupt, a single vector, to `interrupt`. False if the function has no MSI, or cannot
    /// address the interrupt controller.
    pub fn route_msi(&self, interrupt: &Interrupt) -> bool {
        let Some(capability) = self.capabilities().find(|c| c.id == ID) else { return false };
        let (at, high) = (capability.offset, (interrupt.address() >> 32) as u32);
        let control = self.read32(at) & !(ENABLE | VECTORS);
        self.write32(at, control);
        self.write32(at + 4, interrupt.address() as u32);
        let data = if capability.extra & ADDRESS_64 != 0 {
            self.write32(at + 8, high);
            at + 12
        } else if high != 0 {
            return false;
        } else {
            at + 8
        };
        // Later versions of the specification define the upper half of this word.
        let beside = self.read32(data) & 0xffff_0000;
        self.write32(data, beside | interrupt.data() & 0xffff);
        self.write32(at, control | ENABLE);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::ConfigSpaces;
    use super::*;
    use crate::hal::PciAddress;
    use core::sync::atomic::AtomicU64;

    static RAISED: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn route_msi_enables_one_vector() {
        // SAFETY: nothing raises it.
        let interrupt = unsafe { Interrupt::new(0xfee0_1000, 0x4041, &RAISED) };
        for (control, data) in [(0x80u32, 0x5cu16), (0, 0x58)] {
            let mut spaces = ConfigSpaces::default();
            let address = PciAddress::new(0, 0, 1, 0);
            let space = spaces.function(address, 0x8086, 0xa54);
            space.set8(6, 0x10);
            space.set8(0x34, 0x50);
            // The firmware has enabled eight vectors.
            space.set32(0x50, (control | 0x36) << 16 | 5);
            let function = Function::new(address, &spaces).unwrap();
            assert!(function.route_msi(&interrupt));
            assert_eq!(function.read32(0x50) >> 16, control | 7, "one vector, on");
            assert_eq!(function.read32(0x54), 0xfee0_1000);
            assert_eq!(function.read32(data), 0x4041);
        }
        let mut spaces = ConfigSpaces::default();
        let address = PciAddress::new(0, 0, 1, 0);
        spaces.function(address, 0x8086, 0xa54);
        assert!(!Function::new(address, &spaces).unwrap().route_msi(&interrupt));
    }
}
