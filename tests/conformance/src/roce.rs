//! Two RoCE providers on a simulated network, each perhaps within others.

use crate::fixture::{Fixture, Offers};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use drivers::hal::{Arena, Instant, Window};
use netsim::{Network, Rng};
use roce::testing::frame;
use roce::{Limits, PortConfig, Roce, TxBuffer};
use verbs::{AddressVector, GidType, RdmaDevice};

/// A device at whose bottom is RoCE, which takes frames and gives frames.
pub trait OverRoce: RdmaDevice {
    /// It.
    fn roce(&mut self) -> &mut Roce;
}

impl OverRoce for Roce {
    fn roce(&mut self) -> &mut Roce {
        self
    }
}

#[derive(Debug)]
struct Node<D> {
    device: D,
    arena: Arena,
    mac: [u8; 6],
    ip: IpAddr,
    tx: TxBuffer,
}

impl<D: OverRoce> netsim::Node for Node<D> {
    fn handle_frame(&mut self, port: usize, frame: &[u8], now: Instant) {
        self.device.roce().handle_frame(port, frame, now);
    }
    fn poll_transmit(&mut self, port: usize, now: Instant) -> Option<Vec<u8>> {
        self.device.roce().poll_transmit(port, now, &mut self.tx).then(|| frame(&self.tx))
    }
    fn poll_timeout(&self) -> Option<Instant> {
        self.device.poll_timeout()
    }
    fn work(&mut self, now: Instant) {
        self.device.handle_timeout(now);
    }
}

/// Two nodes.
#[derive(Debug)]
pub struct RocePair<D> {
    nodes: Vec<Node<D>>,
    network: Network,
}

impl<D: OverRoce> RocePair<D> {
    /// Two nodes, over IPv4 or IPv6; `within` puts each provider into whatever is to be around it.
    pub fn new(seed: u64, v6: bool, within: impl Fn(Roce) -> D) -> Self {
        let mut rng = Rng::new(seed);
        let mut network = Network::new(seed);
        let limits = Limits { qps: 64, regions: 256, ..Limits::default() };
        let macs = [1u8, 2].map(|n| [0x52, 0x54, 0, 0, 0, n]);
        let ips = [1u8, 2].map(|n| match v6 {
            true => IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into())),
            false => IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)),
        });
        let nodes = [0, 1].map(|n| {
            let port = PortConfig { mac: macs[n], addresses: vec![ips[n]], mtu: 1500 };
            let mut roce = Roce::new(port, limits, &mut rng);
            roce.learn_neighbour(ips[1 - n], macs[1 - n]);
            network.add_node(&[macs[n]]);
            let (arena, tx) = (Arena::on_heap(8 << 20), TxBuffer::new());
            Node { device: within(roce), arena, mac: macs[n], ip: ips[n], tx }
        });
        RocePair { nodes: nodes.into(), network }
    }
}

impl<D: OverRoce> Fixture for RocePair<D> {
    fn offers(&self) -> Offers {
        Offers { datagrams: true, rnr_retries: true }
    }
    fn device(&mut self, node: usize) -> &mut dyn RdmaDevice {
        &mut self.nodes[node].device
    }
    fn address(&self, node: usize) -> IpAddr {
        self.nodes[node].ip
    }
    fn way(&self, node: usize) -> AddressVector {
        AddressVector {
            local: self.nodes[node].ip,
            remote: self.nodes[1 - node].ip,
            gid_type: GidType::RoceV2,
            remote_mac: self.nodes[1 - node].mac,
            source_port: 0xc000 + node as u16,
            traffic_class: 0,
            hop_limit: 64,
        }
    }
    fn memory(&mut self, node: usize, len: usize) -> Window {
        let memory = self.nodes[node].arena.alloc(len.max(1), 64).expect("there is memory");
        memory.slice(0, len).expect("as much as was asked for")
    }
    fn now(&self) -> Instant {
        self.network.now
    }
    fn step(&mut self, until: Instant) {
        self.network.step_until(&mut self.nodes, Some(until));
    }
    fn cut(&mut self) {
        self.network.set_links(|link| link.cut = true);
    }
}
