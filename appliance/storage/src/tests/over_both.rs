//! One server over several devices: a network and bridges between a gateway and a host.

use crate::rnbd::wire::{AccessMode, Operation, PORT};
use crate::testing::{Wire, World, context, user_io};
use crate::volume::RamVolume;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use drivers::hal::{Arena, Instant};
use drivers::ntb::Ntb;
use netsim::{BridgeEnd, Rng};
use ntrdma::{Config, Layout, Ntrdma, State};
use provider_set::ProviderSet;
use roce::testing::frame;
use roce::{Limits, PortConfig, Roce, TxBuffer};
use rtrs::Name;
use rtrs::client::{self, AddPathError, Client, PathId};
use rtrs::server::ServerDevice;
use std::boxed::Box;
use std::vec::Vec;
use verbs::{MemoryVerbs, Provider, VerbsError};

struct Node {
    devices: ProviderSet,
    bridges: Vec<BridgeEnd>,
}

/// Node 0 is the gateway, node 1 the host; 10.0.0.x on the network, 10.9.b.x on bridge b.
struct Both {
    nodes: Vec<Node>,
    now: Instant,
    rng: Rng,
}

const LAYOUT: Layout = Layout { qps: 8, ring: 32, staging: 64 << 10, landing: 4096 };

fn network(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n).into()
}

fn behind_bridge(bridge: u8, n: u8) -> IpAddr {
    Ipv4Addr::new(10, 9, bridge, n).into()
}

/// Number of bridges: an image with ConnectX supports only one.
const BRIDGES: u8 = if ProviderSet::BRIDGES > 1 { 2 } else { 1 };

impl Both {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let half = LAYOUT.size() + 8192;
        let limits = Limits { qps: 16, regions: 2048, ..Limits::default() };
        let mut ends = [Vec::new(), Vec::new()];
        for _ in 0..BRIDGES {
            let memory = Arena::on_heap(2 * half + 4096).alloc(2 * half, 4096).unwrap();
            let pair = BridgeEnd::pair(memory, false, &mut rng);
            ends.iter_mut().zip(pair).for_each(|(ends, end)| ends.push(end));
        }
        let nodes = ends.into_iter().zip([1u8, 2]).map(|(bridges, n)| {
            let mac = [0x52, 0x54, 0, 0, 0, n];
            let port = PortConfig { mac, addresses: std::vec![network(n)], mtu: 1500 };
            let mut roce = Roce::new(port, limits, &mut rng);
            roce.pin_neighbour(0, network(3 - n), [0x52, 0x54, 0, 0, 0, 3 - n]);
            let ntrdma = (0..).zip(&bridges).map(|(at, bridge)| {
                let config = Config::new(n.into(), behind_bridge(at, n), behind_bridge(at, 3 - n));
                let config = Config { layout: LAYOUT, regions: 4096, ..config };
                Ntrdma::new(config, bridge.exposed(), &mut rng).unwrap()
            });
            Node { devices: ProviderSet::new(roce, ntrdma), bridges }
        });
        let nodes = nodes.collect();
        Both { nodes, now: Instant::from_nanos(1), rng }
    }

    /// Traffic over the bridges and the network without heartbeats: two numbers for each bridge.
    fn traffic(&self) -> Vec<u64> {
        let counts = |ntrdma: &Ntrdma| {
            let counters = ntrdma.counters();
            [counters.entries_received, counters.batches]
        };
        self.nodes.iter().flat_map(|node| node.devices.bridges()).flat_map(counts).collect()
    }

    fn pass(&mut self) -> bool {
        self.now = self.now + Duration::from_micros(50);
        let now = self.now;
        let mut tx = TxBuffer::new();
        let mut frames = false;
        for n in 0..2 {
            let node = &mut self.nodes[n];
            node.devices.handle_timeout(now);
            for (number, bridge) in node.bridges.iter_mut().enumerate() {
                node.devices.poll_bridge(number, bridge, now);
                bridge.deliver(self.rng.within(0..40) as usize);
            }
            while self.nodes[n].devices.roce.poll_transmit(0, now, &mut tx) {
                self.nodes[1 - n].devices.roce.handle_frame(0, &frame(&tx), now);
                frames = true;
            }
        }
        frames
    }
}

impl Wire for Both {
    fn gateway(&mut self) -> &mut dyn ServerDevice {
        &mut self.nodes[0].devices
    }
    fn host(&mut self) -> &mut dyn ServerDevice {
        &mut self.nodes[1].devices
    }
    fn step(&mut self, now: &mut Instant) -> bool {
        while self.now < *now {
            self.pass();
        }
        let before = self.traffic();
        let moved = (0..20).any(|_| self.pass() || self.traffic() != before);
        *now = self.now;
        moved
    }
}

fn world(seed: u64) -> World<Both> {
    let mut both = Both::new(seed);
    let up = |both: &Both| {
        let mut bridges = both.nodes.iter().flat_map(|node| node.devices.bridges());
        bridges.all(|ntrdma| ntrdma.link() == State::Up)
    };
    for _ in 0..10_000 {
        both.pass();
    }
    assert!(up(&both), "the link does not come up");
    let ram = Arena::on_heap((1 << 20) + 4096).alloc(1 << 20, 4096).unwrap();
    let volume = Box::new(RamVolume::new(ram, false));
    World::over(both, World::small(true), 4 << 20, volume)
}

/// A client whose session goes over a bridge.
fn connect_over_bridge(world: &mut World<Both>, bridge: u8) -> usize {
    let config = client::Config { max_reconnect_attempts: Some(0), ..client::Config::default() };
    let name = Name::new(["bridged", "other"][usize::from(bridge)]).unwrap();
    let mut client = Client::new(config, name, context!(world, host)).unwrap();
    let to = |n| SocketAddr::new(n, PORT);
    let (local, remote) = (behind_bridge(bridge, 2), behind_bridge(bridge, 1));
    client.add_path(local, to(remote), context!(world, host)).unwrap();
    let mixed = client.add_path(network(2), to(network(1)), context!(world, host));
    assert_eq!(mixed, Err(AddPathError::Device));
    world.clients.push(client);
    world.run();
    world.clients.len() - 1
}

#[test]
fn one_server_has_sessions_of_both_devices_at_once() {
    for seed in 0..4 {
        let mut world = world(seed);
        let memory = world.arena.available();
        let mut clients = std::vec![world.connect("network")];
        (0..BRIDGES).for_each(|bridge| clients.push(connect_over_bridge(&mut world, bridge)));
        assert_eq!(world.server.transport().sessions().count(), clients.len());
        // Two clients may write at once.
        let (readers, writers) = clients.split_at(clients.len() - 2);
        for &client in readers {
            world.open(client, "ram0", AccessMode::ReadOnly).unwrap();
        }
        world.open(writers[0], "ram0", AccessMode::ReadWrite).unwrap();
        world.open(writers[1], "ram0", AccessMode::Migration).unwrap();
        for round in 0..20u8 {
            let from = readers.len() + usize::from(round % 2);
            let (sector, size) = (u64::from(round) * 8, 4096);
            let data = [round + 1; 4096];
            let before = world.wire.traffic();
            world.write(clients[from], &user_io(Operation::Write, sector, size), &data).unwrap();
            let after = world.wire.traffic();
            for bridge in 0..usize::from(BRIDGES) {
                let went = after[2 * bridge] > before[2 * bridge];
                assert_eq!(went, from == 1 + bridge, "the request takes the device of its path");
            }
            let read = user_io(Operation::Read, sector, size);
            let reader = clients[(from + 1) % clients.len()];
            assert!(world.read(reader, &read, size).unwrap() == data);
        }
        for client in clients {
            world.clients[client].disconnect(PathId(0), context!(world, host));
            world.run();
        }
        assert_eq!(world.server.transport().sessions().count(), 0);
        assert_eq!(world.arena.available(), memory);
        for ntrdma in world.wire.nodes.iter().flat_map(|node| node.devices.bridges()) {
            assert_eq!((ntrdma.queue_pairs().0, ntrdma.connections()), (0, 0));
            assert_eq!(ntrdma.counters().violations, 0);
        }
    }
}

#[test]
fn shared_objects_are_created_and_destroyed_on_both_devices_or_none() {
    let mut both = Both::new(1);
    let devices = &mut both.nodes[0].devices;
    let pd = devices.alloc_pd().unwrap();
    assert_eq!(devices.pd_on(pd, network(1)), pd);
    assert_ne!(devices.pd_on(pd, behind_bridge(0, 1)), pd);
    let memory = Arena::on_heap(8192).alloc(4096, 4096).unwrap();
    let access = verbs::Access::REMOTE_WRITE;
    for held in [network(1), behind_bridge(0, 1), behind_bridge(BRIDGES - 1, 1)] {
        let held = devices.pd_on(pd, held);
        let region = devices.register(held, memory, access, &mut both.rng).unwrap();
        assert_eq!(devices.dealloc_pd(pd), Err(VerbsError::Busy));
        let other = devices.remap(region.id, memory, &mut both.rng).unwrap();
        assert_eq!(other.id, region.id);
        assert_ne!(other.rkey, devices.rotate_key(region.id, &mut both.rng).unwrap());
        devices.revoke_key(region.id).unwrap();
        devices.deregister(region.id).unwrap();
        assert_eq!(devices.deregister(region.id), Err(VerbsError::NoSuchObject));
    }
    devices.dealloc_pd(pd).unwrap();
    assert_eq!(devices.dealloc_pd(pd), Err(VerbsError::NoSuchObject));
    let cq = devices.create_cq(16).unwrap();
    assert!(devices.poll_cq(cq).is_none());
    devices.destroy_cq(cq).unwrap();
    // Each port can be listened on once, on all devices together.
    use verbs::ConnectionManager;
    devices.listen(1).unwrap();
    assert!(devices.listen(1).is_err());
    devices.unlisten(1);
    devices.listen(1).unwrap();
}
