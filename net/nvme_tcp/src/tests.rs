//! Both sides of a connection against each other, and PDUs that a controller must refuse.

use crate::host;
use crate::target::{Cause, Connection, Event, Settings};
use crate::wire::*;
use drivers::hal::{Arena, Window};
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

const SETTINGS: Settings =
    Settings { max_h2c_data: 4096, max_in_capsule: 8192, digests: HEADER_DIGESTS | DATA_DIGESTS };

fn sqe(cid: u16) -> [u8; SQE] {
    let mut sqe = [0; SQE];
    sqe[2..4].copy_from_slice(&cid.to_le_bytes());
    sqe
}

fn cqe(cid: u16) -> [u8; CQE] {
    let mut cqe = [0; CQE];
    cqe[12..14].copy_from_slice(&cid.to_le_bytes());
    cqe
}

fn filled(arena: &mut Arena, len: usize, seed: u8) -> Window {
    let window = arena.alloc(len, 4).unwrap();
    let bytes: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(7).wrapping_add(seed)).collect();
    window.write(0, &bytes).unwrap();
    window
}

fn bytes(window: &Window) -> Vec<u8> {
    let mut bytes = vec![0; window.len()];
    window.read(0, &mut bytes).unwrap();
    bytes
}

/// A host and a controller that stores what is written to it, and returns it to reads.
struct Pair {
    host: host::Connection,
    target: Connection,
    /// Bytes of each step.
    piece: usize,
    /// Data of the controller, by tag.
    stored: Vec<Window>,
    /// Commands that were received, with their opcode.
    seen: Vec<(u16, u8)>,
    completed: Vec<(u16, bool, usize)>,
}

const WRITE: u8 = 1;
const READ: u8 = 2;
/// A read that is completed by its data.
const READ_AND_SUCCEED: u8 = 3;

impl Pair {
    fn new(digests: u8, alignment: u8, piece: usize, stored: Vec<Window>) -> Pair {
        let host = host::Connection::new(digests, alignment, 16);
        let mut target = Connection::new(SETTINGS);
        target.set_depth(16);
        Pair { host, target, piece, stored, seen: Vec::new(), completed: Vec::new() }
    }

    fn on_target(&mut self, event: Event) {
        match event {
            Event::Command { sqe, data } => {
                let cid = u16_at(&sqe, 2);
                let window = self.stored[usize::from(cid)];
                self.seen.push((cid, sqe[0]));
                match (sqe[0], data) {
                    (WRITE, 0) => self.target.fetch(cid, cid, window),
                    (WRITE, _) => self.target.place(cid, window),
                    (READ, _) => {
                        self.target.send_data(cid, cid, window, false);
                        self.target.complete(&cqe(cid));
                    }
                    _ => self.target.send_data(cid, cid, window, true),
                }
            }
            Event::Arrived { tag, intact } => {
                assert!(intact);
                self.target.complete(&cqe(tag));
            }
            Event::Over => panic!("{:?}", self.target.cause()),
        }
    }

    /// Moves bytes until neither side has any.
    fn run(&mut self) {
        let mut buffer = vec![0; self.piece];
        loop {
            let mut moved = self.host.transmit(&mut buffer);
            let mut at = 0;
            while at < moved {
                let (taken, event) = self.target.receive(&buffer[at..moved]);
                at += taken;
                if let Some(event) = event {
                    self.on_target(event);
                }
            }
            let back = self.target.transmit(&mut buffer);
            moved += back;
            let mut at = 0;
            while at < back {
                let (taken, event) = self.host.receive(&buffer[at..back]);
                at += taken;
                match event {
                    Some(host::Event::Completed { cqe, intact, data }) => {
                        self.completed.push((u16_at(&cqe, 12), intact, data));
                    }
                    Some(host::Event::Over) => panic!("the host ended"),
                    _ => {}
                }
            }
            if moved == 0 {
                return;
            }
        }
    }
}

fn exchange(digests: u8, alignment: u8, piece: usize, sizes: &[usize]) {
    let mut arena = Arena::on_heap(1 << 20);
    let stored = sizes.iter().map(|&len| filled(&mut arena, len, 3)).collect();
    let mut pair = Pair::new(digests, alignment, piece, stored);
    pair.run();
    assert!(pair.host.is_open() && pair.target.is_open());
    let asked = (digests & HEADER_DIGESTS != 0, digests & DATA_DIGESTS != 0);
    assert_eq!(pair.target.digests(), asked);
    let mut windows = Vec::new();
    for (cid, &len) in sizes.iter().enumerate() {
        let window = filled(&mut arena, len, cid as u8 + 40);
        windows.push(window);
        let mut sqe = sqe(cid as u16);
        sqe[0] = WRITE;
        assert!(pair.host.submit(&sqe, window, false, len <= 4096 && cid % 2 == 0));
    }
    pair.run();
    assert_eq!(pair.completed.len(), sizes.len());
    for (stored, window) in pair.stored.iter().zip(&windows) {
        assert_eq!(bytes(stored), bytes(window));
        window.fill(0);
    }
    pair.completed.clear();
    for (cid, window) in windows.iter().enumerate() {
        let mut sqe = sqe(cid as u16);
        sqe[0] = if cid % 3 == 0 { READ_AND_SUCCEED } else { READ };
        assert!(pair.host.submit(&sqe, *window, true, false));
    }
    pair.run();
    let whole =
        |&(cid, intact, data): &(u16, bool, usize)| intact && data == sizes[usize::from(cid)];
    assert_eq!(pair.completed.iter().filter(|&one| whole(one)).count(), sizes.len());
    for (stored, window) in pair.stored.iter().zip(&windows) {
        assert_eq!(bytes(stored), bytes(window));
    }
    let mut sent: Vec<u16> = core::iter::from_fn(|| pair.target.next_sent()).collect();
    sent.sort_unstable();
    assert!(sent.into_iter().eq(0..sizes.len() as u16));
}

#[test]
fn data_arrives_whole_with_all_digests_and_alignments() {
    for digests in 0..4 {
        for alignment in [0, 1, 31] {
            for piece in [1, 7, 4096, 70_000] {
                exchange(digests, alignment, piece, &[512, 4096, 4, 9000, 13_000]);
            }
        }
    }
}

proptest! {
    #[test]
    fn data_of_any_sizes_arrives_whole(
        digests in 0u8..4,
        alignment in 0u8..32,
        piece in 1usize..9000,
        sizes in prop::collection::vec(1usize..20_000, 1..16),
    ) {
        exchange(digests, alignment, piece, &sizes);
    }

    #[test]
    fn noise_never_panics_and_is_bounded(
        opened: bool,
        noise in prop::collection::vec(any::<u8>(), 0..400),
        kind in 0u8..10,
        digests in 0u8..4,
    ) {
        let mut target = Connection::new(SETTINGS);
        target.set_depth(4);
        let mut arena = Arena::on_heap(1 << 16);
        if opened {
            let asked = Parameters { version: 0, alignment: 0, digests, limit: 0 };
            target.receive(&asked.emit(Kind::IcReq));
            target.fetch(1, 1, arena.alloc(4096, 4).unwrap());
        }
        let mut noise = noise;
        if let Some(first) = noise.first_mut() {
            *first = kind;
        }
        let mut at = 0;
        while at < noise.len() {
            let (taken, event) = target.receive(&noise[at..]);
            at += taken;
            match event {
                Some(Event::Command { data, .. }) if data > 0 => {
                    prop_assert!(data <= SETTINGS.max_in_capsule);
                    target.discard();
                }
                Some(Event::Over) => break,
                _ => prop_assert!(taken > 0 || at == noise.len()),
            }
        }
        let mut buffer = [0; 4096];
        while target.transmit(&mut buffer) > 0 {}
    }
}

/// An open controller without digests, with a transfer of 8192 bytes under tag 2 of command 5.
fn with_transfer() -> (Connection, Arena) {
    let mut arena = Arena::on_heap(1 << 16);
    let mut target = Connection::new(SETTINGS);
    target.set_depth(4);
    let asked = Parameters { version: 0, alignment: 0, digests: 0, limit: 0 };
    assert_eq!(target.receive(&asked.emit(Kind::IcReq)), (IC, None));
    target.fetch(5, 2, arena.alloc(8192, 4).unwrap());
    let mut buffer = [0; 1024];
    assert_eq!(target.transmit(&mut buffer), IC + SHORT);
    (target, arena)
}

fn refuses(target: &mut Connection, pdu: &[u8], fatal: Fatal) {
    let (_, event) = target.receive(pdu);
    assert_eq!(event, Some(Event::Over), "{fatal:?}");
    assert_eq!(target.cause(), Some(Cause::Host(fatal)));
    let mut buffer = [0; 1024];
    let n = target.transmit(&mut buffer);
    assert_eq!(buffer[0], Kind::C2hTermReq as u8);
    assert_eq!(u16_at(&buffer, 8), fatal.status as u16);
    assert_eq!(u32_at(&buffer, 10), fatal.info);
    assert_eq!(u32_at(&buffer, 4) as usize, n);
    assert!((SHORT + COMMON..=SHORT + TERM_DATA).contains(&n));
    assert_eq!(buffer[SHORT..SHORT + COMMON], pdu[..COMMON], "it has the offending header");
    assert!(target.is_finished());
    assert_eq!(target.receive(&[1; 99]), (99, None), "what follows is ignored");
}

#[test]
fn first_pdu_other_than_a_valid_icreq_ends_the_connection() {
    let good = Parameters { version: 0, alignment: 0, digests: 3, limit: 0 }.emit(Kind::IcReq);
    let changed = |at: usize, byte: u8| {
        let mut pdu = good;
        pdu[at] = byte;
        pdu
    };
    let unsupported = |info| Fatal { status: Fes::Unsupported, info };
    for (pdu, fatal) in [
        (changed(0, Kind::CapsuleCmd as u8), Fatal::SEQUENCE),
        (changed(0, Kind::IcResp as u8), Fatal::field(0)),
        (changed(0, 200), Fatal::field(0)),
        (changed(1, HDGST), Fatal::field(1)),
        (changed(2, 72), Fatal::field(2)),
        (changed(4, 0), Fatal::field(4)),
        (changed(6, 1), Fatal::field(4)),
        (changed(8, 1), unsupported(8)),
        (changed(10, 32), unsupported(10)),
    ] {
        refuses(&mut Connection::new(SETTINGS), &pdu, fatal);
    }
}

#[test]
fn data_that_nobody_asked_for_ends_the_connection() {
    let pdu = |cid, ttag, offset, length: u32, flags| {
        let plen = SHORT as u32 + length;
        let common = Common { kind: 6, flags, hlen: 24, pdo: 24, plen };
        Data { cid, ttag, offset, length }.emit(&common)
    };
    let range = Fatal { status: Fes::Range, info: 12 };
    let limit = Fatal { status: Fes::Limit, info: 16 };
    for (pdu, fatal) in [
        (pdu(5, 3, 0, 4096, 0), Fatal::field(10)),
        (pdu(5, 999, 0, 4096, 0), Fatal::field(10)),
        (pdu(4, 2, 0, 4096, 0), Fatal::field(8)),
        (pdu(5, 2, 4096, 4096, LAST), range),
        (pdu(5, 2, u32::MAX, 4096, LAST), range),
        (pdu(5, 2, 0, 4097, 0), limit),
        (pdu(5, 2, 0, 4096, LAST), Fatal::field(1)),
        (pdu(5, 2, 0, 0, 0), Fatal::field(16)),
        (pdu(5, 2, 0, 4096, DDGST), Fatal::field(1)),
    ] {
        let (mut target, _arena) = with_transfer();
        refuses(&mut target, &pdu, fatal);
    }
    let (mut target, _arena) = with_transfer();
    let mut lies = pdu(5, 2, 0, 4096, 0);
    lies[16] = 1;
    refuses(&mut target, &lies, Fatal::field(16));
    // The transfer is whole: one more byte is one too many.
    let (mut target, _arena) = with_transfer();
    for (offset, flags) in [(0, 0), (4096, LAST)] {
        target.receive(&pdu(5, 2, offset, 4096, flags));
        let (_, event) = target.receive(&[0; 4096]);
        assert_eq!(event.is_some(), flags == LAST);
    }
    refuses(&mut target, &pdu(5, 2, 0, 4096, LAST), Fatal::field(10));
}

#[test]
fn capsules_with_wrong_lengths_end_the_connection() {
    let capsule = |pdo, plen, flags| {
        let common = Common { kind: 4, flags, hlen: 72, pdo, plen };
        let mut pdu = [0; CAPSULE];
        pdu[..COMMON].copy_from_slice(&common.emit());
        pdu
    };
    for (pdu, fatal) in [
        (capsule(0, 71, 0), Fatal::field(4)),
        (capsule(0, 73, 0), Fatal::field(3)),
        (capsule(76, 72 + 512, 0), Fatal::field(3)),
        (capsule(72, 72 + 8193, 0), Fatal::field(4)),
        (capsule(72, u32::MAX, 0), Fatal::field(4)),
        (capsule(72, 72 + 512, DDGST), Fatal::field(1)),
    ] {
        let (mut target, _arena) = with_transfer();
        refuses(&mut target, &pdu, fatal);
    }
    let (mut target, _arena) = with_transfer();
    let (taken, event) = target.receive(&capsule(72, 72 + 8192, 0));
    assert!(matches!((taken, event), (CAPSULE, Some(Event::Command { data: 8192, .. }))));
    assert_eq!(target.receive(&[0; 10]), (0, None), "it waits for a place");
}

#[test]
fn wrong_digest_of_a_header_ends_the_connection_and_of_data_only_the_transfer() {
    let mut arena = Arena::on_heap(1 << 16);
    let window = filled(&mut arena, 512, 1);
    for (at, fatal) in [(30, true), (CAPSULE + 1, true), (CAPSULE + DIGEST + 9, false)] {
        let mut host = host::Connection::new(3, 0, 4);
        let mut target = Connection::new(SETTINGS);
        target.set_depth(4);
        let mut buffer = [0; 2048];
        let n = host.transmit(&mut buffer);
        target.receive(&buffer[..n]);
        let n = target.transmit(&mut buffer);
        host.receive(&buffer[..n]);
        assert!(host.submit(&sqe(1), window, false, true));
        let n = host.transmit(&mut buffer);
        assert_eq!(n, CAPSULE + DIGEST + 512 + DIGEST);
        buffer[at] ^= 1;
        let (taken, event) = target.receive(&buffer[..n]);
        if fatal {
            assert_eq!(event, Some(Event::Over));
            assert!(matches!(
                target.cause(),
                Some(Cause::Host(Fatal { status: Fes::HeaderDigest, .. }))
            ));
            continue;
        }
        assert!(matches!(event, Some(Event::Command { data: 512, .. })));
        target.place(1, arena.alloc(512, 4).unwrap());
        let (_, event) = target.receive(&buffer[taken..n]);
        assert_eq!(event, Some(Event::Arrived { tag: 1, intact: false }));
    }
}

#[test]
fn term_request_of_the_host_ends_the_connection_without_an_answer() {
    let (mut target, _arena) = with_transfer();
    let common = Common { kind: 2, flags: 0, hlen: 24, pdo: 0, plen: 24 + 8 };
    let mut pdu = [0; SHORT];
    pdu[..COMMON].copy_from_slice(&common.emit());
    pdu[8] = 4;
    assert_eq!(target.receive(&pdu).1, Some(Event::Over));
    assert_eq!(target.cause(), Some(Cause::Reported(4)));
    assert!(target.is_finished());
}
