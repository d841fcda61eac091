//! Packets with the expected headers take a shorter path, with the same outcome.

use super::arbitrary::seal;
use super::transport::request;
use crate::testing::{Pair, Rng, frame};
use crate::{TxBuffer, Verdict};
use std::format;
use std::string::String;
use std::vec::Vec;
use verbs::{
    Access, MemoryVerbs, PathMtu, Payload, Provider, RecvRequest, RemoteAddress, SendOperation,
};

/// Offset of the IPv4 header.
const IP: usize = 14;
/// Bytes before the extended headers.
pub const LEN: usize = 54;

/// Two nodes, and the frames of a WRITE with immediate from one to the other, whose header prediction may be off.
pub fn world(predicts: bool) -> (Pair, Vec<Vec<u8>>) {
    let mut pair = Pair::new(5, 1500, false);
    pair.connect(PathMtu::Mtu256, Pair::LINUX);
    let [a, b] = &mut pair.nodes;
    let (from, into) = (a.arena.alloc(4096, 64).unwrap(), b.arena.alloc(4096, 64).unwrap());
    let from = from.slice(0, 1000).unwrap();
    let region = b.roce.register(b.pd, into, Access::REMOTE_WRITE, &mut Rng::new(1)).unwrap();
    b.roce.post_recv(b.qp, &RecvRequest { id: 1, into: &[into] }).unwrap();
    let to = RemoteAddress { address: region.address, rkey: region.rkey };
    let payload = Payload::Windows(&[from]);
    let write = SendOperation::Write { payload, to, immediate: Some(7) };
    a.roce.post_send(a.qp, &request(1, write)).unwrap();
    let mut tx = TxBuffer::new();
    let mut frames = Vec::new();
    while a.roce.poll_transmit(0, pair.network.now, &mut tx) {
        frames.push(frame(&tx));
    }
    let qp = b.roce.qps.get_mut(b.qp.0).unwrap();
    assert!(qp.expected.is_some());
    qp.expected = qp.expected.filter(|_| predicts);
    (pair, frames)
}

/// Outcome of frame `n` of the WRITE after `change`, and of its other frames.
fn outcome(predicts: bool, n: usize, change: impl Fn(&mut Vec<u8>)) -> (Verdict, String) {
    let (mut pair, mut frames) = world(predicts);
    change(&mut frames[n]);
    let mut verdict = Verdict::NotRoce;
    for (i, frame) in frames.iter().enumerate() {
        let taken = pair.deliver(1, frame);
        if i == n {
            verdict = taken;
        }
    }
    let now = pair.network.now;
    let node = &mut pair.nodes[1];
    let mut answers = Vec::new();
    while node.roce.poll_transmit(0, now, &mut node.tx) {
        answers.push(frame(&node.tx));
    }
    let completions = node.completions();
    let seen = node.roce.qps.get_mut(node.qp.0).unwrap().responder.requests_seen();
    let counters = node.roce.counters();
    (verdict, format!("{answers:x?} {completions:?} {seen} {counters:?}"))
}

#[test]
fn changed_bit_has_the_same_outcome_without_prediction() {
    for n in 0..4 {
        for bit in 0..8 * (LEN + 8) {
            for sealed in [false, true] {
                netsim::label!(n, bit, sealed);
                let change = |frame: &mut Vec<u8>| {
                    frame[bit / 8] ^= 1 << (bit % 8);
                    if sealed {
                        set_checksum(frame);
                        seal(frame);
                    }
                };
                let (short, long) = (outcome(true, n, change), outcome(false, n, change));
                assert_eq!(short, long, "frame {n}, bit {bit}, sealed {sealed}");
            }
        }
    }
}

#[test]
fn frame_of_any_length_has_the_same_outcome_without_prediction() {
    for n in 0..4 {
        for len in 0..70 {
            netsim::label!(n, len);
            let cut = |frame: &mut Vec<u8>| frame.truncate(len);
            assert_eq!(outcome(true, n, cut), outcome(false, n, cut), "frame {n} of {len} bytes");
        }
        let padded = |frame: &mut Vec<u8>| frame.extend([0; 7]);
        assert_eq!(outcome(true, n, padded), outcome(false, n, padded), "frame {n}, padded");
    }
}

#[test]
fn variable_fields_do_not_affect_prediction() {
    let (mut pair, frames) = world(true);
    let node = &mut pair.nodes[1];
    let expected = node.roce.qps.get_mut(node.qp.0).unwrap().expected.unwrap();
    for frame in frames {
        assert!(expected.matches(&frame).is_some());
        let mut foreign = frame.clone();
        foreign[6] ^= 0x80;
        assert!(expected.matches(&foreign).is_none(), "another station");
        // Type of service, identification, time to live, source port, ACK request, PSN.
        for at in [15, 18, 22, 34, LEN - 4, LEN - 2] {
            let mut other = frame.clone();
            other[at] ^= 0x80;
            set_checksum(&mut other);
            assert!(expected.matches(&other).is_some(), "byte {at}");
        }
    }
}

/// Corrects the checksum of the IPv4 header.
fn set_checksum(frame: &mut [u8]) {
    frame[IP + 10..IP + 12].fill(0);
    let words = frame[IP..IP + 20].chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1]));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[IP + 10..IP + 12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}
