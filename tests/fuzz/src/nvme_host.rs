//! The NVMe/TCP host beside malicious controllers: they answer commands honestly, with changed bytes, with other lengths
//! and statuses, or send bytes of the input.

use crate::input::Input;
use ::nvme_host::{Action, Client, Failure, Identity, Losses, Operation, Request, Settings};
use drivers::hal::{Arena, Instant, Window};
use nvme_tcp::target::{Connection, Event};
use nvme_tcp::wire::{CQE, u16_at, u32_at};
use std::collections::BTreeMap;
use std::time::Duration;

/// Bytes of the memory of a request, and value of the guards around it.
const PART: usize = 4096;
const GUARD: u8 = 0xc5;
/// Requests of a run; each has memory of its own.
const MOST: u32 = 32;
const LENGTH: usize = MOST as usize * 2 * PART;
const SUBSYSTEM: &str = "nqn.2026-01.example:store";

std::thread_local! {
    /// Memory of all runs, because an arena on the heap is never freed: of requests, of the client, and of controllers.
    static MEMORY: [Window; 3] = {
        let mut arena = Arena::on_heap(LENGTH + (128 << 10));
        [LENGTH, 32 << 10, 64 << 10].map(|length| arena.alloc(length, 4096).expect("memory"))
    };
}

/// A connection of a controller.
struct Link {
    connection: Connection,
    path: usize,
    commands: Vec<[u8; 64]>,
    ready: bool,
}

struct World {
    client: Client<u32>,
    /// Guard, memory, guard, for each request.
    memory: Window,
    /// Memory of the controllers: incoming data, then outgoing.
    theirs: Window,
    links: BTreeMap<usize, Link>,
    submitted: u32,
    completed: Vec<bool>,
    now: Instant,
}

impl World {
    fn new(choice: u8) -> World {
        let settings = Settings {
            connections: 1 + u16::from(choice & 1),
            paths: 1 + u16::from(choice >> 1 & 1),
            depth: 8,
            nsid: (choice & 4 != 0).then_some(1),
            write_through: choice & 8 != 0,
            digests: choice >> 4 & 3,
            keepalive: Duration::from_secs(3),
            reconnect: Duration::from_millis(100),
            give_up: Duration::from_secs(u64::from(choice >> 6)),
            ..Settings::default()
        };
        let [memory, own, theirs] = MEMORY.with(|memory| *memory);
        memory.fill(GUARD);
        let identity = Identity {
            host: "nqn.2026-01.example:host".into(),
            subsystem: SUBSYSTEM.into(),
            secret: None,
            controller_secret: None,
        };
        let client = Client::new(settings, identity, own).expect("enough memory");
        let now = Instant::from_nanos(1_000_000_000);
        let (links, completed) = (BTreeMap::new(), Vec::new());
        World { client, memory, theirs, links, submitted: 0, completed, now }
    }

    fn submit(&mut self, input: &mut Input<'_>) {
        let (kind, offset, size) = (input.byte(), input.byte(), input.byte());
        if self.submitted == MOST {
            return;
        }
        let length = 512 * (1 + usize::from(size % 8));
        let operation = match kind % 6 {
            0 | 1 => Operation::Read,
            2 => Operation::Write { durable: false },
            3 => Operation::Write { durable: true },
            4 => Operation::Flush,
            _ if size & 8 == 0 => Operation::Discard(length as u32),
            _ => Operation::WriteZeroes(length as u32),
        };
        let at = self.submitted as usize * 2 * PART + PART / 2;
        let data = self.memory.slice(at, length).expect("inside");
        let (tag, offset) = (self.submitted, 4096 * u64::from(offset));
        if self.client.submit(&Request { tag, operation, offset, data }).is_ok() {
            self.submitted += 1;
            self.completed.push(false);
        }
    }

    /// Does what the client wants, except that connections fail if `refuses`.
    fn act(&mut self, refuses: bool) {
        self.client.poll(&mut |bytes| bytes.fill(7), self.now);
        for _ in 0..16 {
            let Some(action) = self.client.next_action(self.now) else { break };
            match action {
                Action::Connect { connection, .. } if refuses => {
                    self.client.closed(connection, Failure::Refused, self.now);
                }
                Action::Connect { connection, path, .. } => {
                    let settings = nvme_tcp::target::Settings {
                        max_h2c_data: 4096,
                        max_in_capsule: 8192,
                        digests: 3,
                    };
                    let mut target = Connection::new(settings);
                    target.set_depth(128);
                    let (path, commands) = (path.into(), Vec::new());
                    let link = Link { connection: target, path, commands, ready: false };
                    self.links.insert(connection, link);
                    self.client.connected(connection);
                }
                Action::Close { connection, .. } => drop(self.links.remove(&connection)),
            }
        }
    }

    /// Takes what the client sends, and gives it what the controllers have to send.
    fn carry(&mut self) {
        let World { client, theirs, links, now, .. } = self;
        let place = theirs.slice(0, 32 << 10).expect("inside");
        let mut space = [0; 2048];
        for (&connection, link) in links.iter_mut() {
            let count = client.transmit(connection, &mut space, *now);
            let mut bytes = &space[..count];
            while !bytes.is_empty() {
                let (taken, event) = link.connection.receive(bytes);
                bytes = &bytes[taken..];
                match event {
                    Some(Event::Command { sqe, data }) => {
                        link.commands.push(sqe);
                        if data > 0 {
                            let part = place.slice(0, data as usize).expect("inside");
                            link.connection.place(u16_at(&sqe, 2), part);
                        }
                    }
                    Some(Event::Over) => break,
                    _ if taken == 0 => break,
                    _ => {}
                }
            }
            let count = link.connection.transmit(&mut space);
            client.receive(connection, &space[..count], *now);
        }
    }

    /// Answers the oldest command of a connection. `how` 0 is honest.
    fn answer(&mut self, connection: usize, how: u8, value: u16) {
        let part = self.theirs.slice(32 << 10, 32 << 10).expect("inside");
        let Some(link) = self.links.get_mut(&connection) else { return };
        if link.commands.is_empty() {
            return;
        }
        let sqe = link.commands.remove(0);
        let (cid, length) = (u16_at(&sqe, 2), (u32_at(&sqe, 32) as usize).min(32 << 10));
        let (status, result, page) = reply(&sqe, link);
        let mut status = if how & 1 != 0 { value } else { status };
        if let Some(page) = page
            && how & 1 == 0
        {
            part.fill(0);
            let _ = part.write(0, &page[..page.len().min(length)]);
            if how & 2 != 0 {
                let _ = part.write(usize::from(value) % length.max(1), &[how]);
            }
            let length = if how & 4 != 0 { usize::from(value) } else { length };
            let data = part.slice(0, length.min(32 << 10)).expect("inside");
            link.connection.send_data(cid, cid, data, how & 8 != 0);
            if how & 8 != 0 {
                return;
            }
            status = 0;
        } else if sqe[0] == 1 && sqe[39] == 0x5a && how & 0x10 == 0 {
            let length = if how & 4 != 0 { usize::from(value) } else { length };
            let data = part.slice(0, length.min(32 << 10)).expect("inside");
            link.connection.fetch(cid, cid, data);
            link.commands.push(sqe);
            return;
        }
        let mut cqe = [0; CQE];
        cqe[..8].copy_from_slice(&result.to_le_bytes());
        let cid = if how & 0x20 != 0 { cid ^ value } else { cid };
        cqe[12..14].copy_from_slice(&cid.to_le_bytes());
        cqe[14..].copy_from_slice(&(status << 1).to_le_bytes());
        link.connection.complete(&cqe);
    }

    fn check(&mut self) {
        while let Some((tag, _)) = self.client.poll_done() {
            let completed = &mut self.completed[tag as usize];
            assert!(!core::mem::replace(completed, true), "request {tag} completes twice");
        }
        while self.client.next_notice().is_some() {}
        let status = self.client.status();
        let open = self.completed.iter().filter(|is_done| !**is_done).count();
        assert_eq!(status.requests, open);
        for request in 0..self.submitted as usize {
            for at in [request * 2 * PART, request * 2 * PART + PART / 2 + PART] {
                let mut guard = [0; PART / 2];
                self.memory.read(at, &mut guard).expect("inside");
                assert!(guard.iter().all(|byte| *byte == GUARD), "the memory beside {request}");
            }
        }
    }

    /// Honest controllers, for a while.
    fn be_honest(&mut self, turns: usize) {
        for _ in 0..turns {
            self.act(false);
            self.carry();
            let connections: Vec<usize> = self.links.keys().copied().collect();
            for connection in connections {
                // An event request waits.
                let event = |sqe: &[u8; 64]| connection == 0 && sqe[0] == 0x0c;
                let link = &self.links[&connection];
                if !link.commands.first().is_some_and(event) {
                    self.answer(connection, 0, 0);
                }
            }
        }
    }
}

/// Status, result and data of an honest controller.
fn reply(sqe: &[u8; 64], link: &mut Link) -> (u16, u64, Option<Vec<u8>>) {
    let mut page = vec![0; 4096];
    match (sqe[0], sqe[4]) {
        (0x7f, 1) => return (0, 10 + link.path as u64, None),
        (0x7f, 0) => link.ready = true,
        (0x7f, 4) if u32_at(sqe, 44) == 0 => return (0, 127 | 2 << 24 | 1 << 37, None),
        (0x7f, 4) => return (0, 1, None),
        (0x06, _) if sqe[40] == 0 => {
            page[..4].copy_from_slice(&4096u32.to_le_bytes());
            page[92] = 1;
            page[130] = 9;
        }
        (0x06, _) if sqe[40] == 1 => {
            page[76] = 8;
            page[77] = 3;
            page[78] = 10 + link.path as u8;
            page[93] = 9;
            page[261] = 4;
            page[520] = 0x0c;
            page[525] = 1;
            page[536] = 1;
            page[768..768 + SUBSYSTEM.len()].copy_from_slice(SUBSYSTEM.as_bytes());
            page[1792] = 8;
        }
        (0x06, _) if sqe[40] == 2 => page[0] = 1,
        (0x06, _) if sqe[40] == 3 => page[..8].copy_from_slice(&[3, 16, 0, 0, 1, 2, 3, 4]),
        (0x02, _) if sqe[40] == 0x0c => {
            page[8] = 1;
            page[16] = 1;
            page[32] = 1;
        }
        (0x06, _) | (0x02, _) => {}
        _ => return (0, 0, None),
    }
    let reads = matches!(sqe[0], 0x02 | 0x06);
    (0, 0, reads.then_some(page))
}

/// Performs events of the input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new(input.byte());
    input.events(200, |input| {
        let what = input.byte();
        let connection = usize::from(what >> 6);
        match what % 12 {
            0 | 1 => world.submit(input),
            2 => world.act(what & 0x20 != 0),
            3 => world.carry(),
            4 | 5 => {
                let (how, value) = (input.byte(), input.word());
                world.answer(connection, how, value);
            }
            6 => {
                let length = input.word().into();
                let bytes = input.take(length);
                if world.links.contains_key(&connection) {
                    world.client.receive(connection, bytes, world.now);
                }
            }
            7 => {
                if world.links.remove(&connection).is_some() {
                    world.client.closed(connection, Failure::Closed, world.now);
                }
            }
            8 => world.now = world.now + Duration::from_millis(u64::from(input.byte()) * 100),
            9 => match input.byte() % 8 {
                0 => world.client.give_up(),
                1 => world.client.remap(world.now),
                2 => world.client.end(world.now),
                3 => world.client.report_losses(Losses::ToAll),
                _ => {}
            },
            _ => world.be_honest(1 + usize::from(what >> 4)),
        }
        world.check();
    });
    // Everything ends.
    world.client.end(world.now);
    world.act(true);
    world.now = world.now + Duration::from_secs(10);
    world.act(true);
    world.check();
    assert!(world.completed.iter().all(|is_done| *is_done), "a request never completes");
    assert!(world.client.is_over(), "a path never ends");
}

/// Sessions of honest controllers.
pub fn corpus() -> Vec<Vec<u8>> {
    let open: [u8; 4] = [250, 250, 250, 250];
    let session = |choice: u8, rest: &[u8]| [&[choice][..], &open, rest].concat();
    vec![
        session(0xc0, &[0, 0, 1, 7, 250]),
        session(0xc3, &[0, 2, 1, 7, 12, 4, 0, 0, 250]),
        session(0xf4, &[0, 2, 1, 7, 250, 0, 4, 0, 0, 250]),
        session(0xc8, &[0, 3, 1, 7, 3, 7, 8, 50, 250, 250, 250]),
        // Changed pages during the setup.
        [&[0xc0, 10, 10, 10, 4, 2, 130, 0][..], &open].concat(),
    ]
}
