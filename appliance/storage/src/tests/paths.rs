//! The client's paths: failure, reconnect, and load balancing.

use crate::rnbd::wire::{AccessMode, Operation};
use crate::testing::{Wire, World, context, user_io};
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use rtrs::client::{
    AddPathError, Client, Continuity, DownReason, Event, Outcome, PathId, PathState, PathStats,
    Policy,
};
use rtrs::server::{Config, RequestKind};
use rtrs::wire::{ConnectRequest, Uuid};
use std::vec::Vec;

const SECOND_PATH: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 1, 2));

/// A client whose paths reconnect automatically, with `ram0` open.
fn world(paths: usize) -> (World, usize) {
    let mut world = World::new(World::small(true), 1 << 20);
    let client = world.connect("s1");
    world.clients[client].set_max_reconnect_attempts(None);
    if paths > 1 {
        world.add_path(client, SECOND_PATH);
    }
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    world.events.clear();
    (world, client)
}

fn states(client: &Client) -> Vec<PathState> {
    client.paths().map(|path| path.state).collect()
}

fn stats(client: &Client) -> Vec<PathStats> {
    client.paths().map(|path| *path.stats).collect()
}

fn pass_millis(world: &mut World, millis: u64) {
    world.now = world.now + Duration::from_millis(millis);
    world.run();
}

#[test]
pub fn failed_path_reconnects_after_a_delay_up_to_the_limit() {
    let (mut world, client) = world(1);
    let path = world.server.transport().paths().next().unwrap().id;
    world.server.transport_mut().disconnect(path, context!(world, gateway));
    world.run();
    let down = [Event::PathDown(PathId(0), DownReason::Peer), Event::LinkDown];
    assert_eq!(world.events, down.map(|event| (client, event)));
    assert_eq!(states(&world.clients[client]), [PathState::Reconnecting]);
    pass_millis(&mut world, 999);
    assert_eq!(states(&world.clients[client]), [PathState::Reconnecting], "not yet");
    pass_millis(&mut world, 251);
    assert_eq!(states(&world.clients[client]), [PathState::Connected]);
    assert_eq!(stats(&world.clients[client])[0].reconnects, 1);

    world.clients[client].set_max_reconnect_attempts(Some(2));
    world.wire.cut.push(World::address(client));
    world.pass(200);
    assert_eq!(states(&world.clients[client]), [PathState::Closed]);
    let status = world.clients[client].paths().next().unwrap();
    assert_eq!((status.attempts, status.stats.reconnects_failed), (2, 2));
    assert_eq!(status.last_failure, Some(DownReason::Timeout));
    world.wire.cut.clear();
    world.pass(60);
    assert_eq!(states(&world.clients[client]), [PathState::Closed], "no attempt is left");
    assert!(world.clients[client].reconnect(PathId(0), context!(world, host)));
    world.run();
    assert_eq!(states(&world.clients[client]), [PathState::Connected]);
}

#[test]
pub fn requests_of_an_ended_path_fail_over_transparently() {
    for always_invalidate in [true, false] {
        let mut world = World::new(World::small(always_invalidate), 1 << 20);
        let client = world.connect("s1");
        world.add_path(client, SECOND_PATH);
        world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
        world.write(client, &user_io(Operation::Write, 7, 512), &[7; 512]).unwrap();
        world.clients[client].set_policy(Policy::RoundRobin);
        let user = user_io(Operation::Write, 0, 512);
        let write = world.start_write(client, &user, &[1; 512]);
        let read = world.start_read(client, &user_io(Operation::Read, 7, 512), 512);
        world.events.clear();
        // The path ends before any request is executed.
        world.clients[client].disconnect(PathId(0), context!(world, host));
        world.run();
        for permit in [write, read] {
            assert_eq!(world.outcome(client, permit), Some(Outcome::Answered(Ok(()))));
        }
        let mut bytes = [0; 512];
        world.data(client, read).read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 512]);
        let down = Event::PathDown(PathId(0), DownReason::Operator);
        assert_eq!(world.events, [(client, down)], "the link stays up");
        assert_eq!(stats(&world.clients[client])[1].failovers, 1);
    }
}

#[test]
pub fn silent_path_fails_over_within_a_second_and_the_last_path_is_kept() {
    let (mut world, client) = world(2);
    world.clients[client].set_policy(Policy::RoundRobin);
    world.wire.cut.push(World::address(client));
    let permits: Vec<_> = (0..8)
        .map(|n| world.start_write(client, &user_io(Operation::Write, n, 512), &[n as u8; 512]))
        .collect();
    let cut = world.now;
    while stats(&world.clients[client])[1].failovers == 0 {
        pass_millis(&mut world, 10);
    }
    let failover = world.now.since(cut);
    assert!(failover <= Duration::from_millis(1000), "failover_ms {}", failover.as_millis());
    assert_eq!(stats(&world.clients[client])[1].failovers, 4);
    assert_eq!(
        world.clients[client].paths().next().unwrap().last_failure,
        Some(DownReason::Silence)
    );
    // The other path stops responding too. It is the last one, so it has until the heartbeat timeout.
    for permit in permits {
        assert_eq!(world.outcome(client, permit), Some(Outcome::Answered(Ok(()))));
        world.clients[client].put_permit(permit);
    }
    world.wire.cut.push(SECOND_PATH);
    let lonely = world.start_write(client, &user_io(Operation::Write, 0, 512), &[1; 512]);
    world.pass(25);
    assert_eq!(world.outcome(client, lonely), None);
    world.pass(15);
    assert_eq!(world.outcome(client, lonely), Some(Outcome::Lost));
}

#[test]
pub fn each_policy_balances_requests_as_defined() {
    for (policy, expected) in [
        (Policy::RoundRobin, [20, 20]),
        (Policy::MinInflight, [20, 20]),
        (Policy::MinLatency, [40, 0]),
    ] {
        let (mut world, client) = world(2);
        world.clients[client].set_policy(policy);
        for path in [0, 1].map(PathId) {
            assert!(world.clients[client].reset_stats(path));
        }
        for _ in 0..10 {
            let permits: Vec<_> = (0..4)
                .map(|n| world.start_read(client, &user_io(Operation::Read, n, 512), 512))
                .collect();
            world.run();
            for permit in permits {
                assert_eq!(world.outcome(client, permit), Some(Outcome::Answered(Ok(()))));
                assert!(world.clients[client].put_permit(permit));
            }
        }
        let reads: Vec<u64> = stats(&world.clients[client]).iter().map(|s| s.reads).collect();
        assert_eq!(reads, expected, "{policy:?}");
    }
}

#[test]
pub fn paths_are_added_and_removed() {
    let (mut world, client) = world(1);
    let memory = world.client_arena.available();
    let to = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), 1234);
    let add =
        |world: &mut World, from| world.clients[client].add_path(from, to, context!(world, host));
    let address = World::address(client);
    assert_eq!(add(&mut world, address), Err(AddPathError::Exists));
    let v6 = "fd00::1".parse().unwrap();
    assert_eq!(add(&mut world, v6), Err(AddPathError::Families));
    assert_eq!(add(&mut world, SECOND_PATH), Ok(PathId(1)));
    world.run();
    assert_eq!(states(&world.clients[client]), [PathState::Connected; 2]);
    assert_eq!(world.server.transport().paths().count(), 2);
    assert!(world.clients[client].remove_path(PathId(1), context!(world, host)));
    world.run();
    assert_eq!(states(&world.clients[client]), [PathState::Connected]);
    assert_eq!(world.server.transport().paths().count(), 1);
    assert_eq!(world.client_arena.available(), memory);
    assert!(!world.clients[client].remove_path(PathId(1), context!(world, host)));
    assert!(!world.clients[client].reconnect(PathId(7), context!(world, host)));
    // The end of the client releases all its memory.
    let ended = world.clients.remove(client);
    ended.end(context!(world, host));
    world.run();
    assert_eq!(world.wire.objects(), (0, 0, 0));
}

#[test]
pub fn restarted_server_is_noticed_by_its_incarnation() {
    let config = |incarnation| Config { incarnation, ..World::small(true) };
    let mut world = World::new(config(5), 1 << 20);
    let client = world.connect("s1");
    world.clients[client].set_max_reconnect_attempts(None);
    let link_ups = |world: &mut World| -> Vec<Event> {
        let ups = world.events.drain(..).map(|(_, event)| event);
        ups.filter(|event| matches!(event, Event::LinkUp { .. })).collect()
    };
    assert_eq!(link_ups(&mut world), [Event::LinkUp { fresh: true, server: Continuity::Anew }]);
    for (incarnation, server) in [
        (5, Continuity::Same),
        (6, Continuity::Anew),
        (0, Continuity::Anew),
        (0, Continuity::Unknown),
    ] {
        world.restart(config(incarnation));
        world.pass(3);
        assert_eq!(link_ups(&mut world), [Event::LinkUp { fresh: false, server }]);
    }
    // Another queue depth: permits held before are void.
    let held = world.clients[client].get_permit().unwrap();
    world.restart(Config { queue_depth: 16, ..config(7) });
    world.pass(3);
    assert_eq!(link_ups(&mut world), [Event::LinkUp { fresh: true, server: Continuity::Anew }]);
    assert!(!world.clients[client].put_permit(held));
    assert_eq!(world.clients[client].available_permits(), 16);
    let user = user_io(Operation::Read, 0, 512);
    let submitted = world.submit(client, held, RequestKind::Read, &user, 512);
    assert_eq!(submitted, Err(rtrs::Errno::ENOTCONN));
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
}

/// A stock server reports no incarnation, and drops the session of a client that was cut off. Its
/// connection manager continues its numbering, which shows that it was not restarted.
#[test]
pub fn stock_server_that_was_cut_off_does_not_count_as_restarted() {
    let mut world = World::new(World::small(true), 1 << 20);
    world.wire.linux_ids = Some((40, 0x5e11_9af0));
    let client = world.connect("s1");
    world.clients[client].set_max_reconnect_attempts(None);
    world.events.clear();
    let comes_back = |world: &mut World| {
        world.restart(World::small(true));
        world.pass(3);
        let up = world.events.drain(..).find_map(|(_, event)| match event {
            Event::LinkUp { server, .. } => Some(server),
            _ => None,
        });
        up.expect("the path is up again")
    };
    assert_eq!(comes_back(&mut world), Continuity::Same);
    assert_eq!(comes_back(&mut world), Continuity::Same);
    world.wire.linux_ids = Some((40, 0x77c0_0142));
    assert_eq!(comes_back(&mut world), Continuity::Anew, "the server was rebooted");
    assert_eq!(comes_back(&mut world), Continuity::Same);
}

#[test]
pub fn invalidating_responses_of_linux_are_accepted_in_both_modes() {
    for always_invalidate in [true, false] {
        netsim::label!(always_invalidate);
        let mut world = World::new(World::small(always_invalidate), 1 << 20);
        world.wire.linux_answers = true;
        let client = world.connect("s1");
        world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
        for round in 0..50 {
            let data = [round; 1024];
            world.write(client, &user_io(Operation::Write, 3, 1024), &data).unwrap();
            let back = world.read(client, &user_io(Operation::Read, 3, 1024), 1024).unwrap();
            assert_eq!(back, data);
        }
    }
}

#[test]
pub fn only_the_first_path_of_a_session_may_make_it() {
    // As in Linux: CON_REQ of an added path says that the session exists.
    let (mut world, client) = world(1);
    let port = 4321;
    let to = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), port);
    world.clients[client].add_path(SECOND_PATH, to, context!(world, host)).unwrap();
    let request = loop {
        match world.wire.gateway().poll_connection_event().unwrap() {
            verbs::ConnectionEvent::Request { private_data, .. } => break private_data,
            _ => continue,
        }
    };
    let request = ConnectRequest::parse(request.as_slice()).unwrap();
    assert_eq!((request.first, request.cid, request.recon_cnt), (false, 0, 1));
    assert_ne!(request.path, Uuid([0; 16]));
}

/// Cost follows work: the heartbeats of one path do not visit other paths.
#[test]
pub fn timers_visit_only_paths_that_are_due() {
    let mut world = World::new(World::small(true), 8 << 20);
    for n in 0..8 {
        world.connect(&std::format!("s{n}"));
        world.pass(1);
    }
    let before = world.server.transport().looked_at;
    world.pass(60);
    let looked = world.server.transport().looked_at - before;
    assert!(
        (8 * 11..=8 * 13).contains(&looked),
        "{looked} visits for twelve heartbeats of eight paths"
    );
    // The server's deadline shows that requests have arrived or responses are to be sent.
    assert!(world.server.poll_timeout() > Some(world.now));
    for comes in [true, false] {
        netsim::label!(comes);
        if comes {
            world.start_read(0, &[], 512);
            while world.wire.step() {}
        }
        assert_eq!(world.server.poll(&mut world.volumes, context!(world, gateway)), comes);
    }
    world.run();
    for due in [true, false] {
        netsim::label!(due);
        world.now = if due { world.server.poll_timeout().unwrap() } else { world.now };
        assert_eq!(world.server.poll(&mut world.volumes, context!(world, gateway)), due);
    }
}
