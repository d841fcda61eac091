//! Sources of entropy, for seeding at bring-up.

pub mod virtio_rng;

use crate::hal::Clock;
use core::fmt;

/// Why there is no entropy. The device, or the host behind it, is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntropyError {
    /// The device gave nothing in time.
    Timeout,
    /// The device answered with something that makes no sense.
    Broken,
}

impl fmt::Display for EntropyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EntropyError::Timeout => "entropy device gave nothing in 5 s: see the host's source",
            EntropyError::Broken => "entropy device answers nonsense",
        })
    }
}

impl core::error::Error for EntropyError {}

/// A source of entropy.
pub trait EntropySource {
    /// Fills `into` with random bytes. Waits for the device, 5 s at most for each piece.
    fn read(&mut self, into: &mut [u8], clock: &dyn Clock) -> Result<(), EntropyError>;
}
