//! TLS with a PSK: a session beside a peer of the same code. The peer's stream is cut, changed and mixed with other
//! bytes, and the peer sends any records under its keys.

use crate::input::Input;
use ::tls_psk::hash::{Hash, Secret};
use ::tls_psk::{Config, Group, OfferedPsk, Psk, Session};
use drivers::hal::Instant;
use std::time::Duration;

const IDENTITY: &[u8] = b"NVMe0R01 nqn.host nqn.subsystem";
/// The key that both ends have, or only the tested one.
const KEY: [u8; 32] = *b"a key that must never be visible";

fn psk(key: &[u8; 32]) -> Psk {
    Psk { hash: Hash::Sha256, key: Secret::new(key).expect("32 bytes") }
}

struct World {
    tested: Session,
    peer: Session,
    /// Whether the peer has the key.
    has_key: bool,
    now: Instant,
    /// Bytes of text that the tested session has decrypted, and that the peer has sent.
    read: usize,
    sent: usize,
}

impl World {
    fn new(choice: u8) -> World {
        let now = Instant::from_nanos(1_000_000_000);
        let random = |seed| {
            let mut rng = netsim::Rng::new(seed);
            move |into: &mut [u8]| into.iter_mut().for_each(|byte| *byte = rng.within(0..256) as u8)
        };
        // Some pairs need a HelloRetryRequest.
        let ours: &'static [Group] =
            if choice & 4 == 0 { &[Group::X25519] } else { &[Group::X25519, Group::Secp256r1] };
        let theirs: &'static [Group] =
            if choice & 4 == 0 { &[Group::X25519] } else { &[Group::Secp256r1] };
        let config = Config { outgoing: 4096, key_updates: true, ..Config::default() };
        let has_key = choice & 2 == 0;
        let key = if has_key { KEY } else { [9; 32] };
        let is_server = choice & 1 == 0;
        let offered = |key| vec![OfferedPsk { identity: IDENTITY.into(), key: psk(key) }];
        let client = Config { groups: ours, ..config };
        let server = Config { groups: theirs, ..config };
        let (tested, peer) = if is_server {
            let peer = Session::client(client, offered(&key), &mut random(2), now);
            (Session::server(server, &mut random(1), now), peer)
        } else {
            let tested = Session::client(client, offered(&KEY), &mut random(1), now);
            (tested, Session::server(server, &mut random(2), now))
        };
        World { tested, peer, has_key, now, read: 0, sent: 0 }
    }

    /// Passes bytes to the tested session.
    fn give(&mut self, bytes: &[u8]) -> usize {
        let taken = self.tested.receive(bytes, self.now);
        assert!(taken <= bytes.len());
        self.read += self.tested.text().len();
        let count = self.tested.text().len();
        self.tested.consume_text(count);
        taken
    }

    /// Carries at most `len` bytes from the peer. `change` is applied to the byte at the front.
    fn carry(&mut self, len: usize, change: u8) {
        let mut bytes = self.peer.outgoing().to_vec();
        bytes.truncate(len);
        if let Some(first) = bytes.first_mut() {
            *first ^= change;
        }
        let taken = self.give(&bytes);
        self.peer.consume(taken);
    }

    /// Carries the records of the tested session.
    fn answer(&mut self) {
        let bytes = self.tested.outgoing().to_vec();
        assert!(bytes.len() <= 4096 + 128, "{} bytes wait", bytes.len());
        let visible = |key: &[u8]| bytes.windows(key.len()).any(|part| part == key);
        assert!(!visible(&KEY) && !visible(&KEY[..16]), "the key is on the wire");
        self.tested.consume(bytes.len());
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let taken = self.peer.receive(rest, self.now);
            rest = &rest[taken..];
            let count = self.peer.text().len();
            self.peer.consume_text(count);
            if self.peer.wants_key() {
                let key = if self.has_key { KEY } else { [9; 32] };
                if !self.peer.try_key(0, &psk(&key)) {
                    self.peer.refuse();
                }
            }
            if taken == 0 && count == 0 {
                break;
            }
        }
    }

    fn check(&self) {
        assert!(!self.tested.is_open() || self.has_key, "open without the key");
        assert!(self.read <= self.sent, "text that the peer did not send");
        assert!(!self.tested.is_open() || self.tested.accepted() == Some(0));
    }
}

/// Performs events of the input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new(input.byte());
    input.events(200, |input| {
        let failed = world.tested.failure().is_some();
        match input.byte() % 10 {
            0 => world.carry(usize::MAX, 0),
            1 => world.carry(input.byte().into(), 0),
            2 => world.carry(input.byte().into(), input.byte()),
            3 => {
                let len = input.word().into();
                let bytes = input.take(len);
                world.give(bytes);
            }
            4 => {
                let (kind, update) = (input.byte(), input.byte());
                let len = input.word().into();
                let content = input.take(len);
                world.peer.push_record(kind, content, update & 1 == 1);
                world.sent += content.len();
            }
            5 => world.answer(),
            6 => world.sent += world.peer.write(&[5; 300][..usize::from(input.byte())]),
            7 => {
                let len = usize::from(input.word());
                world.tested.write_with(len, |into| into.fill(6));
            }
            8 => {
                let passes = Duration::from_millis(u64::from(input.byte()) * 100);
                world.now = world.now + passes;
                world.tested.poll(world.now);
            }
            _ => {
                let what = input.byte();
                let index = usize::from(what >> 4);
                match what % 4 {
                    0 => assert!(
                        !world.tested.try_key(index, &psk(&[8; 32])),
                        "a key of neither end"
                    ),
                    1 => world.tested.refuse(),
                    2 => world.tested.close(),
                    _ => {
                        world.tested.try_key(0, &psk(&KEY));
                    }
                }
            }
        }
        if world.tested.wants_key() && input.byte() & 1 == 0 {
            world.tested.try_key(0, &psk(&KEY));
        }
        assert!(!failed || world.tested.failure().is_some(), "a failed session stays failed");
        world.check();
    });
    world.answer();
    world.now = world.now + Duration::from_secs(60);
    world.tested.poll(world.now);
    assert!(world.tested.is_open() || world.tested.failure().is_some());
}

/// Events that complete a handshake, then others.
fn after_handshake(choice: u8, more: &[u8]) -> Vec<u8> {
    let mut events = vec![choice];
    for _ in 0..4 {
        // Carry, with a look for the key; answer.
        events.extend([0, 0, 5, 0]);
    }
    events.extend(more);
    events
}

/// An event that sends a record of the peer.
fn record(kind: u8, update: bool, content: &[u8]) -> Vec<u8> {
    let len = (content.len() as u16).to_be_bytes();
    [&[4, kind, update.into()][..], &len, content, &[0, 0]].concat()
}

pub fn corpus() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for choice in 0..8 {
        all.push(after_handshake(choice, &[6, 40, 0, 0, 5, 7, 0, 50, 5]));
        all.push(vec![choice, 1, 5, 1, 100, 1, 255, 5, 0, 5, 0, 5]);
        all.push(after_handshake(choice, &record(22, true, &[24, 0, 0, 1, 1])));
        all.push(after_handshake(choice, &record(22, false, &[4, 0, 0, 3, 1, 2, 3])));
        all.push(after_handshake(choice, &record(21, false, &[1, 0])));
        all.push(after_handshake(choice, &record(23, false, &[])));
        all.push([&[choice][..], &record(22, false, &[8, 0, 0, 2, 0, 0]), &[0, 0, 5]].concat());
        all.push(after_handshake(choice, &[9, 2, 5, 0, 8, 200, 2, 10, 1, 5]));
    }
    // A ClientHello with other extensions, and an ICReq in clear.
    let mut clear = vec![0, 3, 0, 8];
    clear.extend([0, 0, 128, 0, 128, 0, 0, 0]);
    all.push(clear);
    let mut hello = vec![0, 3, 0, 60, 22, 3, 1, 0, 55, 1, 0, 0, 51, 3, 3];
    hello.extend([7; 32]);
    hello.extend([0, 0, 2, 0x13, 1, 1, 0, 0, 8, 0, 43, 0, 3, 2, 3, 4, 0]);
    all.push(hello);
    all
}
