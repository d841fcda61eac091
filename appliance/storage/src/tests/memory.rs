//! Memory of sessions: when it is allocated, its limits, and eviction.

use super::bad::{knock, knock_from};
use super::over_roce::RocePair;
use crate::rnbd::wire::{AccessMode, Operation};
use crate::testing::{Wire, World, context, user_io};
use crate::volume::RamVolume;
use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use drivers::hal::Arena;
use rtrs::Errno;
use rtrs::client::{Client, DownReason, Event, Mischief, PathId};
use rtrs::server::{Config, RequestKind};
use rtrs::wire::{ConnectRequest, InfoRequest, Uuid};
use std::boxed::Box;
use std::vec::Vec;
use verbs::ChunksOnDemand;

pub(super) fn request(session: u8) -> ConnectRequest {
    ConnectRequest {
        cid: 0,
        cid_num: 2,
        recon_cnt: 1,
        path: Uuid([session; 16]),
        session: Uuid([session; 16]),
        first: true,
    }
}

pub(super) fn host(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 9, 0, n).into()
}

pub(super) fn reasons<W: Wire>(world: &mut World<W>) -> Vec<&'static str> {
    let refusals = world.server.transport_mut().refusals();
    core::iter::from_fn(|| refusals.pop()).map(|refusal| refusal.reason).collect()
}

fn refused(errno: Errno) -> Event {
    Event::PathDown(PathId(0), DownReason::Refused(errno))
}

#[test]
pub fn half_open_session_has_no_memory_and_is_evicted() {
    let config = Config { max_sessions: 8, ..World::small(true) };
    let mut world = World::new(config, 300 << 10);
    let memory = world.arena.available();
    for n in 0..100 {
        assert_eq!(knock_from(&mut world, host(n), &request(n).emit()), None, "REQ {n}");
    }
    let books = 8 * InfoRequest::SIZE.next_multiple_of(64);
    assert_eq!(world.arena.available(), memory - books, "only for INFO_REQ");
    assert_eq!(world.server.transport().sessions().count(), 8);
    assert_eq!(world.server.transport().promised(), 0);
    assert_eq!(world.server.transport().counters().displaced, 92);
    // Established sessions are not evicted.
    let honest: Vec<usize> = ["a", "b"].map(|name| world.connect(name)).to_vec();
    for n in 100..200 {
        knock_from(&mut world, host(n), &request(n).emit());
    }
    for client in honest {
        world.open(client, "ram0", AccessMode::ReadOnly).unwrap();
    }
    assert_eq!(world.server.transport().promised(), 256 << 10);
    assert_eq!(world.server.transport().counters().refused, 100, "it is refused now");
    assert_eq!(reasons(&mut world).last(), Some(&"memory"));
}

#[test]
pub fn flood_of_one_host_evicts_its_own_sessions_and_takes_no_memory() {
    let config = Config { max_sessions: 8, ..World::small(true) };
    let mut world = World::new(config, 300 << 10);
    // Released memory is free once the ports have sent all frames that refer to it. This port is slow.
    world.arena.wait_for_ports(1);
    let memory = world.arena.available();
    assert_eq!(knock_from(&mut world, host(1), &request(1).emit()), None);
    for n in 10..250 {
        assert_eq!(knock_from(&mut world, host(2), &request(n).emit()), None, "REQ {n}");
    }
    let hosts: Vec<IpAddr> = world.server.transport().sessions().map(|one| one.host).collect();
    assert_eq!(hosts.len(), 8);
    assert!(hosts.contains(&host(1)), "{hosts:?}");
    let books = 241 * InfoRequest::SIZE.next_multiple_of(64);
    assert!(world.arena.available() >= memory - books, "only for INFO_REQ");
    let client = world.connect("honest");
    world.open(client, "ram0", AccessMode::ReadOnly).unwrap();
}

#[test]
pub fn memory_is_zeroed_in_pieces_and_the_path_is_up_when_all_of_it_is() {
    // 64 pieces, of which the last has half the length.
    let config = Config { queue_depth: 508, ..World::small(true) };
    let mut world = World::new(config, 9 << 20);
    world.soil();
    let client = {
        let name = rtrs::Name::new("s1").unwrap();
        Client::new(Default::default(), name, context!(world, host)).unwrap()
    };
    world.clients.push(client);
    let to = core::net::SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), 1234);
    world.clients[0].add_path(World::address(0), to, context!(world, host)).unwrap();
    let dirty = |world: &World| -> usize {
        let Some((_, chunks)) = world.server.transport().chunks().next() else { return usize::MAX };
        let mut bytes = std::vec![0; chunks.len()];
        chunks.read(0, &mut bytes).unwrap();
        bytes.iter().filter(|&&byte| byte != 0).count()
    };
    let mut before = 0;
    let mut rounds = 0;
    // In each round the clock advances once, to the server's deadline; a round must not zero many
    // pieces.
    while world.server.transport().paths().all(|path| path.connections < 2)
        || world.server.transport().sessions().all(|session| !session.up)
    {
        rounds += 1;
        assert!(rounds < 100, "polls at the deadline make no progress");
        let later = world.now + Duration::from_micros(1);
        let due = world.server.transport().poll_timeout();
        world.now = due.filter(|&at| at > world.now && at < later).unwrap_or(later);
        for _ in 0..20 {
            let mut moved = false;
            while let Some(event) = world.wire.gateway().poll_connection_event() {
                if !world.server.handle_connection_event(&event, context!(world, gateway)) {
                    world.clients[0].handle_connection_event(&event, context!(world, host));
                }
                moved = true;
            }
            moved |= world.server.poll(&mut world.volumes, context!(world, gateway));
            while world.clients[0].poll(context!(world, host)).is_some() {}
            moved |= world.wire.step();
            if !moved {
                break;
            }
        }
        let now = dirty(&world);
        if now != usize::MAX && before != 0 {
            assert!(before - now <= 128 << 10, "{} bytes in a round", before - now);
        }
        before = if now == usize::MAX { 0 } else { now };
    }
    assert_eq!(dirty(&world), 0, "the path is up only after all memory is zeroed");
    assert!(rounds >= 64, "{rounds}");
    world.run();
    world.open(0, "ram0", AccessMode::ReadWrite).unwrap();
    assert_eq!(world.server.transport().poll_timeout().map(|at| at > world.now), Some(true));
}

#[test]
pub fn every_session_gets_the_same_depth_or_waits_until_memory_is_free() {
    let config = Config { queue_depth: 16, ..World::small(true) };
    let mut world = World::new(config, 800 << 10);
    let clients: Vec<usize> = ["a", "b", "c", "d"].map(|name| world.connect(name)).to_vec();
    let depths = |world: &World| -> Vec<u16> {
        world.server.transport().sessions().map(|session| session.queue_depth).collect()
    };
    assert_eq!(depths(&world), [16; 3]);
    assert!(world.events.contains(&(clients[3], refused(Errno::ENOMEM))));
    assert_eq!(reasons(&mut world), ["memory"]);
    // A power cycle: all clients reconnect, in another order.
    world.restart(config);
    for &client in [3, 1, 0, 2].iter() {
        world.clients[client].reconnect(PathId(0), context!(world, host));
        world.run();
    }
    assert_eq!(depths(&world), [16; 3]);
    world.clients[3].disconnect(PathId(0), context!(world, host));
    world.run();
    world.clients[2].reconnect(PathId(0), context!(world, host));
    world.run();
    world.open(2, "ram0", AccessMode::ReadWrite).unwrap();
}

#[test]
pub fn host_after_a_power_loss_gets_the_memory_of_its_old_session() {
    // Memory for one session.
    let mut world = World::new(World::small(true), 200 << 10);
    let client = world.connect("s1");
    world.wire.cut.push(World::address(client));
    world.clients[client].disconnect(PathId(0), context!(world, host));
    world.pass(6);
    world.wire.cut.clear();
    let name = rtrs::Name::new("s1").unwrap();
    world.clients[client] = Client::new(Default::default(), name, context!(world, host)).unwrap();
    world.add_path(client, World::address(client));
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    assert_eq!(world.server.transport().sessions().count(), 1);
}

#[test]
pub fn host_has_at_most_its_limit_of_sessions_and_memory() {
    let config = Config { sessions_per_host: 3, ..World::small(true) };
    let mut world = World::new(config, 4 << 20);
    for n in 0..3 {
        assert_eq!(knock(&mut world, &request(n).emit()), None);
    }
    assert_eq!(knock(&mut world, &request(3).emit()), Some(Errno::ENOMEM));
    assert_eq!(reasons(&mut world), ["sessions_per_host"]);
    assert_eq!(knock_from(&mut world, host(1), &request(4).emit()), None, "other hosts may");

    // Over IPv6 a host counts as its /64, with all addresses in it.
    let mut world = World::new(Config { sessions_per_host: 3, ..World::small(true) }, 4 << 20);
    let v6 = |n: u8| {
        let n = u16::from(n);
        core::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, n, n, n, n).into()
    };
    for n in 0..3 {
        assert_eq!(knock_from(&mut world, v6(n), &request(n).emit()), None);
    }
    assert_eq!(knock_from(&mut world, v6(7), &request(3).emit()), Some(Errno::ENOMEM));
    let other = core::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 1).into();
    assert_eq!(knock_from(&mut world, other, &request(4).emit()), None, "other hosts may");

    let config = Config { memory_per_host: Some(300 << 10), ..World::small(true) };
    let mut world = World::new(config, 4 << 20);
    for name in ["a", "b", "c"] {
        let client = Client::new(
            rtrs::client::Config { max_reconnect_attempts: Some(0), ..Default::default() },
            rtrs::Name::new(name).unwrap(),
            context!(world, host),
        );
        world.clients.push(client.unwrap());
        let number = world.clients.len() - 1;
        world.add_path(number, World::address(0));
    }
    assert_eq!(world.server.transport().promised(), 256 << 10);
    assert!(world.events.contains(&(2, refused(Errno::ENOMEM))));
    assert_eq!(reasons(&mut world), ["memory_per_host"]);
    let other = world.connect("d");
    world.open(other, "ram0", AccessMode::ReadWrite).unwrap();
}

/// With the default limits, a host opens all sessions that it can. Another host still gets a session and memory.
#[test]
fn greedy_host_leaves_sessions_and_memory_to_others() {
    let mut world = World::new(World::small(true), 64 << 20);
    let let_in = (0..64).filter(|&n| knock(&mut world, &request(n).emit()).is_none()).count();
    assert_eq!((let_in, reasons(&mut world).pop()), (32, Some("sessions_per_host")));
    assert_eq!(knock_from(&mut world, host(1), &request(99).emit()), None, "other hosts may");

    let mut world = World::new(World::small(true), 2 << 20);
    let memory = world.arena.available() as u64;
    for n in 0..16 {
        let client = Client::new(
            rtrs::client::Config { max_reconnect_attempts: Some(0), ..Default::default() },
            rtrs::Name::new(&std::format!("s{n}")).unwrap(),
            context!(world, host),
        );
        world.clients.push(client.unwrap());
        let number = world.clients.len() - 1;
        world.add_path(number, World::address(0));
    }
    let promised = world.server.transport().promised();
    assert!((memory / 2..=memory / 4 * 3).contains(&promised), "{promised} of {memory}");
    assert_eq!(reasons(&mut world).pop(), Some("memory_per_host"));
    let other = world.connect("another");
    world.open(other, "ram0", AccessMode::ReadWrite).unwrap();
}

#[test]
pub fn session_that_hoards_chunks_is_evicted_when_memory_is_short() {
    let config = Config { oversubscribe: 8, ..World::small(true) };
    let ram = Arena::on_heap((1 << 20) + 4096).alloc(1 << 20, 4096).unwrap();
    let mut pair = RocePair::new(60, 1500);
    let pool = Arena::on_heap(200 << 10).alloc(128 << 10, 4096).unwrap();
    pair.0.nodes[0].roce.give_memory(pool, 16 << 10).unwrap();
    let mut world = World::over(pair, config, 64 << 10, Box::new(RamVolume::new(ram, false)));
    let hoarder = world.connect("hoarder");
    world.clients[hoarder].mischief = Mischief::Hoards;
    for n in 0..7 {
        let permit = world.clients[hoarder].get_permit().unwrap();
        let user = user_io(Operation::Write, n * 16, 12 << 10);
        world.submit(hoarder, permit, RequestKind::Write, &user, 12 << 10).unwrap();
    }
    world.run();
    let free = |world: &World<RocePair>| world.wire.0.nodes[0].roce.on_demand().unwrap().available;
    assert!(free(&world) < 32 << 10, "{}", free(&world));
    world.pass(60);
    assert_eq!(world.server.transport().sessions().count(), 1, "memory is not short yet");
    let honest = world.clients.len();
    let name = rtrs::Name::new("honest").unwrap();
    world.clients.push(Client::new(Default::default(), name, context!(world, host)).unwrap());
    world.add_path(honest, World::address(0));
    let permit = world.clients[honest].get_permit().unwrap();
    let user = user_io(Operation::Write, 0, 12 << 10);
    world.submit(honest, permit, RequestKind::Write, &user, 12 << 10).unwrap();
    world.pass(20);
    assert_eq!(world.server.transport().sessions().count(), 1, "the hoarding session is evicted");
    assert!(world.outcome(honest, permit).is_some(), "the honest session's request completes");
}
