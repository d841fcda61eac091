//! The health buffer and counter.

use super::{Fault, Mlx5};

/// Period of the health counter in nanoseconds.
const BEAT: u64 = 10_000_000;

impl Mlx5 {
    /// The syndrome of an injected firmware failure.
    fn fatal(&self) -> Option<u8> {
        self.faults.iter().find_map(|fault| match fault {
            Fault::Fatal(syndrome) => Some(*syndrome),
            _ => None,
        })
    }

    /// The word at this offset of the segment.
    pub(super) fn health_word(&self, offset: u64) -> u32 {
        let fatal = self.fatal();
        match offset {
            0x230 => 0x1023_03f4,
            0x234 => 0x0209,
            // The firmware requests a reset, with severity 2 (critical).
            0x238 => fatal.map_or(0, |_| 0x82 << 24),
            0x23c => fatal.map_or(0, |syndrome| u32::from(syndrome) << 16),
            0x1010 => {
                let stands = fatal.is_some() || self.has(Fault::StuckHealth);
                let beat = if stands { 7 } else { (self.now / BEAT) as u32 & 0xff_ffff };
                u32::from(fatal.unwrap_or(0)) << 24 | beat
            }
            _ => 0,
        }
    }
}
