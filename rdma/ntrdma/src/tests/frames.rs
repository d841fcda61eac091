//! Tests of Ethernet frames across the bridge.

use crate::layout::{FRAMES_CONSUMED, FRAMES_PRODUCED};
use crate::testing::{FRAMES, Pair, SMALL, Way};
use crate::{Ntrdma, State};
use core::time::Duration;
use drivers::hal::TransmitError;
use drivers::ntb::Ntb;
use rand_core::Rng;
use std::collections::VecDeque;
use std::vec::Vec;

/// Frames of every length, in both directions, on a bridge that reorders: each arrives once, complete and in
/// order, also when the rings wrap.
#[test]
fn frames_arrive_as_they_were_sent() {
    for seed in 0..4 {
        let way = [Way::Posted, Way::Stream][seed as usize % 2];
        let mut pair = Pair::new(seed, SMALL, way);
        pair.bring_up();
        let mut sent: [VecDeque<Vec<u8>>; 2] = Default::default();
        let (mut count, mut full) = (0, 0);
        let mut into = Vec::new();
        for round in 0..6000u32 {
            for n in 0..2 {
                let node = &mut pair.nodes[n];
                if round < 5000 && pair.rng.next_u32().is_multiple_of(2) {
                    let len = pair.rng.next_u32() as usize % (FRAMES as usize / 2 - 8);
                    let mut frame = std::vec![0; len];
                    pair.rng.fill_bytes(&mut frame);
                    match node.ntrdma.transmit_frame(&mut node.bridge, &frame) {
                        Ok(()) => sent[n].push_back(frame),
                        Err(TransmitError::Full) => full += 1,
                        Err(TransmitError::TooLarge) => panic!("{len} bytes fit"),
                    }
                }
                while pair.nodes[n].ntrdma.receive_frame(&mut into) {
                    assert!(sent[1 - n].pop_front().as_ref() == Some(&into), "round {round}");
                    count += 1;
                }
            }
            pair.step();
        }
        assert!(sent.iter().all(VecDeque::is_empty), "frames are lost");
        assert!(count > 200 && full > 200, "{count} arrived, {full} times full");
        let node = &mut pair.nodes[0];
        let long = std::vec![0; FRAMES as usize / 2];
        let refused = node.ntrdma.transmit_frame(&mut node.bridge, &long);
        assert_eq!(refused, Err(TransmitError::TooLarge));
    }
}

#[test]
fn frames_without_a_link_are_dropped() {
    let mut pair = Pair::new(1, SMALL, Way::Posted);
    let mut into = Vec::new();
    for up in [false, true, false, true] {
        if up {
            pair.nodes.iter_mut().for_each(|node| node.bridge.set_link(true));
            pair.bring_up();
        } else {
            pair.nodes.iter_mut().for_each(|node| node.bridge.set_link(false));
            pair.step();
        }
        let node = &mut pair.nodes[0];
        assert_eq!(node.ntrdma.link() == State::Up, up);
        node.ntrdma.transmit_frame(&mut node.bridge, b"frame").unwrap();
        let arrives = |pair: &mut Pair| pair.nodes[1].ntrdma.receive_frame(&mut Vec::new());
        let mut arrived = false;
        for _ in 0..200 {
            pair.step();
            arrived |= arrives(&mut pair);
        }
        assert_eq!(arrived, up);
        assert!(!pair.nodes[1].ntrdma.receive_frame(&mut into));
    }
    assert_eq!(pair.nodes[0].ntrdma.counters().frames_lost, 2);
}

/// Invalid writes of a malicious peer to ring and bells take down the link, with no other effect.
#[test]
fn invalid_lengths_are_detected_before_a_frame_is_read() {
    let lengths = [u64::MAX, 65_536, u64::from(FRAMES), 1 << 32];
    let bells = [1, 7, 12, FRAMES + 8, u32::MAX, 1 << 31];
    let violations = |ntrdma: &Ntrdma| ntrdma.counters().violations;
    for (bell, length) in bells.map(|b| (b, 0)).into_iter().chain(lengths.map(|l| (64, l))) {
        let mut pair = Pair::new(1, SMALL, Way::Posted);
        pair.bring_up();
        let victim = &mut pair.nodes[0];
        let exposed = victim.bridge.exposed();
        exposed.store_words(SMALL.size(), &[length]);
        exposed.store32(FRAMES_PRODUCED, bell);
        assert!(!victim.ntrdma.receive_frame(&mut Vec::new()), "{bell} {length}");
        assert_eq!(violations(&victim.ntrdma), 1, "{bell} {length}");
        let down = |pair: &mut Pair| pair.nodes[0].ntrdma.link() != State::Up;
        assert!(pair.run(Duration::from_secs(1), down));
        pair.bring_up();
    }
    let mut pair = Pair::new(1, SMALL, Way::Posted);
    pair.bring_up();
    let victim = &mut pair.nodes[0];
    victim.bridge.exposed().store32(FRAMES_CONSUMED, 8);
    victim.ntrdma.transmit_frame(&mut victim.bridge, b"frame").unwrap();
    assert_eq!(violations(&victim.ntrdma), 1);
}
