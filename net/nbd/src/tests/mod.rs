//! The client against scripted servers: honest, failing and hostile ones.

extern crate alloc;
mod hostile;
mod losses;
mod requests;
mod server;

use crate::{Action, Client, Error, Failure, Notice, Operation, Request, Settings};
use core::time::Duration;
use drivers::hal::{Arena, Instant, Window};
use server::Server;
use std::string::ToString;
use std::vec::Vec;

const MIB: u64 = 1 << 20;

/// A client, its clock and memory, and a server for each of its connections.
struct World {
    client: Client<u32>,
    arena: Arena,
    now: Instant,
    servers: Vec<Option<Server>>,
    /// What the next servers are like.
    like: Server,
    /// Servers accept connections.
    accepts: bool,
    paths: Vec<u16>,
    beside: Vec<Option<usize>>,
    seed: u64,
    notices: Vec<Notice>,
}

impl World {
    fn new(settings: Settings, like: Server) -> World {
        let client = Client::new(settings, "disk").unwrap();
        let servers = (0..client.settings().connections).map(|_| None).collect();
        let (now, paths, notices) = (Instant::ZERO, Vec::new(), Vec::new());
        let beside = Vec::new();
        let arena = Arena::on_heap(4 << 20);
        World { client, arena, now, servers, like, accepts: true, paths, beside, seed: 0, notices }
    }

    /// A world with an open volume.
    fn open(settings: Settings, like: Server) -> World {
        let mut world = World::new(settings, like);
        world.settle();
        assert_eq!(world.client.status().state, crate::State::Open, "{:?}", world.notices);
        world
    }

    fn window(&mut self, length: usize, value: u8) -> Window {
        let window = self.arena.alloc(length, 512).unwrap();
        window.fill(value);
        window
    }

    fn submit(&mut self, tag: u32, operation: Operation, offset: u64, data: Window) {
        self.client.submit(&Request { tag, operation, offset, data }).unwrap();
    }

    fn flush(&mut self, tag: u32) {
        self.submit(tag, Operation::Flush, 0, Window::empty());
    }

    fn write(&mut self, tag: u32, offset: u64, value: u8) {
        let data = self.window(512, value);
        self.submit(tag, Operation::Write { durable: false }, offset, data);
    }

    /// Moves bytes both ways once. Returns whether any moved.
    fn step(&mut self) -> bool {
        let mut moved = false;
        self.client.poll(self.now);
        while let Some(action) = self.client.next_action(self.now) {
            moved = true;
            match action {
                Action::Connect { connection, path, beside } => {
                    assert!(beside.is_none_or(|other| self.servers[other].is_some()));
                    self.paths.push(path);
                    self.beside.push(beside);
                    if self.accepts {
                        self.seed += 1;
                        self.client.connected(connection, self.seed, self.now);
                        self.servers[connection] = Some(self.like.another());
                    } else {
                        self.client.closed(connection, Failure::Refused, self.now);
                    }
                }
                Action::Close { connection, .. } => self.servers[connection] = None,
            }
        }
        for connection in 0..self.servers.len() {
            let mut space = [0; 100];
            while self.client.wants_transmit(connection) {
                let count = self.client.transmit(connection, &mut space, self.now);
                if let Some(server) = &mut self.servers[connection] {
                    server.receive(&space[..count]);
                }
                moved |= count > 0;
            }
            let out = self.servers[connection].as_mut().map(Server::take).unwrap_or_default();
            moved |= !out.is_empty();
            for piece in out.chunks(7) {
                self.client.receive(connection, piece, self.now);
            }
        }
        while let Some(notice) = self.client.next_notice() {
            self.notices.push(notice);
        }
        self.client.check();
        moved
    }

    fn settle(&mut self) {
        for _ in 0..1000 {
            if !self.step() {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.settle();
    }

    /// The server closes a connection.
    fn cut(&mut self, connection: usize) {
        self.servers[connection] = None;
        self.client.closed(connection, Failure::Closed, self.now);
        self.client.check();
    }

    fn server(&mut self, connection: usize) -> &mut Server {
        self.servers[connection].as_mut().unwrap()
    }

    fn done(&mut self) -> Vec<(u32, Result<(), Error>)> {
        let mut done: Vec<_> = core::iter::from_fn(|| self.client.poll_done()).collect();
        done.sort_by_key(|(tag, _)| *tag);
        done
    }

    fn failures(&self) -> Vec<Failure> {
        let why = |notice: &Notice| match notice {
            Notice::Down { why, .. } => Some(*why),
            _ => None,
        };
        self.notices.iter().filter_map(why).collect()
    }
}
