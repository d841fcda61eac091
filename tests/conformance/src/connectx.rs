//! Two ConnectX models, each in a machine of its own, with their providers.

use crate::fixture::{Fixture, Offers};
use core::net::IpAddr;
use drivers::hal::{Instant, Window};
use metal::connectx::Pair;
use verbs::{AddressVector, RdmaDevice};

/// Two nodes.
pub struct ConnectXPair(Pair);

impl ConnectXPair {
    /// Creates two nodes with IPv4 or IPv6 addresses.
    pub fn new(seed: u64, v6: bool) -> Self {
        ConnectXPair(Pair::new(seed, v6))
    }
}

impl Fixture for ConnectXPair {
    fn offers(&self) -> Offers {
        Offers { datagrams: true, rnr_retries: true }
    }
    fn device(&mut self, node: usize) -> &mut dyn RdmaDevice {
        &mut self.0.nodes[node].device
    }
    fn address(&self, node: usize) -> IpAddr {
        self.0.nodes[node].address
    }
    fn way(&self, node: usize) -> AddressVector {
        self.0.way(node)
    }
    fn memory(&mut self, node: usize, len: usize) -> Window {
        self.0.memory(node, len)
    }
    fn now(&self) -> Instant {
        self.0.now()
    }
    fn step(&mut self, until: Instant) {
        self.0.step(until);
    }
    fn cut(&mut self) {
        self.0.is_cut = true;
    }
}
