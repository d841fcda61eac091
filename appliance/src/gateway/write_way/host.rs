//! A host with a mapped volume of the plane: an RNBD client over RoCE, connected by a cable.

use crate::config;
use crate::gateway::plane::{DataPlane, Devices, Settings};
use crate::gateway::ports::PlanePort;
use crate::gateway::storage::Storage;
use crate::gateway::test_cable::{Cable, Ends, bytes};
use crate::randomness::EntropySources;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use drivers::hal::{Arena, Instant, Window};
use net::PortAddresses;
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng;
use roce::{Limits, PortConfig, Roce, TxBuffer};
use rtrs::{Name, client as transport};
use std::sync::{Arc, Mutex};
use storage::rnbd::client::{self, Client, Losses, RemoteVolume};
use storage::rnbd::wire::{AccessMode, PORT};
use storage::volume::{Operation, Request, Volume};
use verbs::{ConnectionManager, Ctx, Provider};

const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const OURS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const HOST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const CONFIG: &str = "\
[[net]]
address = \"10.9.0.1/24\"

[[volume]]
name = \"ram0\"
size = \"1MiB\"

[rnbd]
queue_depth = 16
chunk_size = \"16KiB\"
";
const STEP: Duration = Duration::from_micros(20);

/// The plane and the host.
pub struct Lab {
    pub plane: DataPlane,
    ends: Arc<Mutex<Ends>>,
    roce: Roce,
    tx: TxBuffer,
    client: Client,
    volume: RemoteVolume,
    arena: Arena,
    rng: ChaCha12Rng,
    data: Window,
    pub now: Instant,
}

/// Creates a plane with one port that serves a volume in memory.
fn plane(ends: Arc<Mutex<Ends>>, now: Instant) -> DataPlane {
    let config = config::check(CONFIG.as_bytes()).unwrap();
    let cable = Cable::new(OUR_MAC, ends);
    let local = PortAddresses { mac: OUR_MAC, v4: [OURS].into(), v6: Vec::new() };
    let port = PlanePort::new("net0".into(), Box::new(cable), false);
    let mut arena = Arena::on_heap(64 << 20);
    let (entropy, seed) = (EntropySources::NONE, [7; 32]);
    let settings =
        Settings { config: config.clone(), arena: arena.share(), seed, entropy, storage: None };
    let devices = Devices { ports: vec![port], ..Devices::default() };
    let mut plane = DataPlane::of_core(settings, devices, now);
    plane.is_alone = true;
    plane.set_addresses(0, &local, [1500; 2]);
    let stack = plane.rdma_stack.as_mut().unwrap();
    stack.providers.roce.pin_neighbour(0, HOST.into(), HOST_MAC);
    let provider = Some(&mut stack.providers);
    plane.storage = Storage::new(&config, &mut [], &mut arena, provider, &mut *plane.rng, || false);
    plane.storage.apply_exports(&config);
    plane
}

impl Lab {
    /// Creates the plane, and a host that has mapped the volume.
    pub fn new() -> Lab {
        let now = Instant::ZERO + Duration::from_secs(1);
        let ends = Arc::new(Mutex::new(Ends::default()));
        let plane = plane(ends.clone(), now);
        let mut rng = ChaCha12Rng::from_seed([8; 32]);
        let port = PortConfig { mac: HOST_MAC, addresses: vec![HOST.into()], mtu: 1500 };
        let mut roce = Roce::new(port, Limits::default(), &mut rng);
        roce.pin_neighbour(0, OURS.into(), OUR_MAC);
        let mut arena = Arena::on_heap(64 << 20);
        let data = arena.alloc(4096, 4096).unwrap();
        let mut ctx = Ctx { provider: &mut roce, arena: &mut arena, now, rng: &mut rng };
        let session = Name::new("host").unwrap();
        let (settings, paths) = (client::Config::default(), transport::Config::default());
        let mut client = Client::new(settings, paths, session, &mut ctx).unwrap();
        let to = SocketAddr::new(OURS.into(), PORT);
        client.transport_mut().add_path(IpAddr::from(HOST), to, &mut ctx).unwrap();
        let (device, mode) = (Name::new("ram0").unwrap(), AccessMode::ReadWrite);
        let (_, volume) = client.map(device, mode, Losses::ToFlush, &mut ctx).unwrap();
        let tx = TxBuffer::new();
        let mut lab = Lab { plane, ends, roce, tx, client, volume, arena, rng, data, now };
        for _ in 0..100_000 {
            if lab.volume.geometry().sectors > 0 {
                return lab;
            }
            lab.host();
            lab.plane.receive(lab.now, |_, _| ());
            lab.plane.serve(lab.now);
            lab.plane.transmit_fabric(lab.now);
        }
        panic!("the volume is not mapped");
    }

    /// The host receives its frames, and sends its own.
    pub fn host(&mut self) {
        self.now = self.now + STEP;
        let Lab { roce, client, arena, rng, now, .. } = self;
        for frame in std::mem::take(&mut self.ends.lock().unwrap().sent) {
            roce.handle_frame(0, &frame, *now);
        }
        roce.handle_timeout(*now);
        while let Some(event) = roce.poll_connection_event() {
            let mut ctx = Ctx { provider: &mut *roce, arena, now: *now, rng };
            client.handle_connection_event(&event, &mut ctx);
        }
        let mut ctx = Ctx { provider: &mut *roce, arena, now: *now, rng };
        while client.poll(&mut ctx).is_some() {}
        while roce.poll_transmit(0, *now, &mut self.tx) {
            self.ends.lock().unwrap().arrives.push_back(bytes(&self.tx.packet()));
        }
    }

    /// The host sends a write of 4 KiB.
    pub fn submit(&mut self) {
        let operation = Operation::Write { durable: false };
        let request = Request { tag: 0.into(), operation, sector: 0, data: self.data };
        self.volume.submit(&request).unwrap();
        self.host();
    }

    /// Returns whether the host has the reply.
    pub fn is_done(&mut self) -> bool {
        self.host();
        self.volume.poll().is_some_and(|done| done.result.is_ok())
    }
}
