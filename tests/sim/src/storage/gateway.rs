//! A gateway: RNBD server, volumes, disks.

use super::disk::SimDisk;
use drivers::hal::{Arena, Instant, Window};
use net::hosts::Hosts;
use netsim::{Rng, SlowPort};
use rand_core::Rng as _;
use roce::{Limits, PortConfig, Roce, TxBuffer};
use rtrs::Name;
use rtrs::server::Config;
use std::net::IpAddr;
use storage::rnbd::server::{Export, Server};
use storage::volume::{DiskVolume, RamVolume, Volume, Volumes};
use verbs::{ChunksOnDemand, ConnectionManager, Ctx, Provider};

/// Addresses of a node's port.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// Ethernet address.
    pub mac: [u8; 6],
    /// IP address.
    pub ip: IpAddr,
}

/// Bytes of memory that sessions share with oversubscription: 6 chunks.
const SHARED: usize = 96 << 10;

/// Limits of the engines of a node.
pub const LIMITS: Limits = Limits {
    qps: 64,
    cqs: 16,
    pds: 16,
    regions: 512,
    keys: 512,
    wr: 512,
    connections: 64,
    connections_per_host: 64,
    half_open: 16,
    unacknowledged: 64,
};

/// A RoCE engine over some ports that knows its neighbours.
pub fn roce(ports: &[Port], mtu: usize, neighbours: &[Port], rng: &mut Rng) -> Roce {
    let config = |port: &Port| PortConfig { mac: port.mac, addresses: vec![port.ip], mtu };
    let mut roce = Roce::new(config(&ports[0]), LIMITS, rng);
    for port in &ports[1..] {
        roce.add_port(config(port));
    }
    for (place, port) in neighbours.iter().enumerate() {
        roce.pin_neighbour(place, port.ip, port.mac);
    }
    roce
}

/// Polls the next frame of a port. `tx` holds the packet that the port is sending.
pub fn transmit(roce: &mut Roce, tx: &mut TxBuffer, port: usize, now: Instant) -> Option<Vec<u8>> {
    roce.poll_transmit(port, now, tx).then(|| netsim::bytes(&tx.packet()))
}

/// State while the power is on.
struct Machine {
    roce: Roce,
    tx: TxBuffer,
    /// Transmit queues of its ports.
    slow: Vec<SlowPort>,
    server: Server,
    volumes: Volumes,
    arena: Arena,
    rng: Rng,
}

/// A gateway.
pub struct Gateway {
    /// Its ports.
    pub ports: Vec<Port>,
    /// Ethernet MTU.
    pub mtu: usize,
    /// The storage server's settings.
    pub config: Config,
    /// The disk exported as `disk`.
    pub disk: SimDisk,
    /// Sectors of the volume exported as `ram`.
    pub ram_sectors: usize,
    /// All of its memory.
    pub memory: Window,
    /// Hosts with their own volume in memory: `own1`, `own2` and so on.
    pub private: Vec<IpAddr>,
    /// Stations that answer ARP on its networks: index of the gateway's port, and the station.
    pub stations: Vec<(usize, Port)>,
    /// Longest stall of its ports in milliseconds.
    pub stalls: u64,
    machine: Option<Machine>,
    /// Number of starts.
    pub boots: u32,
}

impl Gateway {
    /// A gateway with its power off.
    pub fn new(
        ports: Vec<Port>,
        mtu: usize,
        config: Config,
        disk: SimDisk,
        ram_sectors: usize,
        memory: Window,
    ) -> Self {
        let private = Vec::new();
        Gateway {
            ports,
            mtu,
            config,
            disk,
            ram_sectors,
            memory,
            private,
            stations: Vec::new(),
            stalls: 0,
            machine: None,
            boots: 0,
        }
    }

    /// Starts it.
    pub fn boot(&mut self, rng: &mut Rng) {
        let mut rng = rng.fork();
        let mut roce = roce(&self.ports, self.mtu, &[], &mut rng);
        let mut arena = Arena::new(self.memory);
        if self.config.oversubscribe > 1 {
            let shared = arena.alloc(SHARED, 4096).expect("room");
            roce.give_memory(shared, self.config.chunk_size as usize)
                .expect("the engine has no memory yet");
        }
        // In some seeds the server does not announce its restart, like Linux's server.
        let announces = self.config.incarnation != 0;
        let incarnation = if announces { rng.next_u64() | 1 } else { 0 };
        let config = Config { incarnation, ..self.config };
        let mut server = Server::new(config, 4, &mut roce).expect("the configuration is valid");
        let mut volumes = Volumes::new();
        let mut ram = || -> Box<dyn Volume> {
            let memory = arena.alloc(self.ram_sectors * 512, 4096).expect("room");
            Box::new(RamVolume::new(memory, false))
        };
        let disk: Box<dyn Volume> = Box::new(DiskVolume::new(self.disk.clone(), false));
        let mut all = vec![("disk".into(), disk, None), ("ram".into(), ram(), None)];
        for (number, host) in (1..).zip(&self.private) {
            all.push((format!("own{number}"), ram(), Some(*host)));
        }
        for (name, volume, host) in all {
            let name = Name::new(&name).expect("a name");
            let volume = volumes.add(name, volume).expect("the name is free");
            let network = |host: IpAddr| host.to_string().parse().expect("an address");
            let hosts = Hosts::new(host.into_iter().map(network).collect());
            let (allow, limiter) = (Vec::new(), Default::default());
            let export = Export { name, volume, read_only: false, allow, hosts, limiter };
            server.add_export(export, &volumes).expect("the export is valid");
        }
        self.boots += 1;
        let slow = self.ports.iter().map(|_| SlowPort::new(self.stalls)).collect();
        roce.wait_for_ports();
        arena.wait_for_ports(self.ports.len());
        let tx = TxBuffer::new();
        self.machine = Some(Machine { roce, tx, slow, server, volumes, arena, rng });
    }

    /// Cuts its power.
    pub fn cut_power(&mut self) {
        self.machine = None;
        self.disk.cut_power();
    }

    /// Whether the power is on.
    pub fn is_up(&self) -> bool {
        self.machine.is_some()
    }

    /// Sessions, connections, and bytes of memory in use.
    pub fn in_use(&self) -> (usize, usize, usize) {
        let Some(machine) = &self.machine else { return (0, 0, 0) };
        let sessions = machine.server.transport().sessions().count();
        let memory = machine.arena.capacity() - machine.arena.available();
        (sessions, machine.roce.connections(), memory)
    }
}

impl netsim::Node for Gateway {
    fn handle_frame(&mut self, port: usize, frame: &[u8], now: Instant) {
        let Some(machine) = &mut self.machine else { return };
        machine.roce.handle_frame(port, frame, now);
        while let Some((place, host)) = machine.roce.next_stranger() {
            let mut stations = self.stations.iter();
            match stations.find(|(of, station)| (*of, station.ip) == (place, host)) {
                Some((_, station)) => {
                    machine.roce.learn_neighbour(place, host, station.mac, false);
                }
                None => machine.roce.lose_neighbour(place, host, now),
            }
        }
    }
    fn poll_transmit(&mut self, port: usize, now: Instant) -> Option<Vec<u8>> {
        let Machine { roce, tx, slow, rng, .. } = self.machine.as_mut()?;
        let slow = &mut slow[port];
        while slow.has_room() && roce.poll_transmit(port, now, tx) {
            slow.queue(&tx.packet(), now, rng);
        }
        slow.send(now, rng)
    }
    fn poll_timeout(&self) -> Option<Instant> {
        let machine = self.machine.as_ref()?;
        let timers = [machine.roce.poll_timeout(), machine.server.poll_timeout(), self.disk.next()];
        let ports = machine.slow.iter().map(SlowPort::deadline);
        timers.into_iter().chain(ports).flatten().min()
    }
    fn work(&mut self, now: Instant) {
        let Some(machine) = &mut self.machine else { return };
        for (place, slow) in machine.slow.iter().enumerate() {
            machine.roce.note_progress(place, slow.progress());
            machine.arena.note_progress(place, slow.progress());
        }
        self.disk.set_now(now);
        machine.roce.handle_timeout(now);
        loop {
            let mut moved = false;
            while let Some(event) = machine.roce.poll_connection_event() {
                let Machine { roce, server, arena, rng, .. } = machine;
                let mut ctx = Ctx { provider: roce, arena, now, rng };
                server.handle_connection_event(&event, &mut ctx);
                moved = true;
            }
            let Machine { roce, server, volumes, arena, rng, .. } = machine;
            let mut ctx = Ctx { provider: roce, arena, now, rng };
            moved |= server.poll(volumes, &mut ctx);
            while server.transport_mut().poll_notice().is_some() {}
            if !moved {
                return;
            }
        }
    }
}
