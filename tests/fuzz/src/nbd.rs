//! The NBD client beside a malicious server, which knows the cookies of its connections. The server sends replies that
//! are cut, changed, repeated and mixed with other bytes.

use crate::input::Input;
use ::nbd::wire::{self, REQUEST_LENGTH, chunk, flag, info, option, reply};
use ::nbd::{Action, Client, Failure, Losses, Operation, Request, Settings};
use drivers::hal::{Arena, Instant, Window};
use std::time::Duration;

/// Bytes of the memory of a request, and value of the guards around it.
const PART: usize = 4096;
const GUARD: u8 = 0xc5;
const CONNECTIONS: usize = 2;

struct World {
    client: Client<u32>,
    /// Guard, memory, guard, for each request.
    memory: Window,
    submitted: u32,
    completed: Vec<bool>,
    /// Last request on each connection: command, cookie, offset, length.
    last: [(u16, u64, u64, u32); CONNECTIONS],
    is_connected: [bool; CONNECTIONS],
    now: Instant,
}

/// Requests of a run; each has memory of its own.
const MOST: u32 = 32;
const LENGTH: usize = MOST as usize * 2 * PART;

std::thread_local! {
    /// Memory of all runs: an arena on the heap is never freed.
    static MEMORY: Window =
        Arena::on_heap(LENGTH + 4096).alloc(LENGTH, 4096).expect("memory");
}

impl World {
    fn new(choice: u8) -> World {
        let settings = Settings {
            connections: CONNECTIONS as u16,
            paths: 1 + u16::from(choice & 1),
            depth: 8,
            read_only: false,
            write_through: choice & 2 != 0,
            keepalive: Duration::from_secs(3),
            reconnect: Duration::from_millis(100),
            give_up: Duration::from_secs(u64::from(choice >> 4)),
        };
        let mut client = Client::new(settings, "export").expect("a short name");
        if choice & 4 != 0 {
            client.report_losses(Losses::ToAll);
        }
        let memory = MEMORY.with(|memory| *memory);
        memory.fill(GUARD);
        let now = Instant::from_nanos(1_000_000_000);
        let (last, is_connected) = ([(0, 0, 0, 0); CONNECTIONS], [false; CONNECTIONS]);
        World { client, memory, submitted: 0, completed: Vec::new(), last, is_connected, now }
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
        let (tag, offset) = (self.submitted, 512 * u64::from(offset));
        if self.client.submit(&Request { tag, operation, offset, data }).is_ok() {
            self.submitted += 1;
            self.completed.push(false);
        }
    }

    /// Does what the client wants, except that connections fail if `refuses`.
    fn act(&mut self, refuses: bool) {
        self.client.poll(self.now);
        for _ in 0..8 {
            let Some(action) = self.client.next_action(self.now) else { break };
            match action {
                Action::Connect { connection, .. } if refuses => {
                    self.client.closed(connection, Failure::Refused, self.now);
                }
                Action::Connect { connection, .. } => {
                    self.is_connected[connection] = true;
                    self.client.connected(connection, self.now.as_nanos(), self.now);
                }
                Action::Close { connection, .. } => self.is_connected[connection] = false,
            }
        }
    }

    /// Takes what the client sends, at most `most` bytes.
    fn take(&mut self, connection: usize, most: usize) {
        let mut space = vec![0; most];
        let count = self.client.transmit(connection, &mut space, self.now);
        let bytes = &space[..count];
        let begins = |part: &&[u8]| wire::u32_at(part, 0) == wire::REQUEST;
        if let Some(head) = bytes.windows(REQUEST_LENGTH).rfind(begins) {
            let number = |at| wire::u64_at(head, at);
            self.last[connection] =
                (wire::u16_at(head, 6), number(8), number(16), wire::u32_at(head, 24));
        }
    }

    fn give(&mut self, connection: usize, bytes: &[u8]) {
        if self.is_connected[connection] {
            self.client.receive(connection, bytes, self.now);
        }
    }

    fn check(&mut self) {
        while let Some((tag, _)) = self.client.poll_done() {
            let completed = &mut self.completed[tag as usize];
            assert!(!core::mem::replace(completed, true), "request {tag} completes twice");
        }
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
}

/// The handshake of a server, without its greeting.
fn handshake(size: u64, flags: u16, structured: bool) -> Vec<u8> {
    let answer = |option: u32, kind: u32, data: &[u8]| {
        let mut bytes = wire::OPTION_REPLY.to_be_bytes().to_vec();
        for word in [option, kind, data.len() as u32] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend(data);
        bytes
    };
    let kind = if structured { reply::ACK } else { reply::UNSUPPORTED };
    let export =
        [&info::EXPORT.to_be_bytes()[..], &size.to_be_bytes(), &flags.to_be_bytes()].concat();
    [
        answer(option::STRUCTURED_REPLY, kind, &[]),
        answer(option::GO, reply::INFO, &export),
        answer(option::GO, reply::ACK, &[]),
    ]
    .concat()
}

fn greeting() -> Vec<u8> {
    [&wire::GREETING.to_be_bytes()[..], &wire::OPTION.to_be_bytes(), &3u16.to_be_bytes()].concat()
}

/// A reply to a request: simple, or a chunk with this type and flags.
fn answer(request: (u16, u64, u64, u32), how: u8, shift: u8, length: u32) -> Vec<u8> {
    let (_, cookie, offset, whole) = request;
    let cookie = if shift & 0x80 != 0 { cookie ^ u64::from(shift) } else { cookie };
    let length = if length == 0 { whole.min(1 << 20) } else { length };
    let data = vec![0x11; length as usize];
    let offset = offset + u64::from(shift & 0x7f) * 64;
    let structured = |kind: u16, payload: &[u8]| {
        let mut bytes = wire::STRUCTURED_REPLY.to_be_bytes().to_vec();
        bytes.extend(u16::from(how & 8 != 0).to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend((payload.len() as u32).to_be_bytes());
        bytes.extend(payload);
        bytes
    };
    match how & 7 {
        0 | 1 => structured(chunk::DATA, &[&offset.to_be_bytes()[..], &data[..]].concat()),
        2 => structured(chunk::HOLE, &[&offset.to_be_bytes()[..], &length.to_be_bytes()].concat()),
        3 => structured(chunk::NONE, &[]),
        4 => structured(chunk::ERROR | 1, &[&length.to_be_bytes()[..], &[0, 0]].concat()),
        5 => structured(u16::from(shift), &data),
        6 => [&wire::SIMPLE_REPLY.to_be_bytes()[..], &[0; 4], &cookie.to_be_bytes(), &data[..]]
            .concat(),
        _ => [&wire::SIMPLE_REPLY.to_be_bytes()[..], &length.to_be_bytes(), &cookie.to_be_bytes()]
            .concat(),
    }
}

/// Performs events of the input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new(input.byte());
    input.events(200, |input| {
        let what = input.byte();
        let connection = usize::from(what >> 7);
        match what % 12 {
            0 => world.submit(input),
            1 => world.act(what & 0x40 != 0),
            2 => world.take(connection, input.word().into()),
            3 => {
                let length = input.word().into();
                let bytes = input.take(length);
                world.give(connection, bytes);
            }
            4 => world.give(connection, &greeting()),
            5 => {
                let (flags, size) = (input.word() | flag::HAS_FLAGS, input.byte());
                let bytes = handshake(1 << (size % 64), flags, what & 0x40 != 0);
                world.give(connection, &bytes);
            }
            6 | 7 => {
                let (how, shift) = (input.byte(), input.byte());
                let length = u32::from(input.word());
                let bytes = answer(world.last[connection], how, shift, length);
                let end = bytes.len() - usize::from(what & 0x20 != 0);
                world.give(connection, &bytes[..end]);
            }
            8 => {
                if core::mem::take(&mut world.is_connected[connection]) {
                    world.client.closed(connection, Failure::Closed, world.now);
                }
            }
            9 => world.now = world.now + Duration::from_millis(u64::from(input.byte()) * 100),
            10 => match input.byte() % 8 {
                0 => world.client.give_up(),
                1 => world.client.remap(world.now),
                2 => world.client.end(world.now),
                _ => {}
            },
            _ => {
                // An honest server, so that inputs reach deep.
                world.act(false);
                world.give(connection, &greeting());
                let flags = 0x16d;
                world.give(connection, &handshake(1 << 20, flags, what & 0x40 != 0));
                world.take(connection, 4096);
            }
        }
        world.check();
    });
    // Everything ends.
    world.client.end(world.now);
    world.act(true);
    world.check();
    assert!(world.completed.iter().all(|is_done| *is_done), "a request never completes");
}

/// Sessions of an honest server.
pub fn corpus() -> Vec<Vec<u8>> {
    let open: [u8; 6] = [1, 11, 2, 255, 255, 11];
    let read: [u8; 7] = [0, 0, 8, 7, 2, 255, 255];
    let session = |choice: u8, reply: [u8; 5]| [&[choice][..], &open, &read, &reply].concat();
    vec![
        session(0x10, [6, 14, 0, 0, 0]),
        session(0x14, [6, 8, 0, 0, 0]),
        session(0x12, [6, 4, 0, 5, 0]),
        [&[0x10][..], &open, &[0, 2, 0, 1], &[2, 200, 0], &[6, 11, 0, 0, 0], &[8, 9, 50], &open]
            .concat(),
    ]
}
