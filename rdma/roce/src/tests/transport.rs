//! Verbs without faults.

use crate::testing::{Pair, Rng, contents, frame};
use core::time::Duration;
use drivers::hal::Window;
use rand_core::Rng as _;
use std::vec::Vec;
use verbs::{
    Access, CompletedOperation, Completion, DatagramTo, MemoryVerbs, PathMtu, Payload, Provider,
    QpInit, QpType, ReadyToReceive, RecvRequest, RemoteAddress, SendOperation, SendRequest,
    SendWith, Status,
};

const SECOND: Duration = Duration::from_secs(1);

/// A signaled request.
pub fn request(id: u64, operation: SendOperation<'_>) -> SendRequest<'_> {
    SendRequest {
        id,
        operation,
        signaled: true,
        solicited: false,
        datagram: None,
        carries: None,
        ack_lazily: false,
    }
}

fn fill(window: &Window, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = std::vec![0; window.len()];
    rng.fill_bytes(&mut bytes);
    window.write(0, &bytes).unwrap();
    bytes
}

fn connected(mtu: PathMtu, v6: bool) -> Pair {
    let mut pair = Pair::new(7, mtu.bytes() + 96, v6);
    pair.connect(mtu, Pair::LINUX);
    pair
}

#[test]
fn send_with_every_suffix_and_size() {
    for (mtu, v6) in [(PathMtu::Mtu256, false), (PathMtu::Mtu1024, true), (PathMtu::Mtu4096, false)]
    {
        for size in [0, 1, 255, 256, 257, 1024, 4096, 4097, 20_001] {
            for suffix in 0..3 {
                netsim::label!(mtu, v6, size, suffix);
                let mut pair = connected(mtu, v6);
                let mut rng = Rng::new(size as u64);
                let [a, b] = &mut pair.nodes;
                let from = a.arena.alloc(size, 64).unwrap().slice(0, size).unwrap();
                let sent = fill(&from, &mut rng);
                let into = b.arena.alloc(size, 64).unwrap().slice(0, size).unwrap();
                let granted = b.arena.alloc(64, 64).unwrap();
                let access = Access::REMOTE_WRITE;
                let region = b.roce.register(b.pd, granted, access, &mut rng).unwrap();
                let with = [
                    SendWith::Nothing,
                    SendWith::Immediate(0x0102_0304),
                    SendWith::Invalidate(region.rkey),
                ][suffix];
                let halves = [
                    from.slice(0, size / 2).unwrap(),
                    from.slice(size / 2, size - size / 2).unwrap(),
                ];
                b.roce.post_recv(b.qp, &RecvRequest { id: 5, into: &[into] }).unwrap();
                let payload = Payload::Windows(&halves);
                let operation = SendOperation::Send { payload, with };
                a.roce.post_send(a.qp, &request(9, operation)).unwrap();
                assert!(!pair.run(SECOND, |_| false), "the network must become idle");
                let [a, b] = &mut pair.nodes;
                let done = a.completions();
                assert_eq!((done.len(), done[0].id, done[0].status), (1, 9, Status::Success));
                let got = b.completions();
                assert_eq!(
                    (got.len(), got[0].id, got[0].operation),
                    (1, 5, CompletedOperation::Recv { length: size as u32, with })
                );
                assert_eq!(contents(&into), sent);
                let alive = RemoteAddress { address: region.address, rkey: region.rkey };
                assert_eq!(b.roce.check(b.pd, access, alive, 1).is_ok(), suffix != 2);
                assert_eq!(a.roce.counters().retries + b.roce.counters().retries, 0);
                assert_eq!(b.roce.counters().dropped, Default::default());
            }
        }
    }
}

#[test]
fn write_and_read_access_exactly_their_range() {
    for size in [0usize, 1, 1023, 1024, 1025, 9000] {
        let mut pair = connected(PathMtu::Mtu1024, false);
        let mut rng = Rng::new(3);
        let [a, b] = &mut pair.nodes;
        let from = a.arena.alloc(size, 64).unwrap().slice(0, size).unwrap();
        let sent = fill(&from, &mut rng);
        let back = a.arena.alloc(size, 64).unwrap().slice(0, size).unwrap();
        let memory = b.arena.alloc(size + 200, 64).unwrap();
        memory.fill(0xee);
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = b.roce.register(b.pd, memory, access, &mut rng).unwrap();
        let to = RemoteAddress { address: region.address + 100, rkey: region.rkey };
        b.roce.post_recv(b.qp, &RecvRequest { id: 5, into: &[] }).unwrap();
        let payload = Payload::Windows(&[from]);
        let write = SendOperation::Write { payload, to, immediate: Some(77) };
        a.roce.post_send(a.qp, &request(1, write)).unwrap();
        let read = SendOperation::Read { into: &[back], from: to };
        a.roce.post_send(a.qp, &request(2, read)).unwrap();
        let inline = SendOperation::Write {
            payload: Payload::Inline(&[1, 2, 3]),
            to: RemoteAddress { address: region.address, ..to },
            immediate: None,
        };
        a.roce.post_send(a.qp, &request(3, inline)).unwrap();
        assert!(!pair.run(SECOND, |_| false));
        let [a, b] = &mut pair.nodes;
        let ids: Vec<(u64, Status)> = a.completions().iter().map(|c| (c.id, c.status)).collect();
        assert_eq!(ids, [1, 2, 3].map(|id| (id, Status::Success)));
        assert_eq!(contents(&back), sent);
        let all = contents(&memory);
        assert_eq!(&all[..4], [1, 2, 3, 0xee]);
        assert!(all[4..100].iter().chain(&all[100 + size..]).all(|&b| b == 0xee));
        let length = size as u32;
        assert!(matches!(b.completions()[..], [Completion {
            operation: CompletedOperation::RecvWriteImmediate { length: l, immediate: 77 }, ..
        }] if l == length));
    }
}

/// Packets of one message after the other, each built on its own if `each_anew`, otherwise from the packet before it.
fn packets(each_anew: bool) -> Vec<Vec<u8>> {
    let mut pair = connected(PathMtu::Mtu1024, false);
    let mut rng = Rng::new(3);
    let [a, b] = &mut pair.nodes;
    let from = a.arena.alloc(8192, 64).unwrap();
    fill(&from, &mut rng);
    let memory = b.arena.alloc(8192, 64).unwrap();
    let region = b.roce.register(b.pd, memory, Access::REMOTE_WRITE, &mut rng).unwrap();
    let to = RemoteAddress { address: region.address, rkey: region.rkey };
    for (id, size) in [1, 1024, 1028, 2048, 3000, 4096, 4096].into_iter().enumerate() {
        let windows = [from.slice(0, size).unwrap()];
        let payload = || Payload::Windows(&windows);
        let operations = [
            SendOperation::Write { payload: payload(), to, immediate: None },
            SendOperation::Send { payload: payload(), with: SendWith::Nothing },
            SendOperation::Write { payload: payload(), to, immediate: Some(7) },
            SendOperation::Send { payload: payload(), with: SendWith::Immediate(8) },
        ];
        for operation in operations {
            let solicited = id % 2 == 0;
            let request = SendRequest { solicited, ..request(id as u64, operation) };
            a.roce.post_send(a.qp, &request).unwrap();
        }
    }
    let now = pair.network.now;
    let mut next = || {
        if each_anew {
            a.tx.continues = None;
        }
        a.roce.poll_transmit(0, now, &mut a.tx).then(|| frame(&a.tx))
    };
    let all = core::iter::from_fn(&mut next).collect();
    assert_eq!(a.roce.counters().retries, 0);
    all
}

#[test]
fn packets_that_continue_a_message_are_as_if_built_anew() {
    let all = packets(false);
    assert_eq!(all.len(), 4 * (1 + 1 + 2 + 2 + 3 + 4 + 4));
    assert_eq!(all, packets(true));
}

#[test]
fn atomics_act_on_eight_bytes() {
    let mut pair = connected(PathMtu::Mtu1024, false);
    let mut rng = Rng::new(3);
    let [a, b] = &mut pair.nodes;
    let memory = b.arena.alloc(64, 64).unwrap();
    memory.write(8, &40u64.to_ne_bytes()).unwrap();
    let region = b.roce.register(b.pd, memory, Access::REMOTE_ATOMIC, &mut rng).unwrap();
    let at = RemoteAddress { address: region.address + 8, rkey: region.rkey };
    let old: Vec<Window> =
        (0..3).map(|_| a.arena.alloc(8, 8).unwrap().slice(0, 8).unwrap()).collect();
    let operations = [
        SendOperation::FetchAdd { into: old[0], at, add: 2 },
        SendOperation::CompareSwap { into: old[1], at, compare: 42, swap: 50 },
        SendOperation::CompareSwap { into: old[2], at, compare: 42, swap: 60 },
    ];
    for (id, operation) in operations.into_iter().enumerate() {
        a.roce.post_send(a.qp, &request(id as u64, operation)).unwrap();
    }
    assert!(!pair.run(SECOND, |_| false));
    assert_eq!(pair.nodes[0].completions().len(), 3);
    let value = |w: &Window| u64::from_ne_bytes(contents(w)[..8].try_into().unwrap());
    assert_eq!(old.iter().map(value).collect::<Vec<_>>(), [40, 42, 50]);
    assert_eq!(value(&memory.slice(8, 8).unwrap()), 50);
}

#[test]
fn send_waits_for_a_late_receive() {
    let mut pair = connected(PathMtu::Mtu1024, false);
    let a = &mut pair.nodes[0];
    let operation =
        SendOperation::Send { payload: Payload::Inline(b"hello"), with: SendWith::Nothing };
    a.roce.post_send(a.qp, &request(1, operation)).unwrap();
    assert!(!pair.run(Duration::from_millis(20), |_| false));
    assert!(pair.nodes[1].roce.counters().naks_sent.receiver_not_ready > 10);
    let b = &mut pair.nodes[1];
    let into = b.arena.alloc(64, 64).unwrap();
    b.roce.post_recv(b.qp, &RecvRequest { id: 5, into: &[into] }).unwrap();
    assert!(pair.run(SECOND, |pair| !pair.nodes[0].completions().is_empty()));
    assert_eq!(&contents(&into)[..5], b"hello");
}

/// A burst of 128 packets on each of 64 queue pairs arrives completely.
#[test]
fn bursts_on_many_queue_pairs_are_not_dropped() {
    let mut pair = Pair::new(1, 1500, false);
    let mut rng = Rng::new(2);
    let mut qps = std::vec![(pair.nodes[0].qp, pair.nodes[1].qp)];
    for _ in 1..64 {
        let [x, y] = &mut pair.nodes;
        let a = x.roce.create_qp(&Pair::init(x.pd, x.cq), &mut rng).unwrap();
        let b = y.roce.create_qp(&Pair::init(y.pd, y.cq), &mut rng).unwrap();
        qps.push((a, b));
    }
    for &(a, b) in &qps {
        (pair.nodes[0].qp, pair.nodes[1].qp) = (a, b);
        pair.connect(PathMtu::Mtu1024, Pair::LINUX);
    }
    let [x, y] = &mut pair.nodes;
    let len = 128 * 1024;
    let from = x.arena.alloc(len, 64).unwrap();
    let sent = fill(&from, &mut rng);
    let mut into = Vec::new();
    for &(a, _) in &qps {
        let memory = y.arena.alloc(len, 64).unwrap();
        let region = y.roce.register(y.pd, memory, Access::REMOTE_WRITE, &mut rng).unwrap();
        let to = RemoteAddress { address: region.address, rkey: region.rkey };
        let payload = Payload::Windows(&[from]);
        let write = SendOperation::Write { payload, to, immediate: None };
        x.roce.post_send(a, &request(1, write)).unwrap();
        into.push(memory);
    }
    assert!(!pair.run(SECOND, |_| false));
    assert_eq!(pair.nodes[0].completions().len(), 64);
    assert!(into.iter().all(|memory| contents(memory) == sent));
    assert_eq!(pair.nodes[0].roce.counters().retries, 0);
    assert_eq!(pair.nodes[1].roce.counters().dropped, Default::default());
}

#[test]
fn datagrams_carry_their_source() {
    let mut pair = Pair::new(1, 1500, false);
    let mut rng = Rng::new(2);
    let address = pair.address(0);
    let mut ud = Vec::new();
    for n in 0..2 {
        let unused = ReadyToReceive {
            remote_qpn: 0,
            rq_psn: 0,
            path_mtu: PathMtu::Mtu256,
            address: pair.address(n),
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
        };
        let node = &mut pair.nodes[n];
        let init = Pair::init(node.pd, node.cq);
        let init = QpInit { kind: QpType::Ud { qkey: 0x1111 }, ..init };
        let qp = node.roce.create_qp(&init, &mut rng).unwrap();
        node.roce.ready_to_receive(qp, &unused).unwrap();
        node.roce.ready_to_send(qp, &Pair::LINUX).unwrap();
        ud.push(qp);
    }
    let [a, b] = &mut pair.nodes;
    let into = b.arena.alloc(256, 64).unwrap();
    b.roce.post_recv(ud[1], &RecvRequest { id: 4, into: &[into] }).unwrap();
    let remote_qpn = b.roce.qp_number(ud[1]).unwrap();
    for (qkey, text) in [(0x2222, b"wrong"), (0x1111, b"right")] {
        let payload = Payload::Inline(text);
        let operation = SendOperation::Send { payload, with: SendWith::Immediate(8) };
        let datagram = Some(DatagramTo { address, remote_qpn, remote_qkey: qkey });
        let request = SendRequest { datagram, ..request(1, operation) };
        a.roce.post_send(ud[0], &request).unwrap();
    }
    assert!(!pair.run(SECOND, |_| false));
    let from = (pair.nodes[0].ip, pair.nodes[0].roce.qp_number(ud[0]).unwrap());
    let b = &mut pair.nodes[1];
    let got = b.completions();
    assert_eq!((got.len(), got[0].datagram_from), (1, Some(from)));
    let operation = CompletedOperation::Recv { length: 45, with: SendWith::Immediate(8) };
    assert_eq!(got[0].operation, operation);
    assert_eq!(&contents(&into)[40..45], b"right");
    assert_eq!(b.roce.counters().dropped.wrong_key, 1);
}

#[test]
fn objects_in_use_are_not_destroyed() {
    let mut pair = Pair::new(1, 1500, false);
    let a = &mut pair.nodes[0];
    let busy = Err(verbs::VerbsError::Busy);
    assert_eq!((a.roce.destroy_cq(a.cq), a.roce.dealloc_pd(a.pd)), (busy, busy));
    a.roce.destroy_qp(a.qp).unwrap();
    assert_eq!((a.roce.destroy_cq(a.cq), a.roce.dealloc_pd(a.pd)), (Ok(()), Ok(())));
}
