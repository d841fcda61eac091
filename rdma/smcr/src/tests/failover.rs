//! Failover in groups with two links.

use crate::engine::{Config, LinkStatus, Ready, SocketId};
use crate::testing::{World, config, device, ip, ip_of, pattern};
use crate::wire::cdc::Producer;
use core::time::Duration;
use netsim::{Faults, Place};
use proptest::prelude::*;
use std::vec::Vec;
use verbs::RegionsOnDemand;

const SECOND: Duration = Duration::from_secs(1);

in_both_versions! {
    two_ports_make_two_links
    one_port_at_the_client_makes_two_links_as_well
    streams_continue_over_the_other_link
    failover_validation_is_sent_first
    loss_of_the_unused_link_moves_nothing
    loss_of_the_last_link_ends_the_group
    a_close_while_the_link_is_lost_still_ends
    lost_link_is_reestablished
    ports_of_different_networks_make_one_link
    data_delivered_over_the_lost_link_may_be_consumed
    idle_buffer_is_freed_after_a_failover
    asymmetric_link_is_replaced
    restored_port_is_used_at_once
    a_delete_link_is_repeated_until_it_is_answered
    delete_link_without_response_is_given_up
    connection_without_peer_key_is_aborted
    connections_take_the_links_in_turns
    moved_connections_come_back
    connection_that_came_back_ends_when_its_former_link_is_lost
}

/// A world with `ports` per host, and a connection.
pub(super) fn world(version: u8, seed: u64, ports: [usize; 2]) -> (World, [SocketId; 2]) {
    let two = || Config { max_links: 2, ..config() };
    let mut w = World::of_version(version, seed, [two(), two()], ports);
    let ids = w.established();
    w.wait(SECOND / 10);
    (w, ids)
}

pub(super) fn links(w: &World, n: usize) -> Vec<LinkStatus> {
    let links: Vec<_> = w.hosts[n].engine.links().collect();
    assert!(links.iter().all(|link| link.active), "{links:?}");
    links
}

pub(super) fn cut(w: &mut World, node: usize, port: usize) {
    w.network.set_up(Place { node, port }, false);
}

fn two_ports_make_two_links(version: u8) {
    let (w, _) = world(version, 1, [2, 2]);
    for n in 0..2 {
        let links = links(&w, n);
        assert_eq!(links.len(), 2);
        for (port, link) in links.iter().enumerate() {
            let ends = (ip_of(link.gids.0), ip_of(link.gids.1));
            assert_eq!(ends, (ip(n, port), ip(1 - n, port)), "symmetric");
        }
        assert_eq!(links[0].number, 1);
        assert_eq!(links[1].number, 2);
    }
}

fn one_port_at_the_client_makes_two_links_as_well(version: u8) {
    let (mut w, ids) = world(version, 2, [2, 1]);
    for n in 0..2 {
        assert_eq!(links(&w, n).len(), 2);
    }
    w.transfer(1, ids, &pattern(100_000, 1), 5000);
    cut(&mut w, 0, 0);
    w.transfer(1, ids, &pattern(100_000, 2), 5000);
    w.transfer(0, ids, &pattern(100_000, 3), 5000);
}

#[test]
fn one_port_at_the_server_makes_one_link() {
    let (w, _) = world(2, 3, [1, 2]);
    for n in 0..2 {
        assert_eq!(links(&w, n).len(), 1);
    }
}

fn streams_continue_over_the_other_link(version: u8) {
    for (node, port) in [(0, 0), (1, 0)] {
        let (mut w, ids) = world(version, 4, [2, 2]);
        // A connection that starts with both links up, so that its key is announced on both.
        let later = w.established();
        w.transfer(1, ids, &pattern(50_000, 1), 5000);
        cut(&mut w, node, port);
        for (n, ids) in [ids, later].into_iter().enumerate() {
            w.transfer(1, ids, &pattern(50_000, n as u8), 5000);
            w.transfer(0, ids, &pattern(50_000, n as u8 + 7), 5000);
        }
        w.wait(40 * SECOND);
        for host in &w.hosts {
            assert_eq!(host.engine.counters().failovers, 1, "the other one uses the other link");
            assert_eq!(host.engine.counters().aborted, 0);
            assert_eq!(host.engine.links().filter(|link| link.active).count(), 1);
        }
        // The group accepts connections as before.
        let ids = w.established();
        w.transfer(1, ids, &pattern(5000, 9), 5000);
        assert_eq!(w.hosts[0].engine.groups().count(), 1);
    }
}

/// The first message on the other link has the last sequence number that the peer must have received.
fn failover_validation_is_sent_first(version: u8) {
    let (mut w, ids) = world(version, 41, [2, 2]);
    w.transfer(1, ids, &pattern(1000, 1), 1000);
    w.transfer(0, ids, &pattern(1000, 1), 1000);
    w.wait(SECOND);
    cut(&mut w, 0, 0);
    w.record_frames();
    w.transfer(1, ids, &pattern(1000, 2), 1000);
    // Lost messages are retransmitted.
    let mut said = w.recorded_cdc(1);
    said.dedup();
    let said: Vec<_> = said.iter().map(|cdc| (cdc.seqno, cdc.producer)).collect();
    let none = Producer::empty();
    assert_eq!(said[..3], [(2, none), (1, Producer::FAILOVER), (3, none)], "{said:?}");
    assert!(said[3..].iter().all(|(_, producer)| !producer.contains(Producer::FAILOVER)));
}

fn loss_of_the_unused_link_moves_nothing(version: u8) {
    let (mut w, ids) = world(version, 5, [2, 2]);
    cut(&mut w, 0, 1);
    w.transfer(1, ids, &pattern(50_000, 1), 5000);
    w.wait(40 * SECOND);
    for n in 0..2 {
        assert_eq!(w.hosts[n].engine.links().filter(|link| link.active).count(), 1);
        assert_eq!(w.hosts[n].engine.counters().failovers, 0);
    }
    w.transfer(0, ids, &pattern(50_000, 1), 5000);
}

fn loss_of_the_last_link_ends_the_group(version: u8) {
    let (mut w, ids) = world(version, 6, [2, 2]);
    cut(&mut w, 0, 0);
    cut(&mut w, 1, 1);
    w.wait(80 * SECOND);
    for (n, &id) in ids.iter().enumerate() {
        assert!(w.has_event(n, id, Ready::ABORTED));
        assert_eq!(w.hosts[n].engine.groups().count(), 0);
        w.close(n, id);
        assert_eq!(w.hosts[n].engine.sockets().count(), 0);
    }
}

fn a_close_while_the_link_is_lost_still_ends(version: u8) {
    let (mut w, ids) = world(version, 7, [2, 2]);
    w.send(1, ids[1], b"the last words");
    cut(&mut w, 0, 0);
    w.close(1, ids[1]);
    let heard = w.run(40 * SECOND, |w| w.has_event(0, ids[0], Ready::READABLE));
    assert!(heard);
    assert_eq!(w.recv(0, ids[0]), b"the last words");
    w.close(0, ids[0]);
    w.wait(40 * SECOND);
    for host in &w.hosts {
        assert_eq!(host.engine.sockets().count(), 0);
    }
}

fn mend(w: &mut World, node: usize, port: usize) {
    w.network.set_up(Place { node, port }, true);
}

fn lost_link_is_reestablished(version: u8) {
    for (node, port) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let (mut w, ids) = world(version, 8, [2, 2]);
        w.transfer(1, ids, &pattern(50_000, 1), 5000);
        cut(&mut w, node, port);
        w.transfer(1, ids, &pattern(50_000, 2), 5000);
        w.wait(40 * SECOND);
        assert_eq!(w.hosts[0].engine.links().filter(|link| link.active).count(), 1);
        // Failed attempts do not disturb other connections.
        for n in 0..20 {
            let ids = w.established();
            w.transfer(0, ids, &pattern(500, n), 5000);
            w.close(0, ids[0]);
            w.close(1, ids[1]);
            w.wait(SECOND);
        }
        mend(&mut w, node, port);
        let both = |w: &mut World| {
            w.hosts.iter().all(|host| host.engine.links().filter(|link| link.active).count() == 2)
        };
        assert!(w.run(130 * SECOND, both), "{node} {port}: no second link");
        // The new link carries the connections when the other is lost.
        let later = w.established();
        cut(&mut w, 1 - node, 1 - port);
        for ids in [ids, later] {
            w.transfer(1, ids, &pattern(50_000, 3), 5000);
            w.transfer(0, ids, &pattern(50_000, 4), 5000);
        }
        for host in &w.hosts {
            assert_eq!(host.engine.counters().aborted, 0);
            assert_eq!(host.engine.counters().violations, 0);
            assert_eq!(host.engine.groups().count(), 1);
            assert!(host.engine.counters().fallbacks.is_empty());
        }
    }
}

fn ports_of_different_networks_make_one_link(version: u8) {
    let (mut w, ids) = world(version, 9, [2, 2]);
    // Ports may change while the engine runs.
    let mut devices = w.hosts[0].engine.devices().to_vec();
    devices[1].pnet = None;
    w.hosts[0].engine.set_devices(devices);
    let one = w.connect_from(0);
    w.wait(SECOND);
    assert!(w.tcp[one].ends[0].is_some_and(|id| w.has_event(0, id, Ready::ESTABLISHED)));
    cut(&mut w, 1, 0);
    w.wait(40 * SECOND);
    w.transfer(0, ids, b"over the first group's other link", 100);
}

/// Both hosts send 200,000 bytes and read in pieces; after a while a link is cut, on a network that
/// loses frames. Every byte has to arrive once.
fn conversation(
    version: u8,
    seed: u64,
    loss: u32,
    micros: u64,
    node: usize,
    one_way: bool,
    piece: usize,
) {
    let (mut w, ids) = world(version, seed, [2, 2]);
    w.network.set_faults(Faults { loss, ..Faults::default() });
    let bytes = [pattern(200_000, 1), pattern(200_000, 2)];
    let (mut sent, mut got) = ([0; 2], [Vec::new(), Vec::new()]);
    let at = w.network.now + Duration::from_micros(micros);
    let end = w.network.now + 120 * SECOND;
    let mut cut = false;
    while (0..2).any(|n: usize| got[n].len() < bytes[1 - n].len()) {
        let read = [got[0].len(), got[1].len()];
        assert!(w.network.now < end, "it gets stuck: {sent:?}, {read:?}");
        let mut moved = false;
        for n in 0..2 {
            if sent[n] < bytes[n].len() {
                sent[n] += w.send(n, ids[n], &bytes[n][sent[n]..]);
            }
            let mut buffer = std::vec![0; piece];
            let count = w.hosts[n].engine.recv(ids[n], &mut buffer).unwrap();
            got[n].extend_from_slice(&buffer[..count]);
            moved |= count > 0;
        }
        if !cut && w.network.now >= at {
            cut = true;
            if one_way {
                let (from, to) = (Place { node, port: 0 }, Place { node: 1 - node, port: 0 });
                w.network.link_mut(from, to).cut = true;
            } else {
                w.network.set_up(Place { node, port: 0 }, false);
            }
        }
        if !moved {
            w.step(if cut { end } else { at });
        }
    }
    for n in 0..2 {
        assert!(got[n] == bytes[1 - n]);
    }
}

/// Linux as server holds small writes back after a failover until it is asked for an update. A client asks about once a
/// second, as long as a moved connection lasts.
#[test]
fn moved_connection_requests_updates() {
    for moves in [false, true] {
        let (mut w, ids) = world(2, 31, [2, 2]);
        w.transfer(1, ids, &pattern(1000, 1), 1000);
        if moves {
            cut(&mut w, 0, 0);
            w.transfer(1, ids, &pattern(1000, 2), 1000);
            w.transfer(0, ids, &pattern(1000, 3), 1000);
        }
        w.wait(10 * SECOND);
        let sent = |w: &World| [0, 1].map(|n: usize| w.hosts[n].engine.counters().cdc_sent);
        let before = sent(&w);
        w.wait(20 * SECOND);
        let [answers, questions] = [0, 1].map(|n| sent(&w)[n] - before[n]);
        let expected = if moves { 18..=22 } else { 0..=0 };
        assert!(expected.contains(&questions), "{questions} questions, moved: {moves}");
        assert_eq!(answers, questions, "each is answered");
        w.close(1, ids[1]);
        w.close(0, ids[0]);
        w.wait(SECOND);
        let before = sent(&w);
        w.wait(10 * SECOND);
        assert_eq!(sent(&w), before, "closed connections send no requests");
    }
}

fn data_delivered_over_the_lost_link_may_be_consumed(version: u8) {
    conversation(version, 821, 1, 61, 0, true, 100);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// A link is cut at any moment of a conversation.
    #[test]
    fn no_byte_is_lost_or_doubled(
        version in 1u8..=2, seed in 0u64..1000, loss in 0u32..10, micros in 0u64..3000, node in 0usize..2,
        one_way: bool, piece in 100usize..20_000,
    ) {
        conversation(version, seed, loss, micros, node, one_way, piece);
    }
}

/// Repeated WRITEs count twice, but must not keep an idle buffer.
fn idle_buffer_is_freed_after_a_failover(version: u8) {
    let (mut w, ids) = world(version, 12, [2, 2]);
    let free =
        |w: &World| w.hosts[0].arena.available() + w.hosts[0].roce.odp_pool(16 << 10) * (16 << 10);
    // All packets of host 1 arrive, but no ACK returns.
    let (from, to) = (Place { node: 0, port: 0 }, Place { node: 1, port: 0 });
    w.network.link_mut(from, to).cut = true;
    w.transfer(1, ids, &pattern(12_000, 5), 5000);
    w.wait(40 * SECOND);
    assert!(w.hosts[1].engine.counters().failovers > 0);
    w.transfer(0, ids, &pattern(50_000, 6), 5000);
    w.wait(10 * SECOND);
    let idle = free(&w);
    w.transfer(1, ids, &pattern(50_000, 8), 5000);
    assert_eq!(free(&w), idle - (16 << 10), "there was no memory before");
    assert_eq!(w.hosts[0].engine.counters().aborted, 0);
}

/// Local and remote addresses of a host's links.
fn pairs(w: &World, n: usize) -> Vec<(core::net::IpAddr, core::net::IpAddr)> {
    let ends = |link: LinkStatus| (ip_of(link.gids.0), ip_of(link.gids.1));
    let mut pairs: Vec<_> = w.hosts[n].engine.links().map(ends).collect();
    pairs.sort();
    pairs
}

fn get_port_back(w: &mut World, n: usize) {
    w.hosts[n].engine.set_devices((0..2).map(|port| device(n, port)).collect());
}

/// A link over the client's second port replaces the asymmetric one, as in Linux (smc_llc_delete_asym_link).
fn asymmetric_link_is_replaced(version: u8) {
    let (mut w, ids) = world(version, 13, [2, 1]);
    let later = w.established();
    assert_eq!(pairs(&w, 1), [(ip(1, 0), ip(0, 0)), (ip(1, 0), ip(0, 1))]);
    w.transfer(0, ids, &pattern(50_000, 1), 5000);
    get_port_back(&mut w, 1);
    w.transfer(1, ids, &pattern(20_000, 2), 5000);
    w.wait(SECOND / 2);
    for n in 0..2 {
        let symmetric = [0, 1].map(|port| (ip(n, port), ip(1 - n, port)));
        assert_eq!(pairs(&w, n), symmetric);
        links(&w, n);
        assert_eq!(w.hosts[n].engine.counters().links_failed, 0);
        assert_eq!(w.hosts[n].engine.counters().aborted, 0);
    }
    // The new link carries all connections when the other is lost.
    cut(&mut w, 0, 0);
    for ids in [ids, later] {
        w.transfer(0, ids, &pattern(50_000, 3), 5000);
        w.transfer(1, ids, &pattern(50_000, 4), 5000);
    }
    // A port that is set again triggers no messages.
    let sent = w.hosts[1].engine.counters().llc_sent;
    get_port_back(&mut w, 1);
    w.wait(SECOND / 10);
    assert_eq!(w.hosts[1].engine.counters().llc_sent, sent);
}

/// A host whose port is up again does not wait for the next attempt.
fn restored_port_is_used_at_once(version: u8) {
    for n in 0..2 {
        let (mut w, ids) = world(version, 14, [2, 2]);
        let one = std::vec![device(n, 0)];
        w.hosts[n].engine.set_devices(one);
        cut(&mut w, n, 1);
        w.wait(100 * SECOND);
        // A link joins the server's other port and the client's only one. In version 1 a server also offers its only
        // port.
        assert_eq!(links(&w, n).len(), if version > 1 { 1 + n } else { 2 });
        mend(&mut w, n, 1);
        get_port_back(&mut w, n);
        w.wait(SECOND / 10);
        assert_eq!(pairs(&w, n), [0, 1].map(|port| (ip(n, port), ip(1 - n, port))));
        cut(&mut w, 0, 0);
        w.transfer(0, ids, &pattern(50_000, 3), 5000);
    }
}

/// A peer that does not answer DELETE_LINK gets it again, and is nudged for held-back data, also for a connection that
/// uses the other link here: the peer may send its data on the lost one.
fn a_delete_link_is_repeated_until_it_is_answered(version: u8) {
    let hasty = || Config { max_links: 2, llc_wait: SECOND / 4, ..config() };
    let mut w = World::of_version(version, 15, [hasty(), hasty()], [2, 2]);
    let ids = w.established();
    w.wait(SECOND / 10);
    w.established();
    w.wait(SECOND / 10);
    w.hosts[0].engine.ignore_delete_link = true;
    cut(&mut w, 1, 0);
    // The server has no packets under way on the link, so it does not notice the loss.
    w.transfer(1, ids, &pattern(5000, 1), 5000);
    let said = |w: &World| w.hosts[1].engine.counters().llc_sent;
    let heard = |w: &World| w.hosts[0].engine.counters().cdc_received;
    let before = (said(&w), heard(&w));
    w.wait(9 * SECOND / 10);
    assert_eq!(said(&w), before.0 + 2, "sent three times");
    let asked = heard(&w) - before.1;
    assert!((12..=20).contains(&asked), "{asked}: both are asked after 10, 20, 40 ms and so on");
    // The server notices the loss itself, and sends DELETE_LINK.
    w.wait(40 * SECOND);
    let before = heard(&w);
    w.wait(10 * SECOND);
    assert!((18..=22).contains(&(heard(&w) - before)), "both are asked once a second");
    w.transfer(0, ids, &pattern(5000, 1), 5000);
}

/// The server gives up after some DELETE_LINK messages.
fn delete_link_without_response_is_given_up(version: u8) {
    let (mut w, ids) = world(version, 16, [2, 1]);
    w.hosts[1].engine.ignore_delete_link = true;
    get_port_back(&mut w, 1);
    w.wait(20 * SECOND);
    assert_eq!(w.hosts[0].engine.links().count(), 3);
    w.wait(70 * SECOND);
    assert_eq!(w.hosts[0].engine.links().count(), 2);
    w.transfer(0, ids, &pattern(5000, 1), 5000);
    w.transfer(1, ids, &pattern(5000, 1), 5000);
}

/// The peer's key on the other link is unknown: the connection ends on both sides.
fn connection_without_peer_key_is_aborted(version: u8) {
    let (mut w, ids) = world(version, 17, [2, 2]);
    w.hosts[0].engine.forget_peer(0);
    // The other host gets only the abort.
    w.hosts[1].engine.ignore_delete_link = true;
    cut(&mut w, 0, 0);
    w.send(0, ids[0], b"not to arrive");
    w.wait(10 * SECOND);
    for (n, id) in ids.into_iter().enumerate() {
        assert!(w.has_event(n, id, Ready::ABORTED), "{n}");
        assert_eq!(w.hosts[n].engine.groups().count(), 1);
        w.close(n, id);
    }
    w.wait(40 * SECOND);
    for host in &w.hosts {
        assert_eq!(host.engine.sockets().count(), 0);
        assert_eq!(host.engine.counters().violations, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, failure_persistence: None, ..ProptestConfig::default() })]

    /// The second port appears at any moment of a conversation.
    #[test]
    fn no_byte_is_lost_when_the_asymmetric_link_is_replaced(
        version in 1u8..=2, seed in 0u64..1000, loss in 0u32..10, back in 0usize..100_000, cut_then: bool, piece in 100usize..9000,
    ) {
        let (mut w, ids) = world(version, seed, [2, 1]);
        w.network.set_faults(Faults { loss, ..Faults::default() });
        w.transfer(0, ids, &pattern(back, 1), piece);
        get_port_back(&mut w, 1);
        w.transfer(1, ids, &pattern(100_000, 2), piece);
        w.transfer(0, ids, &pattern(100_000, 3), piece);
        if cut_then {
            cut(&mut w, 0, 0);
        }
        w.transfer(0, ids, &pattern(100_000, 4), piece);
        for host in &w.hosts {
            prop_assert_eq!(host.engine.counters().aborted, 0);
            prop_assert_eq!(host.engine.counters().violations, 0);
        }
    }
}

/// As Linux's server deals them.
fn connections_take_the_links_in_turns(version: u8) {
    let (mut w, _) = world(version, 47, [2, 2]);
    let more: Vec<_> = (0..5).map(|_| w.established()).collect();
    for n in 0..2 {
        let connections: Vec<_> = links(&w, n).iter().map(|link| link.connections).collect();
        assert_eq!(connections, [3, 3]);
        let link = |id| w.hosts[n].engine.socket_status(id).unwrap().link;
        let taken: Vec<_> = more.iter().map(|ids| link(ids[n])).collect();
        assert_eq!(taken, [2, 1, 2, 1, 2].map(Some));
    }
    for ids in more {
        w.transfer(1, ids, &pattern(20_000, 1), 5000);
        w.transfer(0, ids, &pattern(20_000, 2), 5000);
    }
    // Two links that share a port fail together: the second carries nothing.
    let (mut w, _) = world(version, 48, [2, 1]);
    w.established();
    let connections: Vec<_> = links(&w, 0).iter().map(|link| link.connections).collect();
    assert_eq!(connections, [2, 0]);
}

/// A connection that a failover has moved returns when its link is up again, while its stream runs both ways.
fn moved_connections_come_back(version: u8) {
    let (mut w, ids) = world(version, 49, [2, 2]);
    let later = w.established();
    cut(&mut w, 0, 0);
    w.transfer(1, ids, &pattern(50_000, 1), 5000);
    w.transfer(0, ids, &pattern(50_000, 2), 5000);
    w.wait(40 * SECOND);
    for host in &w.hosts {
        assert_eq!((host.engine.counters().failovers, host.engine.counters().returned), (1, 0));
    }
    w.network.set_up(Place { node: 0, port: 0 }, true);
    for n in 0..400 {
        for ids in [ids, later] {
            w.transfer(usize::from(n % 2 == 0), ids, &pattern(50_000, n as u8), 5000);
        }
        w.wait(SECOND / 4);
        if w.hosts.iter().all(|host| host.engine.counters().returned == 1) {
            break;
        }
    }
    for (n, host) in w.hosts.iter().enumerate() {
        let counters = host.engine.counters();
        assert_eq!((counters.returned, counters.aborted, counters.violations), (1, 0, 0));
        let connections: Vec<_> = links(&w, n).iter().map(|link| link.connections).collect();
        assert_eq!(connections, [1, 1]);
    }
    for ids in [ids, later] {
        w.transfer(1, ids, &pattern(50_000, 3), 5000);
        w.transfer(0, ids, &pattern(50_000, 4), 5000);
    }
}

/// Window updates are under way on the former link when it is lost: nothing waits for them, and no message on the link
/// of the return is a validation, which could overtake them.
fn connection_that_came_back_ends_when_its_former_link_is_lost(version: u8) {
    let (mut w, ids) = world(version, 50, [2, 2]);
    cut(&mut w, 0, 0);
    w.transfer(1, ids, &pattern(50_000, 1), 5000);
    w.wait(40 * SECOND);
    let bytes = pattern(4 << 20, 2);
    let (mut sent, mut got) = (0, Vec::new());
    w.network.set_up(Place { node: 0, port: 0 }, true);
    let end = w.network.now + 200 * SECOND;
    while w.hosts[0].engine.counters().returned == 0 {
        assert!(w.network.now < end, "it does not come back");
        sent += w.send(1, ids[1], &bytes[sent % (1 << 20)..][..1 << 20]);
        got.extend_from_slice(&w.recv(0, ids[0]));
        w.record_frames();
        w.step(end);
    }
    let said = w.recorded_cdc(0);
    assert!(said.iter().all(|cdc| !cdc.producer.contains(Producer::FAILOVER)), "{said:?}");
    cut(&mut w, 0, 1);
    w.wait(40 * SECOND);
    (0..2).for_each(|n| w.close(n, ids[n]));
    w.wait(100 * SECOND);
    for host in &w.hosts {
        assert_eq!(host.engine.sockets().count(), 0);
        assert_eq!(host.engine.counters().violations, 0);
    }
}
