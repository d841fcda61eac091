//! Layout of a machine's exposed memory, which the peer writes.
//!
//! | from | contents |
//! |---|---|
//! | 0 | the peer's introduction ([`super::wire::Info`]), and the cell that announces it |
//! | `BELLS` | the bells: batch, heartbeat, both of the command ring and of frames, two of each queue pair |
//! | page | commands |
//! | page | queue pairs: sends of the peer, its responses to local atomics, payload of its sends, responses to local READs |
//! | [`Layout::size`] | the ring of Ethernet frames, if there is one |
//! | page | the rest, which the provider does not use, and which can be lent to the peer |

use core::sync::atomic::AtomicU64;
use drivers::hal::{Cells, Window};

/// Offset of the cell that announces the introduction.
pub const READY: usize = 0xc0;
/// Offset of the first bell. A bell is a 32-bit index into a ring that only increases (modulo 2^32): its value is
/// its sequence number.
const BELLS: usize = 0x100;
/// Bell of batches: written after all other bells of a batch.
pub const BATCH: usize = BELLS;
/// The peer's heartbeat. It is loaded together with the bell of batches.
pub const BEAT: usize = BELLS + 4;
/// Commands that the peer has written.
pub const COMMANDS_PRODUCED: usize = BELLS + 8;
/// Local commands that the peer has taken.
pub const COMMANDS_CONSUMED: usize = BELLS + 12;
/// Bytes of frames that the peer has written.
pub const FRAMES_PRODUCED: usize = BELLS + 16;
/// Bytes of local frames that the peer has taken.
pub const FRAMES_CONSUMED: usize = BELLS + 20;
const QP_BELLS: usize = BELLS + 24;

/// Index of the pair of bells for batch and heartbeat.
pub const SIGNS: usize = pair_of(BATCH);
/// Index of the pair of command bells.
pub const COMMAND_BELLS: usize = pair_of(COMMANDS_PRODUCED);

const fn pair_of(bell: usize) -> usize {
    (bell - BELLS) / 8
}

/// Commands in a ring.
pub const COMMANDS: u32 = 16;
/// Bytes of a command.
pub const COMMAND: usize = 256;
/// Bytes of a send entry, of which [`INLINE`] are payload.
pub const ENTRY: usize = 128;
/// Bytes of payload in a send entry.
pub const INLINE: usize = 64;
/// Bytes of a response to an atomic.
pub const ANSWER: usize = 16;

const PAGE: usize = 4096;

/// Sizes, which each side chooses for its own memory and sends to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Queue pairs (1 to 4096).
    pub qps: u32,
    /// Entries of a send ring, a power of two (2 to 4096).
    pub ring: u32,
    /// Bytes for the payload of the peer's sends on a queue pair: a multiple of 4 KiB, up to
    /// 16 MiB.
    pub staging: u32,
    /// Bytes for responses to READs of a queue pair: a multiple of 4 KiB, up to 16 MiB.
    pub landing: u32,
}

impl Default for Layout {
    fn default() -> Self {
        Layout { qps: 64, ring: 64, staging: 256 << 10, landing: 64 << 10 }
    }
}

impl Layout {
    /// The best layout for so many bytes of exposed memory: the default, or if that is too
    /// large, fewer queue pairs first, then less memory for each. None if not even the smallest fits.
    pub fn within(bytes: usize) -> Option<Layout> {
        let usual = Layout::default();
        let less = |qps, by: u32| Layout {
            qps,
            staging: usual.staging >> by,
            landing: usual.landing >> by,
            ..usual
        };
        let choice = [usual, less(32, 0), less(16, 0), less(16, 2), less(8, 2), less(8, 4)];
        choice.into_iter().find(|layout| layout.size() <= bytes)
    }

    /// Whether all sizes are within their bounds. The other methods rely on it: then no sum overflows.
    pub fn is_valid(&self) -> bool {
        let bytes = |n: u32| (4096..=16 << 20).contains(&n) && n.is_multiple_of(4096);
        (1..=4096).contains(&self.qps)
            && (2..=4096).contains(&self.ring)
            && self.ring.is_power_of_two()
            && bytes(self.staging)
            && bytes(self.landing)
    }

    /// Offset of a queue pair's pair of bells: entries that the peer has written, and local entries that it has done.
    pub const fn bells(slot: u32) -> usize {
        QP_BELLS + 8 * slot as usize
    }

    /// Index of a queue pair's pair of bells.
    #[inline]
    pub const fn pair(slot: u32) -> usize {
        pair_of(Self::bells(slot))
    }

    /// All pairs of bells in exposed memory, and perhaps further cells after them. None if they do not fit.
    pub fn pairs(&self, exposed: &Window) -> Option<Cells<AtomicU64>> {
        Cells::new(exposed, BELLS, Self::pair(self.qps).next_power_of_two())
    }

    fn commands(&self) -> usize {
        (QP_BELLS + 8 * self.qps as usize).next_multiple_of(PAGE)
    }

    /// Offset of command number `index`.
    pub fn command(&self, index: u32) -> usize {
        self.commands() + (index % COMMANDS) as usize * COMMAND
    }

    fn rings(&self) -> usize {
        (self.ring as usize * (ENTRY + ANSWER)).next_multiple_of(PAGE)
    }

    fn slot_len(&self) -> usize {
        self.rings() + self.staging as usize + self.landing as usize
    }

    /// Offset of the memory of a queue pair.
    pub fn slot(&self, slot: u32) -> usize {
        let first = (self.commands() + COMMANDS as usize * COMMAND).next_multiple_of(PAGE);
        first + slot as usize * self.slot_len()
    }

    /// Offsets of the parts of a queue pair's memory.
    pub fn places(&self, slot: u32) -> Places {
        let entries = self.slot(slot);
        let staging = entries + self.rings();
        Places {
            mask: self.ring - 1,
            bells: Self::bells(slot),
            entries,
            answers: entries + self.ring as usize * ENTRY,
            staging,
            landing: staging + self.staging as usize,
        }
    }

    /// Bytes of the whole layout.
    pub fn size(&self) -> usize {
        self.slot(self.qps)
    }

    /// Bits of a queue pair's number that are its slot.
    pub fn slot_mask(&self) -> u32 {
        self.qps.next_power_of_two() - 1
    }
}

/// Offsets in exposed memory of the parts of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    mask: u32,
    /// Pair of bells: entries that the peer has written, and local entries that it has done.
    pub bells: usize,
    entries: usize,
    answers: usize,
    /// Payload of the peer's sends.
    pub staging: usize,
    /// Responses to local READs.
    pub landing: usize,
}

impl Places {
    /// Offset of send entry number `index`.
    #[inline]
    pub fn entry(&self, index: u32) -> usize {
        self.entries + (index & self.mask) as usize * ENTRY
    }

    /// Offset of the response to entry number `index`. There is one for each local entry; both
    /// sides use only as much of their rings as the smaller of the two has.
    pub fn answer(&self, index: u32) -> usize {
        self.answers + (index & self.mask) as usize * ANSWER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_layout_do_not_overlap() {
        for layout in [
            Layout::default(),
            Layout { qps: 1, ring: 2, staging: 4096, landing: 4096 },
            Layout { qps: 4096, ring: 4096, staging: 16 << 20, landing: 16 << 20 },
        ] {
            assert!(layout.is_valid());
            let last = layout.qps - 1;
            let mut ends = std::vec![(0, READY), (READY, 4), (BATCH, 4), (BEAT, 4)];
            ends.extend([(COMMANDS_PRODUCED, 4), (COMMANDS_CONSUMED, 4)]);
            ends.extend([(FRAMES_PRODUCED, 4), (FRAMES_CONSUMED, 4)]);
            ends.push((Layout::bells(0), 8));
            if last > 0 {
                ends.push((Layout::bells(last), 8));
            }
            ends.extend([(layout.command(0), COMMAND), (layout.command(COMMANDS - 1), COMMAND)]);
            for slot in [0, last] {
                let places = layout.places(slot);
                ends.push((places.entry(0), ENTRY));
                ends.push((places.entry(layout.ring - 1), ENTRY));
                ends.push((places.answer(0), ANSWER));
                ends.push((places.answer(layout.ring - 1), ANSWER));
                ends.push((places.staging, layout.staging as usize));
                ends.push((places.landing, layout.landing as usize));
                if last == 0 {
                    break;
                }
            }
            for pair in ends.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{layout:?} {pair:?}");
            }
            let (at, len) = ends[ends.len() - 1];
            assert_eq!(at + len, layout.size());
        }
    }

    #[test]
    fn layout_uses_any_amount_of_memory() {
        let mut last = 0;
        for shift in 12..31 {
            let bytes = 1 << shift;
            let Some(layout) = Layout::within(bytes) else {
                assert!(bytes < 512 << 10, "{bytes}");
                continue;
            };
            assert!(layout.is_valid() && layout.size() <= bytes && layout.size() >= last);
            last = layout.size();
        }
        assert_eq!(Layout::within(32 << 20), Some(Layout::default()));
    }

    #[test]
    fn layout_with_sizes_out_of_bounds_is_invalid() {
        let good = Layout::default();
        for bad in [
            Layout { qps: 0, ..good },
            Layout { qps: 4097, ..good },
            Layout { ring: 1, ..good },
            Layout { ring: 48, ..good },
            Layout { ring: 8192, ..good },
            Layout { staging: 0, ..good },
            Layout { staging: 4100, ..good },
            Layout { landing: u32::MAX, ..good },
        ] {
            assert!(!bad.is_valid(), "{bad:?}");
        }
    }
}
