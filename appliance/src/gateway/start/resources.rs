//! Resources that the stages share.

use crate::machine::Machine;
use crate::randomness::EntropySources;
use drivers::hal::{Clock, Instant, Platform};
use management::UnclaimedDevice;
use rand_core::Rng;

/// Machine and platform, and the list of unused devices with the reasons.
pub(super) struct Resources {
    pub machine: Box<dyn Machine>,
    pub platform: Box<dyn Platform>,
    pub rng: Box<dyn Rng>,
    pub entropy: EntropySources,
    /// Unused devices, and why.
    pub unclaimed: Vec<UnclaimedDevice>,
}

/// The machine's clock, for drivers.
pub(super) struct MachineClock<'a>(pub &'a dyn Machine);

impl Clock for MachineClock<'_> {
    fn now(&self) -> Instant {
        self.0.now()
    }
}

/// A new seed from the generator.
pub(super) fn seed(rng: &mut dyn Rng) -> [u8; 32] {
    let mut seed = [0; 32];
    rng.fill_bytes(&mut seed);
    seed
}
