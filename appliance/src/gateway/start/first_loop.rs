//! Fourth stage: the data plane of the first loop with RDMA and storage, and the loops of other cores.

use super::disks::Disks;
use super::interfaces::Interfaces;
use super::resources::{MachineClock, seed};
use crate::config::Config;
use crate::gateway::disk_queues;
use crate::gateway::disk_transfer::PATIENCE;
use crate::gateway::plane::{DataPlane, Devices, Settings};
use crate::gateway::port_assignment::Loops;
use crate::gateway::storage::Storage;
use crate::gateway::worker::Worker;
use crate::machine::Machine;
use crate::randomness::EntropySources;
use drivers::hal::{Arena, Instant, Platform};
use rand_core::Rng;

/// Creates the plane over the ports and bridges of the first loop. Returns it, and the numbers of its ports by their
/// indices there.
pub(super) fn plane(
    interfaces: &mut Interfaces<'_>,
    config: &Config,
    arena: Arena,
    rng: Box<dyn Rng>,
    now: Instant,
) -> (DataPlane, Vec<usize>) {
    let Interfaces { loops, ports: slots, cards, rapidio, transports, .. } = interfaces;
    let (mut numbers, ports): (Vec<_>, Vec<_>) = loops.own.drain(..).unzip();
    let (bridges, cards) = (core::mem::take(&mut loops.own_bridges), core::mem::take(cards));
    let others = !loops.with_ports().is_empty();
    let devices = Devices { ports, bridges, cards };
    let mut plane = DataPlane::over(devices, config, others, arena, rng, now);
    plane.rapidio = core::mem::take(rapidio);
    plane.transports = core::mem::take(transports);
    // After the ports with RDMA.
    for (index, port) in loops.forwarding.drain(..) {
        slots[index].forwarding = Some(plane.ports.len());
        numbers.push(index);
        plane.ports.push(port);
    }
    (plane, numbers)
}

/// Creates the volumes, their server, the other users of verbs, and the exports.
pub(super) fn start_users(
    plane: &mut DataPlane,
    config: &Config,
    disks: &mut Disks,
    machine: &dyn Machine,
) {
    let DataPlane { rdma_stack, arena, rng, .. } = plane;
    let patience = machine.now() + PATIENCE;
    let wait = || machine.now() < patience;
    let provider = rdma_stack.as_mut().map(|rdma_stack| &mut rdma_stack.providers);
    plane.storage = Storage::new(config, &mut disks.slots, arena, provider, &mut **rng, wait);
    // Before mirrors, whose members they may be.
    plane.storage.add_tcp_remotes(config, &mut plane.arena);
    plane.add_users(config, true);
    plane.storage.apply_exports(config);
}

/// Starts the loops of other cores that own ports or bridges. They serve the volumes of `plane`, the first loop's.
pub(super) fn start_others(
    loops: Loops,
    config: &Config,
    plane: &mut DataPlane,
    disks: &mut Disks,
    machine: &dyn Machine,
    platform: &mut dyn Platform,
    entropy: EntropySources,
) -> Vec<Worker> {
    let DataPlane { storage, rng, arena, .. } = plane;
    let waker = loops.waker.clone();
    storage.share(&waker, &loops.with_ports());
    loops.start(|core, spare, theirs| {
        let seed = seed(&mut **rng);
        let storage = storage.seat(core, &waker, theirs, || {
            let (queues, clock) = (&mut disks.queues, MachineClock(machine));
            disk_queues::open(queues, core, spare, theirs, platform, &clock)
        });
        Settings { config: config.clone(), arena: arena.share(), seed, entropy, storage }
    })
}
