//! Drivers of entropy sources, which seed the random generator at bring-up.

pub mod virtio_rng;

use crate::hal::Clock;
use core::fmt;

/// Why a source gave no entropy. The device, or the host behind it, is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntropyError {
    /// The device returned no bytes in time.
    Timeout,
    /// The device completed a request with an invalid length or index.
    Broken,
}

impl fmt::Display for EntropyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EntropyError::Timeout => {
                "entropy device gave no bytes in 5 s: check the host's source of entropy"
            }
            EntropyError::Broken => {
                "entropy device completes requests with invalid lengths: it is broken"
            }
        })
    }
}

impl core::error::Error for EntropyError {}

/// A source of entropy.
pub trait EntropySource {
    /// Fills `into` with random bytes. Waits for the device, at most 5 s for each request.
    fn read(&mut self, into: &mut [u8], clock: &dyn Clock) -> Result<(), EntropyError>;
}
