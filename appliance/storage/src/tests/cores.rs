//! Servers on two cores of a gateway, each with its own sessions: limits and session names hold on all cores together.

use super::bad::knock_from;
use super::memory::{host, reasons, request};
use crate::rnbd::wire::{AccessMode, Operation};
use crate::testing::{Wire, World, context, user_io};
use rtrs::Errno;
use rtrs::client::PathId;
use rtrs::server::{CloseReason, Config, Directory, Notice, Wake};
use std::boxed::Box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::vec::Vec;

/// The servers, and how often each one's loop was woken.
fn cores(config: Config) -> ([World; 2], Arc<[AtomicU32; 2]>) {
    let woken: Arc<[AtomicU32; 2]> = Arc::default();
    let wakes = [0, 1].map(|core| {
        let woken = woken.clone();
        Box::new(move || _ = woken[core].fetch_add(1, Ordering::Relaxed)) as Wake
    });
    let directory = Arc::new(Directory::new(wakes.into()));
    let worlds = [0, 1].map(|core| {
        let mut world = World::new(config, 1 << 20);
        // Clients draw the UUIDs of their sessions at random, so they must differ by core.
        world.rng = netsim::Rng::new(1 + core as u64);
        world.server.transport_mut().share_sessions(directory.clone(), core);
        world
    });
    (worlds, woken)
}

fn sessions(world: &World) -> usize {
    world.server.transport().sessions().count()
}

/// Reasons of paths that ended since the last call.
fn ends(world: &mut World) -> Vec<CloseReason> {
    let notices = core::iter::from_fn(|| world.server.transport_mut().poll_notice());
    let reason = |notice| match notice {
        Notice::PathDown { reason, .. } => Some(reason),
        Notice::PathUp { .. } => None,
    };
    notices.filter_map(reason).collect()
}

#[test]
fn all_paths_of_a_session_are_on_one_core() {
    let ([mut first, mut second], _) = cores(World::small(true));
    assert_eq!(knock_from(&mut first, host(1), &request(1).emit()), None);
    // Whether the request claims to make the session, or to add a path to it.
    for is_first in [true, false] {
        netsim::label!(is_first);
        let path = rtrs::wire::Uuid([9; 16]);
        let request = rtrs::wire::ConnectRequest { path, first: is_first, ..request(1) };
        let (domains, ..) = second.wire.objects();
        let refused = knock_from(&mut second, host(2), &request.emit());
        assert_eq!(refused, Some(Errno::EPERM));
        assert_eq!(reasons(&mut second), ["session_elsewhere"]);
        assert_eq!(
            (sessions(&second), second.wire.objects().0),
            (0, domains + 1),
            "only those of the request"
        );
    }
    // The session ends after the handshake timeout.
    first.pass(100);
    assert_eq!(knock_from(&mut second, host(2), &request(1).emit()), None);
    assert_eq!(sessions(&second), 1);
}

#[test]
fn session_name_moves_to_a_new_session_of_its_host_on_another_core() {
    let ([mut first, mut second], woken) = cores(World::small(true));
    let old = first.connect("same");
    first.open(old, "ram0", AccessMode::ReadWrite).unwrap();
    let bystander = first.connect("other");
    // The name is refused to another host, that of the second client.
    second.connect("nobody");
    second.connect("same");
    assert_eq!(ends(&mut second), [CloseReason::NameTaken]);
    assert_eq!(reasons(&mut second), ["name_taken"]);
    assert_eq!(woken[0].load(Ordering::Relaxed), 0);
    first.run();
    assert_eq!((sessions(&first), ends(&mut first)), (2, std::vec![]));
    // The host has restarted, and connects to a port of the other core.
    let name = rtrs::Name::new("same").unwrap();
    let config = rtrs::client::Config::default();
    let client = rtrs::client::Client::new(config, name, context!(second, host)).unwrap();
    second.clients.push(client);
    let anew = second.clients.len() - 1;
    second.add_path(anew, World::address(old));
    second.open(anew, "ram0", AccessMode::ReadWrite).unwrap();
    assert_eq!((sessions(&second), ends(&mut second)), (2, std::vec![]));
    assert_eq!(woken.each_ref().map(|woken| woken.load(Ordering::Relaxed)), [1, 0]);
    first.run();
    assert_eq!((sessions(&first), ends(&mut first)), (1, std::vec![CloseReason::Replaced]));
    first.open(bystander, "ram0", AccessMode::ReadWrite).unwrap();
    first.read(bystander, &user_io(Operation::Read, 0, 512), 512).unwrap();
}

#[test]
fn limits_of_a_host_hold_for_all_cores_together() {
    let config = Config { sessions_per_host: 3, ..World::small(true) };
    let (mut worlds, _) = cores(config);
    for (n, core) in [(1, 0), (2, 1), (3, 1)] {
        let refused = knock_from(&mut worlds[core], host(1), &request(n).emit());
        assert_eq!(refused, None, "session {n}");
    }
    for world in &mut worlds {
        let refused = knock_from(world, host(1), &request(4).emit());
        assert_eq!((refused, reasons(world)), (Some(Errno::ENOMEM), ["sessions_per_host"].into()));
    }
    assert_eq!(knock_from(&mut worlds[0], host(2), &request(5).emit()), None, "other hosts may");

    // Two sessions of 128 KiB.
    let config = Config { memory_per_host: Some(300 << 10), ..World::small(true) };
    let ([mut first, mut second], _) = cores(config);
    let one = first.connect("one");
    let two = second.connect("two");
    second.add_path(two, "10.0.9.9".parse().unwrap());
    let refused = knock_from(&mut second, World::address(one), &request(3).emit());
    assert_eq!((refused, reasons(&mut second)), (Some(Errno::ENOMEM), ["memory_per_host"].into()));
    // Memory that the first server has released is available to the host there.
    first.clients[one].disconnect(PathId(0), context!(first, host));
    first.run();
    assert_eq!(knock_from(&mut second, World::address(one), &request(3).emit()), None);
}
