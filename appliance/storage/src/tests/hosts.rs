//! Admission of hosts, ownership of session names, and the records of refusals.

use super::bad::{knock, knock_from};
use crate::rnbd::server::Export;
use crate::rnbd::wire::{AccessMode, Operation};
use crate::testing::{Wire, World, context, user_io};
use crate::volume::VolumeId;
use core::net::{IpAddr, Ipv4Addr};
use net::hosts::Hosts;
use rtrs::client::{DownReason, Event, Mischief, PathId};
use rtrs::server::{CloseReason, Notice, RequestKind};
use rtrs::wire::{ConnectRequest, Uuid};
use rtrs::{Errno, Name};
use std::boxed::Box;
use std::string::String;
use std::vec::Vec;

fn export(name: &str, hosts: &str) -> Export {
    let hosts = hosts.split_whitespace().map(|network| network.parse().unwrap()).collect();
    Export {
        name: Name::new(name).unwrap(),
        volume: VolumeId(0),
        read_only: false,
        allow: Vec::new(),
        hosts: Hosts::new(hosts),
        limiter: Default::default(),
    }
}

/// A gateway that exports its volume under each of these names, to these hosts.
fn world(exports: &[(&str, &str)]) -> World {
    let mut world = World::new(World::small(true), 1 << 20);
    world.server.remove_export("ram0");
    for (name, hosts) in exports {
        world.server.add_export(export(name, hosts), &world.volumes).unwrap();
    }
    world
}

/// Refusals since the last call: host, kind, requested object, reason.
fn refused(world: &mut World) -> Vec<(IpAddr, &'static str, String, &'static str)> {
    let refusals = world.server.transport_mut().refusals();
    core::iter::from_fn(|| refusals.pop())
        .inspect(|refusal| assert!(!refusal.advice.is_empty()))
        .map(|refusal| (refusal.who.unwrap(), refusal.what, refusal.asked, refusal.reason))
        .collect()
}

fn reasons(world: &mut World) -> Vec<&'static str> {
    refused(world).into_iter().map(|(.., reason)| reason).collect()
}

#[test]
pub fn connection_of_a_host_that_no_export_admits_is_refused() {
    let mut world = world(&[("a", "10.0.0.3 fd00::/8"), ("b", "10.0.0.4/32")]);
    let memory = world.arena.available();
    assert!(world.server.is_calm());
    let stranger = world.connect("stranger");
    assert!(!world.server.is_calm(), "there is a refusal to report");
    let down = Event::PathDown(PathId(0), DownReason::Refused(Errno::EACCES));
    assert_eq!(world.events, [(stranger, down)]);
    assert_eq!(world.arena.available(), memory, "it holds no memory");
    let host = World::address(stranger);
    let asked = String::from("10.0.0.1 port 1234");
    assert_eq!(refused(&mut world), [(host, "connection", asked, "host_not_admitted")]);
    assert!(world.server.is_calm());
    let friend = world.connect("friend");
    assert!(world.open(friend, "a", AccessMode::ReadOnly).is_ok());
    assert_eq!(world.open(friend, "b", AccessMode::ReadOnly).err(), Some(Errno::EACCES));
    assert_eq!(world.open(friend, "c", AccessMode::ReadOnly).err(), Some(Errno::ENOENT));
    let host = World::address(friend);
    let map =
        |device: &str, reason| (host, "map", std::format!("{device} by session friend"), reason);
    let expected = [map("b", "host_not_admitted"), map("c", "no_such_export")];
    assert_eq!(refused(&mut world), expected);
    world.server.remove_export("a");
    world.server.remove_export("b");
    world.connect("late");
    assert_eq!(reasons(&mut world), ["nothing_exported"]);
}

#[test]
pub fn hosts_are_checked_at_every_connect_and_open() {
    let mut world = world(&[("a", "10.0.0.2"), ("b", "10.0.1.2"), ("both", "10.0.0.0/16")]);
    let client = world.connect("s1");
    let second = Ipv4Addr::new(10, 0, 1, 2).into();
    world.open(client, "both", AccessMode::ReadOnly).unwrap();
    world.open(client, "a", AccessMode::ReadOnly).unwrap();
    world.events.clear();
    // Export b admits a connection of the second address, the open device's export does not.
    world.add_path(client, second);
    let down = Event::PathDown(PathId(1), DownReason::Refused(Errno::EACCES));
    assert_eq!(world.events, [(client, down)]);
    assert_eq!(reasons(&mut world), ["host_not_admitted"]);
    assert_eq!(world.server.transport().paths().count(), 1);
    // With both paths up, neither a nor b admits all hosts of the session.
    let closed = world.clients[client].remove_path(PathId(1), context!(world, host));
    assert!(closed);
    world.clients[client].disconnect(PathId(0), context!(world, host));
    world.run();
    world.clients[client].reconnect(PathId(0), context!(world, host));
    world.run();
    world.add_path(client, second);
    assert_eq!(world.server.transport().paths().count(), 2);
    for device in ["a", "b"] {
        assert_eq!(world.open(client, device, AccessMode::ReadOnly).err(), Some(Errno::EACCES));
    }
    let device = world.open(client, "both", AccessMode::ReadOnly).unwrap().device;
    // A device whose export no longer admits the host stays open, but is not opened again.
    world.server.remove_export("both");
    world.server.add_export(export("both", "10.0.0.2"), &world.volumes).unwrap();
    assert_eq!(world.open(client, "both", AccessMode::ReadOnly).err(), Some(Errno::EACCES));
    let mut read = user_io(Operation::Read, 0, 512);
    read[4..8].copy_from_slice(&device.to_le_bytes());
    world.read(client, &read, 512).unwrap();
}

#[test]
pub fn session_name_belongs_to_its_host_until_its_paths_end() {
    let mut world = world(&[("a", "")]);
    let owner = world.connect("same");
    let second = Ipv4Addr::new(10, 0, 1, 2).into();
    world.add_path(owner, second);
    world.open(owner, "a", AccessMode::ReadWrite).unwrap();
    world.connect("same");
    let taken = (World::address(1), "session", String::from("same"), "name_taken");
    assert_eq!(refused(&mut world), [taken]);
    let notices = core::iter::from_fn(|| world.server.transport_mut().poll_notice());
    let log: Vec<String> = notices.map(|notice| std::format!("{notice}")).collect();
    assert_eq!(
        log,
        [
            "rtrs: session same: path 10.0.0.2@10.0.0.1 is up",
            "rtrs: session same: path 10.0.1.2@10.0.0.1 is up",
            "rtrs: session : path 10.0.0.3@10.0.0.1 is down: another host has a session of that name",
        ]
    );
    assert_eq!(
        world.server.transport().paths().count(),
        2,
        "the owner of the name is not affected"
    );
    world.read(owner, &user_io(Operation::Read, 0, 512), 512).unwrap();
    // The owner has only the path of its second address.
    world.clients[owner].disconnect(PathId(0), context!(world, host));
    world.run();
    world.connect("same");
    assert_eq!(reasons(&mut world), ["name_taken"]);
    world.clients[owner].disconnect(PathId(1), context!(world, host));
    world.run();
    let heir = world.connect("same");
    assert!(world.clients[heir].shape().is_some());
}

#[test]
pub fn refused_connection_has_a_reason() {
    let mut world = world(&[("a", "")]);
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
    knock(&mut world, &bad);
    knock(&mut world, &good.emit()[..55]);
    knock(&mut world, &ConnectRequest { first: false, ..good }.emit());
    knock(&mut world, &ConnectRequest { cid_num: 4096, ..good }.emit());
    assert_eq!(knock(&mut world, &good.emit()), None);
    knock(&mut world, &good.emit());
    knock(&mut world, &ConnectRequest { path: Uuid([3; 16]), ..good }.emit());
    let other: IpAddr = Ipv4Addr::new(10, 0, 0, 98).into();
    // The path's second connection must not come from another host, and the path cannot reconnect from there.
    let second = ConnectRequest { cid: 1, ..good };
    assert_eq!(knock_from(&mut world, other, &second.emit()), Some(Errno::ECONNRESET));
    let again = ConnectRequest { recon_cnt: 2, ..good };
    assert_eq!(knock_from(&mut world, other, &again.emit()), Some(Errno::ECONNRESET));
    let expected = [
        "not_rtrs",
        "malformed",
        "unknown_session",
        "connections_of_path",
        "path_in_use",
        "path_exists",
        "path_in_use",
        "path_in_use",
    ];
    assert_eq!(reasons(&mut world), expected);
}

#[test]
pub fn refused_map_has_a_reason() {
    let mut world = world(&[("a", ""), ("ro", ""), ("private", "")]);
    for name in ["ro", "private"] {
        world.server.remove_export(name);
        let allow = if name == "ro" { Vec::new() } else { std::vec![Name::new("other").unwrap()] };
        let export = Export { read_only: name == "ro", allow, ..export(name, "") };
        world.server.add_export(export, &world.volumes).unwrap();
    }
    let (first, second) = (world.connect("first"), world.connect("second"));
    world.open(first, "a", AccessMode::ReadWrite).unwrap();
    for (client, device, mode) in [
        (first, "/dev/a", AccessMode::ReadWrite),
        (second, "a", AccessMode::ReadWrite),
        (second, "ro", AccessMode::ReadWrite),
        (second, "private", AccessMode::ReadOnly),
        (second, "../a", AccessMode::ReadOnly),
    ] {
        assert!(world.open(client, device, mode).is_err());
    }
    let expected = ["open_already", "in_use", "read_only", "session_not_allowed", "bad_name"];
    assert_eq!(reasons(&mut world), expected);
}

/// Close reason of the only path.
fn cause<W: Wire>(world: &mut World<W>) -> CloseReason {
    let notices = core::iter::from_fn(|| world.server.transport_mut().poll_notice());
    let downs = notices.filter_map(|notice| match notice {
        Notice::PathDown { reason, .. } => Some(reason),
        Notice::PathUp { .. } => None,
    });
    let downs: Vec<_> = downs.collect();
    assert_eq!(downs.len(), 1, "{downs:?}");
    downs[0]
}

#[test]
pub fn log_names_the_cause_of_a_path_end() {
    let end = |act: &dyn Fn(&mut World<super::over_roce::RocePair>)| {
        let mut world = super::over_roce::world(50, 1500, World::small(true));
        let client = world.connect("s1");
        world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
        act(&mut world);
        world.run();
        cause(&mut world)
    };
    use verbs::Status;
    let by_client = end(&|world| {
        world.clients[0].disconnect(PathId(0), context!(world, host));
    });
    assert_eq!(by_client, CloseReason::Peer);
    let by_operator = end(&|world| {
        let path = world.server.transport().paths().next().unwrap().id;
        world.server.transport_mut().disconnect(path, context!(world, gateway));
    });
    assert_eq!(by_operator, CloseReason::Operator);
    // A response that the client never acknowledges: it receives no more frames.
    let unacknowledged = end(&|world| {
        // All its frames are lost, among them the acknowledgement of the server's heartbeat.
        let [host, gateway] = [1, 0].map(|node| netsim::Place { node, port: 0 });
        world.wire.0.network.link_mut(host, gateway).cut = true;
        world.pass(20);
    });
    assert_eq!(unacknowledged, CloseReason::Transport(Status::RetryExceeded));
    let forger = end(&|world| {
        // A key of a session that has ended: the transport rejects it.
        let permit = world.clients[0].get_permit().unwrap();
        world.clients[0].mischief = Mischief::ForgesKeys;
        let user = user_io(Operation::Read, 0, 512);
        world.submit(0, permit, RequestKind::Read, &user, 512).unwrap();
    });
    assert_eq!(forger, CloseReason::Refused);
    // The cause is the same if the failure shows when an earlier request is completed.
    let slow = super::ends::Slow::new(8);
    let pair = super::over_roce::RocePair::new(50, 1500);
    let mut world = World::over(pair, World::small(true), 1 << 20, Box::new(slow.clone()));
    let client = world.connect("s1");
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    let user = user_io(Operation::Read, 0, 512);
    world.start_read(client, &user, 512);
    world.run();
    let permit = world.clients[client].get_permit().unwrap();
    world.clients[client].mischief = Mischief::ForgesKeys;
    world.submit(client, permit, RequestKind::Read, &user, 512).unwrap();
    while world.wire.0.nodes[0].roce.counters().naks_sent.remote_access == 0 {
        assert!(world.wire.step(&mut world.now));
    }
    let (id, nothing) = (slow.oldest(), Ok(drivers::hal::Window::empty()));
    assert!(world.server.transport_mut().respond(id, nothing, context!(world, gateway)).is_some());
    world.run();
    assert_eq!(cause(&mut world), CloseReason::Refused);
    for (cause, message) in [
        (
            unacknowledged,
            "no ACKs from the client: host down, or packets of 4 KiB do not pass (MTU)",
        ),
        (forger, "our queue pair refused a request of the client, and failed"),
        (by_client, "disconnected by the client"),
        (by_operator, "disconnected by the operator"),
    ] {
        assert_eq!(std::format!("{cause}"), message);
    }
}
