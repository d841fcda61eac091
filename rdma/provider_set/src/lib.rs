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
use drivers::hal::{Instant, TransmitProgress};
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

    /// From now on memory is used for something else only when the ports have sent what they have of it
    /// ([`ProviderSet::note_progress`]): for ports that read payload where it lies.
    pub fn wait_for_ports(&mut self) {
        self.roce.wait_for_ports();
    }

    /// Whether any memory waits for a port.
    #[inline]
    pub fn has_retired(&self) -> bool {
        self.roce.has_retired() || self.ntrdma().is_some_and(Ntrdma::has_retired)
    }

    /// Frees the memory that a port sends no more. To be called for the ports in their order.
    pub fn note_progress(&mut self, port: usize, progress: TransmitProgress) {
        self.roce.note_progress(port, progress);
        if let Some(ntrdma) = self.ntrdma_mut() {
            ntrdma.note_progress(port, progress);
        }
    }

    /// What peers write may be sent on to others from now on.
    fn pass_on(&mut self) {
        self.roce.passes_on();
        let ports = self.roce.waits_for();
        if let Some(ntrdma) = self.ntrdma_mut() {
            ntrdma.passes_on(ports);
        }
    }

    /// Takes what the machine at the other end of the bridge has written, and writes to it what is
    /// due. Returns whether there is more to do at once.
    pub fn poll_bridge(&mut self, bridge: &mut dyn Bridge, now: Instant) -> bool {
        self.bridged.as_mut().is_some_and(|bridged| bridged.ntrdma.poll(bridge, now))
    }
}
