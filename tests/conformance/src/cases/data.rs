//! Data transfer of requests.

use crate::fixture::Fixture;
use crate::world::{SEND, World, granted, request, send_inline};
use netsim::contents;
use verbs::*;

const SIZES: [usize; 9] = [0, 1, 63, 64, 65, 1024, 1025, 4097, 20_001];

/// SENDs of every size, into receives that are larger.
pub fn sends_of_every_size_arrive_whole(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    for size in SIZES {
        let (from, sent) = world.filled(0, size);
        let into = world.memory(1, size + 8);
        into.fill(0xee);
        world.post_recv(1, 5, &[into]);
        let payload = Payload::Windows(&[from]);
        world.post(0, 9, SendOperation::Send { payload, with: SendWith::Nothing });
        assert_eq!(world.statuses(0, 1), [(9, Status::Success)]);
        let got = world.completions(1, 1)[0];
        let operation = CompletedOperation::Recv { length: size as u32, with: SendWith::Nothing };
        assert_eq!((got.id, got.status, got.operation), (5, Status::Success, operation));
        let found = contents(&into);
        assert!(found[..size] == sent && found[size..] == [0xee; 8], "{size} bytes");
    }
    world.nothing_completes();
}

/// An immediate arrives with its SEND, and a SEND without one has none.
pub fn sends_carry_immediates(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let kinds = [SendWith::Immediate(0x0102_0304), SendWith::Nothing, SendWith::Immediate(0)];
    for (id, with) in kinds.into_iter().enumerate() {
        world.post_recv(1, id as u64, &[]);
        world.post(0, id as u64, SendOperation::Send { payload: Payload::Inline(&[]), with });
    }
    let got = world.completions(1, 3);
    for (completion, with) in got.iter().zip(kinds) {
        assert_eq!(completion.operation, CompletedOperation::Recv { length: 0, with });
    }
}

/// Payload of several windows goes into several others.
pub fn payload_is_gathered_and_scattered(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let (from, sent) = world.filled(0, 5000);
    let into = world.memory(1, 5000);
    let parts = |window: &drivers::hal::Window, cuts: [usize; 3]| {
        let [a, b, c] = cuts;
        [(0, a), (a, b), (b, c), (c, 5000)]
            .map(|(from, to)| window.slice(from, to - from).expect("within"))
    };
    let (gathered, scattered) = (parts(&from, [1, 2000, 2000]), parts(&into, [3, 1024, 4999]));
    world.post_recv(1, 5, &scattered);
    let payload = Payload::Windows(&gathered);
    world.post(0, 9, SendOperation::Send { payload, with: SendWith::Nothing });
    assert_eq!(world.statuses(0, 1), [(9, Status::Success)]);
    assert_eq!(world.statuses(1, 1), [(5, Status::Success)]);
    assert!(contents(&into) == sent);
    // The same for a READ.
    let region = world.grant(1, into, Access::REMOTE_READ);
    let back = world.memory(0, 5000);
    let windows = parts(&back, [7, 8, 4096]);
    let read = SendOperation::Read { into: &windows, from: granted(&region) };
    assert_eq!(world.attempt(read), Status::Success);
    assert!(contents(&back) == sent);
}

/// WRITEs change the bytes that they name, and no others.
pub fn writes_change_only_the_named_bytes(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    for size in SIZES {
        let (from, sent) = world.filled(0, size);
        let memory = world.memory(1, size + 200);
        memory.fill(0xee);
        let region = world.grant(1, memory, Access::REMOTE_WRITE);
        let to = RemoteAddress { address: region.address + 100, rkey: region.rkey };
        let payload = Payload::Windows(&[from]);
        let write = SendOperation::Write { payload, to, immediate: None };
        assert_eq!(world.attempt(write), Status::Success);
        let all = contents(&memory);
        assert!(all[100..100 + size] == sent, "{size} bytes");
        assert!(all[..100].iter().chain(&all[100 + size..]).all(|&byte| byte == 0xee));
    }
    world.nothing_completes();
}

/// READs return the bytes that they name.
pub fn reads_return_the_named_bytes(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    for size in SIZES {
        let (memory, there) = world.filled(1, size + 200);
        let region = world.grant(1, memory, Access::REMOTE_READ);
        let from = RemoteAddress { address: region.address + 50, rkey: region.rkey };
        let back = world.memory(0, size);
        let read = SendOperation::Read { into: &[back], from };
        assert_eq!(world.attempt(read), Status::Success);
        assert!(contents(&back) == there[50..50 + size], "{size} bytes");
        assert!(contents(&memory) == there);
    }
    world.nothing_completes();
}

/// A WRITE with an immediate consumes a receive, and does not change the receive's memory.
pub fn writes_with_immediate_take_a_receive(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let aside = world.memory(1, 64);
    aside.fill(0xee);
    for size in [0, 1, 3000] {
        let (from, sent) = world.filled(0, size);
        let memory = world.memory(1, size + 1);
        let region = world.grant(1, memory, Access::REMOTE_WRITE);
        world.post_recv(1, 5, &[aside]);
        let payload = Payload::Windows(&[from]);
        let to = granted(&region);
        world.post(0, 9, SendOperation::Write { payload, to, immediate: Some(0x8000_0001) });
        assert_eq!(world.statuses(0, 1), [(9, Status::Success)]);
        let got = world.completions(1, 1)[0];
        let operation =
            CompletedOperation::RecvWriteImmediate { length: size as u32, immediate: 0x8000_0001 };
        assert_eq!((got.id, got.status, got.operation), (5, Status::Success, operation));
        assert!(contents(&memory)[..size] == sent);
        assert!(contents(&aside).iter().all(|&byte| byte == 0xee));
    }
}

/// Compare-and-swap and fetch-and-add return the original value, in the processor's byte order.
pub fn atomics_act_on_eight_bytes(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    if !world.device(1).attributes().atomics {
        return;
    }
    let memory = world.memory(1, 24);
    memory.fill(0xee);
    memory.write(8, &40u64.to_ne_bytes()).unwrap();
    let region = world.grant(1, memory, Access::REMOTE_ATOMIC);
    let at = RemoteAddress { address: region.address + 8, rkey: region.rkey };
    let old = [(); 3].map(|()| world.memory(0, 8));
    let operations = [
        SendOperation::FetchAdd { into: old[0], at, add: 2 },
        SendOperation::CompareSwap { into: old[1], at, compare: 42, swap: 50 },
        SendOperation::CompareSwap { into: old[2], at, compare: 42, swap: 60 },
    ];
    for (id, operation) in operations.into_iter().enumerate() {
        world.post(0, id as u64, operation);
    }
    assert_eq!(world.statuses(0, 3), [0, 1, 2].map(|id| (id, Status::Success)));
    let value = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
    assert_eq!(old.map(|window| value(&contents(&window))), [40, 42, 50]);
    let all = contents(&memory);
    assert_eq!(value(&all[8..16]), 50);
    assert!(all[..8].iter().chain(&all[16..]).all(|&byte| byte == 0xee));
}

/// Changes of the bytes after the post have no effect.
pub fn inline_payload_is_copied_at_the_post(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let into = world.memory(1, 64);
    world.post_recv(1, 5, &[into]);
    let mut bytes = *b"as it was when it was posted";
    world.post(0, 9, send_inline(&bytes));
    bytes.fill(0);
    assert_eq!(world.statuses(1, 1), [(5, Status::Success)]);
    assert_eq!(&contents(&into)[..bytes.len()], b"as it was when it was posted");
}

/// Messages of all kinds consume the receives in posting order.
pub fn messages_arrive_in_order(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let memory = world.memory(1, 64);
    let region = world.grant(1, memory, Access::REMOTE_WRITE);
    for id in 0..30u64 {
        let into = world.memory(1, 64);
        world.post_recv(1, id, &[into]);
    }
    for id in 0..30u32 {
        let payload = Payload::Inline(&[1, 2, 3]);
        world.post(
            0,
            id.into(),
            match id % 2 {
                0 => SendOperation::Send { payload, with: SendWith::Immediate(id) },
                _ => SendOperation::Write { payload, to: granted(&region), immediate: Some(id) },
            },
        );
    }
    for (n, completion) in world.completions(1, 30).into_iter().enumerate() {
        assert_eq!((completion.id, completion.status), (n as u64, Status::Success));
        let number = match completion.operation {
            CompletedOperation::Recv { with: SendWith::Immediate(id), length: 3 } => id,
            CompletedOperation::RecvWriteImmediate { immediate, length: 3 } => immediate,
            other => panic!("{other:?}"),
        };
        assert_eq!(number, n as u32);
    }
}

/// Receives that were posted in Init are used when the peer sends.
pub fn receives_posted_in_init_are_used(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let into = world.memory(1, 64);
    world.post_recv(1, 5, &[into]);
    world.join(world.qp, ReadyToSend { rnr_retry: 0, ..SEND });
    world.post(0, 9, send_inline(b"hello"));
    assert_eq!(world.statuses(0, 1), [(9, Status::Success)]);
    assert_eq!(world.statuses(1, 1), [(5, Status::Success)]);
    assert_eq!(&contents(&into)[..5], b"hello");
}

/// A reposted receive uses its old memory, in whatever order receives are reposted.
pub fn receives_are_posted_again(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let qp = world.qp[1];
    let memory: Vec<_> = (0..64).map(|_| world.memory(1, 16)).collect();
    for (id, into) in memory.iter().enumerate() {
        world.post_recv(1, id as u64, &[*into]);
    }
    let mut posted: std::collections::VecDeque<u64> = (0..64).collect();
    for round in 0..40u8 {
        let mut done = Vec::new();
        for n in 0..8 {
            world.post(0, 9, send_inline(&[round, n]));
            let id = posted.pop_front().expect("64 are posted");
            assert_eq!(world.statuses(1, 1), [(id, Status::Success)]);
            assert_eq!(contents(&memory[id as usize])[..2], [round, n]);
            done.push(id);
        }
        world.statuses(0, 8);
        if round % 4 == 3 {
            done.reverse();
        }
        for id in done {
            if !world.device(1).repost_recv(qp, id) {
                world.post_recv(1, id, &[memory[id as usize]]);
            }
            posted.push_back(id);
        }
        assert!(!world.device(1).repost_recv(qp, posted[0]), "there is no room");
    }
}

/// The data of a WRITE is there when the SEND that was posted with it arrives. Both are posted, or neither. One
/// completion reports both, also if the WRITE fails.
pub fn write_arrives_before_its_announcing_send(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let (memory, qp) = (world.memory(1, 4096), world.qp[0]);
    let region = world.grant(1, memory, Access::REMOTE_WRITE);
    let into = world.memory(1, 64);
    let announce = |world: &mut World, id: u64, bytes: &[u8], to: RemoteAddress, text: &[u8]| {
        let from = world.memory(0, bytes.len());
        from.write(0, bytes).unwrap();
        let (windows, immediate) = ([from], None);
        let payload = Payload::Windows(&windows);
        let operation = SendOperation::Write { payload, to, immediate };
        let write = SendRequest { signaled: false, ..request(id, operation) };
        world.device(0).post_announced(qp, &write, &request(id, send_inline(text)))
    };
    // Short and long messages.
    let to = granted(&region);
    for (id, (length, text)) in [(64, 44), (1, 1), (4096, 45), (64, 64)].into_iter().enumerate() {
        let (bytes, text) = (vec![id as u8 + 1; length], vec![id as u8; text]);
        memory.fill(0);
        world.post_recv(1, 5, &[into]);
        announce(&mut world, id as u64, &bytes, to, &text).unwrap();
        assert_eq!(world.statuses(1, 1), [(5, Status::Success)]);
        assert_eq!(contents(&memory)[..length], bytes);
        assert_eq!(contents(&into)[..text.len()], text);
        assert_eq!(world.statuses(0, 1), [(id as u64, Status::Success)]);
    }
    world.nothing_completes();
    let wrong = RemoteAddress { rkey: to.rkey ^ 1, ..to };
    world.post_recv(1, 6, &[into]);
    announce(&mut world, 7, &[1], wrong, &[2]).unwrap();
    let (id, status) = world.statuses(0, 1)[0];
    assert_eq!((id, status), (7, Status::RemoteAccess));
    let late = announce(&mut world, 8, &[1], to, &[2]);
    assert!(late.is_err(), "the queue pair is in error");
}

/// Receives that are posted together have the requested number and one id, and fit the queue.
pub fn receives_without_memory_are_posted_together(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let (memory, qp) = (world.memory(1, 64), world.qp[1]);
    let region = world.grant(1, memory, Access::REMOTE_WRITE);
    let (from, _) = world.filled(0, 64);
    world.device(1).post_empty_recvs(qp, 5, 64).unwrap();
    for round in 0..20u32 {
        assert!(world.device(1).post_empty_recvs(qp, 5, 1).is_err(), "there is no room");
        for n in 0..8 {
            let payload = Payload::Windows(&[from]);
            let immediate = Some(8 * round + n);
            world.post(0, 9, SendOperation::Write { payload, to: granted(&region), immediate });
        }
        for (n, completion) in world.completions(1, 8).into_iter().enumerate() {
            let (length, immediate) = (64, 8 * round + n as u32);
            let operation = CompletedOperation::RecvWriteImmediate { length, immediate };
            assert_eq!((completion.id, completion.operation), (5, operation));
        }
        world.statuses(0, 8);
        world.device(1).post_empty_recvs(qp, 5, 8).unwrap();
    }
}

/// If the provider has datagrams: they report their sender, 40 bytes precede the payload, and a wrong Q_Key is dropped.
pub fn datagrams_report_their_sender(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let qps = [0, 1].map(|n| {
        let init = World::init(world.pd[n], world.cq[n]);
        QpInit { kind: QpType::Ud { qkey: 0x1111 }, ..init }
    });
    if !world.offers().datagrams {
        let mut rng = world.rng.fork();
        let made = world.device(0).create_qp(&qps[0], &mut rng);
        assert_eq!(made, Err(VerbsError::Invalid));
        return;
    }
    let qps = [0, 1].map(|n| world.queue_pair(n, &qps[n]));
    world.join(qps, SEND);
    let into = world.memory(1, 256);
    world.device(1).post_recv(qps[1], &RecvRequest { id: 4, into: &[into] }).unwrap();
    let address = world.way(0);
    let remote_qpn = world.device(1).qp_number(qps[1]).unwrap();
    for (remote_qkey, text) in [(0x2222, b"wrong"), (0x1111, b"right")] {
        let payload = Payload::Inline(text);
        let operation = SendOperation::Send { payload, with: SendWith::Immediate(8) };
        let datagram = Some(DatagramTo { address, remote_qpn, remote_qkey });
        let request = SendRequest { datagram, ..request(1, operation) };
        world.device(0).post_send(qps[0], &request).unwrap();
    }
    let from = (world.address(0), world.device(0).qp_number(qps[0]).unwrap());
    let got = world.completions(1, 1)[0];
    let operation = CompletedOperation::Recv { length: 45, with: SendWith::Immediate(8) };
    assert_eq!((got.id, got.datagram_from, got.operation), (4, Some(from), operation));
    assert_eq!(&contents(&into)[40..45], b"right");
    assert_eq!(world.statuses(0, 2), [(1, Status::Success); 2]);
    world.nothing_completes();
}
