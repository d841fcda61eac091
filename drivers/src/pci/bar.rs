//! Base address registers (PCI 3.0, 6.2.5.1).

use super::{COMMAND, COMMAND_MEMORY, Function};

const FIRST: u16 = 0x10;
const COUNT: u8 = 6;
const IO_SPACE: u32 = 1;
const TYPE_MASK: u32 = 6;
const TYPE_64_BIT: u32 = 4;
/// Bits of a memory BAR that are not address.
const FLAGS: u32 = 0xf;

/// A memory region of a function, as the firmware placed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Bus address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
}

impl Bar {
    /// The bus address of `len` bytes at `offset`, if they lie inside.
    pub fn range(&self, offset: u64, len: u64) -> Option<u64> {
        let end = offset.checked_add(len)?;
        (end <= self.size).then(|| self.address.checked_add(offset)).flatten()
    }
}

/// The memory regions of a function, by their index.
#[derive(Clone, Copy, Debug)]
pub struct Bars([Option<Bar>; COUNT as usize]);

impl Bars {
    /// Memory BAR `index`; None if it does not exist, is I/O space, or was given no address.
    pub fn get(&self, index: u8) -> Option<Bar> {
        self.0.get(usize::from(index)).copied().flatten()
    }
}

impl Function<'_> {
    /// The function's memory regions. Memory decoding is off while their sizes are probed.
    pub fn bars(&self) -> Bars {
        let command = self.read32(COMMAND) & 0xffff;
        if command == 0xffff {
            // Absent, or in a reset.
            return Bars([None; COUNT as usize]);
        }
        self.write32(COMMAND, command & !COMMAND_MEMORY);
        let mut bars = [None; COUNT as usize];
        let mut index = 0;
        while index < COUNT {
            let (bar, registers) = self.size(index);
            bars[usize::from(index)] = bar;
            index += registers;
        }
        self.write32(COMMAND, command);
        Bars(bars)
    }

    /// Memory BAR `index`, and how many registers it occupies.
    fn size(&self, index: u8) -> (Option<Bar>, u8) {
        let at = FIRST + 4 * u16::from(index);
        let low = self.read32(at);
        if low & IO_SPACE != 0 {
            return (None, 1);
        }
        let wide = low & TYPE_MASK == TYPE_64_BIT;
        if wide && index + 1 >= COUNT {
            return (None, 1);
        }
        let (low, low_mask) = self.probe(at);
        let (high, high_mask) = if wide { self.probe(at + 4) } else { (0, u32::MAX) };
        let address = u64::from(high) << 32 | u64::from(low & !FLAGS);
        let mask = u64::from(high_mask) << 32 | u64::from(low_mask & !FLAGS);
        let size = mask.wrapping_neg();
        let sane = address != 0 && size.is_power_of_two() && address.is_multiple_of(size);
        (sane.then_some(Bar { address, size }), if wide { 2 } else { 1 })
    }

    /// A register's value, and a mask of its writable bits.
    fn probe(&self, at: u16) -> (u32, u32) {
        let value = self.read32(at);
        self.write32(at, u32::MAX);
        let mask = self.read32(at);
        self.write32(at, value);
        (value, mask)
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::ConfigSpaces;
    use super::*;
    use crate::hal::PciAddress;
    use proptest::prelude::*;

    #[test]
    fn sizes_of_memory_bars() {
        let mut spaces = ConfigSpaces::default();
        let address = PciAddress::new(0, 0, 1, 0);
        let space = spaces.function(address, 0x1af4, 0x1041);
        space.set32(0x10, 0xc001);
        space.set32(0x14, 0xfebd_1000);
        space.bar(1, 0xffff_f000);
        space.set32(0x18, 0x0000_000c);
        space.set32(0x1c, 0x0000_00fe);
        space.bar(2, 0xffff_c00c);
        space.bar(3, 0xffff_ffff);
        space.set32(0x20, 0x4000_000c);
        space.bar(4, 0xc);
        space.set32(0x24, 0xffff_fff0); // the high half of BAR 4: 64 GiB large
        space.bar(5, 0xffff_fff0);
        let function = Function::new(address, &spaces).unwrap();
        let bars = function.bars();
        assert_eq!(bars.get(0), None, "I/O space");
        assert_eq!(bars.get(1), Some(Bar { address: 0xfebd_1000, size: 0x1000 }));
        assert_eq!(bars.get(2), Some(Bar { address: 0xfe_0000_0000, size: 0x4000 }));
        assert_eq!(function.read32(0x18), 0xc, "restored");
        assert_eq!(function.read32(0x1c), 0xfe, "restored");
        assert_eq!(bars.get(4), None, "address is not a multiple of the size");
        assert_eq!(bars.get(6), None);
    }

    #[test]
    fn a_range_stays_inside() {
        let bar = Bar { address: 0x1000, size: 0x100 };
        assert_eq!(bar.range(0xf0, 0x10), Some(0x10f0));
        assert_eq!(bar.range(0xf1, 0x10), None);
        assert_eq!(bar.range(u64::MAX, 2), None);
    }

    proptest! {
        #[test]
        fn any_registers_give_a_sane_bar_or_none(values: [u32; 6], masks: [u32; 6]) {
            let mut spaces = ConfigSpaces::default();
            let address = PciAddress::new(0, 0, 1, 0);
            let space = spaces.function(address, 0x1af4, 0x1041);
            for (i, (value, mask)) in values.into_iter().zip(masks).enumerate() {
                space.set32(0x10 + 4 * i as u16, value);
                space.bar(i, mask);
            }
            let function = Function::new(address, &spaces).unwrap();
            let bars = function.bars();
            for bar in (0..8).filter_map(|i| bars.get(i)) {
                prop_assert!(bar.address.checked_add(bar.size - 1).is_some());
            }
        }
    }
}
