//! Status of the engine: sockets, groups, links, counters, notices.

use super::hostile::{cdc, forge};
use crate::engine::{
    Config, Counters, GroupStatus, LinkStatus, Notice, Ready, Role, State, Traffic,
};
use crate::testing::{World, config, device, ip, pattern};
use crate::wire::cdc::{Cdc, Cursor};
use crate::wire::llc::{Body, DeleteReason, LinkEnd};
use crate::wire::{Eid, Reason};
use core::time::Duration;
use netsim::Place;
use std::string::ToString;
use std::vec::Vec;

const SECOND: Duration = Duration::from_secs(1);

in_both_versions! {
    connections_are_shown_on_their_links
    group_status_and_notices_are_complete
    messages_are_counted
    a_lost_link_is_counted_once
}

/// Bytes received but unread, and accepted but unsent.
#[test]
fn bytes_of_a_socket_are_shown() {
    let mut w = World::new(81);
    let [server, client] = w.established();
    let all = 16u64 << 10;
    let shown = |w: &World| {
        [(0, server), (1, client)].map(|(n, id)| {
            let status = w.hosts[n].engine.socket_status(id).unwrap();
            (status.bytes, status.queued)
        })
    };
    assert_eq!(shown(&w), [((0, 0), (0, 0)); 2]);
    w.send(1, client, &pattern(1000, 1));
    assert_eq!(shown(&w)[1], ((0, 0), (0, 1000)), "nothing is sent before the next flush");
    w.wait(SECOND);
    assert_eq!(shown(&w), [((1000, 0), (1000, 0)), ((0, 1000), (0, 0))]);
    assert_eq!(w.hosts[0].engine.recv(server, &mut [0; 300]), Ok(300));
    assert_eq!(shown(&w)[0], ((1000, 0), (700, 0)));
    let mut sent = 1000;
    w.run(SECOND, |w| {
        sent += w.send(1, client, &pattern(50_000, 2)) as u64;
        false
    });
    assert_eq!(sent, 2 * all);
    assert_eq!(shown(&w), [((all, 0), (all - 300, 0)), ((0, all), (0, all))]);
    let status = w.hosts[0].engine.socket_status(server).unwrap();
    assert_eq!(
        (status.role, status.state, status.established),
        (Role::Server, State::Active, true)
    );
    assert_eq!((status.local, status.remote), (ip(0, 0), ip(1, 0)));
    assert_eq!((status.group, status.buffers), (Some(1), (16 << 10, 16 << 10)));
    assert_eq!(w.hosts[0].engine.sockets().collect::<Vec<_>>(), [status]);
    let counters = w.hosts[0].engine.counters();
    assert_eq!((counters.bytes_received, counters.bytes_sent), (all, 0));
    let counters = w.hosts[1].engine.counters();
    assert_eq!((counters.bytes_received, counters.bytes_sent), (0, 2 * all));
}

fn shown(w: &World, n: usize) -> Vec<(u8, usize, usize, bool)> {
    let shown = |link: LinkStatus| (link.number, link.of, link.connections, link.active);
    w.hosts[n].engine.links().map(shown).collect()
}

fn connections_are_shown_on_their_links(version: u8) {
    let two = || Config { max_links: 2, ..config() };
    let mut w = World::of_version(version, 82, [two(), two()], [2, 2]);
    let all: Vec<_> = (0..3).map(|_| w.established()).collect();
    w.wait(SECOND);
    for n in 0..2 {
        assert_eq!(shown(&w, n), [(1, 2, 3, true), (2, 2, 0, true)]);
        assert_eq!(w.hosts[n].engine.counts(), [3, 1, 2]);
        for (port, link) in w.hosts[n].engine.links().enumerate() {
            assert_eq!((link.group, link.device, link.path_mtu), (1, device(n, port).ip, 1024));
            let there = w.hosts[1 - n].engine.links().nth(port).unwrap();
            assert_eq!((there.qpns.1, there.qpns.0), link.qpns);
            assert_eq!((there.gids.1, there.gids.0), link.gids);
        }
    }
    w.network.set_up(Place { node: 0, port: 0 }, false);
    w.transfer(1, all[0], &pattern(1000, 1), 100);
    w.wait(30 * SECOND);
    for n in 0..2 {
        let active: Vec<_> = shown(&w, n).into_iter().filter(|link| link.3).collect();
        assert_eq!(active.iter().map(|link| (link.0, link.2)).collect::<Vec<_>>(), [(2, 3)]);
    }
}

fn group_status_and_notices_are_complete(version: u8) {
    let settings = |max_conns| Config { max_conns, ..config() };
    let mut w = World::of_version(version, 83, [settings(40), settings(30)], [1, 1]);
    let at = w.connect_from(1);
    w.wait(SECOND);
    let ids = w.tcp[at].ends.map(Option::unwrap);
    let ids_of = w.hosts.each_ref().map(|host| host.engine.peer_id());
    let eid = if version == 1 { Eid::BLANK } else { Eid::new("LAB.SMC.EID").unwrap() };
    for n in 0..2 {
        let group = w.hosts[n].engine.groups().next().unwrap();
        let expected = GroupStatus {
            id: 1,
            role: if n == 0 { Role::Server } else { Role::Client },
            peer: ip(1 - n, 0),
            peer_id: ids_of[1 - n],
            version,
            eid,
            release: version - 1,
            connections: 1,
            // The lower limit is negotiated; version 1 negotiates nothing.
            max_conns: if version == 1 { [40, 30][n] } else { 30 },
            max_links: 1,
            links: 1,
            active: true,
        };
        assert_eq!(group, expected);
    }
    // Notices report the group's creation and end.
    let next = |w: &mut World, n: usize| w.hosts[n].engine.poll_notice();
    for (n, role) in [(0, Role::Server), (1, Role::Client)] {
        let (peer, peer_id) = (ip(1 - n, 0), ids_of[1 - n]);
        assert_eq!(next(&mut w, n), Some(Notice::GroupUp { role, peer, peer_id }));
    }
    w.with_engine(0, |engine, ctx, _| engine.shut_down(ctx));
    w.wait(SECOND / 10);
    let reason = DeleteReason::OPERATOR;
    for (n, role) in [(0, Role::Server), (1, Role::Client)] {
        let (peer, by_peer) = (ip(1 - n, 0), n == 1);
        let down = Notice::GroupDown { role, peer, reason, by_peer };
        assert_eq!(next(&mut w, n), Some(down));
        assert!(down.to_string().contains(if by_peer { "by the peer" } else { "by us" }));
        assert_eq!(next(&mut w, n), None);
        let group = w.hosts[n].engine.groups().next().unwrap();
        assert_eq!((group.active, group.connections), (false, 0));
        assert!(w.has_event(n, ids[n], Ready::ABORTED) && w.has_event(n, ids[n], Ready::CLOSED));
        assert_eq!(w.hosts[n].engine.counters().aborted, 1);
    }
}

/// A first contact, a question and an answer, a further connection, the ends.
fn messages_are_counted(version: u8) {
    let mut w = World::of_version(version, 84, [config(), config()], [1, 1]);
    let ids = w.established();
    w.wait(SECOND / 10);
    // Without those of users' requests and of buffers.
    let (rx, tx) = (Traffic::default(), Traffic::default());
    let counters = |w: &World| {
        w.hosts.each_ref().map(|host| Counters { rx, tx, ..host.engine.counters().clone() })
    };
    // CONFIRM_LINK and its answer.
    let first = Counters { first_contacts: 1, llc_sent: 1, llc_received: 1, ..Counters::default() };
    let expected =
        [Counters { server: 1, ..first.clone() }, Counters { client: 1, ..first.clone() }];
    assert_eq!(counters(&w), expected);
    w.send(1, ids[1], b"question");
    w.wait(SECOND / 10);
    assert_eq!(w.recv(0, ids[0]), b"question");
    w.send(0, ids[0], b"an answer");
    w.wait(SECOND / 10);
    assert_eq!(w.recv(1, ids[1]), b"an answer");
    let moved = |of: Counters, received, sent| Counters {
        cdc_sent: 1,
        cdc_received: 1,
        bytes_received: received,
        bytes_sent: sent,
        ..of
    };
    let [server, client] = expected;
    let expected = [moved(server, 8, 9), moved(client, 9, 8)];
    assert_eq!(counters(&w), expected);
    // Version 1 announces keys on one link, too: one request and one response per side.
    let later = w.established();
    w.wait(SECOND / 10);
    let keys = if version == 1 { 2 } else { 0 };
    let [mut server, mut client] = expected;
    (server.server, client.client) = (2, 2);
    for of in [&mut server, &mut client] {
        (of.llc_sent, of.llc_received) = (of.llc_sent + keys, of.llc_received + keys);
    }
    assert_eq!(counters(&w), [server.clone(), client.clone()]);
    // Each side sends CLOSED, and DELETE_RKEY with a response.
    (0..2).for_each(|n| w.close(n, later[n]));
    w.wait(SECOND);
    for of in [&mut server, &mut client] {
        (of.llc_sent, of.llc_received) = (of.llc_sent + 2, of.llc_received + 2);
        (of.cdc_sent, of.cdc_received) = (of.cdc_sent + 1, of.cdc_received + 1);
        of.updates_sent += 1;
    }
    assert_eq!(counters(&w), [server, client]);
    assert_eq!([0, 1].map(|n| w.hosts[n].engine.keys_of_peer(0)), [1, 1], "those of the first");
}

/// One of two links is lost. Failed attempts to re-establish it do not count.
fn a_lost_link_is_counted_once(version: u8) {
    let two = || Config { max_links: 2, ..config() };
    let mut w = World::of_version(version, 85, [two(), two()], [2, 2]);
    let ids = w.established();
    w.wait(SECOND);
    while w.hosts[1].engine.poll_notice().is_some() {}
    w.network.set_up(Place { node: 0, port: 0 }, false);
    w.transfer(1, ids, &pattern(1000, 1), 100);
    w.wait(200 * SECOND);
    let notices: Vec<_> = core::iter::from_fn(|| w.hosts[1].engine.poll_notice()).collect();
    assert_eq!(notices, [Notice::LinkDown { peer: ip(1, 0), link: 1 }].map(|_| notices[0]));
    assert!(matches!(notices[0], Notice::LinkDown { peer, link: 1 } if peer == ip(0, 0)));
    let counters = w.hosts[1].engine.counters();
    assert_eq!((counters.links_failed, counters.failovers), (1, 1));
}

/// Each kind of malformed message has its counter.
#[test]
fn malformed_messages_are_counted() {
    let mut w = World::new(86);
    let ids = w.established();
    let of = cdc(&w, ids[1], 0);
    let mut short = of.emit();
    short[1] = 43;
    let counted = |w: &World| {
        let of = w.hosts[0].engine.counters();
        [of.malformed, of.cdc_strays, of.violations, of.cdc_received, of.llc_received]
    };
    // CONFIRM_LINK was answered.
    assert_eq!(counted(&w), [0, 0, 0, 0, 1]);
    for (what, bytes, expected) in [
        ("less than a message", &[1, 2, 3][..], [1, 0, 0, 0, 1]),
        ("no LLC message", &[0x2f; 44], [2, 0, 0, 0, 2]),
        ("one of another version", &[0x07; 44], [3, 0, 0, 0, 3]),
        ("CDC of a wrong length", &short, [4, 0, 0, 1, 3]),
        ("an old one", &Cdc { seqno: 0x9001, ..of }.emit(), [5, 0, 0, 2, 3]),
        ("of an unknown socket", &Cdc { token: 0xdead_beef, ..of }.emit(), [5, 1, 0, 3, 3]),
        ("of token 0", &Cdc { token: 0, ..of }.emit(), [5, 2, 0, 4, 3]),
        ("one without any change", &of.emit(), [5, 2, 0, 5, 3]),
        (
            // The peer answers DELETE_LINK.
            "an impossible cursor",
            &Cdc { produced: Cursor { wrap: 0x7000, count: 0 }, ..of }.emit(),
            [5, 2, 1, 6, 4],
        ),
    ] {
        forge(&mut w, bytes);
        assert_eq!(counted(&w), expected, "{what}");
    }
}

/// The oldest notices are dropped. A server records its Declines as refusals, not as notices.
#[test]
fn notices_are_bounded() {
    let other = Config { eids: std::vec![Eid::new("OTHER").unwrap()], ..config() };
    let mut w = World::with(87, [config(), other]);
    for n in 0..70u64 {
        let at = w.connect_from(1);
        w.wait(SECOND / 100);
        let ids = w.tcp[at].ends.map(Option::unwrap);
        (0..2).for_each(|n| w.close(n, ids[n]));
        for host in &w.hosts {
            assert_eq!(host.engine.counters().fallbacks[&Reason::NO_DEVICE], n + 1);
        }
    }
    let now = w.network.now;
    assert!(!w.hosts[1].engine.doubts(ip(0, 0), now), "the server answered each time");
    assert_eq!(w.hosts[0].engine.poll_notice(), None);
    let refused = w.hosts[0].engine.admission.refusals.pop();
    assert_eq!(refused.map(|one| (one.who, one.reason)), Some((Some(ip(1, 0)), "declined")));
    let (peer, reason, by_peer) = (ip(0, 0), Reason::NO_DEVICE, true);
    let mut notices = core::iter::from_fn(|| w.hosts[1].engine.poll_notice());
    assert!(notices.all(|notice| notice == Notice::Fallback { peer, reason, by_peer }));
}

/// Each link has a unique link user ID.
#[test]
fn links_have_unique_ids() {
    let two = || Config { max_links: 2, ..config() };
    let mut w = World::with_ports(88, [two(), two()], [2, 2]);
    w.record_frames();
    w.established();
    w.wait(SECOND);
    let heard = w.recorded_llc();
    let named: Vec<_> = heard
        .iter()
        .filter_map(|(n, llc)| match llc.body {
            Body::ConfirmLink {
                link, uid, max_links, max_conns, end: LinkEnd { qpn, .. }, ..
            } => {
                let own = w.hosts[*n].engine.links().find(|link| link.qpns.0 == qpn).unwrap();
                assert_eq!((own.number, max_links, max_conns), (link, 2, 255));
                Some((*n, llc.response, uid))
            }
            _ => None,
        })
        .collect();
    let expected = [(0, false, 0x101), (1, true, 0x101), (0, false, 0x102), (1, true, 0x102)];
    assert_eq!(named, expected);
}
