//! A gateway and its clients on one link, and a clock that the test sets.

use super::Loopback;
use crate::rnbd::server::{Export, Server};
use crate::rnbd::wire::{
    self, AccessMode, Io, IoFlags, Open, OpenResponse, Operation, SessionInfo,
};
use crate::volume::{RamVolume, Volume, Volumes};
use core::cell::Cell;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use drivers::hal::{Arena, Instant, Window};
use netsim::Rng;
use rtrs::client::{self, Channel, Client, Event, Outcome, PathId, Permit, Request};
use rtrs::server::ServerDevice;
use rtrs::server::{Config, RequestKind};
use rtrs::{Errno, Name};
use std::boxed::Box;
use std::collections::HashMap;
use std::vec::Vec;
use verbs::{ConnectionEvent, Ctx};

/// A link between the gateway and the hosts.
pub trait Wire {
    /// The gateway's provider.
    fn gateway(&mut self) -> &mut dyn ServerDevice;
    /// The hosts' provider.
    fn host(&mut self) -> &mut dyn ServerDevice;
    /// Delivers the next message; false if there is none. May advance the clock.
    fn step(&mut self, now: &mut Instant) -> bool;
}

impl Wire for Loopback {
    fn gateway(&mut self) -> &mut dyn ServerDevice {
        self
    }
    fn host(&mut self) -> &mut dyn ServerDevice {
        self
    }
    fn step(&mut self, _: &mut Instant) -> bool {
        Loopback::step(self)
    }
}

/// Context of an engine on a wire.
pub type Context<'a> = Ctx<'a, dyn ServerDevice + 'a>;

/// An engine on the hosts in addition to the world's clients.
pub trait User {
    /// Handles an event of the hosts' connection manager.
    fn handle_event(&mut self, event: &ConnectionEvent, ctx: &mut Context<'_>);
    /// Makes progress; false if there was no work.
    fn work(&mut self, ctx: &mut Context<'_>) -> bool;
}

/// No further engine.
impl User for () {
    fn handle_event(&mut self, _: &ConnectionEvent, _: &mut Context<'_>) {}
    fn work(&mut self, _: &mut Context<'_>) -> bool {
        false
    }
}

/// The gateway, the clients, the wire and the clock.
pub struct World<W = Loopback> {
    pub wire: W,
    pub server: Server,
    pub volumes: Volumes,
    pub clients: Vec<Client>,
    /// Events of the clients that the test has not consumed, by client.
    pub events: Vec<(usize, Event)>,
    pub arena: Arena,
    pub client_arena: Arena,
    /// Memory for the data of requests, by client and permit.
    data: HashMap<(usize, usize), Window>,
    pub now: Instant,
    pub rng: Rng,
}

std::thread_local! {
    static LATE_KEYS: Cell<bool> = const { Cell::new(false) };
}

/// Runs a test over wires whose keys change late, as on hardware.
pub fn with_late_keys(test: fn()) {
    LATE_KEYS.set(true);
    test();
}

/// Byte that stands for other users' data in memory.
pub const SOIL: u8 = 0x5c;

/// User header of an I/O on device 0 of its session.
pub fn user_io(operation: Operation, sector: u64, size: u32) -> [u8; Io::SIZE] {
    Io { device: 0, sector, operation, flags: IoFlags::SYNC, size, priority: 0 }.emit()
}

impl World {
    /// A gateway over a wire in memory, with `memory` bytes for sessions, which exports 1 MiB of RAM as `ram0`.
    pub fn new(config: Config, memory: usize) -> Self {
        let ram = Arena::on_heap((1 << 20) + 4096).alloc(1 << 20, 4096).unwrap();
        Self::with_volume(config, memory, Box::new(RamVolume::new(ram, false)))
    }

    /// A gateway that exports another volume as `ram0`.
    pub fn with_volume(config: Config, memory: usize, volume: Box<dyn Volume>) -> Self {
        let mut wire = Loopback::default();
        wire.late_keys = LATE_KEYS.get();
        Self::over(wire, config, memory, volume)
    }

    /// A small configuration: 8 chunks of 16 KiB.
    pub fn small(always_invalidate: bool) -> Config {
        Config { queue_depth: 8, chunk_size: 16 << 10, always_invalidate, ..Config::default() }
    }

    /// Address of a client's first path.
    pub fn address(client: usize) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, 2 + client as u8).into()
    }
}

impl<W: Wire> World<W> {
    /// A gateway over `wire`, which exports `volume` as `ram0`.
    pub fn over(mut wire: W, config: Config, memory: usize, volume: Box<dyn Volume>) -> Self {
        let mut server = Server::new(config, 4, wire.gateway()).unwrap();
        let mut volumes = Volumes::new();
        let name = Name::new("ram0").unwrap();
        let volume = volumes.add(name, volume).unwrap();
        let (allow, hosts, limiter) = (Vec::new(), Default::default(), Default::default());
        let export = Export { name, volume, read_only: false, allow, hosts, limiter };
        server.add_export(export, &volumes).unwrap();
        World {
            wire,
            server,
            volumes,
            clients: Vec::new(),
            events: Vec::new(),
            arena: Arena::on_heap(memory),
            client_arena: Arena::on_heap(16 << 20),
            data: HashMap::new(),
            now: Instant::from_nanos(1),
            rng: Rng::new(0x1234_5678_9abc_def1),
        }
    }

    /// Fills all free memory of the gateway with [`SOIL`].
    pub fn soil(&mut self) {
        let pieces: Vec<Window> =
            core::iter::from_fn(|| self.arena.alloc(4096, 64)).inspect(|w| w.fill(SOIL)).collect();
        pieces.into_iter().for_each(|piece| self.arena.free(piece));
    }

    /// Adds a client with one path, from 10.0.0.(2 + its number).
    pub fn connect(&mut self, name: &str) -> usize {
        let name = Name::new(name).unwrap();
        // Tests reconnect paths themselves.
        let config =
            client::Config { max_reconnect_attempts: Some(0), ..client::Config::default() };
        let client = Client::new(config, name, context!(self, host)).unwrap();
        self.clients.push(client);
        let number = self.clients.len() - 1;
        self.add_path(number, World::address(number));
        number
    }

    /// Adds a path from `from` and runs until it is connected or refused.
    pub fn add_path(&mut self, client: usize, from: IpAddr) -> PathId {
        let to = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), wire::PORT);
        let path = self.clients[client].add_path(from, to, context!(self, host)).unwrap();
        self.run();
        path
    }

    /// Runs until there is no more progress.
    pub fn run(&mut self) {
        self.run_with(&mut ());
    }

    /// Runs until there is no more progress, with a further engine on the hosts.
    pub fn run_with(&mut self, user: &mut dyn User) {
        // Progress due to a timer shows only in the next round.
        let mut idle = 0;
        while idle < 2 {
            idle = if self.turn_with(user) { 0 } else { idle + 1 };
        }
    }

    /// Polls all engines and delivers the next message; false if there was no progress.
    pub fn turn(&mut self) -> bool {
        self.turn_with(&mut ())
    }

    fn turn_with(&mut self, user: &mut dyn User) -> bool {
        let mut moved = false;
        while let Some(event) = self.wire.gateway().poll_connection_event() {
            if !self.server.handle_connection_event(&event, context!(self, gateway)) {
                self.notify_hosts(&event, user);
            }
            moved = true;
        }
        while let Some(event) = self.wire.host().poll_connection_event() {
            self.notify_hosts(&event, user);
            moved = true;
        }
        moved |= self.server.poll(&mut self.volumes, context!(self, gateway));
        for number in 0..self.clients.len() {
            while let Some(event) = self.clients[number].poll(context!(self, host)) {
                self.events.push((number, event));
                moved = true;
            }
        }
        moved |= user.work(context!(self, host));
        moved |= self.wire.step(&mut self.now);
        // The server zeroes memory in pieces, one a poll.
        self.now = self.now + Duration::from_nanos(1);
        moved | self.server.poll_timeout().is_some_and(|at| at <= self.now)
    }

    fn notify_hosts(&mut self, event: &ConnectionEvent, user: &mut dyn User) {
        user.handle_event(event, context!(self, host));
        for client in &mut self.clients {
            client.handle_connection_event(event, context!(self, host));
        }
    }

    /// The gateway loses all its paths and is restarted with other settings.
    pub fn restart(&mut self, config: Config) {
        self.restart_with(config, &mut ());
    }

    /// Restarts the gateway, with a further engine on the hosts.
    pub fn restart_with(&mut self, config: Config, user: &mut dyn User) {
        let paths: Vec<_> = self.server.transport().paths().map(|path| path.id).collect();
        for path in paths {
            self.server.transport_mut().disconnect(path, context!(self, gateway));
        }
        let exports = self.server.exports().to_vec();
        self.wire.gateway().unlisten(config.port);
        self.server = Server::new(config, 4, self.wire.gateway()).unwrap();
        for export in exports {
            self.server.add_export(export, &self.volumes).unwrap();
        }
        self.run_with(user);
    }

    /// Passes time in steps of a second.
    pub fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now = self.now + Duration::from_secs(1);
            self.run();
        }
    }

    /// Memory for the data of a permit's request.
    pub fn data(&mut self, client: usize, permit: Permit) -> Window {
        let size = self.clients[client].shape().unwrap().max_io_size as usize;
        let arena = &mut self.client_arena;
        *self.data.entry((client, permit.index())).or_insert_with(|| arena.alloc(size, 64).unwrap())
    }

    /// Submits a request with `length` bytes of [`World::data`].
    pub fn submit(
        &mut self,
        client: usize,
        permit: Permit,
        kind: RequestKind,
        user: &[u8],
        length: u32,
    ) -> Result<(), Errno> {
        let io = user.first() == Some(&4);
        let channel = if io { Channel::Io(0) } else { Channel::Service };
        let data = self.data(client, permit).slice(0, length as usize).ok_or(Errno::EINVAL)?;
        let request = Request { kind, user, data, channel };
        self.clients[client].submit(permit, &request, context!(self, host))
    }

    /// Submits a read without waiting for its response.
    pub fn start_read(&mut self, client: usize, user: &[u8], length: u32) -> Permit {
        let permit = self.clients[client].get_permit().unwrap();
        self.submit(client, permit, RequestKind::Read, user, length).unwrap();
        permit
    }

    /// Submits a write without waiting for its response.
    pub fn start_write(&mut self, client: usize, user: &[u8], data: &[u8]) -> Permit {
        let permit = self.clients[client].get_permit().unwrap();
        self.data(client, permit).write(0, data).unwrap();
        self.submit(client, permit, RequestKind::Write, user, data.len() as u32).unwrap();
        permit
    }

    /// The outcome of a request, if it has ended.
    pub fn outcome(&mut self, client: usize, permit: Permit) -> Option<Outcome> {
        let at = self.events.iter().position(
            |event| matches!(event, (c, Event::Done(p, _)) if *c == client && *p == permit),
        )?;
        match self.events.remove(at).1 {
            Event::Done(_, outcome) => Some(outcome),
            _ => None,
        }
    }

    fn finish(&mut self, client: usize, permit: Permit) -> Result<(), Errno> {
        self.run();
        let outcome = self.outcome(client, permit);
        self.clients[client].put_permit(permit);
        match outcome {
            Some(Outcome::Answered(result)) => result,
            other => panic!("no response: {other:?}"),
        }
    }

    /// Executes a read, or another request with data in the response.
    pub fn read(&mut self, client: usize, user: &[u8], length: u32) -> Result<Vec<u8>, Errno> {
        let permit = self.start_read(client, user, length);
        let data = self.data(client, permit);
        self.finish(client, permit)?;
        let mut bytes = alloc::vec![0; length as usize];
        data.read(0, &mut bytes).unwrap();
        Ok(bytes)
    }

    /// Executes a write, or another request without data in the response.
    pub fn write(&mut self, client: usize, user: &[u8], data: &[u8]) -> Result<(), Errno> {
        let permit = self.start_write(client, user, data);
        self.finish(client, permit)
    }

    /// SESS_INFO and OPEN.
    pub fn open(
        &mut self,
        client: usize,
        name: &str,
        mode: AccessMode,
    ) -> Result<OpenResponse, Errno> {
        let info = SessionInfo { version: 9 }.emit();
        let answer = self.read(client, &info, SessionInfo::SIZE as u32)?;
        assert_eq!(SessionInfo::parse_response(&answer), Ok(SessionInfo { version: 2 }));
        let open = Open { mode: Ok(mode), name: Name::new(name).unwrap() }.emit();
        let answer = self.read(client, &open, OpenResponse::SIZE as u32)?;
        Ok(OpenResponse::parse(&answer).unwrap())
    }
}
