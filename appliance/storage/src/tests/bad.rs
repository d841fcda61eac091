use crate::rnbd::wire::{AccessMode, Operation};
use crate::testing::{Forgery, Wire, World, context, user_io};
use crate::volume::VolumeId;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use proptest::prelude::*;
use rtrs::Errno;
use rtrs::client::{DownReason, Event, Outcome, PathId};
use rtrs::server::RequestKind;
use rtrs::wire::{Addressing, ConnectRequest, Descriptor, Immediate, IoHeader, Uuid};
use std::vec::Vec;
use verbs::{
    ConnectionEvent, ConnectionManager, ConnectionParameters, CqId, MemoryVerbs, Provider, QpInit,
    QpType, Status,
};

#[test]
pub fn wrong_lengths_get_einval_and_the_session_stays_up() {
    let mut world = World::new(World::small(true), 1 << 20);
    let client = world.connect("s1");
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    let lie = user_io(Operation::Write, 0, 1024);
    assert_eq!(world.write(client, &lie, &[1; 512]), Err(Errno::EINVAL));
    let lie = user_io(Operation::Read, 0, 1024);
    assert_eq!(world.read(client, &lie, 512), Err(Errno::EINVAL));
    let lie = user_io(Operation::Write, 0, 512);
    assert_eq!(world.read(client, &lie, 512), Err(Errno::EINVAL), "a write sent as READ");
    let end = user_io(Operation::Read, 2048, 512);
    assert_eq!(world.read(client, &end, 512), Err(Errno::EIO), "past the end");
    let large = user_io(Operation::Discard, 0, 512 * 4096);
    assert_eq!(world.write(client, &large, &[]), Err(Errno::EINVAL));
    let mut unknown = user_io(Operation::Read, 0, 512);
    unknown[16] = 99;
    assert_eq!(world.read(client, &unknown, 512), Err(Errno::EINVAL));
    assert_eq!(world.read(client, &[], 512), Err(Errno::EINVAL), "no user header");
    let longer = [&user_io(Operation::Read, 0, 512)[..], &[0]].concat();
    assert_eq!(world.read(client, &longer, 512), Err(Errno::EINVAL));
    let mut foreign = user_io(Operation::Read, 0, 512);
    foreign[5] = 1;
    assert_eq!(world.read(client, &foreign, 512), Err(Errno::ENOTCONN));
    assert_eq!(world.read(client, &user_io(Operation::Read, 0, 512), 512).unwrap(), [0; 512]);
}

/// Sends a connection request with this private data; returns the errno of the refusal.
pub fn knock(world: &mut World, private_data: &[u8]) -> Option<Errno> {
    knock_from(world, Ipv4Addr::new(10, 0, 0, 99).into(), private_data)
}

/// Sends a connection request from a given host.
pub fn knock_from(world: &mut World, from: IpAddr, private_data: &[u8]) -> Option<Errno> {
    let pd = world.wire.alloc_pd().unwrap();
    let cq: CqId = world.wire.create_cq(16).unwrap();
    let init = QpInit {
        kind: QpType::Rc,
        pd,
        send_cq: cq,
        recv_cq: cq,
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 0,
        max_inline: 0,
    };
    let qp = world.wire.create_qp(&init, &mut world.rng).unwrap();
    let parameters = ConnectionParameters {
        responder_resources: 0,
        initiator_depth: 0,
        retry_count: 7,
        rnr_retry_count: 7,
        min_rnr_timer: 12,
    };
    let to = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), 1234);
    world.wire.connect(qp, from, to, &parameters, private_data, world.now, &mut world.rng).unwrap();
    let request = world.wire.poll_connection_event().unwrap();
    assert!(world.server.handle_connection_event(&request, context!(world, gateway)));
    // The server may have evicted other connections for it.
    let answer = loop {
        match world.wire.poll_connection_event().unwrap() {
            ConnectionEvent::Disconnected { .. } => {}
            answer => break answer,
        }
    };
    while world.wire.poll_connection_event().is_some() {}
    match answer {
        ConnectionEvent::Rejected { private_data, .. } => {
            match rtrs::wire::ConnectResponse::parse(private_data.as_slice()) {
                Ok(rtrs::wire::ConnectResponse::Refused(errno)) => Some(errno),
                other => panic!("{other:?}"),
            }
        }
        ConnectionEvent::Established { .. } => None,
        other => panic!("{other:?}"),
    }
}

#[test]
pub fn connection_requests_are_refused_with_the_errno_of_linux() {
    let mut world = World::new(World::small(true), 1 << 20);
    let memory = world.arena.available();
    let good = ConnectRequest {
        cid: 0,
        cid_num: 2,
        recon_cnt: 1,
        path: Uuid([1; 16]),
        session: Uuid([2; 16]),
        first: true,
    };
    let mut bad = good.emit();
    bad[2] = 0;
    assert_eq!(knock(&mut world, &bad), Some(Errno::ECONNRESET), "magic");
    assert_eq!(knock(&mut world, &good.emit()[..55]), Some(Errno::ECONNRESET), "short");
    let unknown = ConnectRequest { first: false, ..good };
    assert_eq!(knock(&mut world, &unknown.emit()), Some(Errno::ENXIO));
    let many = ConnectRequest { cid_num: 4096, ..good };
    assert_eq!(knock(&mut world, &many.emit()), Some(Errno::ECONNRESET));
    assert_eq!(world.arena.available(), memory);
    assert_eq!(knock(&mut world, &good.emit()), None);
    assert_eq!(knock(&mut world, &good.emit()), Some(Errno::ECONNRESET), "cid 0 twice");
    let other = ConnectRequest { cid: 1, cid_num: 3, ..good };
    assert_eq!(knock(&mut world, &other.emit()), Some(Errno::ECONNRESET), "another cid_num");
    let same_addresses = ConnectRequest { path: Uuid([3; 16]), ..good };
    assert_eq!(knock(&mut world, &same_addresses.emit()), Some(Errno::EEXIST));
    // It never completes: after the handshake timeout its memory is released.
    world.pass(100);
    assert_eq!(world.arena.available(), memory);
    assert_eq!(world.server.transport().counters().refused, 7);
}

#[test]
pub fn session_without_memory_is_refused() {
    let config = World::small(true);
    // Memory for 8 chunks and their bookkeeping, not for 16.
    let mut world = World::new(config, 200 << 10);
    let first = world.connect("a");
    assert!(world.clients[first].shape().is_some());
    world.events.clear();
    let second = world.connect("b");
    let refused = Event::PathDown(PathId(0), DownReason::Refused(Errno::ENOMEM));
    assert_eq!(world.events, [(second, refused)]);
    world.open(first, "ram0", AccessMode::ReadWrite).unwrap();
}

#[test]
pub fn key_is_invalid_after_use_and_the_next_is_unpredictable() {
    let mut world = World::new(World::small(true), 1 << 20);
    let (good, bad) = (world.connect("good"), world.connect("bad"));
    world.open(good, "ram0", AccessMode::ReadWrite).unwrap();
    world.open(bad, "ram0", AccessMode::ReadOnly).unwrap();
    let user = user_io(Operation::Read, 0, 512);
    let mut keys: Vec<u32> = Vec::new();
    for _ in 0..20 {
        world.read(bad, &user, 512).unwrap();
        keys.push(world.wire.request_key);
    }
    let steps = keys.windows(2).filter(|pair| pair[1].wrapping_sub(pair[0]) < 256).count();
    assert_eq!(steps, 0, "Linux only counts up the low 8 bits");
    world.wire.forgery = Some(Forgery { key: Some(keys[19]), ..Forgery::default() });
    world.events.clear();
    let permit = world.start_read(bad, &user, 512);
    world.run();
    assert_eq!(world.outcome(bad, permit), Some(Outcome::Lost));
    let down = (bad, Event::PathDown(PathId(0), DownReason::Transport(Status::RemoteAccess)));
    assert_eq!(world.events, [down, (bad, Event::LinkDown)]);
    assert_eq!(world.read(good, &user, 512).unwrap(), [0; 512], "other clients are not affected");
    let names: Vec<_> = world.server.transport().sessions().map(|s| s.name).collect();
    assert!(names.len() == 1 && names[0].as_str() == "good");
}

/// RTRS itself rejects a header with wrong lengths: no volume is involved, and the session stays up.
#[test]
pub fn header_with_wrong_lengths_gets_einval_and_the_session_stays_up() {
    let config = World::small(true);
    let user = user_io(Operation::Read, 0, 512);
    let sound = (user.len() as u16, 512);
    // The WRITE's immediate points to the RTRS header, which follows the read's data and the user header.
    let whole = user.len() as u16 + 512;
    let lies = [(whole + 1, 512), (sound.0, 0), (sound.0, config.chunk_size + 1), (sound.0, 511)];
    for (n, (user_len, length)) in [sound].into_iter().chain(lies).enumerate() {
        let mut world = World::new(config, 1 << 20);
        let client = world.connect("s1");
        world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
        let reads = world.server.volume_stats(VolumeId(0)).map_or(0, |stats| stats.reads);
        let into = Some(Descriptor { address: 0x1000, key: 1, length });
        let (header, size) = IoHeader::Read { user_len, need_invalidate: false, into }.emit();
        let bytes = Some(header[..size].to_vec());
        if n > 0 {
            world.wire.forgery = Some(Forgery { bytes, ..Forgery::default() });
        }
        let permit = world.start_read(client, &user, 512);
        world.run();
        let expected = if n == 0 { Ok(()) } else { Err(Errno::EINVAL) };
        assert_eq!(world.outcome(client, permit), Some(Outcome::Answered(expected)), "case {n}");
        world.clients[client].put_permit(permit);
        let malformed = world.server.transport().counters().malformed;
        assert_eq!(malformed, u64::from(n > 0), "case {n}");
        let stats = world.server.volume_stats(VolumeId(0)).unwrap();
        assert_eq!((stats.reads - reads, stats.errors), (u64::from(n == 0), 0), "case {n}");
        assert_eq!(world.read(client, &user, 512).unwrap(), [0; 512]);
    }
}

/// A read may be as long as a chunk, not longer.
#[test]
pub fn a_read_fills_a_chunk_at_most() {
    let config = World::small(true);
    let user = user_io(Operation::Read, 0, 512);
    for (length, malformed) in [(config.chunk_size, 0), (config.chunk_size + 1, 1)] {
        netsim::label!(length);
        let mut world = World::new(config, 1 << 20);
        let client = world.connect("s1");
        world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
        let into = Some(Descriptor { address: 0x1000, key: 1, length });
        let user_len = user.len() as u16;
        let (header, size) = IoHeader::Read { user_len, need_invalidate: false, into }.emit();
        let bytes = Some(header[..size].to_vec());
        world.wire.forgery = Some(Forgery { bytes, ..Forgery::default() });
        let permit = world.start_read(client, &user, 512);
        world.run();
        assert_eq!(world.server.transport().counters().malformed, malformed);
        // The response that fills a chunk goes to an address where this client has no memory.
        let refused = Outcome::Answered(Err(Errno::EINVAL));
        let expected = if malformed > 0 { refused } else { Outcome::Lost };
        assert_eq!(world.outcome(client, permit), Some(expected));
    }
}

/// As in Linux: a header cannot begin where the chunk ends.
#[test]
pub fn an_offset_at_the_end_of_its_chunk_ends_the_path() {
    let config = World::small(true);
    let places = Addressing::new(config.queue_depth);
    for (offset, lost) in [(config.chunk_size - 1, false), (config.chunk_size, true)] {
        let mut world = World::new(config, 1 << 20);
        let client = world.connect("s1");
        let place = places.join(0, offset);
        let immediate = Some(Immediate::Request { place }.emit());
        world.wire.forgery = Some(Forgery { immediate, ..Forgery::default() });
        let permit = world.start_read(client, &user_io(Operation::Read, 0, 512), 512);
        world.run();
        let answered = Outcome::Answered(Err(Errno::EINVAL));
        let expected = if lost { Outcome::Lost } else { answered };
        assert_eq!(world.outcome(client, permit), Some(expected));
    }
}

/// A request as a hostile client might make it.
#[derive(Clone, Debug)]
struct Hostile {
    user: Vec<u8>,
    length: u32,
    read: bool,
    forgery: Forgery,
}

fn hostile() -> impl Strategy<Value = Hostile> {
    let user = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..300),
        // Almost an I/O.
        (0u8..7, 0u64..4096, 0u32..20000, any::<[u8; 4]>()).prop_map(|(op, sector, size, rest)| {
            let mut user = user_io(Operation::Read, sector, size).to_vec();
            user[16] = op;
            user[28..].copy_from_slice(&rest);
            user
        }),
    ];
    let immediate = prop_oneof![
        3 => Just(None),
        // Requests at other offsets of other chunks, and arbitrary immediates.
        2 => (0u32..10, 0u32..20000).prop_map(|(chunk, offset)| Some(chunk << 25 | offset)),
        1 => any::<u32>().prop_map(Some),
    ];
    let bytes = prop_oneof![
        2 => Just(None),
        1 => proptest::collection::vec(any::<u8>(), 0..40).prop_map(Some),
        // A header of a valid type with arbitrary fields.
        2 => (2u8..4, any::<u16>(), 0u8..3, any::<[u8; 16]>()).prop_map(|(kind, user, n, desc)| {
            let user = user.to_le_bytes();
            let mut header = std::vec![kind, 0, user[0], user[1], 0, 0, n, 0];
            header.extend(desc);
            Some(header)
        }),
    ];
    (user, 0u32..12000, any::<bool>(), immediate, bytes).prop_map(
        |(user, length, read, immediate, bytes)| {
            let forgery = Forgery { key: None, immediate, bytes };
            Hostile { user, length, read, forgery }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_hostile_client_harms_only_itself(
        requests in proptest::collection::vec(hostile(), 1..20), always_invalidate: bool,
    ) {
        let mut world = World::new(World::small(always_invalidate), 1 << 20);
        let good = world.connect("good");
        world.open(good, "ram0", AccessMode::ReadWrite).unwrap();
        world.write(good, &user_io(Operation::Write, 2047, 512), &[5; 512]).unwrap();
        let memory = world.arena.available();
        let bad = world.connect("bad");
        world.open(bad, "ram0", AccessMode::ReadOnly).unwrap();
        for request in requests {
            world.clients[bad].reconnect(PathId(0), context!(world, host));
            world.run();
            let Some(permit) = world.clients[bad].get_permit() else { break };
            let (user, length) = (&request.user, request.length);
            let kind = if request.read { RequestKind::Read } else { RequestKind::Write };
            let submitted = world.submit(bad, permit, kind, user, length);
            world.wire.forgery = submitted.is_ok().then_some(request.forgery);
            world.run();
            world.wire.forgery = None;
            if world.outcome(bad, permit).is_some() || submitted.is_err() {
                world.clients[bad].put_permit(permit);
            }
        }
        world.clients[bad].disconnect(PathId(0), context!(world, host));
        world.run();
        prop_assert_eq!(world.arena.available(), memory);
        let back = world.read(good, &user_io(Operation::Read, 2047, 512), 512);
        prop_assert_eq!(back, Ok(std::vec![5; 512]));
    }

    #[test]
    fn info_with_any_content_is_accepted_or_ends_the_path(
        bytes in proptest::collection::vec(any::<u8>(), 0..300), name in "[a-z/.]{0,20}",
        well_formed: bool,
    ) {
        let mut world = World::new(World::small(true), 1 << 20);
        let memory = world.arena.available();
        let mut message = std::vec![0; 272];
        message[2..2 + name.len()].copy_from_slice(name.as_bytes());
        world.wire.forged_send = Some(if well_formed { message } else { bytes });
        let client = world.connect("s1");
        let up = world.server.transport().sessions().count();
        let good = well_formed && !name.is_empty() && !name.contains(['/', '.']);
        prop_assert_eq!(up, usize::from(good));
        world.clients[client].disconnect(PathId(0), context!(world, host));
        world.run();
        prop_assert_eq!(world.arena.available(), memory);
    }
}
