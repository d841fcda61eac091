//! The target against an initiator, in process: bytes of TCP connections in between, volumes in memory and slow ones.

mod access;
mod authentication;
mod blocks;
mod changes;
mod connects;
mod ends;
mod fused;
mod hostile;
mod limits;
mod logs;
mod reservations;
mod stock;
mod tls;

use crate::keys::Demand;
use crate::queue::Ends;
use crate::subsystem::{HostList, NamespaceConfig, SubsystemConfig};
use crate::target::{Context, Settings, Target};
use crate::tcp::TcpQueue;
use crate::testing::{Carry, Completion, Initiator, Sqe, connect_data};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use drivers::hal::{Arena, Features, Geometry, Instant, Window};
use storage::volume::{self, Operation, RamVolume, Submitted, Volume, VolumeError, Volumes};
use tls_psk::Session;

pub const SUBSYSTEM: &str = "nqn.2026-01.example:store";
pub const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
pub const OTHER: &str = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555";
pub const ENABLE: u32 = 0x0046_0001;
pub const CC: u32 = 0x14;
pub const CSTS: u32 = 0x1c;

/// Requests of a [`Slow`] volume, which the test completes.
#[derive(Default)]
pub struct Held {
    pub waiting: VecDeque<volume::Request>,
    pub done: VecDeque<(volume::Request, Result<(), VolumeError>)>,
    pub seen: Vec<Operation>,
    /// Requests that were refused as busy.
    pub refused: usize,
    /// Requests that the volume takes at a time.
    pub depth: usize,
}

/// A volume whose requests wait until the test completes them. Its contents are in memory.
pub struct Slow {
    pub memory: Window,
    pub geometry: Geometry,
    pub held: Rc<RefCell<Held>>,
}

impl Volume for Slow {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, request: &volume::Request) -> Result<Submitted, VolumeError> {
        let mut held = self.held.borrow_mut();
        if held.waiting.len() + held.done.len() >= held.depth {
            held.refused += 1;
            return Err(VolumeError::Busy);
        }
        held.seen.push(request.operation);
        held.waiting.push_back(*request);
        Ok(Submitted::Pending)
    }

    fn flush_queue(&mut self) {}

    fn poll(&mut self) -> Option<volume::Completion> {
        let (request, result) = self.held.borrow_mut().done.pop_front()?;
        let (at, len) = (request.sector as usize * 512, request.data.len());
        match (result, request.operation) {
            (Err(_), _) => {}
            (_, Operation::Read) => {
                request.data.write_window(0, &self.memory.slice(at, len).unwrap()).unwrap();
            }
            (_, Operation::Write { .. }) => {
                self.memory.write_window(at, &request.data).unwrap();
            }
            _ => {}
        }
        Some(volume::Completion { tag: request.tag, result })
    }
}

impl Held {
    /// Completes all waiting requests.
    pub fn complete(&mut self, result: Result<(), VolumeError>) {
        let waiting = self.waiting.drain(..);
        self.done.extend(waiting.map(|request| (request, result)));
    }
}

/// A generator with a seed, for tests only.
pub fn random(seed: u64) -> Box<dyn FnMut(&mut [u8])> {
    let mut state = seed;
    Box::new(move |into: &mut [u8]| {
        for byte in into {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *byte = (state >> 33) as u8;
        }
    })
}

pub fn namespace(nsid: u32, volume: &str) -> NamespaceConfig {
    NamespaceConfig {
        nsid,
        volume: volume.into(),
        uuid: None,
        ana_group: 1,
        read_only: false,
        block_size: None,
        limits: Default::default(),
    }
}

pub fn subsystem(namespaces: Vec<NamespaceConfig>) -> SubsystemConfig {
    SubsystemConfig {
        nqn: SUBSYSTEM.into(),
        serial: Some("S1".into()),
        model: "Isthmus".into(),
        hosts: HostList::Listed(vec![HOST.to_string()]),
        networks: Default::default(),
        cntlids: (1, 0xffef),
        dhchap: Demand::Optional,
        tls: Demand::Optional,
        namespaces,
    }
}

/// A connection: both sides of it.
pub struct Link {
    pub host: Initiator,
    /// TLS of the host, below its PDUs.
    pub tls: Option<Session>,
    pub queue: Option<TcpQueue>,
}

/// A target with volumes, and connections to it.
pub struct Lab {
    pub arena: Arena,
    pub volumes: Volumes,
    pub target: Target,
    pub now: Instant,
    pub links: Vec<Link>,
    pub from: IpAddr,
    /// Bytes that move at a time.
    pub piece: usize,
    pub digests: u8,
    pub no_flow_control: bool,
    pub random: Box<dyn FnMut(&mut [u8])>,
}

impl Link {
    /// Moves bytes of the host to its socket.
    fn send(&mut self, buffer: &mut [u8]) {
        let Link { host, tls, .. } = self;
        let Some(session) = tls else {
            let n = host.connection.transmit(buffer);
            host.unsent.extend_from_slice(&buffer[..n]);
            return;
        };
        let room = buffer.len().min(session.room());
        let n = host.connection.transmit(&mut buffer[..room]);
        assert_eq!(session.write(&buffer[..n]), n);
        host.unsent.extend_from_slice(session.outgoing());
        session.consume(session.outgoing().len());
    }

    /// Handles bytes that the host has received.
    fn receive(&mut self, bytes: &[u8], now: Instant) {
        let Link { host, tls, .. } = self;
        let Some(session) = tls else { return host.receive(bytes) };
        let mut at = 0;
        loop {
            let used = session.receive(&bytes[at..], now);
            at += used;
            let text = session.text().to_vec();
            session.consume_text(text.len());
            host.receive(&text);
            if used == 0 && text.is_empty() {
                return;
            }
        }
    }
}

impl Lab {
    /// A target with a volume `ram0` of 1 MiB, as namespace 1.
    pub fn new() -> Lab {
        let mut lab = Lab::bare(Settings::default());
        lab.add_ram("ram0", 1 << 20);
        lab.configure(vec![namespace(1, "ram0")]);
        lab
    }

    pub fn bare(settings: Settings) -> Lab {
        let mut arena = Arena::on_heap(64 << 20);
        let target = Target::new(settings, &mut arena).unwrap();
        Lab {
            arena,
            volumes: Volumes::new(),
            target,
            now: Instant::ZERO + Duration::from_secs(100),
            links: Vec::new(),
            from: Ipv4Addr::new(10, 0, 0, 2).into(),
            piece: 1460,
            digests: 0,
            no_flow_control: false,
            random: random(1),
        }
    }

    pub fn add_ram(&mut self, name: &str, bytes: usize) {
        let memory = self.arena.alloc(bytes, 4096).unwrap();
        let volume = Box::new(RamVolume::new(memory, false));
        self.volumes.add(rtrs::Name::new(name).unwrap(), volume).unwrap();
    }

    pub fn add_slow(
        &mut self,
        name: &str,
        depth: usize,
        change: impl FnOnce(&mut Geometry),
    ) -> Rc<RefCell<Held>> {
        let memory = self.arena.alloc(1 << 20, 4096).unwrap();
        memory.fill(0);
        let mut geometry = Geometry {
            sectors: 2048,
            logical_block: 512,
            physical_block: 512,
            max_transfer: 1 << 20,
            max_discard_sectors: 64,
            discard_granularity: 512,
            max_write_zeroes_sectors: 64,
            features: Features::VOLATILE_CACHE | Features::DISCARD | Features::WRITE_ZEROES,
        };
        change(&mut geometry);
        let held = Rc::new(RefCell::new(Held { depth, ..Held::default() }));
        let volume = Box::new(Slow { memory, geometry, held: held.clone() });
        self.volumes.add(rtrs::Name::new(name).unwrap(), volume).unwrap();
        held
    }

    pub fn configure(&mut self, namespaces: Vec<NamespaceConfig>) {
        self.target.configure(vec![subsystem(namespaces)], &self.volumes);
    }

    pub fn context<R>(&mut self, act: impl FnOnce(&mut Target, &mut Context<'_>) -> R) -> R {
        let Lab { arena, volumes, target, now, random, .. } = self;
        act(target, &mut Context { volumes, arena, now: *now, random: &mut **random })
    }

    /// Opens a connection. None if the target refuses it.
    pub fn dial(&mut self) -> Option<usize> {
        self.dial_over(None)
    }

    /// Opens a connection, over TLS if there is a session.
    pub fn dial_over(&mut self, tls: Option<Session>) -> Option<usize> {
        let link = self.open(tls);
        self.run();
        link
    }

    /// Opens a connection over which nothing was sent yet.
    pub fn open(&mut self, tls: Option<Session>) -> Option<usize> {
        let ends = Ends { host: self.from, ours: Ipv4Addr::new(10, 0, 0, 1).into(), port: 4420 };
        let queue = self.context(|target, ctx| TcpQueue::open(target, ends, ctx))?;
        let host = Initiator::new(self.digests, 128);
        self.links.push(Link { host, tls, queue: Some(queue) });
        Some(self.links.len() - 1)
    }

    /// Moves bytes until nothing moves.
    pub fn run(&mut self) {
        let mut buffer = vec![0; self.piece];
        loop {
            let mut moved = self.context(|target, ctx| target.poll(ctx));
            let Lab { arena, volumes, target, now, links, random, .. } = self;
            let mut ctx = Context { volumes, arena, now: *now, random: &mut **random };
            while let Some(id) = target.next_ready() {
                let of = links.iter_mut().filter_map(|link| link.queue.as_mut());
                if let Some(queue) = of.into_iter().find(|queue| queue.id() == id) {
                    queue.advance(target, &mut ctx);
                }
            }
            for link in links.iter_mut() {
                if link.queue.is_none() {
                    continue;
                }
                loop {
                    if link.host.unsent.is_empty() {
                        link.send(&mut buffer);
                    }
                    let unsent = &mut link.host.unsent;
                    let Some(queue) = &mut link.queue else { break };
                    // What is not taken waits, as in a socket's buffer.
                    let taken = queue.receive(unsent, target, &mut ctx);
                    unsent.drain(..taken);
                    moved += taken;
                    if taken == 0 {
                        break;
                    }
                }
                let Some(queue) = &mut link.queue else { continue };
                let n = queue.transmit(&mut buffer, target, &mut ctx);
                moved += n;
                let is_finished = queue.is_finished();
                link.receive(&buffer[..n], ctx.now);
                if is_finished {
                    if let Some(queue) = link.queue.take() {
                        queue.close(target, &mut ctx);
                    }
                    moved += 1;
                }
            }
            target.flush(ctx.volumes);
            if moved == 0 {
                return;
            }
        }
    }

    /// Sends a command and returns its identifier.
    pub fn send(&mut self, link: usize, sqe: Sqe, data: Window, carry: Carry) -> u16 {
        self.links[link].host.submit(sqe, data, carry).expect("the queue has room")
    }

    /// Executes a command; None if it does not complete.
    pub fn try_execute(
        &mut self,
        link: usize,
        sqe: Sqe,
        data: Window,
        carry: Carry,
    ) -> Option<Completion> {
        let cid = self.send(link, sqe, data, carry);
        self.run();
        self.links[link].host.take(cid)
    }

    pub fn execute(&mut self, link: usize, sqe: Sqe, data: Window, carry: Carry) -> Completion {
        self.try_execute(link, sqe, data, carry).expect("the command completes")
    }

    pub fn simple(&mut self, link: usize, sqe: Sqe) -> Completion {
        self.execute(link, sqe, Window::empty(), Carry::None)
    }

    pub fn memory(&mut self, bytes: &[u8]) -> Window {
        let window = self.arena.alloc(bytes.len(), 4).unwrap();
        window.write(0, bytes).unwrap();
        window
    }

    /// Reads `bytes` bytes with a command.
    pub fn fetch(&mut self, link: usize, sqe: Sqe, bytes: usize) -> Result<Vec<u8>, u16> {
        let window = self.arena.alloc(bytes, 4).unwrap();
        window.fill(0xee);
        let completion = self.execute(link, sqe, window, Carry::In);
        let mut read = vec![0; bytes];
        window.read(0, &mut read).unwrap();
        self.arena.free(window);
        match completion.status {
            0 => Ok(read),
            status => Err(status),
        }
    }

    pub fn connect(&mut self, link: usize, sqe: Sqe, data: &[u8; 1024]) -> Completion {
        let window = self.memory(data);
        self.execute(link, sqe, window, Carry::InCapsule)
    }

    /// Connects an admin queue. Returns the link and the controller's identifier.
    pub fn admin_of(
        &mut self,
        nqn: &str,
        host: &str,
        host_id: u8,
    ) -> Result<(usize, u16), Completion> {
        let link = self.dial().expect("a place");
        let no_flow_control = self.no_flow_control;
        let sqe = Sqe::connect(0, 32, 5000, no_flow_control);
        let completion = self.connect(link, sqe, &connect_data(host_id, 0xffff, nqn, host));
        if completion.status != 0 {
            return Err(completion);
        }
        let enabled = self.simple(link, Sqe::property_set(CC, ENABLE));
        assert_eq!(enabled.status, 0);
        assert_eq!(self.simple(link, Sqe::property_get(CSTS, false)).result, 1);
        Ok((link, completion.result as u16))
    }

    pub fn admin(&mut self) -> (usize, u16) {
        self.admin_of(SUBSYSTEM, HOST, 7).unwrap()
    }

    /// Connects an I/O queue to a controller.
    pub fn io(&mut self, qid: u16, cntlid: u16) -> Result<usize, Completion> {
        let link = self.dial().expect("a place");
        let sqe = Sqe::connect(qid, 128, 0, self.no_flow_control);
        let completion = self.connect(link, sqe, &connect_data(7, cntlid, SUBSYSTEM, HOST));
        if completion.status == 0 { Ok(link) } else { Err(completion) }
    }

    /// Admin queue and I/O queue.
    pub fn both(&mut self) -> (usize, usize) {
        let (admin, cntlid) = self.admin();
        (admin, self.io(1, cntlid).unwrap())
    }

    /// The connection breaks.
    pub fn cut(&mut self, link: usize) {
        let queue = self.links[link].queue.take().unwrap();
        self.context(|target, ctx| queue.close(target, ctx));
    }

    pub fn is_open(&self, link: usize) -> bool {
        self.links[link].queue.is_some()
    }

    /// Time passes, second by second.
    pub fn wait(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now = self.now + Duration::from_secs(1);
            self.run();
        }
    }

    pub fn refusals(&mut self) -> Vec<String> {
        core::iter::from_fn(|| self.target.refusals().pop()).map(|one| one.reason.into()).collect()
    }
}

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8 ^ seed)).collect()
}

pub const FLUSH: u8 = 0;
pub const WRITE: u8 = 1;
pub const READ: u8 = 2;
pub const COMPARE: u8 = 5;
pub const ZEROES: u8 = 8;
pub const DSM: u8 = 9;
pub const VERIFY: u8 = 0x0c;

pub fn read(first: u64, blocks: u32) -> Sqe {
    Sqe::blocks(READ, 1, first, blocks, 0)
}

pub fn write(first: u64, blocks: u32) -> Sqe {
    Sqe::blocks(WRITE, 1, first, blocks, 0)
}
