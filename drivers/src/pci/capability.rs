//! The list of capabilities (PCI 3.0, 6.7).

use super::{COMMAND, Function};

const POINTER: u16 = 0x34;
const STATUS_HAS_LIST: u32 = 1 << 20;
/// Every capability takes 4 bytes or more after the 64-byte header.
const MOST: u8 = 192 / 4;

/// One entry of a function's capability list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Capability ID (9: vendor specific, 17: MSI-X).
    pub id: u8,
    /// Offset in configuration space.
    pub offset: u16,
    /// The 16 bits after its link.
    pub extra: u16,
}

/// Iterates over the capabilities of a function. Ends even if the device's list is circular.
pub struct Capabilities<'a> {
    function: Function<'a>,
    next: u16,
    left: u8,
}

impl<'a> Function<'a> {
    /// The function's capabilities, in the order of the list.
    pub fn capabilities(&self) -> Capabilities<'a> {
        let listed = self.read32(COMMAND) & STATUS_HAS_LIST != 0;
        let next = if listed { self.read32(POINTER) as u16 & 0xfc } else { 0 };
        Capabilities { function: *self, next, left: MOST }
    }
}

impl Iterator for Capabilities<'_> {
    type Item = Capability;

    fn next(&mut self) -> Option<Capability> {
        if self.next < 0x40 || self.left == 0 {
            return None;
        }
        self.left -= 1;
        let offset = self.next;
        let word = self.function.read32(offset);
        self.next = (word >> 8) as u16 & 0xfc;
        Some(Capability { id: word as u8, offset, extra: (word >> 16) as u16 })
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::ConfigSpaces;
    use super::*;
    use crate::hal::PciAddress;
    use alloc::vec::Vec;

    #[test]
    fn circular_list_ends() {
        let mut spaces = ConfigSpaces::default();
        let address = PciAddress::new(0, 0, 1, 0);
        let space = spaces.function(address, 0x1af4, 0x1041);
        space.set8(6, 0x10);
        space.set8(0x34, 0x40);
        space.set32(0x40, 0xabcd_5011);
        space.set32(0x50, 0x0000_4009); // back to the first
        let function = Function::new(address, &spaces).unwrap();
        let all: Vec<_> = function.capabilities().collect();
        assert_eq!(all[0], Capability { id: 0x11, offset: 0x40, extra: 0xabcd });
        assert_eq!(all[1], Capability { id: 9, offset: 0x50, extra: 0 });
        assert_eq!(all.len(), usize::from(MOST));
    }

    #[test]
    fn no_list_without_the_status_bit() {
        let mut spaces = ConfigSpaces::default();
        let address = PciAddress::new(0, 0, 1, 0);
        spaces.function(address, 0x1af4, 0x1041).set8(0x34, 0x40);
        let function = Function::new(address, &spaces).unwrap();
        assert_eq!(function.capabilities().count(), 0);
    }
}
