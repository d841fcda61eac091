//! Address ranges that were mapped for drivers. A device reports its own addresses, so it may report those of another
//! device: an overlap is refused here.

use alloc::vec::Vec;
use core::ops::Range;

/// Content of an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Device registers. The device handles each access itself, so they may be mapped more than once.
    Registers,
    /// Memory, a frame buffer, or another machine's memory behind a bridge: mapped for one user.
    Memory,
}

/// All ranges that were mapped.
#[derive(Debug, Default)]
pub struct Claims(Vec<(Range<u64>, Claim)>);

impl Claims {
    /// No ranges.
    pub const fn new() -> Claims {
        Claims(Vec::new())
    }

    /// Claims `len` bytes at `address`. False if they overlap a range that was claimed before, unless both hold
    /// registers.
    pub fn take(&mut self, address: u64, len: usize, what: Claim) -> bool {
        let Some(end) = address.checked_add(len as u64) else { return false };
        let is_in_the_way = |(other, claim): &(Range<u64>, Claim)| {
            let both_registers = *claim == Claim::Registers && what == Claim::Registers;
            !both_registers && address < other.end && other.start < end
        };
        if len == 0 || self.0.iter().any(is_in_the_way) {
            return false;
        }
        self.0.push((address..end, what));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn take_gives_memory_once_and_keeps_registers_out_of_it() {
        let mut claims = Claims::new();
        assert!(claims.take(0x1000, 0x1000, Claim::Memory));
        for (address, len) in [(0x1000, 0x1000), (0xfff, 2), (0x1fff, 1), (0, 0x10000), (0x1800, 8)]
        {
            assert!(!claims.take(address, len, Claim::Memory), "{address:#x}");
            assert!(!claims.take(address, len, Claim::Registers), "{address:#x}");
        }
        assert!(claims.take(0x2000, 0x1000, Claim::Registers));
        assert!(claims.take(0x2000, 0x4000, Claim::Registers), "as a driver maps more of them");
        assert!(!claims.take(0x5fff, 0x10, Claim::Memory));
        assert!(
            claims.take(0x6000, 0x10, Claim::Memory) && claims.take(0xff0, 0x10, Claim::Memory)
        );
        assert!(
            !claims.take(u64::MAX, 2, Claim::Registers) && !claims.take(0x9000, 0, Claim::Memory)
        );
    }
}
