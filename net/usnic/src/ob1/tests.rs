//! Tests of a mirror with a rank at the other end that acts like Open MPI: it sends, receives, and compares.

use super::header::{Envelope, Header, LONGEST};
use super::*;
use netsim::Rng;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

mod several;
mod shares;

const LIMITS: Limits = Limits { rendezvous: 16, parts: 64, longest: 64 << 20 };
const RANK: i32 = 1;

fn envelope(sequence: u16) -> Envelope {
    Envelope { communicator: 0, source: 0, tag: 7, sequence }
}

fn message(header: Header, data: &[u8]) -> Vec<u8> {
    let mut bytes = header.emit()[..header.length()].to_vec();
    bytes.extend(data);
    bytes
}

fn data(length: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..length).map(|_| rng.within(0..256) as u8).collect()
}

/// Bytes that a message occupies in a pool of powers of two.
fn takes(bytes: &[u8]) -> usize {
    bytes.len().next_power_of_two().max(128)
}

type Refusal = Result<(), (Refused, Vec<u8>)>;

/// Passes a message to a mirror, with its first byte as the tag.
fn give(mirror: &mut Mirror<Vec<u8>>, budget: &mut Budget, bytes: Vec<u8>) -> Refusal {
    let head = bytes[..bytes.len().min(LONGEST)].to_vec();
    let size = (bytes.len(), takes(&bytes));
    mirror.receive(head.first().copied().unwrap_or(0), &head, size, bytes, budget)
}

/// Carries out all actions of a mirror, as bytes on the wire; each is acknowledged at once.
fn out(mirror: &mut Mirror<Vec<u8>>, budget: &mut Budget) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(out) = mirror.next_out() {
        match out {
            Out::Control(header) => all.push(message(header, b"")),
            Out::Drop(_) => {}
            Out::Back(header, mut bytes, mark) => {
                let head = header.emit();
                bytes[..header.length()].copy_from_slice(&head[..header.length()]);
                mirror.sent(mark, budget);
                all.push(bytes);
            }
        }
    }
    all
}

fn read(bytes: &[u8]) -> Header {
    Header::parse(bytes[0], &bytes[..bytes.len().min(LONGEST)]).unwrap()
}

#[test]
fn headers_have_the_documented_bytes() {
    let envelope = Envelope { communicator: 3, source: -2, tag: 0x0102_0304, sequence: 0xfffe };
    let cases: [(Header, &[u8]); 4] = [
        (Header::Match(envelope), &[65, 0, 3, 0, 0xfe, 0xff, 0xff, 0xff, 4, 3, 2, 1, 0xfe, 0xff]),
        (
            Header::Rendezvous { envelope, length: 0x0102, request: 0x0304 },
            &[
                66, 32, 3, 0, 0xfe, 0xff, 0xff, 0xff, 4, 3, 2, 1, 0xfe, 0xff, 0, 0, 2, 1, 0, 0, 0,
                0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0,
            ],
        ),
        (
            Header::Ack { sender: 1, receiver: 2, offset: 3, size: 4 },
            &[
                68, 16, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0,
                0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0,
            ],
        ),
        (
            Header::Fragment { offset: 1, sender: 2, receiver: 3 },
            &[
                70, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0,
                0, 0, 0, 0, 0,
            ],
        ),
    ];
    for (header, bytes) in cases {
        assert_eq!(&header.emit()[..header.length()], bytes);
        assert_eq!(Header::parse(header.tag(), bytes), Ok(header));
        let short = &bytes[..bytes.len() - 1];
        assert_eq!(Header::parse(header.tag(), short), Err(header::BadHeader::Short));
        assert_eq!(Header::parse(71, bytes), Err(header::BadHeader::Tag(71)));
        let mut other = bytes.to_vec();
        other[0] = 1;
        assert_eq!(Header::parse(header.tag(), &other), Err(header::BadHeader::Type(1)));
        other[0] = header.tag();
        other[1] |= 2;
        assert_eq!(Header::parse(header.tag(), &other), Err(header::BadHeader::ByteOrder));
    }
}

#[test]
fn complete_message_is_returned_with_the_mirrors_rank() {
    let (mut mirror, mut budget) = (Mirror::new(RANK, LIMITS), Budget::new(1 << 20));
    for (sequence, length) in [(1, 0), (2, 5), (3, 4000)] {
        let data = data(length, 1);
        let sent = message(Header::Match(envelope(sequence)), &data);
        give(&mut mirror, &mut budget, sent).unwrap();
        let ours = Envelope { source: RANK, ..envelope(sequence) };
        assert_eq!(out(&mut mirror, &mut budget), [message(Header::Match(ours), &data)]);
    }
    assert_eq!(mirror.counters(), &Counters { eager: 3, bytes: 4005, ..Counters::default() });
}

/// The other rank: messages that it has sent in parts, and returned parts of them.
struct Rank {
    sent: BTreeMap<u64, Vec<u8>>,
    back: BTreeMap<u64, (Envelope, Vec<u8>, usize)>,
    done: Vec<(u16, Vec<u8>)>,
    part: usize,
    rng: Rng,
}

impl Rank {
    fn new(part: usize, seed: u64) -> Self {
        let (sent, back, done) = Default::default();
        Rank { sent, back, done, part, rng: Rng::new(seed) }
    }

    fn begin(&mut self, sequence: u16, data: &[u8]) -> Vec<u8> {
        let request = 0x7f00_0000_0000 + u64::from(sequence) * 0x100;
        self.sent.insert(request, data.to_vec());
        let length = data.len() as u64;
        let header = Header::Rendezvous { envelope: envelope(sequence), length, request };
        message(header, &data[..data.len().min(500)])
    }

    /// Its responses to a message from the mirror.
    fn answer(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        match read(bytes) {
            Header::Match(_) => panic!("no MATCH was sent"),
            Header::Ack { sender, receiver, offset, size } => {
                let data = self.sent.remove(&sender).expect("it is a request of this rank");
                assert_eq!((offset as usize, size), (data.len().min(500), 0));
                let rest: Vec<usize> = (offset as usize..data.len()).step_by(self.part).collect();
                let mut parts: Vec<Vec<u8>> = rest
                    .into_iter()
                    .map(|at| {
                        let end = (at + self.part).min(data.len());
                        let header = Header::Fragment { offset: at as u64, sender, receiver };
                        message(header, &data[at..end])
                    })
                    .collect();
                // Parts are sent in any order.
                for at in (1..parts.len()).rev() {
                    parts.swap(at, self.rng.within(0..at as u64 + 1) as usize);
                }
                parts
            }
            Header::Rendezvous { envelope, length, request } => {
                let begun = &bytes[header::RENDEZVOUS..];
                let mut data = vec![0; length as usize];
                data[..begun.len()].copy_from_slice(begun);
                let receiver = 0x5500_0000_0000 + u64::from(envelope.sequence) * 0x100;
                assert_eq!(envelope, Envelope { source: RANK, ..envelope });
                self.back.insert(receiver, (envelope, data, begun.len()));
                self.end(receiver);
                let offset = begun.len() as u64;
                vec![message(Header::Ack { sender: request, receiver, offset, size: 0 }, b"")]
            }
            Header::Fragment { offset, receiver, .. } => {
                let (_, data, came) =
                    self.back.get_mut(&receiver).expect("it is a request of this rank");
                let part = &bytes[header::FRAGMENT..];
                data[offset as usize..][..part.len()].copy_from_slice(part);
                *came += part.len();
                self.end(receiver);
                Vec::new()
            }
        }
    }

    fn end(&mut self, receiver: u64) {
        if self.back.get(&receiver).is_some_and(|(_, data, came)| *came == data.len())
            && let Some((envelope, data, _)) = self.back.remove(&receiver)
        {
            self.done.push((envelope.sequence, data));
        }
    }
}

/// Carries messages between a mirror and a rank until none is left.
fn carry(mirror: &mut Mirror<Vec<u8>>, budget: &mut Budget, rank: &mut Rank, first: Vec<Vec<u8>>) {
    let mut to_mirror = first;
    while !to_mirror.is_empty() {
        for bytes in to_mirror.drain(..) {
            give(mirror, budget, bytes).unwrap();
        }
        for bytes in out(mirror, budget) {
            to_mirror.extend(rank.answer(&bytes));
        }
    }
}

#[test]
fn long_message_is_returned_in_parts() {
    for (length, part) in
        [(0, 100), (1, 100), (500, 100), (501, 1000), (160_000, 9000), (1_000_000, 153_568)]
    {
        let (mut mirror, mut budget) = (Mirror::new(RANK, LIMITS), Budget::new(4 << 20));
        let mut rank = Rank::new(part, length as u64);
        let data = data(length, 3);
        let first = vec![rank.begin(9, &data)];
        carry(&mut mirror, &mut budget, &mut rank, first);
        assert!(rank.done == [(9, data)], "{length} bytes");
        assert_eq!((mirror.under_way(), budget.free()), ((0, 0), 4 << 20));
        assert_eq!((mirror.counters().rendezvous, mirror.counters().refused), (1, 0));
    }
}

#[test]
fn message_without_memory_waits() {
    // A peer may use all but a sixteenth.
    let all = (needs_of(300_000) + 4096) / 15 * 16;
    let mut budget = Budget::new(all);
    let mut mirrors = [Mirror::new(RANK, LIMITS), Mirror::new(RANK, LIMITS)];
    let mut ranks = [Rank::new(153_568, 1), Rank::new(153_568, 2)];
    let sent = [data(300_000, 1), data(200_000, 2)];
    for ((mirror, rank), data) in mirrors.iter_mut().zip(&mut ranks).zip(&sent) {
        let begins = rank.begin(1, data);
        give(mirror, &mut budget, begins).unwrap();
    }
    let [first, second] = &mut mirrors;
    assert_eq!((first.under_way(), second.under_way()), ((1, 0), (1, 1)));
    assert_eq!(second.counters().waited, 1);
    assert!(out(second, &mut budget).is_empty(), "its rest is not requested");
    let acks = out(first, &mut budget);
    let parts = acks.iter().flat_map(|ack| ranks[0].answer(ack)).collect();
    carry(first, &mut budget, &mut ranks[0], parts);
    assert_eq!(budget.free(), all);
    assert_eq!(second.admit_in_turn(&mut budget), Turn::Done);
    let acks = out(second, &mut budget);
    let parts = acks.iter().flat_map(|ack| ranks[1].answer(ack)).collect();
    carry(second, &mut budget, &mut ranks[1], parts);
    let done = ranks.map(|rank| rank.done.into_iter().map(|(_, data)| data).collect::<Vec<_>>());
    assert!(done == sent.map(|data| vec![data]));
    assert_eq!(budget.free(), all);
}

/// Memory that has to be free for a message.
fn needs_of(length: u64) -> u64 {
    (length / 4) * 7 + 7 + (256 << 10)
}

#[test]
fn invalid_part_is_refused_and_returned() {
    let (mut mirror, mut budget) = (Mirror::new(RANK, LIMITS), Budget::new(1 << 20));
    let mut refused = |bytes: Vec<u8>| match give(&mut mirror, &mut budget, bytes.clone()) {
        Err((why, back)) => {
            assert_eq!(back, bytes);
            Some(why)
        }
        Ok(()) => None,
    };
    let begin = |length, data: &[u8]| {
        let header = Header::Rendezvous { envelope: envelope(1), length, request: 5 };
        message(header, data)
    };
    assert_eq!(refused(vec![]), Some(Refused::Header(header::BadHeader::Tag(0))));
    assert_eq!(refused(begin(1 << 20, b"x")), Some(Refused::TooLong(1 << 20)));
    assert_eq!(refused(begin(u64::MAX, b"x")), Some(Refused::TooLong(u64::MAX)));
    assert_eq!(refused(begin(3, b"four")), Some(Refused::Mismatch));
    assert_eq!(refused(begin(1000, b"x")), None);
    let token = 1 << 32;
    let part = |offset, receiver, data: &[u8]| {
        message(Header::Fragment { offset, sender: 5, receiver }, data)
    };
    let ack =
        |sender, offset, size| message(Header::Ack { sender, receiver: 9, offset, size }, b"");
    for bytes in [
        part(1, token + 1, b"no such message"),
        part(1, 0, b"no such message"),
        part(0, token, b"over the beginning"),
        part(999, token, b"beyond the end"),
        part(u64::MAX, token, b"x"),
        part(1, token, b""),
        part(1, token, &[0; 1000]),
        ack(token, 1, 0),
        ack(0, 1, 0),
    ] {
        assert_eq!(refused(bytes.clone()), Some(Refused::Mismatch), "{bytes:?}");
    }
    // The complete message, and then an ACK with a wrong offset.
    assert_eq!(refused(part(1, token, &[7; 999])), None);
    assert_eq!(refused(part(1, token, b"once more")), Some(Refused::Mismatch));
    assert_eq!(refused(ack(token, 2, 0)), Some(Refused::Mismatch));
    assert_eq!(refused(ack(token, 1, 5)), Some(Refused::Mismatch));
    assert_eq!(refused(ack(token, 1, 999)), None);
    assert_eq!(refused(ack(token, 1, 999)), Some(Refused::Mismatch));
}

#[test]
fn parts_that_take_too_much_memory_end_their_message() {
    let (mut mirror, mut budget) = (Mirror::new(RANK, LIMITS), Budget::new(1 << 20));
    let mut rank = Rank::new(1000, 1);
    let begins = rank.begin(1, &data(100_000, 1));
    give(&mut mirror, &mut budget, begins).unwrap();
    out(&mut mirror, &mut budget);
    let token = 1 << 32;
    let mut ended = None;
    for n in 0..100_000u64 {
        let bytes = message(Header::Fragment { offset: 500 + n, sender: 0, receiver: token }, b"x");
        let head = bytes.clone();
        // Each short part occupies as much memory as a long one.
        if let Err((why, _)) = mirror.receive(70, &head, (33, 16 << 10), bytes, &mut budget) {
            ended = Some((n, why));
            break;
        }
    }
    let (n, why) = ended.unwrap();
    assert!(why == Refused::TooSmall && n < 64, "{n}");
    assert_eq!((budget.free(), mirror.under_way()), (1 << 20, (0, 0)));
    let mut dropped = 0;
    while let Some(out) = mirror.next_out() {
        assert!(matches!(out, Out::Drop(_)));
        dropped += 1;
    }
    assert_eq!(dropped, n + 1, "its parts and the beginning");
}

/// With random input, each message is released once, and in the end all memory is free.
#[test]
fn messages_are_released_once_with_any_input() {
    for seed in 0..3000 {
        let mut rng = Rng::new(seed);
        let limits = Limits { rendezvous: 4, parts: 6, longest: 20_000 };
        let mut budget = Budget::new(600 << 10);
        let mut mirror: Mirror<u32> = Mirror::new(RANK, limits);
        let (mut given, mut seen) = (0u32, Vec::new());
        let mut marks = Vec::new();
        for _ in 0..200 {
            let sequence = rng.within(0..4) as u16;
            let token = rng.within(1..10) << 32 | rng.within(0..4);
            let header = match rng.within(0..4) {
                0 => Header::Match(envelope(sequence)),
                1 => Header::Rendezvous {
                    envelope: envelope(sequence),
                    length: rng.within(0..3000),
                    request: 5,
                },
                2 => Header::Ack { sender: token, receiver: 1, offset: 500, size: 0 },
                _ => {
                    Header::Fragment { offset: 500 * rng.within(1..4), sender: 5, receiver: token }
                }
            };
            let mut head = header.emit().to_vec();
            if rng.chance(50) {
                head[rng.within(0..40) as usize] = rng.within(0..256) as u8;
            }
            let length = header.length() + rng.pick(&[0usize, 1, 500, 1000]);
            head.truncate(length.min(LONGEST));
            given += 1;
            let taken = mirror.receive(header.tag(), &head, (length, 1024), given, &mut budget);
            if let Err((_, back)) = taken {
                seen.push(back);
            }
            while rng.chance(400)
                && let Some(out) = mirror.next_out()
            {
                match out {
                    Out::Back(header, message, mark) if rng.chance(100) => {
                        mirror.put_back(Out::Back(header, message, mark));
                    }
                    Out::Back(_, message, mark) => {
                        seen.push(message);
                        marks.push(mark);
                    }
                    Out::Drop(message) => seen.push(message),
                    Out::Control(_) => {}
                }
            }
            if rng.chance(300)
                && let Some(mark) = marks.pop()
            {
                mirror.sent(mark, &mut budget);
            }
        }
        mirror.clear(&mut budget, |message| seen.push(message));
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(1..=given), "seed {seed}");
        assert_eq!((budget.free(), mirror.under_way()), (600 << 10, (0, 0)), "seed {seed}");
        mirror.clear(&mut budget, |_| panic!("a message is left"));
    }
}
