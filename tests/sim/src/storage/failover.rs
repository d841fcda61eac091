//! Duration of a request whose path is cut: from the cut to the answer over the other path, with the default timers of
//! client and server. There is one request at a time, so that every request is on the path that is cut.

use super::disk::{Manners, SimDisk};
use super::gateway::Gateway;
use super::host::Host;
use super::{Node, port};
use drivers::hal::Window;
use netsim::{Network, Place, Rng};
use rtrs::client::{self as transport, PathState};
use rtrs::{Name, server};
use std::time::Duration;
use storage::rnbd::client::{self, Losses};
use storage::rnbd::wire::AccessMode;
use storage::volume::{Operation, Request, Volume};
use verbs::Ctx;

const MEMORY: usize = 4 << 20;
const SECTORS: usize = 64;
const STEP: Duration = Duration::from_millis(1);
/// Time limit of each wait.
const LIMIT: Duration = Duration::from_secs(100);

fn host(nodes: &mut [Node]) -> &mut Host {
    match &mut nodes[1] {
        Node::Host(host) => host,
        Node::Gateway(_) | Node::Gone => unreachable!("the second node"),
    }
}

/// The longest duration over `cuts` cuts.
pub fn longest(seed: u64, cuts: u32) -> Duration {
    let mut longest = Duration::ZERO;
    netsim::with_memory(2 * MEMORY, |memory| {
        let part = |n: usize| memory.slice(n * MEMORY, MEMORY).expect("a part of it");
        longest = measure(seed, cuts, [part(0), part(1)]);
    });
    longest
}

fn measure(seed: u64, cuts: u32, memory: [Window; 2]) -> Duration {
    let mut rng = Rng::new(seed);
    let mut network = Network::new(seed);
    network.set_links(|link| link.jitter = Duration::from_micros(5));
    let ports = |node| [port(node, 0), port(node, 1)];
    for node in 0..2 {
        network.add_node(&ports(node).map(|port| port.mac));
    }
    let (latency, cache) = (Duration::from_micros(5), false);
    let manners = Manners { cache, latency, errors: 0, stalls: 0, kept: 0 };
    let disk = SimDisk::new(SECTORS, manners, rng.fork());
    // All settings except sizes are the defaults.
    let config = server::Config {
        queue_depth: 16,
        chunk_size: 16 << 10,
        max_sessions: 4,
        max_connections: 8,
        completions: 2048,
        ..server::Config::default()
    };
    let mut gateway = Gateway::new(ports(0).into(), 1500, config, disk, SECTORS, memory[0]);
    gateway.stations = ports(1).into_iter().enumerate().collect();
    gateway.boot(&mut rng);
    let session = transport::Config { completions: 2048, ..transport::Config::default() };
    let settings = (client::Config::default(), session);
    let (own, far, now) = (ports(1), ports(0), network.now);
    let mut client = Host::new(1, &own, &far, 1500, settings, memory[1], rng.fork(), now);
    let Host { roce, client: devices, arena, rng: own, .. } = &mut client;
    let data = arena.alloc(4096, 4096).expect("room");
    let mut ctx = Ctx { provider: roce, arena, now, rng: own };
    let (name, mode) = (Name::new("ram").expect("a name"), AccessMode::ReadWrite);
    let (_, mut volume) = devices.map(name, mode, Losses::ToFlush, &mut ctx).expect("room");
    let mut nodes = [Node::Gateway(Box::new(gateway)), Node::Host(Box::new(client))];
    let pass = |network: &mut Network, nodes: &mut [Node], time: Duration| {
        let until = network.now + time;
        network.run(nodes, time, |_, _| false);
        network.now = network.now.max(until);
        nodes.iter_mut().for_each(|node| netsim::Node::work(node, until));
    };
    let mut longest = Duration::ZERO;
    for _ in 0..cuts {
        let began = network.now;
        while host(&mut nodes)
            .client
            .transport()
            .paths()
            .any(|path| path.state != PathState::Connected)
            || volume.geometry().sectors == 0
        {
            assert!(network.now < began + LIMIT, "the paths do not come up");
            pass(&mut network, &mut nodes, STEP);
        }
        // At any time between two heartbeats.
        pass(&mut network, &mut nodes, Duration::from_millis(rng.within(1..7000)));
        let request = Request { tag: 0.into(), operation: Operation::Read, sector: 0, data };
        volume.submit(&request).expect("there is room");
        netsim::Node::work(&mut nodes[1], network.now);
        let carrier = {
            let mut paths = host(&mut nodes).client.transport().paths();
            paths.position(|path| path.in_flight > 0).expect("the request was sent")
        };
        let [near, far] = [1, 0].map(|node| Place { node, port: carrier });
        network.link_mut(near, far).cut = true;
        network.link_mut(far, near).cut = true;
        let cut = network.now;
        let done = loop {
            if let Some(done) = volume.poll() {
                break done;
            }
            assert!(network.now < cut + LIMIT, "the request does not end");
            pass(&mut network, &mut nodes, STEP);
        };
        done.result.expect("the other path completes the read");
        longest = longest.max(network.now.since(cut));
        network.heal();
    }
    longest
}
