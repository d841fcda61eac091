//! Forbidden requests of a peer are refused as specified, and change no memory.

use super::arbitrary::seal;
use super::claims::finish;
use super::header_prediction::{LEN, world};
use super::transport::request;
use crate::requester::MAX_MESSAGE;
use crate::testing::{Pair, Rng, contents, frame};
use core::time::Duration;
use std::vec::Vec;
use verbs::{
    Access, MemoryVerbs, PathMtu, Payload, Provider, QpState, RecvRequest, RemoteAddress,
    SendOperation, SendWith, Status,
};

/// One request of node 0 to a region of node 1, set up by `prepare`; returns its status.
fn attempt(
    access: Access,
    prepare: impl FnOnce(&mut Pair, verbs::Region) -> RemoteAddress,
    operation: impl FnOnce(RemoteAddress) -> SendOperation<'static>,
) -> Status {
    let mut pair = Pair::new(11, 1500, false);
    pair.connect(PathMtu::Mtu1024, Pair::LINUX);
    let mut rng = Rng::new(1);
    let b = &mut pair.nodes[1];
    let memory = b.arena.alloc(4096, 4096).unwrap();
    memory.fill(0xee);
    let region = b.roce.register(b.pd, memory, access, &mut rng).unwrap();
    let at = prepare(&mut pair, region);
    let a = &mut pair.nodes[0];
    a.roce.post_send(a.qp, &request(1, operation(at))).unwrap();
    pair.run(Duration::from_secs(1), |_| false);
    assert!(contents(&memory).iter().all(|&byte| byte == 0xee));
    let [a, b] = &mut pair.nodes;
    assert_eq!(a.roce.qp_state(a.qp), Ok(QpState::Error));
    assert_eq!(b.roce.qp_state(b.qp), Ok(QpState::Error));
    a.completions()[0].status
}

fn write(to: RemoteAddress) -> SendOperation<'static> {
    SendOperation::Write { payload: Payload::Inline(b"attack"), to, immediate: None }
}

fn start(region: verbs::Region) -> RemoteAddress {
    RemoteAddress { address: region.address, rkey: region.rkey }
}

#[test]
fn access_to_memory_that_is_not_granted_is_refused() {
    let all = Access::all();
    let wrong_key = |_: &mut Pair, r| RemoteAddress { rkey: start(r).rkey ^ 1, ..start(r) };
    assert_eq!(attempt(all, wrong_key, write), Status::RemoteAccess);
    let past_the_end =
        |_: &mut Pair, r| RemoteAddress { address: start(r).address + 4091, ..start(r) };
    assert_eq!(attempt(all, past_the_end, write), Status::RemoteAccess);
    let before_the_start =
        |_: &mut Pair, r| RemoteAddress { address: start(r).address - 1, ..start(r) };
    assert_eq!(attempt(all, before_the_start, write), Status::RemoteAccess);
    let wraps = |_: &mut Pair, r| RemoteAddress { address: u64::MAX - 2, ..start(r) };
    assert_eq!(attempt(all, wraps, write), Status::RemoteAccess);
    let revoked = |pair: &mut Pair, r: verbs::Region| {
        pair.nodes[1].roce.revoke_key(r.id).unwrap();
        start(r)
    };
    assert_eq!(attempt(all, revoked, write), Status::RemoteAccess);
    let rotated = |pair: &mut Pair, r: verbs::Region| {
        pair.nodes[1].roce.rotate_key(r.id, &mut Rng::new(9)).unwrap();
        start(r)
    };
    assert_eq!(attempt(all, rotated, write), Status::RemoteAccess);
    let plain = |_: &mut Pair, r| start(r);
    assert_eq!(attempt(Access::REMOTE_READ, plain, write), Status::RemoteAccess);
    let other_domain = |pair: &mut Pair, r: verbs::Region| {
        let b = &mut pair.nodes[1];
        let pd = b.roce.alloc_pd().unwrap();
        let other = b.roce.register(pd, r.memory, Access::all(), &mut Rng::new(8)).unwrap();
        start(other)
    };
    assert_eq!(attempt(all, other_domain, write), Status::RemoteAccess);
}

#[test]
fn misaligned_atomic_and_oversized_send_are_refused() {
    let misaligned = |_: &mut Pair, r| RemoteAddress { address: start(r).address + 4, ..start(r) };
    let add = |at| {
        let into = drivers::hal::Arena::on_heap(256).alloc(8, 8).unwrap().slice(0, 8).unwrap();
        SendOperation::FetchAdd { into, at, add: 1 }
    };
    assert_eq!(attempt(Access::all(), misaligned, add), Status::RemoteInvalidRequest);
    let small_receive = |pair: &mut Pair, r| {
        let b = &mut pair.nodes[1];
        let into = b.arena.alloc(64, 64).unwrap().slice(0, 5).unwrap();
        b.roce.post_recv(b.qp, &RecvRequest { id: 1, into: &[into] }).unwrap();
        start(r)
    };
    let send =
        |_| SendOperation::Send { payload: Payload::Inline(b"longer"), with: SendWith::Nothing };
    assert_eq!(attempt(Access::all(), small_receive, send), Status::RemoteInvalidRequest);
}

/// A WRITE longer than any message is an invalid request; the longest message fails only for lack of a grant.
#[test]
fn write_longer_than_any_message_is_refused() {
    let longest = MAX_MESSAGE as u32;
    for (length, expected) in [
        (longest, Status::RemoteAccess),
        (longest + 1, Status::RemoteInvalidRequest),
        (u32::MAX, Status::RemoteInvalidRequest),
    ] {
        let (mut pair, mut frames) = world(true);
        frames[0][LEN + 12..LEN + 16].copy_from_slice(&length.to_be_bytes());
        seal(&mut frames[0]);
        pair.deliver(1, &frames[0]);
        let (now, node) = (pair.network.now, &mut pair.nodes[1]);
        assert!(node.roce.poll_transmit(0, now, &mut node.tx), "length {length}: no answer");
        let answer = frame(&node.tx);
        pair.deliver(0, &answer);
        assert_eq!(pair.nodes[0].completions()[0].status, expected, "length {length}");
    }
}

/// The last packet of a WRITE has exactly the remaining bytes, all others fewer: 1000 bytes come in four packets.
#[test]
fn write_of_wrong_length_is_refused() {
    for (length, good) in [(1000u32, true), (999, false), (1001, false), (768, false), (700, false)]
    {
        netsim::label!(length);
        let (mut pair, mut frames) = world(true);
        frames[0][LEN + 12..LEN + 16].copy_from_slice(&length.to_be_bytes());
        seal(&mut frames[0]);
        frames.iter().for_each(|frame| {
            pair.deliver(1, frame);
        });
        let (now, node) = (pair.network.now, &mut pair.nodes[1]);
        let state = node.roce.qp_state(node.qp);
        assert_eq!(state == Ok(QpState::Error), !good, "{state:?}");
        // The receive succeeds only with the complete WRITE.
        let completed = node.completions();
        let received = completed.iter().filter(|done| done.status == Status::Success).count();
        assert_eq!(received, usize::from(good), "{completed:?}");
        assert!(node.roce.poll_transmit(0, now, &mut node.tx), "no answer");
        let answer = frame(&node.tx);
        pair.deliver(0, &answer);
        let status = pair.nodes[0].completions().first().map(|done| done.status);
        let expected = if good { Status::Success } else { Status::RemoteInvalidRequest };
        assert_eq!(status, Some(expected));
    }
}

/// The frame with `by` bytes of payload more or less.
fn resized(frame: &[u8], by: isize) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    let icrc = bytes.len() - 4;
    match by {
        ..0 => drop(bytes.drain(icrc - by.unsigned_abs()..icrc)),
        0.. => drop(bytes.splice(icrc..icrc, std::iter::repeat_n(0, by as usize))),
    }
    for at in [16, 38] {
        let length = u16::from_be_bytes([bytes[at], bytes[at + 1]]).wrapping_add_signed(by as i16);
        bytes[at..at + 2].copy_from_slice(&length.to_be_bytes());
    }
    finish(bytes)
}

/// The frames of a SEND of 700 bytes.
fn send_frames() -> (Pair, Vec<Vec<u8>>) {
    let mut pair = Pair::new(5, 1500, false);
    pair.connect(PathMtu::Mtu256, Pair::LINUX);
    let [a, b] = &mut pair.nodes;
    let (from, into) = (a.arena.alloc(4096, 64).unwrap(), b.arena.alloc(4096, 64).unwrap());
    b.roce.post_recv(b.qp, &RecvRequest { id: 1, into: &[into] }).unwrap();
    let payload = Payload::Windows(&[from.slice(0, 700).unwrap()]);
    let send = SendOperation::Send { payload, with: SendWith::Nothing };
    a.roce.post_send(a.qp, &request(1, send)).unwrap();
    let frames = core::iter::from_fn(|| {
        a.roce.poll_transmit(0, pair.network.now, &mut a.tx).then(|| frame(&a.tx))
    });
    let frames = frames.collect();
    (pair, frames)
}

/// First and middle packets are full (256 bytes), the last has 1 to 256 bytes, even if the total length is correct.
#[test]
fn packets_of_wrong_length_are_refused() {
    // Excess bytes of each packet; the last packet has 188 bytes of a SEND, and 232 of a WRITE.
    let sends: [&[isize]; 6] =
        [&[0; 3], &[-4, 0, 4], &[4, 0, -4], &[0, -4, 4], &[0, 0, -188], &[0, 0, 72]];
    let writes: [&[isize]; 5] =
        [&[0; 4], &[-4, 0, 0, 4], &[4, 0, 0, -4], &[0, -4, 0, 4], &[0, 4, 0, -4]];
    let sends = sends.map(|lie| (lie, true));
    for (lie, is_send) in sends.into_iter().chain(writes.map(|lie| (lie, false))) {
        netsim::label!(lie, is_send);
        let (mut pair, frames) = if is_send { send_frames() } else { world(true) };
        assert_eq!(frames.len(), lie.len());
        for (frame, &by) in frames.iter().zip(lie) {
            pair.deliver(1, &resized(frame, by));
        }
        let good = lie.iter().all(|&by| by == 0);
        let (now, node) = (pair.network.now, &mut pair.nodes[1]);
        assert_eq!(node.roce.qp_state(node.qp) == Ok(QpState::Error), !good);
        assert!(node.roce.poll_transmit(0, now, &mut node.tx), "no answer");
        let answer = frame(&node.tx);
        pair.deliver(0, &answer);
        let status = pair.nodes[0].completions().first().map(|done| done.status);
        let expected = if good { Status::Success } else { Status::RemoteInvalidRequest };
        assert_eq!(status, Some(expected));
    }
}

/// The request of a READ of `length` bytes, with 1000 bytes granted.
fn read_frame(length: u32) -> (Pair, Vec<u8>) {
    let mut pair = Pair::new(5, 1500, false);
    pair.connect(PathMtu::Mtu256, Pair::LINUX);
    let [a, b] = &mut pair.nodes;
    let [into, granted] = [a, b].map(|n| n.arena.alloc(4096, 64).unwrap().slice(0, 1000).unwrap());
    let [a, b] = &mut pair.nodes;
    let region = b.roce.register(b.pd, granted, Access::REMOTE_READ, &mut Rng::new(1)).unwrap();
    let into = [into.slice(0, length.min(1000) as usize).unwrap()];
    let read = SendOperation::Read { into: &into, from: start(region) };
    a.roce.post_send(a.qp, &request(1, read)).unwrap();
    assert!(a.roce.poll_transmit(0, pair.network.now, &mut a.tx));
    let mut frame = frame(&a.tx);
    frame[LEN + 12..LEN + 16].copy_from_slice(&length.to_be_bytes());
    seal(&mut frame);
    (pair, frame)
}

/// The answers of node 1 to a frame.
fn answers(pair: &mut Pair, bytes: &[u8]) -> Vec<Vec<u8>> {
    pair.deliver(1, bytes);
    let (now, node) = (pair.network.now, &mut pair.nodes[1]);
    core::iter::from_fn(|| node.roce.poll_transmit(0, now, &mut node.tx).then(|| frame(&node.tx)))
        .collect()
}

/// A READ beyond its grant, or longer than any message, returns no data.
#[test]
fn read_beyond_the_grant_is_refused() {
    let longest = MAX_MESSAGE as u32;
    for (length, more, expected) in [
        (1001, 0, Status::RemoteAccess),
        (longest, 0, Status::RemoteAccess),
        (longest + 1, 0, Status::RemoteInvalidRequest),
        (100, 4, Status::RemoteInvalidRequest),
        (1000, 4, Status::RemoteInvalidRequest),
    ] {
        netsim::label!(length, more);
        let (mut pair, frame) = read_frame(length);
        let answers = answers(&mut pair, &resized(&frame, more));
        assert_eq!(answers.iter().map(|answer| answer[42]).collect::<Vec<_>>(), [0x11]);
        pair.deliver(0, &answers[0]);
        assert_eq!(pair.nodes[0].completions()[0].status, expected);
    }
}

/// The opcode of each packet of a READ response shows whether it begins or ends the response.
#[test]
fn read_response_opcodes_match_their_position() {
    let [first, middle, last, only] = [0x0d, 0x0e, 0x0f, 0x10];
    for (length, expected) in [
        (0, [only].as_slice()),
        (1, &[only]),
        (256, &[only]),
        (257, &[first, last]),
        (1000, &[first, middle, middle, last]),
    ] {
        netsim::label!(length);
        let (mut pair, frame) = read_frame(length);
        let answers = answers(&mut pair, &frame);
        assert_eq!(answers.iter().map(|answer| answer[42]).collect::<Vec<_>>(), expected);
        for answer in &answers {
            pair.deliver(0, answer);
        }
        assert_eq!(pair.nodes[0].completions()[0].status, Status::Success);
    }
}

/// A READ of 0 bytes is not checked for its key.
#[test]
fn a_read_of_nothing_needs_no_key() {
    let (mut pair, mut frame) = read_frame(0);
    frame[LEN + 8] ^= 1;
    seal(&mut frame);
    let answers = answers(&mut pair, &frame);
    assert_eq!(answers.iter().map(|answer| answer[42]).collect::<Vec<_>>(), [0x10]);
}

/// A duplicate request does not replace a pending NAK for a missing packet.
#[test]
fn duplicate_does_not_hide_a_gap() {
    for (lost, opcode, syndrome) in [(false, 0x11, 0x1f), (true, 0x11, 0x60)] {
        netsim::label!(lost);
        let (mut pair, frames) = world(true);
        pair.deliver(1, &frames[0]);
        if lost {
            pair.deliver(1, &frames[2]);
        }
        let replies = answers(&mut pair, &frames[0]);
        assert_eq!(replies.len(), 1);
        assert_eq!((replies[0][42], replies[0][LEN]), (opcode, syndrome));
        let dropped = &pair.nodes[1].roce.counters().dropped;
        assert_eq!((dropped.duplicate, dropped.out_of_sequence), (1, u64::from(lost)));
    }
}

/// The responder reports how many packets of a message are still to arrive.
#[test]
fn expected_frames_of_a_message_are_counted() {
    for announced in [false, true] {
        let (mut pair, frames) = world(true);
        let node = &mut pair.nodes[1];
        if announced {
            node.roce.writes_precede_send(node.qp);
        }
        let left = frames.iter().map(|frame| {
            pair.deliver(1, frame);
            pair.nodes[1].roce.expected()
        });
        let more = usize::from(announced);
        let expected = [Some((0, 3 + more)), Some((0, 2 + more)), Some((0, 1 + more)), None];
        assert_eq!(left.collect::<Vec<_>>(), expected, "announced {announced}");
    }
    let (mut pair, frames) = send_frames();
    for (frame, left) in frames.iter().zip([Some((0, 1)), Some((0, 1)), None]) {
        pair.deliver(1, frame);
        assert_eq!(pair.nodes[1].roce.expected(), left);
    }
}

/// A key is revoked between two packets of a WRITE: nothing more is written.
#[test]
fn a_key_revoked_in_the_middle_stops_the_rest() {
    let mut pair = Pair::new(3, 1500, false);
    pair.connect(PathMtu::Mtu1024, Pair::LINUX);
    pair.network.record = Some(std::vec::Vec::new());
    pair.network.mute(0, true);
    let mut rng = Rng::new(1);
    let [a, b] = &mut pair.nodes;
    let memory = b.arena.alloc(4096, 4096).unwrap();
    let region = b.roce.register(b.pd, memory, Access::REMOTE_WRITE, &mut rng).unwrap();
    let from = a.arena.alloc(4096, 64).unwrap();
    from.fill(0x55);
    let payload = Payload::Windows(&[from]);
    let write = SendOperation::Write { payload, to: start(region), immediate: None };
    a.roce.post_send(a.qp, &request(1, write)).unwrap();
    pair.step();
    let frames = pair.network.record.take().unwrap();
    pair.deliver(1, &frames[0].1);
    pair.deliver(1, &frames[1].1);
    pair.nodes[1].roce.revoke_key(region.id).unwrap();
    pair.deliver(1, &frames[2].1);
    let bytes = contents(&memory);
    assert!(bytes[..2048].iter().all(|&b| b == 0x55));
    assert!(bytes[2048..].iter().all(|&b| b == 0));
    let b = &pair.nodes[1];
    assert_eq!(b.roce.counters().naks_sent.remote_access, 1);
    assert_eq!(b.roce.qp_state(b.qp), Ok(QpState::Error));
}

/// The user destroys a queue pair as soon as it has failed; the peer still receives the reason.
#[test]
fn a_refusal_outlives_its_queue_pair() {
    let mut pair = Pair::new(3, 1500, false);
    pair.connect(PathMtu::Mtu1024, Pair::LINUX);
    let a = &mut pair.nodes[0];
    let nowhere = RemoteAddress { address: 0, rkey: 1 };
    a.roce.post_send(a.qp, &request(1, write(nowhere))).unwrap();
    let destroyed = pair.run(Duration::from_secs(1), |pair| {
        let b = &mut pair.nodes[1];
        b.roce.qp_state(b.qp) == Ok(QpState::Error) && b.roce.destroy_qp(b.qp).is_ok()
    });
    assert!(destroyed);
    let refused = |pair: &mut Pair| pair.nodes[0].completions().first().map(|c| c.status);
    pair.step();
    assert_eq!(refused(&mut pair), Some(Status::RemoteAccess));
}

/// A NAK for a missing packet is dropped with its queue pair: no queue pair could receive the retransmission.
#[test]
fn sequence_nak_does_not_outlive_its_queue_pair() {
    let (mut pair, frames) = world(true);
    pair.deliver(1, &frames[1]);
    let (now, node) = (pair.network.now, &mut pair.nodes[1]);
    node.roce.destroy_qp(node.qp).unwrap();
    assert!(!node.roce.poll_transmit(0, now, &mut node.tx), "{:x?}", frame(&node.tx));
}

/// The user destroys a queue pair as soon as it has the awaited message; the sender still receives the ACK.
#[test]
fn an_ack_outlives_its_queue_pair() {
    let mut pair = Pair::new(3, 1500, false);
    pair.connect(PathMtu::Mtu1024, Pair::LINUX);
    let [a, b] = &mut pair.nodes;
    let into = b.arena.alloc(64, 64).unwrap();
    b.roce.post_recv(b.qp, &RecvRequest { id: 5, into: &[into] }).unwrap();
    let send = SendOperation::Send { payload: Payload::Inline(&[1]), with: SendWith::Nothing };
    a.roce.post_send(a.qp, &request(1, send)).unwrap();
    let destroyed = pair.run(Duration::from_secs(1), |pair| {
        let b = &mut pair.nodes[1];
        !b.completions().is_empty() && b.roce.destroy_qp(b.qp).is_ok()
    });
    assert!(destroyed);
    pair.step();
    let done = pair.nodes[0].completions();
    assert_eq!(done.first().map(|c| (c.id, c.status)), Some((1, Status::Success)));
}
