//! Transfers over a faulty wire: every SEND arrives once and in order, every WRITE and READ is exact, every atomic
//! executes once.

use super::transport::request;
use crate::testing::{Faults, Pair, Rng, contents};
use core::time::Duration;
use rand_core::Rng as _;
use std::vec::Vec;
use verbs::{
    Access, CompletedOperation, MemoryVerbs, PathMtu, Payload, Provider, QpState, ReadyToSend,
    RecvRequest, RemoteAddress, SendOperation, SendWith, Status,
};

const OPERATIONS: u64 = 60;

/// A run with one seed. Both sides send, write, read and add at the same time.
fn run(seed: u64, faults: Faults, mtu: PathMtu) {
    let mut pair = Pair::new(seed, mtu.bytes() + 96, seed.is_multiple_of(2));
    pair.network.set_faults(faults);
    pair.connect(mtu, ReadyToSend { ack_timeout: 8, retry_count: 7, ..Pair::LINUX });
    let mut rng = Rng::new(seed);
    let mut granted = Vec::new();
    let mut received = Vec::new();
    for node in &mut pair.nodes {
        let memory = node.arena.alloc(1 << 20, 4096).unwrap();
        let access = Access::all();
        granted.push(node.roce.register(node.pd, memory, access, &mut rng).unwrap());
        let mut buffers = Vec::new();
        for id in 0..OPERATIONS {
            let into = node.arena.alloc(16384, 64).unwrap();
            node.roce.post_recv(node.qp, &RecvRequest { id, into: &[into] }).unwrap();
            buffers.push(into);
        }
        received.push(buffers);
    }
    // Expected contents at the other side, in order.
    let mut sends = [Vec::new(), Vec::new()];
    let mut writes = [Vec::new(), Vec::new()];
    let mut reads = [Vec::new(), Vec::new()];
    let mut added = [0u64; 2];
    for n in 0..2 {
        let there = &granted[1 - n];
        // The atomic counter is at the end of the other side's region. The bytes for READs are before it, and no WRITE
        // changes them.
        let far = there.memory.slice(900_000, 20_000).unwrap();
        let mut pattern = std::vec![0; far.len()];
        rng.fill_bytes(&mut pattern);
        far.write(0, &pattern).unwrap();
        let node = &mut pair.nodes[n];
        for id in 0..OPERATIONS {
            let len = (rng.next_u32() % 9000) as usize;
            let at = (id * 12_000) as usize;
            let local = node.arena.alloc(9000, 64).unwrap().slice(0, len).unwrap();
            let mut bytes = std::vec![0; len];
            rng.fill_bytes(&mut bytes);
            local.write(0, &bytes).unwrap();
            let windows = [local];
            let payload = Payload::Windows(&windows);
            let to = |offset: usize| RemoteAddress {
                address: there.address + offset as u64,
                rkey: there.rkey,
            };
            let operation = match rng.next_u32() % 5 {
                0 => {
                    sends[n].push((id as u32, bytes));
                    SendOperation::Send { payload, with: SendWith::Immediate(id as u32) }
                }
                1 => {
                    writes[n].push((at, bytes));
                    SendOperation::Write { payload, to: to(at), immediate: None }
                }
                2 => {
                    writes[n].push((at, bytes));
                    sends[n].push((id as u32, Vec::new()));
                    SendOperation::Write { payload, to: to(at), immediate: Some(id as u32) }
                }
                3 => {
                    reads[n].push((local, pattern[..len].to_vec()));
                    SendOperation::Read { into: &windows, from: to(900_000) }
                }
                _ => {
                    added[n] += id;
                    let into = node.arena.alloc(8, 8).unwrap().slice(0, 8).unwrap();
                    SendOperation::FetchAdd { into, at: to((1 << 20) - 8), add: id }
                }
            };
            node.roce.post_send(node.qp, &request(id, operation)).unwrap();
        }
    }
    let mut done = [0, 0];
    let mut arrived = [Vec::new(), Vec::new()];
    let finished = pair.run(Duration::from_secs(60), |pair| {
        for n in 0..2 {
            for completion in pair.nodes[n].completions() {
                assert_eq!(completion.status, Status::Success, "seed {seed} node {n}");
                match completion.operation {
                    CompletedOperation::Send => {
                        assert_eq!(completion.id, done[n], "seed {seed}: in order");
                        done[n] += 1;
                    }
                    CompletedOperation::Recv { length, with: SendWith::Immediate(value) } => {
                        let buffer = &received[n][completion.id as usize];
                        let bytes = contents(&buffer.slice(0, length as usize).unwrap());
                        arrived[n].push((value, bytes));
                    }
                    CompletedOperation::RecvWriteImmediate { immediate, .. } => {
                        arrived[n].push((immediate, Vec::new()));
                    }
                    other => panic!("seed {seed}: {other:?}"),
                }
            }
        }
        done == [OPERATIONS; 2]
    });
    assert!(finished, "seed {seed}: {done:?} {:?}", pair.nodes[0].roce.counters());
    for n in 0..2 {
        assert_eq!(arrived[1 - n], sends[n], "seed {seed}");
        let memory = &granted[1 - n].memory;
        for (at, bytes) in &writes[n] {
            assert_eq!(&contents(&memory.slice(*at, bytes.len()).unwrap()), bytes, "seed {seed}");
        }
        for (local, bytes) in &reads[n] {
            assert_eq!(&contents(local), bytes, "seed {seed}");
        }
        let counter = contents(&memory.slice((1 << 20) - 8, 8).unwrap());
        assert_eq!(u64::from_ne_bytes(counter.try_into().unwrap()), added[n], "seed {seed}");
    }
}

#[test]
fn transfers_complete_without_faults() {
    run(1, Faults::default(), PathMtu::Mtu1024);
}

#[test]
fn transfers_survive_loss() {
    for seed in 0..20 {
        run(seed, Faults { loss: 20, ..Faults::default() }, PathMtu::Mtu1024);
    }
}

#[test]
fn transfers_survive_duplication_and_reordering() {
    for seed in 20..40 {
        let faults = Faults { duplication: 50, reordering: 50, ..Faults::default() };
        run(seed, faults, PathMtu::Mtu512);
    }
}

#[test]
fn transfers_survive_all_faults_at_once() {
    for seed in 40..70 {
        let faults = Faults { loss: 15, duplication: 20, reordering: 20, corruption: 15 };
        run(seed, faults, [PathMtu::Mtu256, PathMtu::Mtu2048, PathMtu::Mtu4096][seed as usize % 3]);
    }
}

/// A dead peer causes an error after all retries, and all requests are flushed.
#[test]
fn dead_peer_fails_the_queue_pair() {
    let mut pair = Pair::new(5, 1500, false);
    pair.connect(PathMtu::Mtu1024, Pair::LINUX);
    pair.network.mute(1, true);
    let start = pair.network.now;
    let a = &mut pair.nodes[0];
    let into = a.arena.alloc(64, 64).unwrap();
    a.roce.post_recv(a.qp, &RecvRequest { id: 100, into: &[into] }).unwrap();
    for id in 0..3 {
        let payload = Payload::Inline(b"is anybody there?");
        let operation = SendOperation::Send { payload, with: SendWith::Nothing };
        a.roce.post_send(a.qp, &request(id, operation)).unwrap();
    }
    assert!(!pair.run(Duration::from_secs(60), |_| false));
    let a = &mut pair.nodes[0];
    let got: Vec<(u64, Status)> = a.completions().iter().map(|c| (c.id, c.status)).collect();
    let flushed = Status::Flushed;
    assert_eq!(got, [(0, Status::RetryExceeded), (1, flushed), (2, flushed), (100, flushed)]);
    assert_eq!(a.roce.qp_state(a.qp), Ok(QpState::Error));
    assert_eq!(a.roce.poll_event(), Some(verbs::AsyncEvent::QpError(a.qp)));
    // Four early retransmissions within 15/16 of a timeout, then eight timeouts of 537 ms.
    let waited = pair.network.now.since(start).as_millis();
    assert!((8 * 536 + 502..8 * 538 + 505).contains(&waited), "{waited} ms");
}

/// The machine stands still for more than a minute, or for hours, while a request waits for its ACK or for a receive of
/// the peer.
#[test]
fn standstill_ends_no_connection_with_a_peer_that_answers() {
    for (busy, seconds) in [(false, 75), (false, 7200), (true, 75), (true, 7200)] {
        let mut pair = Pair::new(5, 1500, false);
        pair.connect(PathMtu::Mtu1024, Pair::LINUX);
        let into = pair.nodes[1].arena.alloc(64, 64).unwrap();
        let receive = |pair: &mut Pair| {
            let b = &mut pair.nodes[1];
            b.roce.post_recv(b.qp, &RecvRequest { id: 1, into: &[into] }).unwrap();
        };
        if !busy {
            receive(&mut pair);
            pair.network.mute(1, true);
        }
        let a = &mut pair.nodes[0];
        let payload = Payload::Inline(b"heard?");
        let operation = SendOperation::Send { payload, with: SendWith::Nothing };
        a.roce.post_send(a.qp, &request(1, operation)).unwrap();
        assert!(!pair.run(Duration::from_millis(700), |_| false));
        pair.network.mute(1, false);
        pair.network.now = pair.network.now + Duration::from_secs(seconds);
        if busy {
            assert!(!pair.run(Duration::from_secs(2), |_| false));
            receive(&mut pair);
        }
        let arrived = |pair: &mut Pair| !pair.nodes[1].completions().is_empty();
        assert!(pair.run(Duration::from_secs(5), arrived), "busy: {busy}, {seconds} s");
        assert!(!pair.run(Duration::from_secs(1), |_| false));
        let got: Vec<Status> = pair.nodes[0].completions().iter().map(|c| c.status).collect();
        assert_eq!(got, [Status::Success], "busy: {busy}");
    }
}

/// A requester that never retransmits, because Linux's soft-RoCE does not survive it: if the ACK of its last request is
/// lost, the responder repeats it twice, so that one repetition may be lost too.
#[test]
fn lost_last_ack_is_repeated() {
    let mut pair = Pair::new(6, 1500, false);
    pair.connect(PathMtu::Mtu1024, ReadyToSend { ack_timeout: 0, ..Pair::LINUX });
    let into = pair.nodes[1].arena.alloc(64, 64).unwrap();
    for id in 0..3 {
        let b = &mut pair.nodes[1];
        b.roce.post_recv(b.qp, &RecvRequest { id, into: &[into] }).unwrap();
        let a = &mut pair.nodes[0];
        let payload = Payload::Inline(b"heard?");
        let operation = SendOperation::Send { payload, with: SendWith::Nothing };
        a.roce.post_send(a.qp, &request(id, operation)).unwrap();
    }
    pair.network.mute(1, true);
    let start = pair.network.now;
    let ms = Duration::from_millis;
    assert!(!pair.run(ms(170), |_| false));
    pair.network.mute(1, false);
    assert!(pair.run(ms(170), |pair| pair.nodes[0].completions().len() == 3));
    // Each after 100 to 168 ms.
    assert!(
        (ms(200)..ms(336)).contains(&pair.network.now.since(start)),
        "{:?}",
        pair.network.now.since(start)
    );
    assert_eq!(pair.nodes[1].roce.counters().acks_repeated, 2);
    assert!(!pair.run(ms(1000), |_| false), "the network must become idle");
    assert_eq!(pair.nodes[1].roce.counters().sent.acknowledges, 3);
    assert_eq!(pair.nodes[0].roce.counters().dropped.unexpected_answer, 0);
}

/// Waiting for ACKs of its own requests does not make a queue pair repeat the ACKs that it sent.
#[test]
fn retransmission_does_not_repeat_acks() {
    let mut pair = Pair::new(6, 1500, false);
    pair.connect(PathMtu::Mtu1024, Pair::LINUX);
    let into = pair.nodes[1].arena.alloc(64, 64).unwrap();
    let send = |pair: &mut Pair, n: usize| {
        let node = &mut pair.nodes[n];
        let payload = Payload::Inline(b"heard?");
        let operation = SendOperation::Send { payload, with: SendWith::Nothing };
        node.roce.post_send(node.qp, &request(1, operation)).unwrap();
    };
    let b = &mut pair.nodes[1];
    b.roce.post_recv(b.qp, &RecvRequest { id: 1, into: &[into] }).unwrap();
    send(&mut pair, 0);
    assert!(!pair.run(Duration::from_secs(1), |_| false));
    assert_eq!(pair.nodes[1].roce.counters().acks_repeated, 2);
    pair.network.mute(0, true);
    send(&mut pair, 1);
    pair.run(Duration::from_secs(2), |_| false);
    let counters = pair.nodes[1].roce.counters();
    assert!(counters.timeouts > 0);
    assert_eq!(counters.acks_repeated, 2);
}
