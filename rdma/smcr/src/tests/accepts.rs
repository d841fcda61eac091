//! Accepts received by a client: which group and link a server may name, and the Decline for others.

use crate::engine::{Config, Ready};
use crate::testing::{World, config};
use crate::wire::llc::{Body, DeleteReason};
use crate::wire::{AcceptConfirm, Decline, MessageType, PeerId, Reason};
use core::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

in_both_versions! {
    accept_for_unknown_link_is_declined_out_of_sync
    accept_for_lost_link_keeps_the_group
    ending_group_is_not_reused
    group_is_tested_when_its_server_requests_another
    confirm_in_place_of_accept_fails_the_handshake
    accept_is_held_while_its_group_is_created
}

/// A client's answer to an Accept: a Confirm, or the reason of a Decline and whether it is out of sync.
type Answer = Result<(), (Reason, bool)>;

const OUT_OF_SYNC: Answer = Err((Reason::SYNC, true));

fn world(version: u8, seed: u64, max_links: u8) -> World {
    let settings = || Config { max_links, ..config() };
    let ports = usize::from(max_links);
    let mut w = World::of_version(version, seed, [settings(), settings()], [ports; 2]);
    w.established();
    w.wait(SECOND);
    w
}

/// The answer of host 1 to a modified Accept.
fn answer(w: &mut World, change: impl FnOnce(&mut AcceptConfirm)) -> Answer {
    let (ids, accept) = w.accept_by_hand(1);
    let mut accept = AcceptConfirm::parse(&accept).expect("an Accept");
    assert!(!accept.first_contact);
    change(&mut accept);
    w.feed_clc(1, ids[1], &accept.emit());
    let reply = w.take_clc(1, ids[1]);
    match Decline::parse(&reply) {
        Ok(decline) => {
            // A client's Decline is not recorded as a refusal.
            assert!(w.hosts[1].engine.admission.refusals.pop().is_none());
            Err((decline.reason, decline.out_of_sync))
        }
        Err(_) => {
            let confirm = AcceptConfirm::parse(&reply).expect("a Confirm");
            assert_eq!(confirm.kind, MessageType::Confirm);
            Ok(())
        }
    }
}

fn accept_for_unknown_link_is_declined_out_of_sync(version: u8) {
    let mut w = world(version, 41, 1);
    // A group in which host 1 is the server: an Accept must not match it.
    let at = w.connect_from(0);
    let client = w.tcp[at].ends[0].unwrap();
    assert!(w.run(SECOND, |w| w.has_event(0, client, Ready::ESTABLISHED)));
    let groups = w.hosts[0].engine.links().collect::<std::vec::Vec<_>>();
    let other = groups.iter().find(|link| link.role == crate::engine::Role::Client).unwrap().qpns.0;
    let cases: [(&str, fn(&mut AcceptConfirm, u32), Answer); 6] = [
        ("as it is", |_, _| (), Ok(())),
        ("of another peer", |accept, _| accept.peer_id = PeerId([7; 8]), OUT_OF_SYNC),
        ("of another queue pair", |accept, _| accept.qpn += 1, OUT_OF_SYNC),
        ("of the group the other way round", |accept, other| accept.qpn = other, OUT_OF_SYNC),
        (
            "of another GID",
            |accept, _| accept.gid = (u128::from(accept.gid) + 1).into(),
            OUT_OF_SYNC,
        ),
        (
            "of another MAC address",
            |accept, _| accept.mac[5] ^= 1,
            // Only version 1 compares it.
            if version == 1 { OUT_OF_SYNC } else { Ok(()) },
        ),
    ];
    for (what, change, expected) in cases {
        assert_eq!(answer(&mut w, |accept| change(accept, other)), expected, "{what}");
    }
}

/// A server that receives an out-of-sync Decline would end a group whose other link is up.
fn accept_for_lost_link_keeps_the_group(version: u8) {
    let cases: [(&str, fn(&mut AcceptConfirm), Answer); 3] = [
        ("as it is", |_| (), Ok(())),
        ("of a link that is gone", |accept| accept.qpn += 1, Err((Reason::NO_ACTIVE_LINK, false))),
        (
            "of another peer, too",
            |accept| (accept.qpn, accept.peer_id) = (accept.qpn + 1, PeerId([7; 8])),
            OUT_OF_SYNC,
        ),
    ];
    for (what, change, expected) in cases {
        let mut w = world(version, 42, 2);
        assert_eq!(answer(&mut w, change), expected, "{what}");
    }
}

fn ending_group_is_not_reused(version: u8) {
    for max_links in [1, 2] {
        netsim::label!(version, max_links);
        let mut w = world(version, 43, max_links);
        let (ids, accept) = w.accept_by_hand(1);
        let reason = DeleteReason::OPERATOR;
        let body = Body::DeleteLink { link: 0, all: true, orderly: false, reason };
        w.forge_llc(0, (0, 0), false, body);
        assert_eq!(w.hosts[1].engine.groups().next().map(|group| group.active), Some(false));
        w.feed_clc(1, ids[1], &accept);
        let reply = Decline::parse(&w.take_clc(1, ids[1])).unwrap();
        assert_eq!((reply.reason, reply.out_of_sync), (Reason::SYNC, true));
    }
}

/// A group with reversed roles is not tested.
fn group_is_tested_when_its_server_requests_another(version: u8) {
    for of_client in [true, false] {
        netsim::label!(version, of_client);
        let mut w = World::of_version(version, 44, [config(), config()], [1, 1]);
        if of_client {
            w.established();
            // The server loses the group, and requests another one.
            w.reboot(0);
        } else {
            let at = w.connect_from(0);
            let client = w.tcp[at].ends[0].unwrap();
            assert!(w.run(SECOND, |w| w.has_event(0, client, Ready::ESTABLISHED)));
        }
        w.wait(SECOND);
        w.record_frames();
        w.established();
        let tests = w.recorded_llc();
        let tests = tests.iter().filter(|(n, llc)| {
            *n == 1 && !llc.response && matches!(llc.body, Body::TestLink { .. })
        });
        assert_eq!(tests.count(), usize::from(of_client));
    }
}

fn confirm_in_place_of_accept_fails_the_handshake(version: u8) {
    let mut w = world(version, 45, 1);
    let (ids, accept) = w.accept_by_hand(1);
    let mut accept = AcceptConfirm::parse(&accept).unwrap();
    accept.kind = MessageType::Confirm;
    w.feed_clc(1, ids[1], &accept.emit());
    assert!(w.has_event(1, ids[1], Ready::FAILED));
    assert_eq!(w.hosts[1].engine.counters().failed, 1);
}

/// Only Accepts of the same server are held.
fn accept_is_held_while_its_group_is_created(version: u8) {
    for (stranger, expected) in [(false, None), (true, Some((Reason::SYNC, true)))] {
        netsim::label!(version, stranger);
        let mut w = World::of_version(version, 46, [config(), config()], [1, 1]);
        let (first, accept) = w.accept_by_hand(1);
        w.feed_clc(1, first[1], &accept);
        let confirm = w.take_clc(1, first[1]);
        let mut accept = AcceptConfirm::parse(&accept).unwrap();
        accept.first_contact = false;
        if let Some(v2) = &mut accept.v2 {
            v2.first_contact = None;
        }
        if stranger {
            accept.peer_id = PeerId([7; 8]);
        }
        let second = w.by_hand(1);
        w.take_clc(1, second[1]);
        w.feed_clc(1, second[1], &accept.emit());
        let reply = Decline::parse(&w.take_clc(1, second[1])).ok();
        assert_eq!(reply.map(|decline| (decline.reason, decline.out_of_sync)), expected);
        // The held handshake continues when the group is up.
        w.feed_clc(0, first[0], &confirm);
        assert!(w.has_event(1, first[1], Ready::ESTABLISHED));
        w.wait(SECOND / 10);
        assert_eq!(w.has_event(1, second[1], Ready::FALLBACK), stranger);
        let reply = w.take_clc(1, second[1]);
        assert_eq!(AcceptConfirm::parse(&reply).is_ok(), !stranger);
    }
}
