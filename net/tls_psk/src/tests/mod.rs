//! Tests: vectors of RFC 8448, server against client, and hostile peers. Others' implementations are the peers in
//! `tests/tls_psk`.

mod hostile;
mod hostile_server;
mod pair;
mod records;
mod vectors;

use crate::hash::{Hash, Secret};
use crate::{Config, OfferedPsk, Psk, Session};
use drivers::hal::Instant;
use netsim::Rng;
use std::vec::Vec;

pub const IDENTITY: &[u8] = b"NVMe0R01 nqn.host nqn.subsystem";

/// The start of all sessions.
pub const NOW: Instant = Instant::from_nanos(1_000_000_000);

pub fn psk(hash: Hash) -> Psk {
    Psk { hash, key: Secret::new(&[7; 64][..hash.len()]).unwrap() }
}

pub fn offered(hash: Hash) -> OfferedPsk {
    OfferedPsk { identity: IDENTITY.into(), key: psk(hash) }
}

/// A generator with a seed.
pub fn random(seed: u64) -> impl FnMut(&mut [u8]) {
    let mut rng = Rng::new(seed);
    move |into: &mut [u8]| into.iter_mut().for_each(|byte| *byte = rng.within(0..256) as u8)
}

pub fn server(config: Config) -> Session {
    Session::server(config, &mut random(1), NOW)
}

pub fn client(config: Config, hash: Hash) -> Session {
    Session::client(config, Vec::from([offered(hash)]), &mut random(2), NOW)
}

/// Carries all records of `from`, `step` bytes at a time. Returns the text that `to` has decrypted.
pub fn carry(from: &mut Session, to: &mut Session, step: usize) -> Vec<u8> {
    let mut text = Vec::new();
    while !from.outgoing().is_empty() {
        let piece = from.outgoing();
        let taken = to.receive(&piece[..piece.len().min(step)], NOW);
        from.consume(taken);
        let read = to.text().len();
        text.extend(to.text());
        to.consume_text(read);
        if taken == 0 && read == 0 {
            break;
        }
    }
    text
}

/// Completes a handshake. The server has `key` for the first identity.
pub fn shake(client: &mut Session, server: &mut Session, key: &Psk, step: usize) {
    for _ in 0..4 {
        carry(client, server, step);
        if server.wants_key() {
            assert!(server.try_key(0, key), "{:?}", server.failure());
        }
        carry(server, client, step);
    }
}

/// An open pair.
pub fn open(config: Config, hash: Hash) -> (Session, Session) {
    let (mut client, mut server) = (client(config, hash), server(config));
    shake(&mut client, &mut server, &psk(hash), usize::MAX);
    assert!(client.is_open(), "{:?}", client.failure());
    assert!(server.is_open(), "{:?}", server.failure());
    (client, server)
}
