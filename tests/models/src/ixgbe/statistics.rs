//! Statistics. A read clears a physical function's registers (82599, 8.2.3.23).

use std::collections::BTreeMap;

// Registers. Byte counters have two; these are their lower halves.
pub const MISSED: u64 = 0x3fa0;
pub const OVERSIZE: u64 = 0x40ac;
const RECEIVED: u64 = 0x4074;
const RECEIVED_SIZES: u64 = 0x405c;
const BROADCASTS: u64 = 0x4078;
const MULTICASTS: u64 = 0x407c;
const SENT: u64 = 0x4080;
const RECEIVED_BYTES: u64 = 0x4088;
const SENT_BYTES: u64 = 0x4090;
const ALL_BYTES: u64 = 0x40c0;
const ALL_RECEIVED: u64 = 0x40d0;
const ALL_SENT: u64 = 0x40d4;
const SENT_SIZES: u64 = 0x40d8;
const MULTICASTS_SENT: u64 = 0x40f0;
const BROADCASTS_SENT: u64 = 0x40f4;

/// Bytes of the frame check sequence. Byte counters include it.
const FCS: u64 = 4;
/// Longest frames of the size classes. The last class has no limit.
const SIZES: [u64; 5] = [64, 127, 255, 511, 1023];

/// Whether a register is a statistics register, which a read clears.
pub fn is_statistic(at: u64) -> bool {
    matches!(at, 0x3f00..0x3f70 | 0x3fa0..0x3fe0 | 0x4000..0x4100 | 0x4140..0x4180 | 0x41a0..0x41c8)
}

/// Counters of a function.
#[derive(Debug, Default)]
pub struct Statistics {
    registers: BTreeMap<u64, u64>,
    pub received: u64,
    pub received_bytes: u64,
    pub multicasts: u64,
    pub sent: u64,
    pub sent_bytes: u64,
    pub dropped: u64,
}

impl Statistics {
    pub fn count(&mut self, at: u64, number: u64) {
        *self.registers.entry(at).or_default() += number;
    }

    /// Reads and clears a register. Byte counters have a lower and an upper half.
    pub fn take(&mut self, at: u64) -> u32 {
        let pair = [RECEIVED_BYTES, SENT_BYTES, ALL_BYTES].into_iter().find(|low| at == low + 4);
        match pair {
            // The read of the lower half has cleared both.
            Some(_) => 0,
            None => self.registers.remove(&at).unwrap_or(0).min(u32::MAX.into()) as u32,
        }
    }

    /// Counts a good received frame.
    pub fn receive(&mut self, frame: &[u8]) {
        let len = frame.len() as u64 + FCS;
        self.count(RECEIVED, 1);
        self.count(RECEIVED_BYTES, len);
        self.count(ALL_RECEIVED, 1);
        self.count(ALL_BYTES, len);
        self.count(class(RECEIVED_SIZES, len), 1);
        match group(frame) {
            (true, _) => self.count(BROADCASTS, 1),
            (false, true) => {
                self.multicasts += 1;
                self.count(MULTICASTS, 1);
            }
            _ => {}
        }
        self.received += 1;
        self.received_bytes += len;
    }

    /// Counts a sent frame.
    pub fn send(&mut self, frame: &[u8]) {
        let len = frame.len() as u64 + FCS;
        self.count(SENT, 1);
        self.count(SENT_BYTES, len);
        self.count(ALL_SENT, 1);
        self.count(class(SENT_SIZES, len), 1);
        match group(frame) {
            (true, _) => self.count(BROADCASTS_SENT, 1),
            (false, true) => self.count(MULTICASTS_SENT, 1),
            _ => {}
        }
        self.sent += 1;
        self.sent_bytes += len;
    }
}

/// The register that counts frames of this size.
fn class(first: u64, len: u64) -> u64 {
    let index = SIZES.iter().position(|most| len <= *most).unwrap_or(SIZES.len());
    first + 4 * index as u64
}

/// Whether the frame is a broadcast, and whether it is a multicast.
fn group(frame: &[u8]) -> (bool, bool) {
    let to = frame.get(..6).unwrap_or(&[]);
    (to == [0xff; 6], to.first().is_some_and(|first| first & 1 == 1))
}
