//! Two NTRDMA providers on a simulated bridge.

use crate::fixture::{Fixture, Offers};
use core::net::IpAddr;
use drivers::hal::{Instant, Window};
use ntrdma::testing::{Pair, SMALL, Way};
use verbs::{AddressVector, GidType, RdmaDevice};

/// Two nodes with an active link.
#[derive(Debug)]
pub struct NtrdmaPair(Pair);

impl NtrdmaPair {
    /// Creates two nodes with small rings, joined by a bridge of this kind.
    pub fn new(seed: u64, way: Way) -> Self {
        let mut pair = Pair::new(seed, SMALL, way);
        pair.bring_up();
        NtrdmaPair(pair)
    }
}

impl Fixture for NtrdmaPair {
    fn offers(&self) -> Offers {
        Offers { datagrams: false, rnr_retries: false }
    }
    fn device(&mut self, node: usize) -> &mut dyn RdmaDevice {
        &mut self.0.nodes[node].ntrdma
    }
    fn address(&self, node: usize) -> IpAddr {
        Pair::address(node as u8 + 1)
    }
    fn way(&self, node: usize) -> AddressVector {
        AddressVector {
            local: self.address(node),
            remote: self.address(1 - node),
            gid_type: GidType::RoceV2,
            remote_mac: [0; 6],
            source_port: 0,
            traffic_class: 0,
            hop_limit: 0,
        }
    }
    fn memory(&mut self, node: usize, len: usize) -> Window {
        self.0.memory(node, len)
    }
    fn now(&self) -> Instant {
        self.0.now
    }
    fn step(&mut self, until: Instant) {
        if self.0.now < until {
            self.0.step();
        }
    }
    fn cut(&mut self) {
        for node in &mut self.0.nodes {
            node.bridge.set_link(false);
        }
    }
}
