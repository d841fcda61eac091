//! Memory to which the firmware writes the state of the link (Linux: `struct vnic_devcmd_notify`): little-endian words
//! of 32 bits. The first is the sum of the others. A wrong sum means that the firmware is writing.

use crate::hal::Window;

/// Bytes of the memory.
pub const BYTES: usize = 40;

const LINK: usize = 1;
const STATUS: usize = 6;
const FATAL: u32 = 1;
/// Number of attempts to read, in case the firmware is writing.
const READINGS: usize = 4;

/// State as reported by the firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub link: bool,
    /// The firmware has failed.
    pub fatal: bool,
}

/// Reads the state; None if the checksum is wrong.
pub fn read(memory: &Window) -> Option<State> {
    for _ in 0..READINGS {
        let words: [u32; BYTES / 4] = core::array::from_fn(|n| memory.load32(4 * n));
        let sum = words[1..].iter().fold(0u32, |sum, word| sum.wrapping_add(*word));
        if sum == words[0] {
            return Some(State { link: words[LINK] == 1, fatal: words[STATUS] & FATAL != 0 });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hal::Arena;

    #[test]
    fn notices_with_a_wrong_checksum_are_ignored() {
        let memory = Arena::on_heap(4096).alloc(BYTES, 64).unwrap();
        memory.fill(0);
        assert_eq!(read(&memory), Some(State { link: false, fatal: false }));
        memory.store32(4 * LINK, 1);
        assert_eq!(read(&memory), None);
        memory.store32(0, 1);
        assert_eq!(read(&memory), Some(State { link: true, fatal: false }));
        memory.store32(4 * STATUS, FATAL);
        memory.store32(0, 2);
        assert_eq!(read(&memory), Some(State { link: true, fatal: true }));
    }
}
