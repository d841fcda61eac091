//! Basic connections of two engines: first contact, reuse, streams, ends.

use crate::engine::{Config, Ready, RecvError, Role, SendError, SocketId, State};
use crate::testing::{World, config, device, ip, pattern};
use crate::wire::{AcceptConfirm, Eid, Reason};
use core::time::Duration;
use std::vec::Vec;
use verbs::RegionsOnDemand;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn first_contact_and_an_echo() {
    let mut w = World::new(1);
    let [server, client] = w.established();
    assert_eq!(w.send(1, client, b"hello"), 5);
    w.wait(SECOND / 1000);
    assert_eq!(w.recv(0, server), b"hello");
    w.send(0, server, b"world");
    w.wait(SECOND / 1000);
    assert_eq!(w.recv(1, client), b"world");
    assert_eq!(w.hosts[0].engine.groups().count(), 1);
    assert_eq!(
        w.hosts[0].engine.counters().cdc_sent,
        1,
        "the answer's message has the consumer cursor"
    );
    assert_eq!(w.hosts[0].engine.counters().first_contacts, 1);
}

#[test]
fn later_connections_share_the_group_and_many_at_once_make_one() {
    let mut w = World::new(2);
    let all: Vec<_> = (0..8).map(|_| w.connect_from(1)).collect();
    let up = |w: &World| {
        all.iter().all(|&at| {
            (0..2).all(|n| w.has_event(n, w.tcp[at].ends[n].unwrap(), Ready::ESTABLISHED))
        })
    };
    assert!(w.run(SECOND, |w| up(w)));
    for n in 0..2 {
        let groups: Vec<_> = w.hosts[n].engine.groups().collect();
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].connections, 8);
    }
    // Connections in the other direction use another group.
    let at = w.connect_from(0);
    assert!(w.run(SECOND, |w| w.has_event(0, w.tcp[at].ends[0].unwrap(), Ready::ESTABLISHED)));
    assert_eq!(w.hosts[0].engine.groups().count(), 2);
}

#[test]
fn a_megabyte_each_way_wraps_cursors_and_fills_windows() {
    let mut w = World::new(3);
    let ids = w.established();
    w.transfer(1, ids, &pattern(1 << 20, 1), 1 << 17);
    w.transfer(0, ids, &pattern(1 << 20, 2), 1000);
}

/// READABLE is reported for data, not for a window update.
#[test]
fn readable_is_reported_for_data_only() {
    let mut w = World::new(13);
    let ids = w.established();
    w.clear_events();
    w.send(1, ids[1], b"news");
    w.wait(SECOND / 1000);
    assert!(w.has_event(0, ids[0], Ready::READABLE));
    w.clear_events();
    assert_eq!(w.recv(0, ids[0]), b"news");
    w.wait(SECOND);
    assert!((0..2).all(|n| !w.has_event(n, ids[n], Ready::READABLE)));
}

/// The client's Confirm of a first contact lists the GIDs of its ports, for more links; later Confirms do not.
#[test]
fn a_first_confirm_lists_the_ports() {
    let mut w = World::with_ports(14, [config(), config()], [2, 2]);
    for first in [true, false] {
        let at = w.connect_from(1);
        let [server, client] = w.tcp.remove(at).ends.map(Option::unwrap);
        let carry = |w: &mut World, [from, to]: [(usize, SocketId); 2]| {
            let mut bytes = [0; 512];
            let count = w.hosts[from.0].engine.poll_clc_bytes(from.1, &mut bytes);
            w.with_engine(to.0, |engine, ctx, neighbours| {
                engine.handle_clc_bytes(to.1, &bytes[..count], ctx, neighbours)
            });
            // The handshake may wait for the peer's MAC address, or for an LLC response.
            w.wait(SECOND / 4);
            bytes[..count].to_vec()
        };
        let (server, client) = ((0, server), (1, client));
        carry(&mut w, [client, server]);
        carry(&mut w, [server, client]);
        let confirm = carry(&mut w, [client, server]);
        let gids = AcceptConfirm::parse(&confirm)
            .unwrap_or_else(|_| panic!("{first} {confirm:x?}"))
            .v2
            .expect("version 2")
            .gids;
        let ports = (0..2).map(|port| device(1, port).ip.to_ipv6_mapped());
        assert_eq!(gids, if first { ports.collect() } else { Vec::new() });
        assert!(w.run(SECOND, |w| w.has_event(0, server.1, Ready::ESTABLISHED)));
    }
}

/// The server's Accept determines the limits of a group: a Confirm with other limits is declined.
#[test]
fn a_confirm_of_other_limits_is_declined() {
    for (connections, links, expected) in
        [(0, 0, None), (1, 0, Some(Reason::MAX_CONNECTIONS)), (0, 1, Some(Reason::MAX_LINKS))]
    {
        let mut w = World::new(15);
        let at = w.connect_from(1);
        let [server, client] = w.tcp.remove(at).ends.map(Option::unwrap);
        let mut buffer = [0; 512];
        let hand = |w: &mut World, n: usize, id, bytes: &[u8]| {
            w.with_engine(n, |engine, ctx, neighbours| {
                engine.handle_clc_bytes(id, bytes, ctx, neighbours)
            });
            w.wait(SECOND / 4);
        };
        let count = w.hosts[1].engine.poll_clc_bytes(client, &mut buffer);
        hand(&mut w, 0, server, &buffer[..count]);
        let count = w.hosts[0].engine.poll_clc_bytes(server, &mut buffer);
        hand(&mut w, 1, client, &buffer[..count]);
        let count = w.hosts[1].engine.poll_clc_bytes(client, &mut buffer);
        let mut confirm = AcceptConfirm::parse(&buffer[..count]).unwrap();
        let contact = confirm.v2.as_mut().and_then(|v2| v2.first_contact.as_mut()).unwrap();
        let limits = contact.limits.as_mut().unwrap();
        (limits.0, limits.1) = (limits.0 ^ connections, limits.1 ^ links);
        hand(&mut w, 0, server, &confirm.emit());
        assert_eq!(w.hosts[0].engine.fallback(server), expected);
        assert_eq!(w.hosts[0].engine.groups().count(), usize::from(expected.is_none()));
    }
}

/// A client announces its buffers on busy links one after another before it sends the Confirm. From then on the
/// connection is established for the client, so the server must accept a late Confirm.
#[test]
fn late_confirm_is_accepted() {
    let mut w = World::new(12);
    let good = w.established();
    let at = w.connect_from(1);
    let ids = w.tcp.remove(at).ends.map(Option::unwrap);
    let take = |w: &mut World, from: usize| {
        let mut bytes = [0; 512];
        let count = w.hosts[from].engine.poll_clc_bytes(ids[from], &mut bytes);
        bytes[..count].to_vec()
    };
    let feed = |w: &mut World, n: usize, bytes: &[u8]| {
        let taken = w.with_engine(n, |engine, ctx, neighbours| {
            engine.handle_clc_bytes(ids[n], bytes, ctx, neighbours)
        });
        assert_eq!(taken, bytes.len());
    };
    let proposal = take(&mut w, 1);
    feed(&mut w, 0, &proposal);
    let accept = take(&mut w, 0);
    feed(&mut w, 1, &accept);
    let confirm = take(&mut w, 1);
    w.wait(23 * SECOND);
    w.send(1, ids[1], b"it is up");
    w.wait(SECOND);
    feed(&mut w, 0, &confirm);
    w.wait(SECOND);
    assert!(w.has_event(0, ids[0], Ready::ESTABLISHED));
    assert_eq!(w.recv(0, ids[0]), b"it is up");
    w.transfer(1, good, &pattern(1000, 1), 1000);
    for host in &w.hosts {
        assert_eq!((host.engine.counters().links_failed, host.engine.counters().failed), (0, 0));
    }
}

#[test]
fn a_full_window_blocks_and_opens_again() {
    let mut w = World::new(4);
    let [server, client] = w.established();
    let bytes = pattern(100_000, 7);
    let mut sent = 0;
    w.run(SECOND, |w| {
        sent += w.send(1, client, &bytes[sent..]);
        false
    });
    assert_eq!(sent, 32 << 10, "a send buffer, and a receive buffer");
    assert_eq!(w.hosts[0].engine.readable(server), 16 << 10);
    w.clear_events();
    assert_eq!(w.recv(0, server), &bytes[..16 << 10]);
    w.wait(SECOND);
    assert!(w.has_event(1, client, Ready::WRITABLE));
    assert_eq!(w.recv(0, server), &bytes[16 << 10..32 << 10]);
}

/// Checks that all resources of connections are freed.
fn nothing_is_left(w: &mut World) {
    w.wait(SECOND);
    for n in 0..2 {
        assert_eq!(w.hosts[n].engine.sockets().count(), 0, "node {n}");
        assert!(w.hosts[n].engine.groups().all(|group| group.connections == 0));
    }
}

#[test]
fn half_close_then_the_rest() {
    let mut w = World::new(5);
    let [server, client] = w.established();
    w.send(1, client, b"request");
    w.with_engine(1, |engine, ctx, _| engine.shutdown(client, ctx));
    w.wait(SECOND);
    assert_eq!(w.recv(0, server), b"request");
    assert_eq!(w.hosts[0].engine.recv(server, &mut [0; 9]), Err(RecvError::Finished));
    let late = w.with_engine(1, |engine, ctx, _| engine.send(client, b"x", ctx));
    assert_eq!(late, Err(SendError::Closed));
    let answer = pattern(50_000, 3);
    w.transfer(0, [server, client], &answer, 4096);
    w.close(0, server);
    w.wait(SECOND);
    assert_eq!(w.hosts[1].engine.recv(client, &mut [0; 9]), Err(RecvError::Finished));
    w.close(1, client);
    nothing_is_left(&mut w);
}

#[test]
fn a_close_sends_the_rest_first() {
    let mut w = World::new(6);
    let [server, client] = w.established();
    let bytes = pattern(30_000, 9);
    assert_eq!(w.send(1, client, &bytes), 16 << 10);
    w.close(1, client);
    w.wait(SECOND);
    assert_eq!(w.recv(0, server), &bytes[..16 << 10]);
    assert_eq!(w.hosts[0].engine.recv(server, &mut [0; 9]), Err(RecvError::Finished));
    w.close(0, server);
    nothing_is_left(&mut w);
}

#[test]
fn unread_data_makes_a_close_an_abort() {
    let mut w = World::new(7);
    let [server, client] = w.established();
    w.send(1, client, b"unread");
    w.wait(SECOND);
    w.close(0, server);
    w.wait(SECOND);
    assert!(w.has_event(1, client, Ready::ABORTED));
    assert_eq!(w.hosts[1].engine.recv(client, &mut [0; 9]), Err(RecvError::Aborted));
    w.close(1, client);
    nothing_is_left(&mut w);
}

#[test]
fn close_becomes_an_abort_after_the_linger_time() {
    let mut w = World::new(8);
    let [server, client] = w.established();
    let bytes = pattern(100_000, 9);
    let mut sent = 0;
    w.run(SECOND, |w| {
        sent += w.send(1, client, &bytes[sent..]);
        false
    });
    w.close(1, client);
    w.wait(SECOND);
    assert!(!w.has_event(0, server, Ready::ABORTED));
    w.wait(2 * SECOND);
    assert!(w.has_event(0, server, Ready::ABORTED));
    w.close(0, server);
    nothing_is_left(&mut w);
}

#[test]
fn simultaneous_close_frees_both_sockets() {
    let mut w = World::new(9);
    let [server, client] = w.established();
    w.close(0, server);
    w.close(1, client);
    nothing_is_left(&mut w);
}

#[test]
fn urgent_data_keeps_its_place() {
    let mut w = World::new(10);
    let [server, client] = w.established();
    w.send(1, client, b"before");
    w.with_engine(1, |engine, ctx, _| engine.send_urgent(client, b"!", ctx)).unwrap();
    w.send(1, client, b"after");
    w.wait(SECOND);
    assert_eq!(w.hosts[0].engine.urgent_mark(server), Some(7));
    assert_eq!(w.recv(0, server), b"before!after");
    assert_eq!(w.hosts[0].engine.urgent_mark(server), None);
}

#[test]
fn handshake_without_common_eid_falls_back() {
    let other = Config { eids: std::vec![Eid::new("OTHER").unwrap()], ..config() };
    let mut w = World::with(11, [config(), other]);
    let at = w.connect_from(1);
    w.wait(SECOND);
    for n in 0..2 {
        let id = w.tcp[at].ends[n].unwrap();
        assert_eq!(w.hosts[n].engine.fallback(id), Some(Reason::NO_DEVICE), "node {n}");
        assert!(w.has_event(n, id, Ready::FALLBACK));
        assert_eq!(w.hosts[n].engine.counters().fallbacks[&Reason::NO_DEVICE], 1);
        w.close(n, id);
    }
    nothing_is_left(&mut w);
}

#[test]
fn handshake_without_route_falls_back() {
    let mut w = World::new(12);
    w.hosts[0].neighbours.none = true;
    let at = w.connect_from(1);
    w.wait(SECOND);
    let id = w.tcp[at].ends[1].unwrap();
    assert_eq!(w.hosts[1].engine.fallback(id), Some(Reason::NO_ROUTE));
    assert_eq!(w.hosts[0].engine.groups().count(), 0);
}

#[test]
fn handshake_over_dead_fabric_falls_back() {
    let mut w = World::new(13);
    w.mute(true);
    let at = w.connect_from(1);
    w.wait(10 * SECOND);
    for n in 0..2 {
        let id = w.tcp[at].ends[n].unwrap();
        let reason = w.hosts[n].engine.fallback(id);
        // The queue pair may time out before the handshake does.
        let known = [Reason::TIMEOUT_CONFIRM_LINK, Reason::NO_ACTIVE_LINK];
        assert!(known.contains(&reason.unwrap()), "{reason:?}");
        assert!(w.tcp[at].bytes[n].is_empty(), "one Decline, not two that cross");
    }
    w.wait(SECOND);
    assert!(w.hosts.iter().all(|host| host.engine.groups().count() == 0));
}

#[test]
fn silent_server_fails_the_handshake() {
    let mut w = World::new(14);
    let at = w.connect_from(1);
    w.tcp[at].ends[0] = None;
    let client = w.tcp[at].ends[1].unwrap();
    w.wait(21 * SECOND);
    assert!(w.has_event(1, client, Ready::FAILED));
}

#[test]
fn a_silent_link_is_tested_and_a_dead_one_ends_its_connections() {
    let mut w = World::new(15);
    let [server, client] = w.established();
    w.wait(100 * SECOND);
    assert!(w.hosts[0].engine.counters().llc_sent >= 3);
    assert!(!w.has_event(1, client, Ready::ABORTED));
    w.mute(true);
    w.wait(40 * SECOND);
    assert!(w.has_event(0, server, Ready::ABORTED) && w.has_event(1, client, Ready::ABORTED));
    let late = w.with_engine(1, |engine, ctx, _| engine.send(client, b"x", ctx));
    assert_eq!(late, Err(SendError::Aborted));
    w.close(0, server);
    w.close(1, client);
    nothing_is_left(&mut w);
    assert!(w.hosts.iter().all(|host| host.engine.groups().count() == 0));
}

#[test]
fn an_idle_group_is_kept_for_ten_minutes() {
    let mut w = World::new(16);
    let [server, client] = w.established();
    w.close(0, server);
    w.close(1, client);
    w.wait(590 * SECOND);
    assert!(w.hosts.iter().all(|host| host.engine.groups().count() == 1));
    w.wait(12 * SECOND);
    assert!(w.hosts.iter().all(|host| host.engine.groups().count() == 0));
    // The next connection creates a new group.
    w.established();
}

#[test]
fn hundred_connections_leak_no_memory() {
    let mut w = World::new(17);
    let [server, client] = w.established();
    let mut before = None;
    for n in 0..100 {
        let ids = w.established();
        w.transfer(1, ids, &pattern(2000, n), 4096);
        w.close(0, ids[0]);
        w.close(1, ids[1]);
        w.wait(SECOND / 100);
        let free = [0, 1].map(|n: usize| w.hosts[n].arena.available());
        assert_eq!(*before.get_or_insert(free), free);
    }
    assert_eq!(w.hosts[0].engine.counters().server, 101);
    assert_eq!(w.hosts[0].engine.groups().next().unwrap().connections, 1);
    w.transfer(0, [server, client], b"still there", 100);
}

#[test]
fn an_idle_connection_has_no_receive_buffer() {
    let mut w = World::new(21);
    let ids = w.established();
    let free = |w: &World, host: usize| {
        w.hosts[host].arena.available() + w.hosts[host].roce.odp_pool(16 << 10) * (16 << 10)
    };
    // Warms up: spare send buffers are kept from here on.
    w.transfer(1, ids, b"first", 100);
    w.wait(10 * SECOND);
    let before = [free(&w, 0), free(&w, 1)];
    for n in 0..3 {
        w.transfer(1, ids, &pattern(20_000, n), 4096);
        assert_eq!(free(&w, 0), before[0] - (16 << 10), "the receiver has one");
        assert_eq!(free(&w, 1), before[1]);
        w.wait(10 * SECOND);
        assert_eq!([free(&w, 0), free(&w, 1)], before);
    }
    w.transfer(0, ids, b"and back", 100);
}

#[test]
fn a_client_that_rebooted_gets_a_new_group() {
    let mut w = World::new(18);
    let [server, _] = w.established();
    w.reboot(1);
    w.clear_events();
    let ids = w.established();
    w.transfer(1, ids, &pattern(5000, 1), 4096);
    assert_eq!(w.hosts[0].engine.groups().count(), 2, "until the old link is tested");
    w.wait(40 * SECOND);
    assert_eq!(w.hosts[0].engine.groups().count(), 1);
    assert!(w.has_event(0, server, Ready::ABORTED));
}

#[test]
fn rebooted_server_gets_a_new_group() {
    let mut w = World::new(19);
    let [_, client] = w.established();
    w.reboot(0);
    w.clear_events();
    let ids = w.established();
    w.transfer(0, ids, &pattern(5000, 1), 4096);
    w.wait(40 * SECOND);
    assert!(w.has_event(1, client, Ready::ABORTED));
}

/// The client tests the link of the old group as soon as the server requests another group, not only at the next
/// periodic test.
#[test]
fn group_forgotten_by_its_server_ends_soon_after_the_next_first_contact() {
    let mut w = World::new(23);
    let [_, client] = w.established();
    w.reboot(0);
    w.clear_events();
    let ids = w.established();
    w.wait(5 * SECOND);
    assert!(w.has_event(1, client, Ready::ABORTED), "links are tested every 30 s otherwise");
    assert_eq!(w.hosts[1].engine.groups().count(), 1);
    w.transfer(0, ids, &pattern(5000, 1), 4096);
}

/// A server requests another group also when the present one is full: both continue.
#[test]
fn a_group_that_is_full_stays_beside_the_next() {
    let sixteen = || Config { max_conns: 16, ..config() };
    let mut w = World::with(24, [sixteen(), sixteen()]);
    let all: Vec<_> = (0..17).map(|_| w.established()).collect();
    for host in &w.hosts {
        let mut sizes: Vec<_> = host.engine.groups().map(|group| group.connections).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [1, 16]);
    }
    w.wait(5 * SECOND);
    for ids in [all[0], all[15], all[16]] {
        w.transfer(1, ids, &pattern(1000, 1), 1000);
        w.transfer(0, ids, &pattern(1000, 2), 1000);
    }
    assert!(w.hosts.iter().all(|host| host.engine.counters().links_failed == 0));
}

/// `room` follows from sent and acknowledged bytes.
#[test]
fn room_is_the_buffer_less_unacknowledged_bytes() {
    let mut w = World::new(26);
    let [server, client] = w.established();
    let all = 16 << 10;
    assert_eq!(
        (w.hosts[1].engine.room(client), w.hosts[1].engine.writable(client)),
        (all, 16 << 10)
    );
    assert_eq!(w.send(1, client, &pattern(1000, 1)), 1000);
    assert_eq!(w.hosts[1].engine.room(client), all - 1000);
    w.wait(SECOND);
    assert_eq!(w.hosts[1].engine.room(client), all, "it has arrived");
    let mut sent = 0;
    w.run(SECOND, |w| {
        sent += w.send(1, client, &pattern(all, 2));
        false
    });
    assert_eq!((w.hosts[1].engine.room(client), w.hosts[1].engine.writable(client)), (0, 0));
    w.clear_events();
    assert_eq!(w.recv(0, server).len(), 16 << 10, "a buffer full, the first thousand in it");
    w.wait(SECOND);
    assert!(w.has_event(1, client, Ready::WRITABLE), "WRITABLE follows a send without room");
    assert!(w.hosts[1].engine.room(client) > 0);
}

/// Handshakes held for a group continue as soon as it is up, not at their next retry.
#[test]
fn held_handshakes_continue_when_the_group_is_up() {
    let mut w = World::new(27);
    let all: Vec<_> = (0..8).map(|_| w.connect_from(1)).collect();
    let up = |w: &World, at: usize| w.has_event(1, w.tcp[at].ends[1].unwrap(), Ready::ESTABLISHED);
    assert!(w.run(SECOND, |w| all.iter().any(|&at| up(w, at))));
    let first = w.network.now;
    assert!(w.run(SECOND, |w| all.iter().all(|&at| up(w, at))));
    let later = w.network.now.since(first);
    assert!(later < SECOND / 500, "{later:?} after the first");
}

#[test]
fn shutdown_shows_the_states_of_linux() {
    let mut w = World::new(20);
    let [server, _] = w.established();
    w.with_engine(0, |engine, ctx, _| engine.shutdown(server, ctx));
    w.wait(SECOND);
    assert_eq!(w.hosts[0].engine.sockets().next().unwrap().state, State::PeerCloseWait1);
    assert_eq!(w.hosts[1].engine.sockets().next().unwrap().state, State::AppCloseWait1);
}

#[test]
fn shut_down_notifies_peers() {
    let mut w = World::new(21);
    let ids = w.established();
    let busy = pattern(16_000, 3);
    w.send(0, ids[0], &busy);
    w.with_engine(0, |engine, ctx, _| engine.shut_down(ctx));
    assert!(w.run(Duration::from_millis(400), |w| w.hosts[0].engine.is_shut_down()));
    assert!(w.has_event(1, ids[1], Ready::ABORTED), "at once, not after a timeout");
    assert_eq!(w.hosts[1].engine.groups().filter(|group| group.active).count(), 0);
    let opened =
        w.with_engine(0, |engine, ctx, _| engine.open(Role::Server, [ip(0, 0), ip(1, 0)], 0, ctx));
    assert_eq!(opened, None);
}

/// A client that is killed while all send buffers of its link are in use sends only a FIN on TCP (Linux,
/// `smc_close_active`). Its connection must not remain for ever.
#[test]
fn peer_silent_after_tcp_fin_counts_as_aborted() {
    for ours in [false, true] {
        let mut w = World::new(21);
        let [server, client] = w.established();
        let finished = |w: &mut World| {
            w.with_engine(0, |engine, ctx, _| engine.handle_tcp_finished(server, ctx.now));
        };
        finished(&mut w);
        // Further messages extend the timeout.
        for _ in 0..3 {
            w.wait(6 * SECOND);
            w.send(1, client, b"x");
            finished(&mut w);
        }
        w.wait(SECOND);
        assert_eq!(w.recv(0, server), b"xxx");
        assert!(!w.has_event(0, server, Ready::ABORTED));
        if ours {
            w.close(0, server);
        }
        // The client's process is gone: its socket is never closed.
        w.wait(21 * SECOND);
        if !ours {
            assert!(w.has_event(0, server, Ready::ABORTED));
            w.close(0, server);
            w.wait(SECOND);
        }
        assert_eq!(w.hosts[0].engine.sockets().count(), 0, "closed by us first: {ours}");
    }
}

/// Linux also sends a FIN on TCP when a program only stops sending; the program may read on indefinitely.
#[test]
fn peer_that_stopped_sending_may_read_on_after_tcp_fin() {
    let mut w = World::new(22);
    let [server, client] = w.established();
    w.with_engine(1, |engine, ctx, _| engine.shutdown(client, ctx));
    w.wait(SECOND);
    w.with_engine(0, |engine, ctx, _| engine.handle_tcp_finished(server, ctx.now));
    w.wait(60 * SECOND);
    assert!(!w.has_event(0, server, Ready::ABORTED));
    w.send(0, server, b"late");
    w.wait(SECOND);
    assert_eq!(w.recv(1, client), b"late");
}
