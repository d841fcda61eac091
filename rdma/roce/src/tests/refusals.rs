//! What a peer must not do is refused as the specification says, and touches nothing.

use super::arbitrary::seal;
use super::claims::finish;
use super::header_prediction::{LEN, world};
use super::transport::request;
use crate::requester::MAX_MESSAGE;
use crate::testing::{Pair, Rng, contents, frame};
use core::time::Duration;
use std::vec::Vec;
use verbs::{
    Access, PathMtu, Payload, Provider, QpState, RecvRequest, RemoteAddress, SendOperation,
    SendWith, Status,
};

/// One request of node 0 against a region of node 1 that was made ready by `prepare`; how it ended.
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
fn memory_that_is_not_granted() {
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
fn requests_that_make_no_sense() {
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

/// A WRITE that says to be longer than any message is no question of what is granted; the longest one is.
#[test]
fn a_length_that_no_message_has() {
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

/// The last packet of a WRITE brings what is left of it, and all others leave something: 1000 bytes come in four.
#[test]
fn a_write_is_as_long_as_it_said() {
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
        // What is received with it ends well only with all of it.
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

/// The frame with so many bytes of payload more, or less.
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

/// First packets and those in the middle are full (256 bytes), the last has at least a byte and at most as many, also
/// where the message as a whole is as long as it says.
#[test]
fn packets_are_as_long_as_their_place_says() {
    // By how much each packet is longer than it should be; the last has 188 bytes of a SEND, and 232 of a WRITE.
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

/// The request of a READ of `length` bytes, of which 1000 are granted.
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

/// What node 1 has to say to a frame.
fn answers(pair: &mut Pair, bytes: &[u8]) -> Vec<Vec<u8>> {
    pair.deliver(1, bytes);
    let (now, node) = (pair.network.now, &mut pair.nodes[1]);
    core::iter::from_fn(|| node.roce.poll_transmit(0, now, &mut node.tx).then(|| frame(&node.tx)))
        .collect()
}

/// A READ that leaves what is granted, or that no message can answer, gets nothing at all.
#[test]
fn a_read_asks_for_what_is_granted_as_a_whole() {
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

/// The answer to a READ says in each packet whether it begins or ends there.
#[test]
fn what_answers_a_read_has_a_beginning_and_an_end() {
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

/// Of a READ of nothing no key is asked.
#[test]
fn a_read_of_nothing_needs_no_key() {
    let (mut pair, mut frame) = read_frame(0);
    frame[LEN + 8] ^= 1;
    seal(&mut frame);
    let answers = answers(&mut pair, &frame);
    assert_eq!(answers.iter().map(|answer| answer[42]).collect::<Vec<_>>(), [0x10]);
}

/// A request that was taken before says nothing new: what is missing is still asked for.
#[test]
fn a_repetition_does_not_hide_a_gap() {
    for (lost, opcode, syndrome) in [(false, 0x11, 0x1f), (true, 0x11, 0x60)] {
        netsim::label!(lost);
        let (mut pair, frames) = world(true);
        pair.deliver(1, &frames[0]);
        if lost {
            pair.deliver(1, &frames[2]);
        }
        let said = answers(&mut pair, &frames[0]);
        assert_eq!(said.len(), 1);
        assert_eq!((said[0][42], said[0][LEN]), (opcode, syndrome));
        let dropped = &pair.nodes[1].roce.counters().dropped;
        assert_eq!((dropped.duplicate, dropped.out_of_sequence), (1, u64::from(lost)));
    }
}

/// Whoever has received a part of a message knows how many packets are still to come.
#[test]
fn what_is_still_to_come_of_a_message_is_known() {
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

/// Between two packets of a WRITE the key dies: nothing more is written.
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

/// Users destroy a queue pair as soon as it has failed; its peer learns the reason all the same.
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

/// What a gap is asked for again by dies with its queue pair: there is nobody to send it to.
#[test]
fn a_gap_does_not_outlive_its_queue_pair() {
    let (mut pair, frames) = world(true);
    pair.deliver(1, &frames[1]);
    let (now, node) = (pair.network.now, &mut pair.nodes[1]);
    node.roce.destroy_qp(node.qp).unwrap();
    assert!(!node.roce.poll_transmit(0, now, &mut node.tx), "{:x?}", frame(&node.tx));
}

/// Users destroy a queue pair as soon as they have the message that they waited for; its sender learns
/// that it arrived all the same.
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
