//! Links and LLC messages: responses, rejections, and the effect on connections.

use crate::engine::{Config, Ready};
use crate::testing::{Fate, Valve, World, config, device, ip, pattern};
use crate::wire::llc::{Body, DeleteReason, LinkEnd, Llc, Token};
use crate::wire::{AcceptConfirm, Decline, Reason};
use core::time::Duration;
use netsim::Place;
use std::vec::Vec;
use verbs::{PathMtu, Provider};

const SECOND: Duration = Duration::from_secs(1);

in_both_versions! {
    a_client_may_end_one_link
    a_server_ends_one_link
    delete_link_for_unknown_link_is_answered
    group_limited_to_one_link_gets_no_second
    links_without_common_port_get_no_third
    only_a_server_confirms_links
    llc_requests_are_answered
    a_queue_pair_that_fails_ends_a_handshake
    the_smaller_path_mtu_is_used
    link_offers_what_the_path_to_the_host_passes
    failed_link_attempts_back_off
}

fn world(version: u8, links: [u8; 2], ports: [usize; 2]) -> World {
    let configs = links.map(|max_links| Config { max_links, ..config() });
    let mut w = World::of_version(version, 101, configs, ports);
    w.established();
    w.wait(SECOND);
    w
}

fn links(w: &World) -> [usize; 2] {
    w.hosts.each_ref().map(|host| host.engine.links().filter(|link| link.active).count())
}

/// The recorded LLC messages with their senders, without repetitions.
fn said(w: &mut World) -> Vec<(usize, bool, Body)> {
    let mut said = Vec::new();
    for (n, Llc { response, body, .. }) in w.recorded_llc() {
        let one = (n, response, body);
        if !said.contains(&one) {
            said.push(one);
        }
    }
    said
}

fn delete(link: u8, reason: DeleteReason) -> Body {
    Body::DeleteLink { link, all: false, orderly: false, reason }
}

/// The client requests the deletion; the server performs it.
fn a_client_may_end_one_link(version: u8) {
    for gone in [1, 2] {
        netsim::label!(version, gone);
        let mut w = world(version, [2, 2], [2, 2]);
        let ids = w.established();
        w.wait(SECOND);
        w.record_frames();
        let other = usize::from(2 - gone);
        w.forge_llc(1, (0, other), false, delete(gone, DeleteReason::OPERATOR));
        w.wait(SECOND / 100);
        let said = said(&mut w);
        let ended = delete(gone, DeleteReason::LOST_PATH);
        assert_eq!(said[1..3], [(0, false, ended.clone()), (1, true, ended)], "{said:?}");
        assert_eq!(links(&w), [1, 1]);
        let failovers = w.hosts.each_ref().map(|host| host.engine.counters().failovers);
        assert_eq!(failovers, [1, 1], "one of two connections");
        w.transfer(0, ids, &pattern(20_000, 1), 5000);
        w.transfer(1, ids, &pattern(20_000, 2), 5000);
        // It does not count as a loss, and the link is re-established.
        assert!(w.run(5 * SECOND, |w| links(w) == [2, 2]));
        for host in &w.hosts {
            let counters = host.engine.counters();
            assert_eq!((counters.links_failed, counters.aborted), (0, 0));
        }
    }
}

fn a_server_ends_one_link(version: u8) {
    let mut w = world(version, [2, 2], [2, 2]);
    let ids = w.established();
    w.wait(SECOND);
    w.record_frames();
    let body = delete(1, DeleteReason::OPERATOR);
    w.forge_llc(0, (0, 1), false, body.clone());
    w.wait(SECOND / 100);
    assert_eq!(said(&mut w)[..2], [(0, false, body.clone()), (1, true, body)]);
    assert_eq!(links(&w)[1], 1);
    w.transfer(1, ids, &pattern(20_000, 2), 5000);
    w.transfer(0, ids, &pattern(20_000, 1), 5000);
    assert_eq!(w.hosts[1].engine.counters().failovers, 1, "one of two connections");
    assert!((0..2).all(|n| w.hosts[n].engine.counters().aborted == 0));
}

fn delete_link_for_unknown_link_is_answered(version: u8) {
    for n in 0..2 {
        netsim::label!(version, n);
        let mut w = world(version, [2, 2], [2, 2]);
        w.record_frames();
        w.forge_llc(n, (0, 0), false, delete(77, DeleteReason::OPERATOR));
        w.wait(SECOND / 100);
        let answer = (1 - n, true, delete(77, DeleteReason::NO_SUCH_LINK));
        assert_eq!(said(&mut w)[1..], [answer]);
        assert_eq!(links(&w), [2, 2]);
    }
}

/// Regardless of the ports, and of which side requests a link.
fn group_limited_to_one_link_gets_no_second(version: u8) {
    for max_links in [[1, 1], [1, 2], [2, 1]] {
        netsim::label!(version, max_links);
        let mut w = world(version, max_links, [2, 2]);
        assert_eq!(links(&w), [1, 1]);
        let gids = std::vec![device(1, 1).ip.to_ipv6_mapped()];
        if version > 1 {
            w.forge_llc(1, (0, 0), false, Body::RequestAddLink { gids });
        }
        for n in 0..2 {
            let ports = w.hosts[n].engine.devices().to_vec();
            w.hosts[n].engine.set_devices(ports[..1].to_vec());
            w.hosts[n].engine.set_devices(ports);
        }
        w.wait(25 * SECOND);
        assert_eq!(links(&w), [1, 1]);
        let all = w.hosts.each_ref().map(|host| host.engine.links().collect::<Vec<_>>());
        assert!(all.iter().all(|links| links.len() == 1), "{all:?}");
    }
}

fn links_without_common_port_get_no_third(version: u8) {
    let mut w = world(version, [2, 2], [2, 2]);
    w.record_frames();
    let (mac, gid) = (device(1, 1).mac, device(1, 1).ip.to_ipv6_mapped());
    let ask = match version {
        1 => {
            let end = LinkEnd { mac, gid: net::link_local(mac), qpn: 0 };
            let (link, path_mtu, psn) = (0, 0, 0);
            let add =
                crate::wire::llc::AddLink { end, link, path_mtu, psn, rejected: None, v2: None };
            Body::AddLink(add)
        }
        _ => Body::RequestAddLink { gids: std::vec![gid] },
    };
    w.forge_llc(1, (0, 0), false, ask.clone());
    w.wait(SECOND);
    let said = said(&mut w);
    let expected: &[_] = if version == 1 { &[] } else { &[(0, true, ask)] };
    assert_eq!(said[1..], *expected, "no offer");
    assert_eq!(links(&w), [2, 2]);
}

/// A CONFIRM_LINK for an active link, or of a client, is not answered.
fn only_a_server_confirms_links(version: u8) {
    for n in 0..2 {
        netsim::label!(version, n);
        let mut w = world(version, [1, 1], [1, 1]);
        w.record_frames();
        let body = Body::ConfirmLink {
            end: LinkEnd { mac: [2; 6], gid: device(n, 0).ip.to_ipv6_mapped(), qpn: 1 },
            link: 1,
            uid: 9,
            max_links: 2,
            max_conns: 0,
            no_eyecatcher: true,
        };
        w.forge_llc(n, (0, 0), false, body);
        w.wait(SECOND / 10);
        assert_eq!(said(&mut w).len(), 1, "no answer");
        assert_eq!(links(&w), [1, 1]);
    }
}

fn llc_requests_are_answered(version: u8) {
    for n in 0..2 {
        netsim::label!(version, n);
        let mut w = world(version, [1, 1], [1, 1]);
        let token = Token { rkey: 0x77, address: 0x7000_0000 };
        let others = Vec::new();
        let confirm = Body::ConfirmKey { token, others, negative: false, retry: false };
        let gone = |keys: [u32; 2], unknown, negative| {
            let keys = keys.to_vec();
            Body::DeleteKey { keys, unknown, negative }
        };
        // The response has a mask of unknown keys in version 1, and their number without keys in version 2.
        let [forgotten, twice] = match version {
            1 => [gone([0x77, 0x99], 0x40, true), gone([0x77, 0x99], 0xc0, true)],
            _ => [gone([0, 0], 1, true), gone([0, 0], 2, true)],
        };
        for (what, body, answer) in [
            ("a test", Body::TestLink { data: [9; 16] }, Body::TestLink { data: [9; 16] }),
            ("a key", confirm.clone(), confirm),
            ("one known key", gone([0x77, 0x99], 0, false), forgotten),
            ("no known key", gone([0x77, 0x99], 0, false), twice),
        ] {
            w.record_frames();
            w.forge_llc(n, (0, 0), false, body.clone());
            w.wait(SECOND / 100);
            assert_eq!(said(&mut w), [(n, false, body), (1 - n, true, answer)], "{what}");
        }
    }
}

/// A client that has answered CONFIRM_LINK cannot know whether the server uses SMC-R, so it resets TCP.
fn a_queue_pair_that_fails_ends_a_handshake(version: u8) {
    for (what, n, answered, expected) in [
        ("the client's, before CONFIRM_LINK", 1, false, Some(Reason::READY_LINK)),
        ("the client's, after it", 1, true, None),
        ("the server's", 0, true, Some(Reason::NO_ACTIVE_LINK)),
    ] {
        netsim::label!(version, what);
        let mut w = World::of_version(version, 102, [config(), config()], [1, 1]);
        w.network.mute(usize::from(answered), true);
        let at = w.connect_from(1);
        let (lost, late) = (Fate::Lost, Vec::new());
        w.tcp[at].valve = Some(Valve { to: 1, at: 1, what: lost, seen: 0, late });
        w.wait(SECOND);
        let id = w.tcp[at].ends[n].unwrap();
        let qp = w.hosts[n].engine.queue_pair(0, 0).unwrap();
        w.hosts[n].roce.fail_qp(qp).unwrap();
        w.wait(SECOND / 10);
        assert_eq!(w.hosts[n].engine.fallback(id), expected);
        assert_eq!(w.has_event(n, id, Ready::FALLBACK), expected.is_some());
        assert_eq!(w.has_event(n, id, Ready::FAILED), expected.is_none());
        assert_eq!(w.hosts[n].engine.counters().links_failed, 1);
        w.wait(SECOND);
        assert_eq!(w.hosts[n].engine.groups().count(), 0);
    }
}

/// The first Accept has the port's own path MTU; from the Confirm on the common one is known.
fn the_smaller_path_mtu_is_used(version: u8) {
    for small in 0..2 {
        netsim::label!(version, small);
        let mut w = World::of_version(version, 103, [config(), config()], [1, 1]);
        let mut port = device(small, 0);
        port.path_mtu = PathMtu::Mtu512;
        w.hosts[small].engine.set_devices(std::vec![port]);
        let (ids, accept) = w.accept_by_hand(1);
        let told = |bytes: &[u8]| AcceptConfirm::parse(bytes).unwrap().path_mtu;
        assert_eq!(told(&accept), if small == 0 { 2 } else { 3 });
        w.feed_clc(1, ids[1], &accept);
        let confirm = w.take_clc(1, ids[1]);
        assert_eq!(told(&confirm), 2);
        w.feed_clc(0, ids[0], &confirm);
        assert!(w.has_event(0, ids[0], Ready::ESTABLISHED));
        for host in &w.hosts {
            assert_eq!(host.engine.links().map(|link| link.path_mtu).collect::<Vec<_>>(), [512]);
        }
        let (_, accept) = w.accept_by_hand(1);
        assert_eq!(told(&accept), 2);
        w.transfer(0, ids, &pattern(20_000, 1), 5000);
        w.transfer(1, ids, &pattern(20_000, 1), 5000);
    }
}

/// Path MTU discovery of TCP, or a queue pair that gave up, has found a smaller path to the host.
fn link_offers_what_the_path_to_the_host_passes(version: u8) {
    for knows in 0..2 {
        netsim::label!(version, knows);
        let mut w = World::of_version(version, 104, [config(), config()], [1, 1]);
        let until = w.network.now + 600 * SECOND;
        w.hosts[knows].roce.limit_path(ip(1 - knows, 0), 700, until);
        let ids = w.established();
        for host in &w.hosts {
            assert_eq!(host.engine.links().map(|link| link.path_mtu).collect::<Vec<_>>(), [512]);
        }
        w.transfer(0, ids, &pattern(20_000, 1), 5000);
        w.transfer(1, ids, &pattern(20_000, 1), 5000);
    }
}

/// Attempts for a missing link are repeated with increasing pauses, up to about a minute.
fn failed_link_attempts_back_off(version: u8) {
    let mut w = world(version, [2, 2], [2, 2]);
    w.network.set_up(Place { node: 0, port: 1 }, false);
    assert!(w.run(60 * SECOND, |w| links(w) == [1, 1]));
    let mut offers = Vec::new();
    for _ in 0..6 {
        w.record_frames();
        w.wait(100 * SECOND);
        let is = |one: &&(usize, Llc)| one.0 == 0 && matches!(one.1.body, Body::AddLink(_));
        let heard = w.recorded_llc();
        offers.push(heard.iter().filter(is).filter(|one| !one.1.response).count());
    }
    // The client requests a link each time, too.
    assert!((8..=14).contains(&offers[0]), "{offers:?}");
    assert!(offers[1..].iter().all(|count| (1..=7).contains(count)), "{offers:?}");
}

/// The client rejects a key: the handshake of its socket is declined.
#[test]
fn rejected_key_declines_the_handshake() {
    for negative in [true, false] {
        netsim::label!(negative);
        let mut w = world(1, [1, 1], [1, 1]);
        // The client does not receive the key.
        w.network.mute(0, true);
        w.record_frames();
        let ids = w.by_hand(1);
        let proposal = w.take_clc(1, ids[1]);
        w.feed_clc(0, ids[0], &proposal);
        let told = said(&mut w).into_iter().find_map(|one| match one {
            (0, false, Body::ConfirmKey { token, .. }) => Some(token),
            _ => None,
        });
        let (token, others) = (told.expect("a key is announced"), Vec::new());
        let body = Body::ConfirmKey { token, others, negative, retry: false };
        w.forge_llc(1, (0, 0), true, body);
        let answer = w.take_clc(0, ids[0]);
        let declined = Decline::parse(&answer).ok().map(|decline| decline.reason);
        assert_eq!(declined, negative.then_some(Reason::REGISTER_BUFFER));
        assert_eq!(AcceptConfirm::parse(&answer).is_ok(), !negative);
    }
}

/// The UDP source port is in the dynamic range, and derived from the queue pair number.
#[test]
fn packets_come_from_a_port_of_their_queue_pair() {
    let mut w = world(2, [2, 2], [2, 2]);
    let ids = w.established();
    w.record_frames();
    w.transfer(1, ids, &pattern(1000, 1), 100);
    let frames = w.network.record.take().unwrap();
    // The second connection takes the second link.
    let qpn = w.hosts[1].engine.links().nth(1).unwrap().qpns.0;
    let mut ports = frames
        .iter()
        .filter(|(n, _)| *n == 1)
        .map(|(_, frame)| u16::from_be_bytes([frame[34], frame[35]]));
    assert!(ports.all(|port| port == 0xc000 | (qpn & 0x3fff) as u16));
}
