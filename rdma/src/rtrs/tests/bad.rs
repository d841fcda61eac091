use crate::rnbd::wire::{AccessMode, Operation};
use crate::rtrs::Errno;
use crate::rtrs::client::{DownReason, Event, Outcome};
use crate::rtrs::testing::{Wire, World, context, user_io};
use crate::rtrs::wire::{ConnectRequest, Uuid};
use crate::verbs::{
    ConnectionEvent, ConnectionManager, ConnectionParameters, CqId, Provider, QpInit, QpType,
};
use core::net::{Ipv4Addr, SocketAddr};
use std::vec::Vec;

#[test]
fn lies_about_lengths_get_einval_and_the_session_goes_on() {
    let mut world = World::new(World::small(true), 1 << 20);
    let client = world.connect("s1");
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    let lie = user_io(Operation::Write, 0, 1024);
    assert_eq!(world.write(client, &lie, &[1; 512]), Err(Errno::EINVAL));
    let lie = user_io(Operation::Read, 0, 1024);
    assert_eq!(world.read(client, &lie, 512), Err(Errno::EINVAL));
    let lie = user_io(Operation::Write, 0, 512);
    assert_eq!(world.read(client, &lie, 512), Err(Errno::EINVAL), "a write that asks for data");
    let end = user_io(Operation::Read, 2048, 512);
    assert_eq!(world.read(client, &end, 512), Err(Errno::EIO), "past the end");
    let large = user_io(Operation::Discard, 0, 512 * 4096);
    assert_eq!(world.write(client, &large, &[]), Err(Errno::EINVAL));
    let mut unknown = user_io(Operation::Read, 0, 512);
    unknown[16] = 99;
    assert_eq!(world.read(client, &unknown, 512), Err(Errno::EINVAL));
    assert_eq!(world.read(client, &[], 512), Err(Errno::EINVAL), "no user header");
    let mut foreign = user_io(Operation::Read, 0, 512);
    foreign[5] = 1;
    assert_eq!(world.read(client, &foreign, 512), Err(Errno::ENOTCONN));
    assert_eq!(world.read(client, &user_io(Operation::Read, 0, 512), 512).unwrap(), [0; 512]);
}

/// Sends a connection request of our own making; what became of it.
fn knock(world: &mut World, private_data: &[u8]) -> Option<Errno> {
    let pd = world.fabric.alloc_pd().unwrap();
    let cq: CqId = world.fabric.create_cq(16).unwrap();
    let init =
        QpInit { kind: QpType::Rc, pd, send_cq: cq, recv_cq: cq, max_send_wr: 1, max_recv_wr: 1 };
    let qp = world.fabric.create_qp(&init, &mut world.rng).unwrap();
    let parameters = ConnectionParameters {
        responder_resources: 0,
        initiator_depth: 0,
        retry_count: 7,
        rnr_retry_count: 7,
        min_rnr_timer: 12,
    };
    let from = Ipv4Addr::new(10, 0, 0, 99).into();
    let to = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), 1234);
    world
        .fabric
        .connect(qp, from, to, &parameters, private_data, world.now, &mut world.rng)
        .unwrap();
    let request = world.fabric.poll_connection_event().unwrap();
    assert!(world.server.handle_connection_event(&request, context!(world, gateway)));
    let answer = world.fabric.poll_connection_event().unwrap();
    while world.fabric.poll_connection_event().is_some() {}
    match answer {
        ConnectionEvent::Rejected { private_data, .. } => {
            match crate::rtrs::wire::ConnectResponse::parse(private_data.as_slice()) {
                Ok(crate::rtrs::wire::ConnectResponse::Refused(errno)) => Some(errno),
                other => panic!("{other:?}"),
            }
        }
        ConnectionEvent::Established { .. } => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn connection_requests_are_refused_with_the_errno_of_linux() {
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
    // It never completes: after the handshake timeout its memory is back.
    world.pass(100);
    assert_eq!(world.arena.available(), memory);
    assert_eq!(world.server.transport().counters().refused, 7);
}

#[test]
fn sessions_that_memory_does_not_suffice_for_are_refused() {
    let config = World::small(true);
    // Room for 8 chunks and their books, not for 16.
    let mut world = World::new(config, 200 << 10);
    let first = world.connect("a");
    assert!(world.clients[first].shape().is_some());
    world.events.clear();
    let second = world.connect("b");
    let refused = Event::PathDown(0, DownReason::Refused(Errno::ENOMEM));
    assert_eq!(world.events, [(second, refused)]);
    world.open(first, "ram0", AccessMode::ReadWrite).unwrap();
}

#[test]
fn a_key_dies_with_its_use_and_the_next_one_cannot_be_guessed() {
    let mut world = World::new(World::small(true), 1 << 20);
    let (good, bad) = (world.connect("good"), world.connect("bad"));
    world.open(good, "ram0", AccessMode::ReadWrite).unwrap();
    world.open(bad, "ram0", AccessMode::ReadOnly).unwrap();
    let user = user_io(Operation::Read, 0, 512);
    let mut keys: Vec<u32> = Vec::new();
    for _ in 0..20 {
        world.read(bad, &user, 512).unwrap();
        keys.push(world.fabric.request_key);
    }
    let steps = keys.windows(2).filter(|pair| pair[1].wrapping_sub(pair[0]) < 256).count();
    assert_eq!(steps, 0, "Linux only counts up the low 8 bits");
    world.fabric.replay_key = Some(keys[19]);
    world.events.clear();
    let permit = world.start_read(bad, 0, &user, 512);
    world.run();
    assert_eq!(world.outcome(bad, permit), Some(Outcome::Lost));
    assert!(matches!(world.events[..], [(c, Event::PathDown(0, _))] if c == bad));
    assert_eq!(world.read(good, &user, 512).unwrap(), [0; 512], "others are undisturbed");
    let names: Vec<_> = world.server.transport().sessions().map(|s| s.name).collect();
    assert!(names.len() == 1 && names[0].as_str() == "good");
}
