//! Records and handshakes of a TLS client, in pieces and with pauses.

use crate::input::Input;
use net::tls::{Pair, Tls};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The server. Its certificate and its random numbers are the same in each run.
fn server() -> &'static Arc<Tls> {
    static SERVER: OnceLock<Arc<Tls>> = OnceLock::new();
    SERVER.get_or_init(|| {
        let random = |seed| {
            let mut rng = netsim::Rng::new(seed);
            move |into: &mut [u8]| into.iter_mut().for_each(|byte| *byte = rng.within(0..256) as u8)
        };
        let pair =
            Pair::self_signed("gw-1", &["10.0.0.1".parse().expect("an address")], &mut random(1));
        Tls::new(pair, Box::new(random(2)))
    })
}

/// Feeds pieces of a client's stream, each as its length, the piece, and a pause. Nothing panics, buffers stay within
/// their bounds, and a failed session stays failed.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    // Later than any earlier session, because the server spreads handshakes in time.
    let mut now = server().due() + Duration::from_secs(1);
    let mut session = server().session(now);
    let mut read = 0;
    while !input.is_empty() {
        let length = usize::from(input.byte()) * usize::from(input.byte() % 4 + 1);
        let mut piece = input.take(length);
        let pause = u64::from(input.byte() % 32);
        for _ in 0..8 {
            let taken = session.receive(piece);
            piece = &piece[taken..];
            session.poll(now);
            session.take(|text| {
                read += text.len();
                text.len()
            });
            let count = session.outgoing().len();
            assert!(count <= 64 << 10, "{count} bytes wait for the client");
            session.consume(count);
            if session.has_room() {
                session.write(b"text");
            }
            if piece.is_empty() {
                break;
            }
        }
        let failed = session.failure().is_some();
        now = now + Duration::from_millis(pause);
        session.poll(now);
        assert!(!failed || session.failure().is_some());
    }
    session.close();
    session.poll(now);
    // The input cannot contain data under a session's keys.
    assert_eq!(read, 0, "text of a client that did no handshake");
    now = now + Duration::from_secs(60);
    session.poll(now);
    assert!(session.is_open() || session.failure().is_some() || session.is_ended());
}

/// A record.
fn record(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind, 3, 3][..], &(body.len() as u16).to_be_bytes(), body].concat()
}

/// A message of the handshake.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_be_bytes();
    [&[kind][..], &length[1..], body].concat()
}

fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &(body.len() as u16).to_be_bytes(), body].concat()
}

/// A ClientHello of TLS 1.3 or 1.2.
fn hello(is_new: bool) -> Vec<u8> {
    let mut base = [0; 32];
    base[0] = 9;
    let share = [&[0, 36, 0, 29, 0, 32][..], &base].concat();
    let mut extensions = [
        extension(10, &[0, 4, 0, 29, 0, 23]),
        extension(11, &[1, 0]),
        extension(13, &[0, 4, 4, 3, 8, 4]),
        extension(16, b"\x00\x09\x08http/1.1"),
        extension(23, &[]),
    ]
    .concat();
    if is_new {
        extensions.extend(extension(43, &[2, 3, 4]));
        extensions.extend(extension(51, &share));
    }
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([32]);
    body.extend([8; 32]);
    body.extend([0, 8, 0x13, 1, 0x13, 3, 0xc0, 0x2b, 0xcc, 0xa9]);
    body.extend([1, 0]);
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend(extensions);
    message(1, &body)
}

/// Encodes pieces for [`run`].
fn pieces(all: &[Vec<u8>]) -> Vec<u8> {
    let mut input = Vec::new();
    for piece in all.iter().flat_map(|bytes| bytes.chunks(255)) {
        input.extend([piece.len() as u8, 0]);
        input.extend(piece);
        input.push(20);
    }
    input
}

pub fn corpus() -> Vec<Vec<u8>> {
    let (new, old) = (record(22, &hello(true)), record(22, &hello(false)));
    let change = record(20, &[1]);
    let mut base = [0; 33];
    (base[0], base[1]) = (32, 9);
    let exchange = record(22, &message(16, &base));
    let finished = record(22, &[5; 40]);
    let split: Vec<Vec<u8>> = hello(true).chunks(40).map(|part| record(22, part)).collect();
    vec![
        pieces(std::slice::from_ref(&new)),
        pieces(&[new.clone(), change.clone(), record(23, &[6; 69]), record(23, &[1; 400])]),
        pieces(&[old.clone(), exchange.clone(), change.clone(), finished.clone()]),
        pieces(&[old, record(21, &[2, 40])]),
        pieces(&split),
        pieces(&[new.clone(), new]),
        pieces(&[record(22, &message(1, &[0; 3])), exchange, change, finished]),
        pieces(&[b"GET / HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n".to_vec()]),
        pieces(&[record(23, &[0; 255]), vec![22, 3, 3, 0xff, 0xff]]),
    ]
}
