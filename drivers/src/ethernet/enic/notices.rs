//! Memory in which the firmware keeps the state of the link (Linux: `struct vnic_devcmd_notify`): 32 bits each,
//! little-endian. The first is the sum of the others; while it is not, the firmware is writing.

use crate::hal::Window;

/// Bytes of it.
pub const BYTES: usize = 40;

const LINK: usize = 1;
const STATUS: usize = 6;
const FATAL: u32 = 1;
/// Readings, if the firmware is writing.
const READINGS: usize = 4;

/// What the firmware says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub link: bool,
    /// It has failed.
    pub fatal: bool,
}

/// What it says; None if it does not add up.
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
    fn what_does_not_add_up_is_not_believed() {
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
