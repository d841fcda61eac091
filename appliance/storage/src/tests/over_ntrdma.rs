//! The gateway and a host over NTRDMA, on a bridge whose writes arrive in any order.

use super::over_roce::exercise;
use crate::rnbd::wire::{AccessMode, Io, IoFlags, Operation};
use crate::testing::{Wire, World, context};
use crate::volume::RamVolume;
use core::time::Duration;
use drivers::hal::{Arena, Instant};
use ntrdma::Layout;
use ntrdma::testing::{ARENA, Pair, Way};
use rtrs::client::{Event, Outcome, PathId};
use rtrs::server::Config;
use rtrs::server::ServerDevice;
use std::boxed::Box;
use verbs::{Lending, Provider};

/// Node 0 is the gateway, node 1 the host.
struct NtrdmaPair(Pair);

impl NtrdmaPair {
    /// Takes the link down for so long.
    fn flap(&mut self, long: Duration) {
        let end = self.0.now + long;
        for up in [false, true] {
            self.0.nodes.iter_mut().for_each(|node| node.bridge.set_link(up));
            while !up && self.0.now < end {
                self.0.step();
            }
        }
    }
}

const LAYOUT: Layout = Layout { qps: 8, ring: 32, staging: 64 << 10, landing: 4096 };

impl Wire for NtrdmaPair {
    fn gateway(&mut self) -> &mut dyn ServerDevice {
        &mut self.0.nodes[0].ntrdma
    }
    fn host(&mut self) -> &mut dyn ServerDevice {
        &mut self.0.nodes[1].ntrdma
    }
    fn step(&mut self, now: &mut Instant) -> bool {
        // An engine that is not polled for long loses its link.
        while self.0.now < *now {
            self.0.step();
        }
        let busy = |pair: &Pair| {
            let entries = |n: usize| pair.nodes[n].ntrdma.counters().entries_received;
            let batches = |n: usize| pair.nodes[n].ntrdma.counters().batches;
            (entries(0), entries(1), batches(0), batches(1))
        };
        let before = busy(&self.0);
        // The link counts as idle if it carries only heartbeats for a while.
        for _ in 0..20 {
            self.0.step();
            if busy(&self.0) != before {
                *now = self.0.now;
                return true;
            }
        }
        *now = self.0.now;
        false
    }
}

fn world(seed: u64, way: Way, config: Config) -> World<NtrdmaPair> {
    let mut pair = Pair::new(seed, LAYOUT, way);
    for node in &mut pair.nodes {
        node.ntrdma.destroy_qp(node.qp).unwrap();
    }
    pair.bring_up();
    let ram = Arena::on_heap((1 << 20) + 4096).alloc(1 << 20, 4096).unwrap();
    let volume = Box::new(RamVolume::new(ram, false));
    let mut world = World::over(NtrdmaPair(pair), config, 2 << 20, volume);
    if way == Way::Lent {
        // Exposed memory: the peer reads the payload in place.
        let ntrdma = &mut world.wire.0.nodes[0].ntrdma;
        let lent = ntrdma.lend(ntrdma.local(), ARENA).unwrap();
        world.arena = Arena::new(lent);
    }
    world
}

#[test]
fn data_survives_with_every_mode() {
    for seed in 0..8 {
        let (way, always_invalidate) = (Way::ALL[seed as usize / 2], seed % 2 == 0);
        let mut world = world(seed, way, World::small(always_invalidate));
        let memory = world.arena.available();
        exercise(&mut world, 60);
        assert_eq!(world.arena.available(), memory);
        let counters = *world.wire.0.nodes[0].ntrdma.counters();
        assert_eq!(counters.bytes_lent > 0, way == Way::Lent, "{counters:?}");
        for node in &world.wire.0.nodes {
            assert_eq!(node.ntrdma.counters().violations, 0);
        }
    }
}

#[test]
fn session_reconnects_after_a_link_failure() {
    for seed in 0..8 {
        netsim::label!(seed);
        let mut world = world(seed, Way::ALL[seed as usize / 2], World::small(seed % 2 == 0));
        let memory = world.arena.available();
        let client = world.connect("s1");
        world.clients[client].set_max_reconnect_attempts(None);
        for round in 0..3 {
            let device = world.open(client, "ram0", AccessMode::ReadWrite).unwrap().device;
            let io = |operation| {
                let (sector, flags) = (8 * round, IoFlags::SYNC);
                Io { device, sector, operation, flags, size: 4096, priority: 0 }.emit()
            };
            let data = [round as u8; 4096];
            world.write(client, &io(Operation::Write), &data).unwrap();
            assert!(world.read(client, &io(Operation::Read), 4096).unwrap() == data);
            let under_way = world.start_write(client, &io(Operation::Write), &data);
            world.events.clear();
            world.wire.flap(Duration::from_millis(round * 60 + 1));
            world.now = world.wire.0.now;
            world.pass(3);
            assert_eq!(world.outcome(client, under_way), Some(Outcome::Lost));
            world.clients[client].put_permit(under_way);
            let up = |event: &(usize, Event)| matches!(event.1, Event::LinkUp { .. });
            assert!(world.events.iter().any(up), "{seed} {round}: {:?}", world.events);
            assert_eq!(world.server.transport().sessions().count(), 1);
        }
        world.clients[client].disconnect(PathId(0), context!(world, host));
        world.run();
        assert_eq!(world.arena.available(), memory);
    }
}
