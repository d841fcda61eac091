//! Remote volumes over NVMe/TCP: the client of one appliance and the target of another, over two TCP stacks on a wire.

use super::poll;
use crate::config::{Document, Remote, Sources};
use crate::gateway::network::Network;
use crate::gateway::storage::Storage;
use crate::gateway::tcp_remotes::tests::{SECOND, carry, interface};
use ::nvme::tcp::TcpQueue;
use ::nvme::{
    Context, Ends, HostKeys, HostList, NamespaceConfig, Settings, SubsystemConfig, Target,
};
use core::time::Duration;
use drivers::hal::{Arena, Instant, Window};
use net::Interface;
use net::dns::Resolver;
use net::tcp::{Limits, Listener, Stream};
use nvme_host::DhchapSecret;
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use std::collections::HashMap;
use storage::volume::{
    Completion, Operation, RamVolume, Request, Submitted, User, VolumeError, VolumeId, Volumes,
};

const NQN: &str = "nqn.2026-01.example:store";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6e8d1a52-0f0c-4f5e-9e3c-5d8f0b8f7f11";
const SECRET: &str = "DHHC-1:00:YfEJbVxTwBJm0HgvAvpxdtBua+7LJGXnu8AvjEi9WPWDgsdm:";
const SIZE: usize = 4 << 20;

/// The target of another appliance.
struct Server {
    interface: Interface,
    listener: Option<Listener>,
    target: Target,
    volumes: Volumes,
    arena: Arena,
    memory: Window,
    queues: HashMap<Stream, TcpQueue>,
    rng: ChaCha12Rng,
}

impl Server {
    fn new(secret: Option<&str>, now: Instant) -> Server {
        let mut arena = Arena::on_heap(64 << 20);
        let mut volumes = Volumes::new();
        let memory = arena.alloc(SIZE, 4096).unwrap();
        let volume = Box::new(RamVolume::new(memory, false));
        volumes.add(rtrs::Name::new("ram0").unwrap(), volume).unwrap();
        let mut target = Target::new(Settings::default(), &mut arena).unwrap();
        let namespace = NamespaceConfig {
            nsid: 4,
            volume: "ram0".into(),
            uuid: None,
            ana_group: 1,
            read_only: false,
            block_size: None,
            limits: Default::default(),
        };
        let subsystem = SubsystemConfig {
            nqn: NQN.into(),
            serial: None,
            model: "Isthmus".into(),
            hosts: HostList::Listed(vec![HOST.into()]),
            networks: Default::default(),
            cntlids: (1, 0xffef),
            dhchap: ::nvme::Demand::Optional,
            tls: ::nvme::Demand::Optional,
            namespaces: vec![namespace],
        };
        let dhchap = secret.map(|secret| DhchapSecret::parse(secret).unwrap());
        let keys = HostKeys { nqn: HOST.into(), controller: dhchap.clone(), dhchap, tls: None };
        target.set_keys(vec![keys], Default::default());
        target.configure(vec![subsystem], &volumes);
        let (interface, queues) = (interface(2, now), HashMap::new());
        let rng = ChaCha12Rng::seed_from_u64(9);
        let mut server =
            Server { interface, listener: None, target, volumes, arena, memory, queues, rng };
        server.listen();
        server
    }

    fn listen(&mut self) {
        let limits = Limits { connections: 16, receive: 64 << 10, transmit: 64 << 10 };
        self.listener = Some(Listener::new(&mut self.interface, nvme_host::PORT, limits));
    }

    fn stop(&mut self, now: Instant) {
        let Server { interface, listener, target, volumes, arena, queues, rng, .. } = self;
        let random = &mut |bytes: &mut [u8]| rng.fill_bytes(bytes);
        let mut ctx = Context { volumes, arena, now, random };
        queues.drain().for_each(|(_, queue)| queue.close(target, &mut ctx));
        if let Some(listener) = listener.take() {
            listener.stop(interface);
        }
    }

    fn poll(&mut self, now: Instant) {
        let Server { interface, listener, target, volumes, arena, queues, rng, .. } = self;
        let Some(listener) = listener else { return };
        let random = &mut |bytes: &mut [u8]| rng.fill_bytes(bytes);
        let mut ctx = Context { volumes, arena, now, random };
        while let Some(stream) = listener.accept(interface, now) {
            let (peer, ours) = listener.ends(interface, stream).unwrap();
            let ends = Ends { host: peer.ip(), ours, port: nvme_host::PORT };
            queues.insert(stream, TcpQueue::open(target, ends, &mut ctx).unwrap());
        }
        while listener.next_news(interface).is_some() {}
        target.poll(&mut ctx);
        while let Some(id) = target.next_ready() {
            let queue = queues.values_mut().find(|queue| queue.id() == id);
            queue.into_iter().for_each(|queue| queue.advance(target, &mut ctx));
        }
        let mut over = Vec::new();
        for (&stream, queue) in queues.iter_mut() {
            let read = match queue.takes_bytes() {
                true => listener
                    .read_with(interface, stream, |bytes| queue.receive(bytes, target, &mut ctx)),
                false => Ok(0),
            };
            if queue.wants_transmit() {
                let _ = listener
                    .write_with(interface, stream, |space| queue.transmit(space, target, &mut ctx));
            }
            if read.is_err() || queue.is_finished() {
                over.push(stream);
            }
        }
        for stream in over {
            listener.close(interface, stream, now);
            queues.remove(&stream).unwrap().close(target, &mut ctx);
        }
        target.flush(ctx.volumes);
    }
}

struct World {
    networks: Vec<Network>,
    storage: Storage,
    resolver: Resolver,
    rng: ChaCha12Rng,
    server: Server,
    arena: Arena,
    now: Instant,
    done: Vec<Completion>,
}

fn remote(more: &[(&str, &str)]) -> Remote {
    let more: String = more.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
    let text = format!(
        "[[remote]]\nname = \"far\"\nkind = \"nvme-tcp\"\naddress = \"10.0.0.2\"\nnqn = \"{NQN}\"\n\
         host_nqn = \"{HOST}\"\n{more}"
    );
    let sources = Sources { disk: Some(text.as_bytes()), ..Sources::default() };
    let (document, problems) = Document::load(&sources);
    assert!(problems.is_empty(), "{problems:?}");
    document.config().remote[0].clone()
}

impl World {
    fn new(secret: Option<&str>, more: &[(&str, &str)]) -> World {
        let now = Instant::from_nanos(1);
        let mut storage = Storage::default();
        let mut arena = Arena::on_heap(16 << 20);
        storage.add_tcp_remote(&remote(more), &mut arena).unwrap();
        World {
            networks: vec![Network::over(interface(1, now))],
            storage,
            resolver: Resolver::new(now),
            rng: ChaCha12Rng::seed_from_u64(5),
            server: Server::new(secret, now),
            arena,
            now,
            done: Vec::new(),
        }
    }

    /// Rounds of a millisecond.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.now + Duration::from_millis(1);
            let World { networks, storage, arena, resolver, rng, server, now, .. } = self;
            while let Some((_, done)) = storage.volumes.poll(User::SERVER, VolumeId(0)) {
                self.done.push(done);
            }
            poll(storage, arena, networks, resolver, rng, *now);
            server.poll(*now);
            let [one, other] = [&mut networks[0].interface, &mut server.interface];
            for _ in 0..4 {
                carry(one, other, *now);
                carry(other, one, *now);
            }
        }
    }

    fn submit(&mut self, word: u64, operation: Operation, sector: u64, data: Window) {
        let request = Request { tag: word.into(), operation, sector, data };
        let far = self.storage.volumes.find("far").unwrap();
        let submitted = self.storage.volumes.submit(far, &request).unwrap();
        assert!(matches!(submitted, Ok(Submitted::Pending)), "{submitted:?}");
    }

    fn done(&mut self) -> Vec<(u64, Result<(), VolumeError>)> {
        let mut done: Vec<_> =
            self.done.drain(..).map(|done| (done.tag.word, done.result)).collect();
        done.sort_by_key(|(word, _)| *word);
        done
    }

    fn state(&self) -> String {
        let statuses = self.storage.tcp_remotes.nvme();
        let status = &statuses[0].status;
        let failure = status.last_failure.map(|why| format!(": {why}")).unwrap_or_default();
        format!("{} {}{failure}", status.state.as_str(), status.paths[0].queues)
    }
}

#[test]
fn namespace_is_read_written_zeroed_and_deallocated() {
    let more = [("connections", "3"), ("digests", "\"both\"")];
    let mut world = World::new(None, &more);
    let revision = world.storage.volumes.revision();
    world.pass(4 * SECOND);
    assert_eq!(world.state(), "open 3");
    let far = world.storage.volumes.find("far").unwrap();
    let geometry = world.storage.volumes.geometry(far).unwrap();
    assert_eq!(geometry.sectors, SIZE as u64 / 512);
    assert!(world.storage.volumes.revision() > revision, "users look at the size again");
    let old = world.arena.alloc(SIZE, 4096).unwrap();
    old.fill(0x11);
    world.submit(0, Operation::Write { durable: false }, 0, old);
    world.pass(2 * SECOND);
    assert_eq!(world.done(), [(0, Ok(()))]);
    let data = world.arena.alloc(512 << 10, 4096).unwrap();
    data.fill(0xab);
    world.submit(1, Operation::Write { durable: true }, 512, data);
    let small = world.arena.alloc(4096, 4096).unwrap();
    world.submit(2, Operation::Read, 8, small);
    world.submit(3, Operation::WriteZeroes { sectors: 4096 }, 4096, Window::empty());
    world.submit(4, Operation::Flush, 0, Window::empty());
    world.pass(2 * SECOND);
    assert_eq!(world.done(), [(1, Ok(())), (2, Ok(())), (3, Ok(())), (4, Ok(()))]);
    let stored = |at: usize| {
        let mut byte = [0];
        world.server.memory.read(at, &mut byte).unwrap();
        byte[0]
    };
    assert_eq!([stored(0), stored(256 << 10), stored((768 << 10) - 1)], [0x11, 0xab, 0xab]);
    assert_eq!([stored(768 << 10), stored(2 << 20), stored(SIZE - 1)], [0x11, 0, 0]);
    let mut byte = [0];
    small.read(0, &mut byte).unwrap();
    assert_eq!(byte, [0x11]);
}

#[test]
fn requests_outlast_a_target_that_goes_away() {
    let mut world = World::new(None, &[("nsid", "4")]);
    world.pass(2 * SECOND);
    assert_eq!(world.state(), "open 1");
    world.server.stop(world.now);
    world.pass(SECOND);
    let data = world.arena.alloc(512, 512).unwrap();
    world.submit(1, Operation::Read, 0, data);
    world.submit(2, Operation::Write { durable: false }, 0, data);
    world.pass(5 * SECOND);
    assert_eq!(world.done(), []);
    world.server.listen();
    world.pass(10 * SECOND);
    assert_eq!(world.done(), [(1, Ok(())), (2, Ok(()))]);
}

#[test]
fn both_ends_authenticate_on_every_queue() {
    let secret = format!("\"{SECRET}\"");
    let keys = [("dhchap_secret", secret.as_str()), ("dhchap_controller_secret", &secret)];
    let mut world = World::new(Some(SECRET), &keys);
    world.pass(6 * SECOND);
    assert_eq!(world.state(), "open 1");
    // Without a secret at one end, the operator reads why.
    let mut world = World::new(Some(SECRET), &[]);
    world.pass(2 * SECOND);
    assert!(world.state().contains("set `dhchap_secret`"), "{}", world.state());
    let mut world = World::new(None, &keys);
    world.pass(2 * SECOND);
    assert!(world.state().contains("demands its proof"), "{}", world.state());
}

#[test]
fn removed_remote_disconnects_and_frees_its_memory() {
    let mut world = World::new(None, &[]);
    world.pass(2 * SECOND);
    assert_eq!(world.server.queues.len(), 2);
    let free = world.arena.available();
    assert!(world.storage.remove_tcp_remote("far", world.now));
    world.pass(2 * SECOND);
    assert!(world.storage.tcp_remotes.is_empty() && world.server.queues.is_empty());
    assert!(world.arena.available() > free);
}
