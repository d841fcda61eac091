//! Tests with a peer that writes random data to exposed memory during traffic: outside of it only
//! granted memory changes, nothing panics, and the link comes up again when the peer stops.

use super::connections::PARAMETERS;
use super::verbs::request;
use crate::testing::{Pair, SMALL, Way};
use crate::{BadInfo, Config, Layout, Ntrdma, State};
use core::net::SocketAddr;
use core::time::Duration;
use drivers::ntb::Ntb;
use netsim::contents;
use rand_core::Rng;
use verbs::{
    Access, ConnectionManager, MemoryVerbs, Payload, Provider, RecvRequest, RemoteAddress,
    SendOperation,
};

/// Writes random data from node 1 to node 0's memory: noise, small and large numbers, or copies of
/// other words in it, so that much of it is almost valid.
fn scribble(pair: &mut Pair, places: u64) {
    let exposed = pair.nodes[0].bridge.exposed();
    let end = SMALL.size() as u64;
    for _ in 0..places {
        let rng = &mut pair.rng;
        // Often at the indices.
        let limit = rng.pick(&[0x200, 0x200, 0x3000, end]);
        let at = (rng.within(0..limit) / 4 * 4) as usize;
        let value = match rng.within(0..5) {
            0 => rng.next_u32(),
            1 => rng.within(0..20) as u32,
            2 => u32::MAX - rng.within(0..20) as u32,
            3 => exposed.load32(at).wrapping_add(rng.within(0..4) as u32),
            _ => exposed.load32((rng.within(0..end) / 4 * 4) as usize),
        };
        exposed.store32(at, value);
    }
}

#[test]
fn random_writes_of_a_peer_have_no_other_effect() {
    let mut violations = 0;
    for seed in 0..16 {
        let mut pair = Pair::new(seed, SMALL, Way::Posted);
        pair.nodes[0].memory.fill(0xa5);
        pair.nodes[0].ntrdma.listen(1).unwrap();
        pair.connect();
        let [a, b] = &mut pair.nodes;
        let granted = a.arena.alloc(8192, 4096).unwrap();
        let into = a.arena.alloc(4096, 4096).unwrap();
        let from = b.arena.alloc(8192, 4096).unwrap();
        let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let region = a.ntrdma.register(a.pd, granted, all, &mut pair.rng).unwrap();
        let to = RemoteAddress { address: region.address, rkey: region.rkey };
        for step in 0..2000 {
            let now = pair.now;
            let [a, b] = &mut pair.nodes;
            let _ = a.ntrdma.post_recv(a.qp, &RecvRequest { id: 1, into: &[into] });
            let payload = Payload::Windows(&[from]);
            let write = SendOperation::Write { payload, to, immediate: Some(1) };
            let _ = b.ntrdma.post_send(b.qp, &request(1, write));
            let read = SendOperation::Read { into: &[into], from: to };
            let _ = a.ntrdma.post_send(a.qp, &request(2, read));
            for node in [a, b] {
                node.completions();
                while node.ntrdma.poll_connection_event().is_some() {}
                while node.ntrdma.poll_event().is_some() {}
            }
            if step % 20 == 19 {
                // A failed queue pair is replaced by another, which is connected.
                let a = &mut pair.nodes[0];
                a.ntrdma.destroy_qp(a.qp).unwrap();
                let init = Pair::init(a.pd, a.cq);
                if let Ok(qp) = a.ntrdma.create_qp(&init, &mut pair.rng) {
                    a.qp = qp;
                    let to = SocketAddr::new(Pair::address(2), 1);
                    let from = Pair::address(1);
                    let rng = &mut pair.rng;
                    let _ = a.ntrdma.connect(qp, from, to, &PARAMETERS, &[], now, rng);
                }
            }
            scribble(&mut pair, 1 + seed % 7);
            pair.step();
        }
        violations += pair.nodes[0].ntrdma.counters().violations;
        let bytes = contents(&pair.nodes[0].memory);
        let start = (granted.bus_address() - pair.nodes[0].memory.bus_address()) as usize;
        let may_change = start..start + 8192 + 4096;
        for (at, byte) in bytes.iter().enumerate() {
            assert!(*byte == 0xa5 || may_change.contains(&at), "byte {at} changed, seed {seed}");
        }
        // The peer stops, and restarts.
        let exposed = pair.nodes[1].bridge.exposed();
        let config = Pair::config(2, SMALL);
        pair.nodes[1].bridge.power_off();
        pair.nodes[1].ntrdma = Ntrdma::new(config, exposed, &mut pair.rng).unwrap();
        pair.run(Duration::from_secs(1), |_| false);
        pair.bring_up();
    }
    assert!(violations > 10, "only {violations} violations were detected");
}

#[test]
fn invalid_introduction_is_reported() {
    let mut pair = Pair::new(1, SMALL, Way::Posted);
    // A layout that exceeds the exposed memory.
    let huge = Layout { qps: 4096, ..SMALL };
    let exposed = pair.nodes[1].bridge.exposed();
    let refused = Ntrdma::new(Pair::config(2, huge), exposed, &mut pair.rng);
    assert!(refused.is_err(), "it does not fit into the node's own memory");
    let invalid = Config { layout: Layout { ring: 3, ..SMALL }, ..Pair::config(2, SMALL) };
    assert!(Ntrdma::new(invalid, exposed, &mut pair.rng).is_err());
    // A peer that forges its introduction each time before it is read.
    pair.run(Duration::from_secs(1), |pair| {
        let exposed = pair.nodes[0].bridge.exposed();
        if pair.nodes[0].ntrdma.link() == State::Introducing {
            exposed.store32(24, 4000);
        }
        false
    });
    assert_eq!(pair.nodes[0].ntrdma.refused(), Some(BadInfo::Layout));
    assert_ne!(pair.nodes[0].ntrdma.link(), State::Up);
    pair.bring_up();
    assert_eq!(pair.nodes[0].ntrdma.refused(), None);
}

/// The scratchpads of both sides are overwritten during bring-up, in any state: bring-up still
/// completes, without a restart.
#[test]
fn bring_up_completes_after_scratchpads_are_overwritten() {
    for seed in 0..24 {
        let mut pair = Pair::new(seed, SMALL, Way::Posted);
        let state = [State::Greeting, State::Clearing, State::Introducing][seed as usize % 3];
        let reached = |pair: &mut Pair| pair.nodes[0].ntrdma.link() == state;
        assert!(pair.run(Duration::from_secs(1), reached));
        for node in &mut pair.nodes {
            // All scratchpads, or all but one.
            for pad in (0..3).filter(|&pad| pad as u64 != seed / 3 % 4) {
                node.bridge.set_peer_scratchpad(pad, pair.rng.next_u32());
            }
            node.bridge.deliver(1000);
        }
        for node in &mut pair.nodes {
            node.bridge.exposed().slice(0, 0x200).unwrap().fill(seed as u8);
        }
        let up = pair.run(Duration::from_secs(5), |pair| {
            pair.nodes.iter().all(|node| node.ntrdma.link() == State::Up)
        });
        assert!(up, "seed {seed}: {:?}", pair.nodes.each_ref().map(|node| node.ntrdma.link()));
    }
}
