//! Tests with an engine that copies payload and reads it late: memory of requests is not released before.

use super::verbs::request;
use crate::State;
use crate::testing::{Pair, SMALL, Way};
use core::time::Duration;
use drivers::hal::Window;
use netsim::contents;
use std::vec::Vec;
use verbs::{Access, MemoryVerbs, Payload, Provider, RemoteAddress, SendOperation, Status};

const SECRET: u8 = 0x5e;
const LEN: usize = 4096;

/// A pair whose node 0 has posted a WRITE that was submitted to its engine and not copied yet, and its source.
fn posted(seed: u64) -> (Pair, Window) {
    let mut pair = Pair::new(seed, SMALL, Way::Engine);
    pair.connect();
    let (from, into) = (pair.memory(0, LEN), pair.memory(1, LEN));
    from.fill(7);
    let [a, b] = &mut pair.nodes;
    let region = b.ntrdma.register(b.pd, into, Access::REMOTE_WRITE, &mut pair.rng).unwrap();
    let to = RemoteAddress { address: region.address, rkey: region.rkey };
    while a.bridge.under_way() > 0 {
        a.bridge.deliver(100);
    }
    let operation =
        SendOperation::Write { payload: Payload::Windows(&[from]), to, immediate: None };
    a.ntrdma.post_send(a.qp, &request(1, operation)).unwrap();
    assert!(a.ntrdma.poll(&mut a.bridge, pair.now), "a busy engine needs further polls");
    (pair, from)
}

/// Polls only node 0, and delivers one write at a time, until `done`.
fn until(pair: &mut Pair, mut done: impl FnMut(&mut Pair) -> bool) {
    for _ in 0..1000 {
        if done(pair) {
            return;
        }
        let [a, _] = &mut pair.nodes;
        a.bridge.deliver(1);
        a.ntrdma.poll(&mut a.bridge, pair.now);
    }
    panic!("the condition is never met");
}

fn leaks(pair: &mut Pair) -> bool {
    let [a, b] = &mut pair.nodes;
    a.bridge.deliver(usize::MAX);
    contents(&b.ntrdma.exposed).windows(64).any(|bytes| bytes == [SECRET; 64])
}

#[test]
fn failed_request_ends_when_its_payload_is_not_read_any_more() {
    for seed in 0..20 {
        let (mut pair, from) = posted(seed);
        let [a, _] = &mut pair.nodes;
        a.ntrdma.fail_qp(a.qp).unwrap();
        let mut ended = Vec::new();
        until(&mut pair, |pair| {
            ended.extend(pair.nodes[0].completions());
            !ended.is_empty()
        });
        assert_eq!((ended.len(), ended[0].status), (1, Status::Flushed));
        from.fill(SECRET);
        assert!(!leaks(&mut pair), "seed {seed}");
    }
}

#[test]
fn memory_counts_as_in_use_while_it_may_be_read() {
    for seed in 0..20 {
        let (mut pair, from) = posted(seed);
        let [a, _] = &mut pair.nodes;
        let mut under_way = a.ntrdma.under_way();
        a.ntrdma.destroy_qp(a.qp).unwrap();
        assert!(!a.ntrdma.is_done(&mut under_way), "seed {seed}");
        until(&mut pair, |pair| pair.nodes[0].ntrdma.is_done(&mut under_way));
        from.fill(SECRET);
        assert!(!leaks(&mut pair), "seed {seed}");
    }
}

#[test]
fn engine_failure_takes_the_link_down() {
    let (mut pair, _) = posted(1);
    pair.nodes[0].bridge.lose_engine();
    let down = |pair: &mut Pair| pair.nodes[0].ntrdma.link() != State::Up;
    assert!(pair.run(Duration::from_millis(1), down));
    assert_eq!(pair.nodes[0].ntrdma.counters().engines_lost, 1);
    let ended = |pair: &mut Pair| !pair.nodes[0].completions().is_empty();
    assert!(pair.run(Duration::from_millis(1), ended));
    pair.bring_up();
}
