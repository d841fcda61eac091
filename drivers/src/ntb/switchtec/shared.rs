//! Each host's page with its description and scratchpads, which the peer reads and writes through the first lookup
//! window (Linux, `struct shared_mw` of `ntb_hw_switchtec.c`). Little-endian.

use crate::hal::{Registers, Window};

const MAGIC: u32 = 0x45cc_0001;
/// Magic number of a bridge's page, link request of the host, and its partition (32 bits each).
const MAGIC_AT: usize = 0;
const LINK: usize = 4;
const PARTITION: usize = 8;
/// Bytes of each memory window (64 bits each), with a 0 after the last.
const WINDOWS: usize = 16;
/// Scratchpads, which the peer writes, behind the list of windows. Linux up to 7.2 has room for 128 windows, later ones
/// for 256 (`MAX_MWS`), and the page has no version. So each is written at both places, and read where the peer has
/// written it: either place is room that the other layout does not use.
const SCRATCHPADS: [usize; 2] = [16 + 8 * 128, 16 + 8 * 256];
/// Number of scratchpads that are used; Linux has 128.
pub const SCRATCHPAD_COUNT: usize = 16;

/// This host's page.
pub struct OwnPage(pub Window);

impl OwnPage {
    /// Writes this host's description without a link request.
    pub fn begin(&self, partition: u8, window: u64) {
        self.0.fill(0);
        self.0.store32(PARTITION, partition.into());
        self.0.store64(WINDOWS, window);
        self.0.store32(MAGIC_AT, MAGIC);
    }

    /// Restores this host's description and link request, which the peer can overwrite.
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
        for start in SCRATCHPADS {
            (0..SCRATCHPAD_COUNT).for_each(|n| self.0.store32(start + 4 * n, 0));
        }
    }

    pub fn scratchpad(&self, n: usize) -> u32 {
        let [older, newer] = SCRATCHPADS.map(|start| self.0.load32(start + 4 * n));
        if older != 0 { older } else { newer }
    }
}

/// Whether the peer's page requests the link. The page reads as all ones while the window has no translation.
pub fn peer_wants_link(page: &dyn Registers) -> bool {
    let word = page.read64(MAGIC_AT);
    word as u32 == MAGIC && word >> 32 & 1 == 1
}

/// Writes a scratchpad of the peer.
pub fn set_peer_scratchpad(page: &dyn Registers, n: usize, value: u32) {
    for start in SCRATCHPADS {
        page.write32(start + 4 * n, value);
    }
}

/// Reads a word of the peer's page, to flush earlier writes.
pub fn touch(page: &dyn Registers) {
    page.read32(PARTITION);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hal::Arena;

    #[test]
    fn scratchpads_of_both_layouts_are_read_and_cleared() {
        for start in SCRATCHPADS {
            let page = OwnPage(Arena::on_heap(8192).alloc(4096, 64).unwrap());
            page.begin(1, 1 << 20);
            page.0.store32(start + 4 * 3, 7);
            assert_eq!((page.scratchpad(3), page.scratchpad(4)), (7, 0), "{start}");
            page.clear_scratchpads();
            assert_eq!(page.scratchpad(3), 0, "{start}");
        }
    }
}
