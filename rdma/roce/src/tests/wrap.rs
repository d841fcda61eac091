//! Requests of every kind across the wrap of the PSN: from every first PSN near it, and with each packet lost once.

use super::transport::request;
use crate::Limits;
use crate::testing::{Pair, Rng, contents};
use core::time::Duration;
use std::vec::Vec;
use verbs::{
    Access, Completion, MemoryVerbs, PathMtu, Payload, Provider, ReadyToReceive, ReadyToSend,
    RecvRequest, RemoteAddress, SendOperation, SendWith, Status,
};

/// Posts requests of 13 PSNs from PSN `first` on, and loses frame number `lost` (none if there are fewer). Returns the
/// number of frames.
fn run(first: u32, lost: usize, v6: bool) -> usize {
    // Windows that close all the time, and one that never closes.
    let unacknowledged = [1, 2, 3, 128][first as usize % 4];
    let limits = Limits { qps: 4, regions: 4, unacknowledged, ..Limits::default() };
    let mut pair = Pair::with_limits(1, 1500, v6, limits);
    let psns = [first, 5];
    for n in 0..2 {
        let remote_qpn = pair.nodes[1 - n].roce.qp_number(pair.nodes[1 - n].qp).unwrap();
        let address = pair.address(n);
        let node = &mut pair.nodes[n];
        let peer = ReadyToReceive {
            remote_qpn,
            rq_psn: psns[1 - n],
            path_mtu: PathMtu::Mtu256,
            address,
            max_dest_rd_atomic: 2,
            min_rnr_timer: 1,
        };
        node.roce.ready_to_receive(node.qp, &peer).unwrap();
        let to = ReadyToSend { sq_psn: psns[n], ack_timeout: 8, max_rd_atomic: 2, ..Pair::LINUX };
        node.roce.ready_to_send(node.qp, &to).unwrap();
    }
    let [a, b] = &mut pair.nodes;
    let theirs = b.arena.alloc(4096, 64).unwrap();
    theirs.fill(0);
    let into = b.arena.alloc(1024, 64).unwrap();
    b.roce.post_recv(b.qp, &RecvRequest { id: 9, into: &[into] }).unwrap();
    let region = b.roce.register(b.pd, theirs, Access::all(), &mut Rng::new(1)).unwrap();
    let at = |offset| RemoteAddress { address: region.address + offset, rkey: region.rkey };
    let from = a.arena.alloc(1024, 64).unwrap();
    let bytes: Vec<u8> = (0..1024).map(|n| (n * 7 / 3) as u8).collect();
    from.write(0, &bytes).unwrap();
    let back = a.arena.alloc(1024, 64).unwrap();
    back.fill(0);
    let was = a.arena.alloc(64, 64).unwrap().slice(0, 8).unwrap();
    let source = [from.slice(0, 1000).unwrap()];
    let target = [back.slice(0, 1000).unwrap()];
    let payload = Payload::Windows(&source);
    let operations = [
        SendOperation::Send { payload, with: SendWith::Immediate(3) },
        SendOperation::Write { payload, to: at(0), immediate: None },
        SendOperation::Read { into: &target, from: at(0) },
        SendOperation::FetchAdd { into: was, at: at(2048), add: 5 },
    ];
    for (id, operation) in operations.into_iter().enumerate() {
        a.roce.post_send(a.qp, &request(id as u64, operation)).unwrap();
    }
    let mut ended: Vec<Completion> = Vec::new();
    pair.network.lose = Some(lost as u64);
    let done = pair.run(Duration::from_secs(1), |pair| {
        ended.extend(pair.nodes[0].completions());
        ended.len() == 4
    });
    let name = std::format!("first PSN {first:#x}, frame {lost} lost");
    assert!(done && ended.iter().all(|c| c.status == Status::Success), "{name}: {ended:?}");
    assert_eq!(contents(&into)[..1000], bytes[..1000], "{name}");
    assert_eq!(contents(&theirs)[..1000], bytes[..1000], "{name}");
    assert_eq!(contents(&back)[..1000], bytes[..1000], "{name}");
    assert_eq!(contents(&theirs)[2048..2056], 5u64.to_ne_bytes(), "{name}: added once");
    assert_eq!(pair.nodes[1].completions().len(), 1, "{name}: delivered once");
    pair.network.sent() as usize
}

#[test]
fn requests_survive_the_psn_wrap_and_any_lost_frame() {
    for first in 0x100_0000 - 16..0x100_0000 + 2 {
        let frames = run(first & 0xff_ffff, usize::MAX, false);
        assert!(frames > 14, "{frames} frames");
        for lost in 0..frames {
            netsim::label!(first, lost);
            run(first & 0xff_ffff, lost, first % 2 == 0);
        }
    }
}
