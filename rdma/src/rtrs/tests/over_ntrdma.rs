//! The gateway and a host over NTRDMA: the same engines, the same requests, on a bridge whose writes
//! arrive in any order.

use super::over_roce::exercise;
use crate::ntrdma::Layout;
use crate::ntrdma::testing::Pair;
use crate::rtrs::server::Config;
use crate::rtrs::testing::{Wire, World};
use crate::verbs::{Fabric, Provider};
use crate::volume::RamVolume;
use drivers::hal::{Arena, Instant};
use std::boxed::Box;

/// Node 0 is the gateway, node 1 the host.
struct NtrdmaPair(Pair);

const LAYOUT: Layout = Layout { qps: 8, ring: 32, staging: 64 << 10, landing: 4096 };

impl Wire for NtrdmaPair {
    fn gateway(&mut self) -> &mut dyn Fabric {
        &mut self.0.nodes[0].ntrdma
    }
    fn host(&mut self) -> &mut dyn Fabric {
        &mut self.0.nodes[1].ntrdma
    }
    fn step(&mut self, now: &mut Instant) -> bool {
        // Machines that do not run for long lose their link.
        while self.0.now < *now {
            self.0.step();
        }
        let busy = |pair: &Pair| {
            let entries = |n: usize| pair.nodes[n].ntrdma.counters().entries_received;
            let batches = |n: usize| pair.nodes[n].ntrdma.counters().batches;
            (entries(0), entries(1), batches(0), batches(1))
        };
        let before = busy(&self.0);
        // At rest is what has nothing under way but heartbeats for a while.
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

fn world(seed: u64, lent: bool, config: Config) -> World<NtrdmaPair> {
    let mut pair = Pair::new(seed, LAYOUT, lent);
    for node in &mut pair.nodes {
        node.ntrdma.destroy_qp(node.qp).unwrap();
    }
    pair.bring_up();
    let ram = Arena::on_heap((1 << 20) + 4096).alloc(1 << 20, 4096).unwrap();
    let volume = Box::new(RamVolume::new(ram, false));
    let mut world = World::over(NtrdmaPair(pair), config, 2 << 20, volume);
    if lent {
        // Memory that is exposed: the peer reads payload where it lies.
        world.arena = world.fabric.0.nodes[0].arena.share();
    }
    world
}

#[test]
fn data_survives_with_every_mode() {
    for (seed, always_invalidate, lent) in
        [(1, true, false), (2, false, false), (3, true, true), (4, false, true)]
    {
        let mut world = world(seed, lent, World::small(always_invalidate));
        let memory = world.arena.available();
        exercise(&mut world, 60);
        assert_eq!(world.arena.available(), memory);
        let counters = *world.fabric.0.nodes[0].ntrdma.counters();
        assert_eq!(counters.bytes_lent > 0, lent, "{counters:?}");
        for node in &world.fabric.0.nodes {
            assert_eq!(node.ntrdma.counters().violations, 0);
        }
    }
}
