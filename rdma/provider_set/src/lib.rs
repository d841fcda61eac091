//! The RDMA devices of a machine as one provider: RoCE over its ports, and NTRDMA over a bridge if
//! there is one. Who uses it listens once, has completions of both in one queue, and may have
//! connections of both.
//!
//! Names that only one device knows (queue pairs, regions, connections) say by their highest bit
//! whose they are; [`HandleTable`] leaves it to us. Completion queues are of both. A protection domain is
//! RoCE's by its own name, and the bridge's by that which `pd_on` gives.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod bridged;
mod connections;
mod provider;

use alloc::boxed::Box;
use bridged::Bridged;
use drivers::hal::Instant;
use drivers::ntb::Bridge;
use ntrdma::Ntrdma;
use roce::Roce;

/// In a name: it is of the device behind the bridge.
const BRIDGED: u32 = 1 << 31;

/// The name that the device behind the bridge knows, if a name is one of its.
#[inline]
fn bridged(name: u32) -> Option<u32> {
    (name & BRIDGED != 0).then_some(name & !BRIDGED)
}

/// All devices.
#[derive(Debug)]
pub struct ProviderSet {
    /// The ports' device.
    pub roce: Roce,
    bridged: Option<Box<Bridged>>,
}

impl ProviderSet {
    /// The ports' device, and the bridge's if there is one. Neither has objects yet.
    pub fn new(roce: Roce, ntrdma: Option<Ntrdma>) -> Self {
        ProviderSet { roce, bridged: ntrdma.map(|ntrdma| Box::new(Bridged::new(ntrdma))) }
    }

    /// The bridge's device, to look at.
    pub fn ntrdma(&self) -> Option<&Ntrdma> {
        self.bridged.as_ref().map(|bridged| &bridged.ntrdma)
    }

    /// The bridge's device, for its Ethernet frames.
    pub fn ntrdma_mut(&mut self) -> Option<&mut Ntrdma> {
        self.bridged.as_mut().map(|bridged| &mut bridged.ntrdma)
    }

    /// Takes what the machine at the other end of the bridge has written, and writes to it what is
    /// due. Returns whether there is more to do at once.
    pub fn poll_bridge(&mut self, bridge: &mut dyn Bridge, now: Instant) -> bool {
        self.bridged.as_mut().is_some_and(|bridged| bridged.ntrdma.poll(bridge, now))
    }
}
