//! A host: a RoCE engine and its memory, as a node of the network.

use super::memory::Memory;
use drivers::hal::{Arena, Instant, Window};
use netsim::Rng;
use roce::{Limits, PortConfig, Roce, TxBuffer};
use std::net::IpAddr;
use std::rc::Rc;
use verbs::{
    Access, ConnectionManager, CqId, MemoryVerbs, PdId, Provider, RecvRequest, Region,
    RemoteAddress,
};

/// Bytes of memory that a host has.
pub const MEMORY: usize = 512 << 10;

/// Bytes of the library, which peers may read and no host writes.
pub const LIBRARY: usize = 8192;

/// Port that hosts listen on.
pub const PORT: u16 = 7000;

/// Constant properties of a host.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub mac: [u8; 6],
    pub ip: IpAddr,
    pub mtu: usize,
    pub limits: Limits,
}

/// State while the host is up.
#[derive(Debug)]
pub struct Machine {
    pub roce: Roce,
    tx: TxBuffer,
    pub arena: Arena,
    pub memory: Memory,
    pub pd: PdId,
    pub cq: CqId,
    pub library: Region,
    /// Contents of the library.
    pub library_bytes: Rc<[u8]>,
    /// A number to which all peers add.
    pub counter: Region,
    free: usize,
}

/// A host.
#[derive(Debug)]
pub struct Host {
    pub config: Config,
    /// Number of boots.
    pub boots: u32,
    /// Whether its link is up.
    pub link: bool,
    pub machine: Option<Machine>,
    memory: Window,
}

impl Host {
    /// A host that is down.
    pub fn new(config: Config, memory: Window) -> Self {
        Host { config, boots: 0, link: true, machine: None, memory }
    }

    /// Boots the host, without state of an earlier boot.
    pub fn boot(&mut self, peers: &[Config], rng: &mut Rng) {
        let Config { mac, ip, mtu, limits } = self.config;
        let port = PortConfig { mac, addresses: vec![ip], mtu };
        let mut roce = Roce::new(port, limits, rng);
        for peer in peers {
            roce.pin_neighbour(0, peer.ip, peer.mac);
        }
        roce.set_link(0, self.link);
        roce.listen(PORT).expect("the port is free");
        let mut arena = Arena::new(self.memory);
        let free = arena.available();
        let mut memory = Memory::new(self.memory, rng);
        let pd = roce.alloc_pd().expect("room");
        let cq = roce.create_cq(4096).expect("room");
        let library = arena.alloc(LIBRARY, 64).expect("room");
        let library_bytes = memory.expected(&library).into();
        let library = roce.register(pd, library, Access::REMOTE_READ, rng).expect("room");
        let counter = arena.alloc(64, 64).expect("room");
        memory.put(&counter, &[0; 64]);
        let counter = roce.register(pd, counter, Access::REMOTE_ATOMIC, rng).expect("room");
        memory.open(&counter.memory);
        self.boots += 1;
        let tx = TxBuffer::new();
        self.machine = Some(Machine {
            roce,
            tx,
            arena,
            memory,
            pd,
            cq,
            library,
            library_bytes,
            counter,
            free,
        });
    }

    /// The machine, of a host that is up.
    pub fn up(&mut self) -> &mut Machine {
        self.machine.as_mut().expect("the host is up")
    }
}

impl Machine {
    /// The value of the counter.
    pub fn count(&self) -> u64 {
        let mut bytes = [0; 8];
        self.counter.memory.read(0, &mut bytes).expect("8 bytes");
        u64::from_ne_bytes(bytes)
    }

    /// Posts a receive into `into`, which peers may write to from now on.
    pub fn post_receive(&mut self, qp: verbs::QpId, id: u64, into: Window) {
        self.memory.open(&into);
        self.roce.post_recv(qp, &RecvRequest { id, into: &[into] }).expect("room for receives");
    }

    /// Releases all resources. Those of the sides must be released already. Panics if a resource is still in use.
    pub fn tear_down(&mut self) {
        assert_eq!(self.roce.queue_pairs(), 0, "queue pairs are left");
        assert_eq!(self.roce.connections(), 0, "connections are left");
        assert_eq!(self.roce.counters().completions_lost, 0);
        self.memory.close(&self.counter.memory);
        for region in [self.library, self.counter] {
            self.roce.deregister(region.id).expect("the region is registered");
            self.arena.free(region.memory);
        }
        self.roce.dealloc_pd(self.pd).expect("no region and no queue pair uses it");
        self.roce.destroy_cq(self.cq).expect("no queue pair uses it");
        assert_eq!(self.arena.available(), self.free, "memory is not released");
    }
}

/// Remote address of the start of a region.
pub fn name(region: &Region) -> RemoteAddress {
    RemoteAddress { address: region.address, rkey: region.rkey }
}

impl netsim::Node for Host {
    fn handle_frame(&mut self, port: usize, frame: &[u8], now: Instant) {
        if let Some(machine) = &mut self.machine {
            machine.roce.handle_frame(port, frame, now);
        }
    }
    fn poll_transmit(&mut self, port: usize, now: Instant) -> Option<Vec<u8>> {
        let Machine { roce, tx, .. } = self.machine.as_mut()?;
        roce.poll_transmit(port, now, tx).then(|| netsim::bytes(&tx.packet()))
    }
    fn poll_timeout(&self) -> Option<Instant> {
        self.machine.as_ref()?.roce.poll_timeout()
    }
    fn work(&mut self, now: Instant) {
        if let Some(machine) = &mut self.machine {
            machine.roce.handle_timeout(now);
        }
    }
}
