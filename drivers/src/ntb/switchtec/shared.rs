//! What each host tells of itself in a page of its memory, which the other reads and writes through the first window by
//! lookup (Linux, `struct shared_mw` of `ntb_hw_switchtec.c`). Little-endian.

use crate::hal::{Registers, Window};

const MAGIC: u32 = 0x45cc_0001;
/// That it is a bridge's page (32 bits), that the host wants the link (32 bits), and its partition (32 bits).
const MAGIC_AT: usize = 0;
const LINK: usize = 4;
const PARTITION: usize = 8;
/// Bytes of its memory windows (64 bits each), 0 behind the last.
const WINDOWS: usize = 16;
/// Scratchpads, which the other writes.
const SCRATCHPADS: usize = 16 + 8 * 128;
/// How many there are; Linux has 128.
pub const SCRATCHPAD_COUNT: usize = 16;

/// The page of this host.
pub struct Own(pub Window);

impl Own {
    /// Says who this is, but not that it wants the link.
    pub fn begin(&self, partition: u8, window: u64) {
        self.0.fill(0);
        self.0.store32(PARTITION, partition.into());
        self.0.store64(WINDOWS, window);
        self.0.store32(MAGIC_AT, MAGIC);
    }

    /// Says again who this is, and whether it wants the link: the other can write over it.
    pub fn renew(&self, partition: u8, window: u64, link: bool) {
        for (at, value) in [
            (MAGIC_AT, u64::from(MAGIC) | u64::from(link) << 32),
            (PARTITION, partition.into()),
            (WINDOWS, window),
            (WINDOWS + 8, 0),
        ] {
            if self.0.load64(at) != value {
                self.0.store64(at, value);
            }
        }
    }

    pub fn set_link(&self, wanted: bool) {
        self.0.store32(LINK, wanted.into());
    }

    pub fn clear_scratchpads(&self) {
        (0..SCRATCHPAD_COUNT).for_each(|n| self.0.store32(SCRATCHPADS + 4 * n, 0));
    }

    pub fn scratchpad(&self, n: usize) -> u32 {
        self.0.load32(SCRATCHPADS + 4 * n)
    }
}

/// Whether the other host wants the link, as its page says. Ones are read while nothing is behind the window.
pub fn peer_wants_link(page: &dyn Registers) -> bool {
    let word = page.read64(MAGIC_AT);
    word as u32 == MAGIC && word >> 32 & 1 == 1
}

/// Writes a scratchpad of the other host's.
pub fn set_peer_scratchpad(page: &dyn Registers, n: usize, value: u32) {
    page.write32(SCRATCHPADS + 4 * n, value);
}

/// Reads something of the other host's page.
pub fn touch(page: &dyn Registers) {
    page.read32(PARTITION);
}
