//! Remote volumes over two TCP stacks on a wire: requests, a server that goes away and comes back, and the removal.

use super::poll;
use crate::config::{Document, Remote, Sources};
use crate::gateway::network::Network;
use crate::gateway::storage::Storage;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::{Arena, Instant, Window};
use nbd::wire::{self, REQUEST_LENGTH, chunk, flag, info, option, reply};
use net::dns::Resolver;
use net::tcp::{Limits, Listener, Stream};
use net::{Addressing, Cidr, Interface};
use netsim::Collector;
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng;
use std::collections::HashMap;
use storage::volume::{Completion, Operation, Request, Submitted, User, VolumeError, VolumeId};

const SIZE: usize = 1 << 20;
const FLAGS: u16 =
    flag::HAS_FLAGS | flag::FLUSH | flag::FUA | flag::WRITE_ZEROES | flag::MULTI_CONN;

pub(super) fn interface(number: u8, now: Instant) -> Interface {
    let mut interface = Interface::new([2, 0, 0, 0, 0, number], 1500, [number; 32], now);
    let addresses = vec![Cidr::new(IpAddr::from([10, 0, 0, number]).into(), 24)];
    interface.set_addressing(Addressing { addresses, ..Addressing::default() }, now).unwrap();
    interface
}

/// An NBD server over a TCP stack.
struct Server {
    interface: Interface,
    listener: Option<Listener>,
    /// By connection: bytes to read, and the options that were answered.
    streams: HashMap<Stream, (Vec<u8>, usize)>,
    disk: Vec<u8>,
}

impl Server {
    fn listen(&mut self) {
        let limits = Limits { connections: 8, receive: 64 << 10, transmit: 64 << 10 };
        self.listener = Some(Listener::new(&mut self.interface, nbd::PORT, limits));
    }

    fn stop(&mut self) {
        self.streams.clear();
        if let Some(listener) = self.listener.take() {
            listener.stop(&mut self.interface);
        }
    }

    fn poll(&mut self, now: Instant) {
        let Server { interface, listener: Some(listener), streams, disk } = self else { return };
        while let Some(stream) = listener.accept(interface, now) {
            let greeting =
                [&wire::GREETING.to_be_bytes()[..], &wire::OPTION.to_be_bytes(), &[0, 3]];
            listener.write(interface, stream, &greeting.concat()).unwrap();
            streams.insert(stream, (Vec::new(), 0));
        }
        while listener.next_news(interface).is_some() {}
        for (stream, (input, answered)) in streams {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = listener.read(interface, *stream, &mut bytes) {
                input.extend(&bytes[..count]);
            }
            // Flags and structured replies; then GO with the name `disk` and one item.
            if let Some(&whole) = [4 + 16, 16 + 4 + 4 + 4].get(*answered) {
                if input.len() < whole {
                    continue;
                }
                input.drain(..whole);
                listener.write(interface, *stream, &handshake()[*answered]).unwrap();
                *answered += 1;
            }
            while listener.room(interface, *stream) > 16 << 10
                && let Some(answer) = answer(input, disk)
            {
                assert_eq!(listener.write(interface, *stream, &answer), Ok(answer.len()));
            }
        }
    }
}

/// The replies to both options.
fn handshake() -> [Vec<u8>; 2] {
    let reply = |option: u32, kind: u32, data: &[u8]| {
        let mut bytes = wire::OPTION_REPLY.to_be_bytes().to_vec();
        [option, kind, data.len() as u32].iter().for_each(|word| bytes.extend(word.to_be_bytes()));
        bytes.extend(data);
        bytes
    };
    let export =
        [&info::EXPORT.to_be_bytes()[..], &(SIZE as u64).to_be_bytes(), &FLAGS.to_be_bytes()];
    [
        reply(option::STRUCTURED_REPLY, reply::ACK, &[]),
        [reply(option::GO, reply::INFO, &export.concat()), reply(option::GO, reply::ACK, &[])]
            .concat(),
    ]
}

/// Executes the first request.
fn answer(input: &mut Vec<u8>, disk: &mut [u8]) -> Option<Vec<u8>> {
    let head = input.get(..REQUEST_LENGTH)?.to_vec();
    let (command, cookie) = (wire::u16_at(&head, 6), wire::u64_at(&head, 8));
    let (offset, length) = (wire::u64_at(&head, 16), wire::u32_at(&head, 24) as usize);
    let range = offset as usize..offset as usize + length;
    let mut payload = Vec::new();
    match command {
        0 => {
            payload = offset.to_be_bytes().to_vec();
            payload.extend(&disk[range]);
        }
        1 => {
            let data = input.get(REQUEST_LENGTH..REQUEST_LENGTH + length)?;
            disk[range].copy_from_slice(data);
            input.drain(..length);
        }
        6 => disk[range].fill(0),
        _ => {}
    }
    input.drain(..REQUEST_LENGTH);
    let kind = if command == 0 { chunk::DATA } else { chunk::NONE };
    let mut reply = wire::STRUCTURED_REPLY.to_be_bytes().to_vec();
    reply.extend([0, 1]);
    reply.extend(kind.to_be_bytes());
    reply.extend(cookie.to_be_bytes());
    reply.extend((payload.len() as u32).to_be_bytes());
    reply.extend(payload);
    Some(reply)
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
        "[[remote]]\nname = \"far\"\nkind = \"nbd\"\naddress = \"10.0.0.2\"\nexport = \"disk\"\n{more}"
    );
    let sources = Sources { disk: Some(text.as_bytes()), ..Sources::default() };
    let (document, problems) = Document::load(&sources);
    assert!(problems.is_empty(), "{problems:?}");
    document.config().remote[0].clone()
}

impl World {
    fn new(more: &[(&str, &str)]) -> World {
        let now = Instant::from_nanos(1);
        let mut storage = Storage::default();
        let mut arena = Arena::on_heap(8 << 20);
        storage.add_tcp_remote(&remote(more), &mut arena).unwrap();
        let disk = (0..SIZE).map(|n| (n / 512) as u8).collect();
        let (interface, streams) = (interface(2, now), HashMap::new());
        let mut server = Server { interface, listener: None, streams, disk };
        server.listen();
        World {
            networks: vec![Network::over(self::interface(1, now))],
            storage,
            resolver: Resolver::new(now),
            rng: ChaCha12Rng::seed_from_u64(5),
            server,
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

    fn far(&self) -> VolumeId {
        self.storage.volumes.find("far").unwrap()
    }

    fn submit(&mut self, word: u64, operation: Operation, sector: u64, data: Window) {
        let request = Request { tag: word.into(), operation, sector, data };
        let far = self.far();
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
        let statuses = self.storage.tcp_remotes.nbd();
        format!("{} {}", statuses[0].status.state.as_str(), statuses[0].status.ready)
    }
}

/// Carries the frames of one interface to another.
pub(super) fn carry(from: &mut Interface, to: &mut Interface, now: Instant) {
    from.poll(now);
    let mut wire = Collector::new(usize::MAX);
    from.transmit(&mut wire, |_| ());
    wire.frames.iter().for_each(|frame| to.handle_frame(frame, now));
}

pub(super) const SECOND: Duration = Duration::from_secs(1);

#[test]
fn volume_over_several_connections_is_read_and_written() {
    let mut world = World::new(&[("connections", "3")]);
    assert_eq!(world.storage.volumes.geometry(world.far()).unwrap().sectors, 0);
    let revision = world.storage.volumes.revision();
    world.pass(4 * SECOND);
    assert_eq!(world.state(), "open 3");
    assert!(world.storage.volumes.revision() > revision, "users look at the size again");
    let data = world.arena.alloc(256 << 10, 4096).unwrap();
    data.fill(0xab);
    world.submit(1, Operation::Write { durable: false }, 512, data);
    let read = world.arena.alloc(1024, 4096).unwrap();
    world.submit(2, Operation::Read, 6, read);
    world.pass(SECOND);
    assert_eq!(world.done(), [(1, Ok(())), (2, Ok(()))]);
    let mut bytes = [0; 1024];
    read.read(0, &mut bytes).unwrap();
    assert_eq!((bytes[0], bytes[511], bytes[512]), (6, 6, 7));
    assert!(world.server.disk[256 << 10..512 << 10].iter().all(|byte| *byte == 0xab));
}

#[test]
fn requests_outlast_a_server_that_goes_away() {
    let mut world = World::new(&[]);
    world.pass(2 * SECOND);
    let data = world.arena.alloc(512, 512).unwrap();
    world.submit(1, Operation::Write { durable: false }, 0, data);
    world.pass(SECOND);
    assert_eq!(world.done(), [(1, Ok(()))]);
    world.server.stop();
    world.pass(SECOND);
    world.submit(2, Operation::Read, 0, data);
    world.submit(3, Operation::Flush, 0, Window::empty());
    world.pass(5 * SECOND);
    assert_eq!((world.done().len(), world.state().as_str()), (0, "reconnecting 0"));
    world.server.listen();
    world.pass(10 * SECOND);
    assert_eq!(world.done(), [(2, Ok(())), (3, Err(VolumeError::Io))]);
    world.submit(4, Operation::Flush, 0, Window::empty());
    world.pass(SECOND);
    assert_eq!(world.done(), [(4, Ok(()))]);
}

#[test]
fn removed_remote_disconnects_and_frees_its_place() {
    let mut world = World::new(&[]);
    world.pass(2 * SECOND);
    assert!(!world.storage.remove_tcp_remote("near", world.now));
    assert!(world.storage.remove_tcp_remote("far", world.now));
    assert!(world.storage.volumes.find("far").is_none());
    world.pass(2 * SECOND);
    let remotes = &world.storage.tcp_remotes;
    assert!(remotes.is_empty() && remotes.due.is_empty() && remotes.owners.is_empty());
    world.storage.add_tcp_remote(&remote(&[]), &mut world.arena).unwrap();
    world.pass(2 * SECOND);
    assert_eq!(world.state(), "open 1");
}

#[test]
fn round_without_work_polls_no_remote() {
    let mut world = World::new(&[]);
    world.pass(2 * SECOND);
    assert_eq!(world.state(), "open 1");
    let World { networks, storage, arena, resolver, rng, now, .. } = &mut world;
    assert_eq!(poll(storage, arena, networks, resolver, rng, *now), 0);
    assert!(storage.tcp_remotes.bells.rung() == 0 && storage.tcp_remotes.due.is_empty());
}
