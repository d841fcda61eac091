//! Two RoCE providers on a simulated network, with optional wrappers.

use crate::fixture::{Fixture, Offers};
use core::net::IpAddr;
use drivers::hal::{Instant, Window};
use roce::testing::{OverRoce, Pair};
use roce::{Limits, Roce};
use verbs::{AddressVector, RdmaDevice};

/// Two nodes with each other's MAC addresses.
#[derive(Debug)]
pub struct RocePair<D>(Pair<D>);

impl<D: OverRoce> RocePair<D> {
    /// Creates two nodes with IPv4 or IPv6 addresses. `within` wraps each provider.
    pub fn new(seed: u64, v6: bool, within: impl Fn(Roce) -> D) -> Self {
        let limits = Limits { qps: 64, regions: 256, ..Limits::default() };
        RocePair(Pair::within(seed, 1500, v6, limits, within))
    }
}

impl<D: OverRoce> Fixture for RocePair<D> {
    fn offers(&self) -> Offers {
        Offers { datagrams: true, rnr_retries: true }
    }
    fn device(&mut self, node: usize) -> &mut dyn RdmaDevice {
        &mut self.0.nodes[node].roce
    }
    fn address(&self, node: usize) -> IpAddr {
        self.0.nodes[node].ip
    }
    fn way(&self, node: usize) -> AddressVector {
        self.0.address(node)
    }
    fn memory(&mut self, node: usize, len: usize) -> Window {
        let memory = self.0.nodes[node].arena.alloc(len.max(1), 64).expect("there is memory");
        memory.slice(0, len).expect("the allocation has this size")
    }
    fn now(&self) -> Instant {
        self.0.network.now
    }
    fn step(&mut self, until: Instant) {
        self.0.network.step_until(&mut self.0.nodes, Some(until));
    }
    fn cut(&mut self) {
        self.0.network.set_links(|link| link.cut = true);
    }
}
