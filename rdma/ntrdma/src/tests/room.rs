//! Tests with a bridge that has no room for a while: no request is lost, and no write is submitted without
//! room.

use super::verbs::request;
use crate::Layout;
use crate::testing::{Pair, Way};
use core::time::Duration;
use drivers::dma::Dma;
use netsim::contents;
use std::vec::Vec;
use verbs::{Access, MemoryVerbs, Payload, Provider, RemoteAddress, SendOperation, Status};

const MIB: usize = 1 << 20;

/// Both nodes read and write at once, and one of them receives slowly for a while.
#[test]
fn full_stream_delays_requests_without_loss() {
    let layout = Layout { qps: 4, ring: 64, staging: 256 << 10, landing: 4 << 20 };
    let mut pair = Pair::new(1, layout, Way::Stream);
    pair.connect();
    let parts = [0, 1].map(|n| [(); 3].map(|()| pair.memory(n, MIB)));
    let mut granted = Vec::new();
    for (node, [source, into, sink]) in pair.nodes.iter_mut().zip(parts) {
        for (byte, window) in [(1, source), (2, into), (3, sink)] {
            window.fill(byte);
        }
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        for window in [source, into] {
            let region = node.ntrdma.register(node.pd, window, access, &mut pair.rng).unwrap();
            granted.push(RemoteAddress { address: region.address, rkey: region.rkey });
        }
    }
    for (n, node) in pair.nodes.iter_mut().enumerate() {
        let [source, _, sink] = parts[n];
        let [from, to] = [granted[2 * (1 - n)], granted[2 * (1 - n) + 1]];
        for id in 0..8 {
            let read = SendOperation::Read { into: &[sink], from };
            node.ntrdma.post_send(node.qp, &request(id, read)).unwrap();
        }
        for id in 0..8 {
            let payload = Payload::Windows(&[source]);
            let write = SendOperation::Write { payload, to, immediate: None };
            node.ntrdma.post_send(node.qp, &request(id + 10, write)).unwrap();
        }
    }
    let mut stalled = 0;
    for _ in 0..300 {
        // Shorter than the link's timeout.
        pair.now = pair.now + Duration::from_micros(50);
        for node in &mut pair.nodes {
            node.ntrdma.poll(&mut node.bridge, pair.now);
        }
        pair.nodes[0].bridge.deliver(1000);
        pair.nodes[1].bridge.deliver(8);
        stalled += usize::from(!pair.nodes[0].bridge.has_room());
    }
    assert!(stalled > 100, "{stalled}");
    let mut ended = [0; 2];
    let done = (0..200_000).any(|_| {
        pair.step();
        // Deliver many more writes at a time than other tests do.
        pair.nodes.iter_mut().for_each(|node| node.bridge.deliver(100));
        for (node, ended) in pair.nodes.iter_mut().zip(&mut ended) {
            for completion in node.completions() {
                assert_eq!(completion.status, Status::Success);
                *ended += 1;
            }
        }
        ended == [16, 16]
    });
    assert!(done, "{ended:?}");
    for (n, node) in pair.nodes.iter().enumerate() {
        assert!(contents(&parts[n][1]) == [1; MIB] && contents(&parts[n][2]) == [1; MIB]);
        let counters = node.ntrdma.counters();
        assert_eq!((counters.link_down, counters.violations), (0, 0));
    }
}
