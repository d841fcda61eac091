//! The client beside scripted controllers: requests, losses of paths, ANA, and controllers that break the protocol.

mod hostile;
mod paths;
mod requests;
mod target;

use crate::{
    Action, Client, Error, Failure, Identity, Notice, Operation, Request, Settings, Status,
};
use core::time::Duration;
use drivers::hal::{Arena, Instant, Window};
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;
use target::{Link, SUBSYSTEM, Subsystem};

pub const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6e8d1a52-0f0c-4f5e-9e3c-5d8f0b8f7f11";

pub struct World {
    pub client: Client<u32>,
    pub subsystem: Subsystem,
    pub arena: Arena,
    /// By connection.
    pub links: BTreeMap<usize, Link>,
    pub now: Instant,
    /// Paths that refuse connections.
    pub closed: Vec<bool>,
    pub notices: Vec<Notice>,
    pub done: Vec<(u32, Result<(), Error>)>,
    /// Bytes that move at a time.
    pub piece: usize,
    /// New connections are answered by the test.
    pub is_manual: bool,
}

impl World {
    pub fn new(settings: Settings) -> World {
        let mut arena = Arena::on_heap(48 << 20);
        let memory = arena.alloc(settings.memory(), 4096).unwrap();
        let identity = Identity {
            host: HOST.into(),
            subsystem: SUBSYSTEM.into(),
            secret: None,
            controller_secret: None,
        };
        let paths = usize::from(settings.paths);
        World {
            client: Client::new(settings, identity, memory).unwrap(),
            subsystem: Subsystem::new(paths),
            arena,
            links: BTreeMap::new(),
            now: Instant::ZERO + Duration::from_secs(10),
            closed: vec![false; paths],
            notices: Vec::new(),
            done: Vec::new(),
            piece: 1460,
            is_manual: false,
        }
    }

    /// A world whose client is open.
    pub fn open(settings: Settings, prepare: impl FnOnce(&mut Subsystem)) -> World {
        let mut world = World::new(settings);
        prepare(&mut world.subsystem);
        world.pass(Duration::from_secs(1));
        assert_eq!(world.status().state.as_str(), "open", "{:?}", world.notices);
        world
    }

    pub fn status(&self) -> Status {
        self.client.status()
    }

    pub fn connection(&self, path: usize, queue: usize) -> usize {
        path * (usize::from(self.client.settings().connections) + 1) + queue
    }

    /// Does what the client wants, and moves bytes until nothing moves.
    pub fn run(&mut self) {
        let mut space = vec![0; self.piece];
        for _ in 0..100_000 {
            let mut moved = 0;
            self.client.poll(&mut |bytes| bytes.fill(0x5a), self.now);
            while let Some(action) = self.client.next_action(self.now) {
                moved += 1;
                match action {
                    Action::Connect { connection, path, .. } => {
                        if self.closed[usize::from(path)] {
                            self.client.closed(connection, Failure::Refused, self.now);
                            continue;
                        }
                        let mut link = Link::new(path.into());
                        link.is_manual = self.is_manual;
                        assert!(self.links.insert(connection, link).is_none());
                        self.client.connected(connection);
                    }
                    Action::Close { connection, .. } => {
                        self.links.remove(&connection);
                    }
                }
            }
            let World { client, subsystem, arena, links, now, .. } = self;
            for (&connection, link) in links.iter_mut() {
                if client.wants_transmit(connection) {
                    let count = client.transmit(connection, &mut space, *now);
                    link.receive(&space[..count], subsystem, arena);
                    moved += count;
                }
                let count = link.connection.transmit(&mut space);
                client.receive(connection, &space[..count], *now);
                moved += count;
            }
            client.check();
            self.notices.extend(core::iter::from_fn(|| client.next_notice()));
            self.done.extend(core::iter::from_fn(|| client.poll_done()));
            let is_due = client.deadline().is_some_and(|at| at <= *now);
            if moved == 0 && !is_due {
                return;
            }
        }
        panic!("the client never rests: {:?}", self.notices);
    }

    /// Time passes.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.run();
        while self.now < end {
            self.now = self.now + Duration::from_millis(50);
            self.run();
        }
    }

    /// The connections of a path break.
    pub fn cut(&mut self, path: usize) {
        let queues = usize::from(self.client.settings().connections) + 1;
        for connection in path * queues..(path + 1) * queues {
            if self.links.remove(&connection).is_some() {
                self.client.closed(connection, Failure::Closed, self.now);
            }
        }
    }

    pub fn memory(&mut self, length: usize, value: u8) -> Window {
        let window = self.arena.alloc(length, 4096).unwrap();
        window.fill(value);
        window
    }

    pub fn submit(&mut self, tag: u32, operation: Operation, block: u64, data: Window) {
        let request = Request { tag, operation, offset: block * 512, data };
        assert_eq!(self.client.submit(&request), Ok(()));
    }

    pub fn write(&mut self, tag: u32, block: u64, data: Window) {
        self.submit(tag, Operation::Write { durable: false }, block, data);
    }

    pub fn flush(&mut self, tag: u32) {
        self.submit(tag, Operation::Flush, 0, Window::empty());
    }

    pub fn take_done(&mut self) -> Vec<(u32, Result<(), Error>)> {
        let mut done = core::mem::take(&mut self.done);
        done.sort_by_key(|(tag, _)| *tag);
        done
    }

    /// Opcodes of the I/O commands that were seen.
    pub fn opcodes(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.subsystem.seen).into_iter().map(|seen| seen.2).collect()
    }

    /// Why a path ended last.
    pub fn failure(&self) -> Option<Failure> {
        let mut failures = self.notices.iter().filter_map(|notice| match notice {
            Notice::Down { why, .. } => Some(*why),
            _ => None,
        });
        failures.next_back()
    }
}

pub fn bytes(window: &Window) -> Vec<u8> {
    let mut bytes = vec![0; window.len()];
    window.read(0, &mut bytes).unwrap();
    bytes
}

pub const SECOND: Duration = Duration::from_secs(1);
