//! Handshakes while a link is lost or added.

use super::failover::{cut, links, world};
use crate::engine::{Config, Ready, SocketId};
use crate::testing::{Fate, Valve, World, config, pattern};
use crate::wire::{Decline, Os, PeerId, Reason};
use core::time::Duration;
use proptest::prelude::*;
use std::vec::Vec;
use verbs::Provider;

const SECOND: Duration = Duration::from_secs(1);

in_both_versions! {
    concurrent_connections_continue_over_the_other_link
    client_declines_when_its_link_is_lost
}

/// The client waits for a CONFIRM_RKEY response, and its Confirm would name a lost link.
fn client_declines_when_its_link_is_lost(version: u8) {
    let (mut w, good) = world(version, 34, [2, 2]);
    // The third connection takes the first link.
    w.established();
    let (ids, accept) = w.accept_by_hand(1);
    w.network.mute(0, true);
    w.feed_clc(1, ids[1], &accept);
    assert_eq!(w.take_clc(1, ids[1]), [], "it waits");
    let qp = w.hosts[1].engine.queue_pair(0, 0).unwrap();
    w.hosts[1].roce.fail_qp(qp).unwrap();
    w.wait(SECOND / 100);
    let decline = Decline::parse(&w.take_clc(1, ids[1])).unwrap();
    assert_eq!((decline.reason, decline.out_of_sync), (Reason::NO_ACTIVE_LINK, false));
    assert_eq!(w.hosts[1].engine.fallback(ids[1]), Some(Reason::NO_ACTIVE_LINK));
    w.network.heal();
    w.feed_clc(0, ids[0], &decline.emit());
    w.transfer(0, good, &pattern(5000, 1), 1000);
    w.transfer(1, good, &pattern(5000, 2), 1000);
}

/// Handshakes during the set-up of a link have their keys announced on it afterwards.
fn concurrent_connections_continue_over_the_other_link(version: u8) {
    for (ports, client) in [([2, 2], 1), ([2, 2], 0), ([2, 1], 1), ([1, 1], 1)] {
        let two = || Config { max_links: 2, ..config() };
        let mut w = World::of_version(version, 11, [two(), two()], ports);
        let all: Vec<usize> = (0..20).map(|_| w.connect_from(client)).collect();
        let all: Vec<[SocketId; 2]> =
            all.into_iter().map(|at| w.tcp[at].ends.map(Option::unwrap)).collect();
        let up = |w: &mut World| {
            all.iter().all(|ids| (0..2).all(|n| w.has_event(n, ids[n], Ready::ESTABLISHED)))
        };
        assert!(w.run(10 * SECOND, up), "{ports:?}");
        w.wait(SECOND);
        if ports == [2, 2] {
            cut(&mut w, 0, 0);
        }
        for (n, &ids) in all.iter().enumerate() {
            w.transfer(0, ids, &pattern(3000, n as u8), 1000);
            w.transfer(1, ids, &pattern(3000, n as u8), 1000);
        }
        for host in &w.hosts {
            assert!(host.engine.counters().fallbacks.is_empty(), "{ports:?}");
            assert_eq!(host.engine.counters().aborted, 0, "{ports:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// A link is lost at any moment of many handshakes: each ends the same way on both sides, no CLC bytes are left to
    /// be read as data, and established connections continue over the other link.
    #[test]
    fn link_loss_during_handshakes_ends_the_same_on_both_sides(
        seed in 0u64..1000, micros in 0u64..30_000, node in 0usize..2, port in 0usize..2, client in 0usize..2,
    ) {
        let two = || Config { max_links: 2, ..config() };
        let mut w = World::with_ports(seed, [two(), two()], [2, 2]);
        let all: Vec<usize> = (0..12).map(|_| w.connect_from(client)).collect();
        w.wait(Duration::from_micros(micros));
        cut(&mut w, node, port);
        w.wait(60 * SECOND);
        for at in all {
            let ids = w.tcp[at].ends.map(Option::unwrap);
            let stand = [0, 1].map(|n| w.has_event(n, ids[n], Ready::ESTABLISHED));
            let failed = [0, 1].map(|n| w.has_event(n, ids[n], Ready::FAILED));
            // A failed handshake resets the TCP connection.
            let words = failed == [false; 2] && !w.tcp[at].bytes.concat().is_empty();
            prop_assert!(!words, "{:?} {:?}", stand, w.tcp[at]);
            if stand == [true; 2] && (0..2).all(|n| !w.has_event(n, ids[n], Ready::ABORTED)) {
                w.transfer(0, ids, &pattern(3000, 1), 1000);
                w.transfer(1, ids, &pattern(3000, 2), 1000);
            }
        }
        for host in &w.hosts {
            prop_assert_eq!(host.engine.counters().violations, 0);
            prop_assert!(host.engine.counters().links_failed < 2);
        }
    }
}

/// No side sends before the peer knows its buffer on both links: the connection could be lost with the first link.
#[test]
fn handshake_waits_for_the_link_being_added() {
    for client in [0, 1] {
        let two = || Config { max_links: 2, ..config() };
        let mut w = World::with_ports(18, [two(), two()], [2, 2]);
        let all: Vec<usize> = (0..20).map(|_| w.connect_from(client)).collect();
        let all: Vec<_> = all.into_iter().map(|at| w.tcp[at].ends.map(Option::unwrap)).collect();
        let up = |w: &World, n: usize| {
            all.iter().filter(|ids| w.has_event(n, ids[n], Ready::ESTABLISHED)).count()
        };
        assert!(w.run(SECOND, |w| up(w, client) > 1));
        assert_eq!(links(&w, client).len(), 2);
        let mut moved = Vec::new();
        cut(&mut w, 0, 0);
        w.wait(30 * SECOND);
        for &ids in all.iter().filter(|ids| w.has_event(client, ids[client], Ready::ESTABLISHED)) {
            assert!(w.has_event(1 - client, ids[1 - client], Ready::ESTABLISHED));
            moved.push(ids);
        }
        for ids in moved {
            w.transfer(client, ids, &pattern(3000, 1), 1000);
        }
        assert!(w.hosts.iter().all(|host| host.engine.counters().aborted == 0));
    }
}

/// The server's Decline could cross the client's own, and be read as data.
#[test]
fn sent_accept_is_not_withdrawn() {
    let (mut w, ids) = world(2, 19, [2, 2]);
    // The third connection takes the first link.
    w.established();
    let at = w.connect_from(1);
    let [server, client] = w.tcp[at].ends.map(Option::unwrap);
    w.round();
    // The client receives nothing more on TCP.
    w.tcp[at].ends[1] = None;
    w.wait(SECOND);
    let accept = w.tcp[at].bytes[1].clone();
    assert!(!accept.is_empty());
    cut(&mut w, 0, 0);
    w.transfer(0, ids, &pattern(5000, 1), 5000);
    assert_eq!(w.hosts[0].engine.links().filter(|link| link.active).count(), 1);
    assert_eq!(w.tcp[at].bytes[1], accept);
    // The client declines an Accept for a lost link.
    w.tcp[at].ends[1] = Some(client);
    w.wait(SECOND);
    for (n, id) in [server, client].into_iter().enumerate() {
        assert!(w.has_event(n, id, Ready::FALLBACK), "{n}");
        assert_eq!(w.tcp[at].bytes[n], []);
    }
    w.transfer(1, ids, &pattern(5000, 1), 5000);
}

/// The client has sent its Confirm and is established when the link of the Accept is lost: the connection continues
/// over the other link, where the client has announced its buffer before.
#[test]
fn confirm_after_loss_of_its_link_is_accepted() {
    let (mut w, ids) = world(2, 33, [2, 2]);
    let at = w.connect_from(1);
    let (what, late) = (Fate::Late(10 * SECOND), Vec::new());
    w.tcp[at].valve = Some(Valve { to: 0, at: 1, what, seen: 0, late });
    let [server, client] = w.tcp[at].ends.map(Option::unwrap);
    w.wait(SECOND);
    assert!(w.has_event(1, client, Ready::ESTABLISHED));
    cut(&mut w, 0, 0);
    w.transfer(0, ids, &pattern(5000, 1), 5000);
    assert_eq!(w.hosts[0].engine.links().filter(|link| link.active).count(), 1);
    assert!(!w.has_event(0, server, Ready::ESTABLISHED));
    w.wait(10 * SECOND);
    assert!(w.has_event(0, server, Ready::ESTABLISHED));
    w.transfer(0, [server, client], &pattern(5000, 2), 1000);
    w.transfer(1, [server, client], &pattern(5000, 3), 1000);
    w.transfer(1, ids, &pattern(5000, 4), 1000);
}

/// Linux sends an out-of-sync Decline when it has lost the link of an Accept, before it sends DELETE_LINK.
#[test]
fn out_of_sync_decline_triggers_link_tests() {
    for gone in [false, true] {
        let (mut w, ids) = world(2, 21, [2, 2]);
        let at = w.connect_from(1);
        let server = w.tcp[at].ends[0].unwrap();
        w.round();
        w.tcp[at].ends[1] = None;
        w.wait(SECOND);
        let peer_id = PeerId::new(1, [2; 6]);
        let (reason, os) = (Reason::SYNC, Os::LINUX);
        let decline = Decline { version: 2, out_of_sync: true, peer_id, reason, os };
        w.tcp[at].bytes[0] = decline.emit().to_vec();
        if gone {
            w.mute(true);
        }
        w.round();
        assert!(w.has_event(0, server, Ready::FALLBACK));
        assert_eq!(w.hosts[0].engine.groups().count(), 1);
        w.wait(3 * SECOND);
        if gone {
            assert_eq!(w.hosts[0].engine.groups().count(), 0);
        } else {
            w.transfer(0, ids, &pattern(5000, 1), 5000);
        }
    }
}

/// An Accept that is held back while its link is lost names the other link.
#[test]
fn unsent_accept_moves_to_the_other_link() {
    let (mut w, ids) = world(2, 20, [2, 2]);
    cut(&mut w, 0, 0);
    w.send(0, ids[0], b"finds out");
    w.wait(3 * SECOND);
    let later = w.established();
    w.transfer(1, later, &pattern(3000, 1), 1000);
    assert!(w.hosts.iter().all(|host| host.engine.counters().fallbacks.is_empty()));
}
