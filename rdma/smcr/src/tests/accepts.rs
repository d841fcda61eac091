//! Accepts that a client gets: which group and link a server may mean, and what is said of one that there is not.

use crate::engine::{Config, Ready};
use crate::testing::{World, config};
use crate::wire::llc::{Body, DeleteReason};
use crate::wire::{AcceptConfirm, Decline, MessageType, PeerId, Reason};
use core::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

in_both_versions! {
    an_accept_names_a_link_that_there_is
    of_a_lost_link_the_group_is_kept
    a_group_that_ends_is_used_no_more
    a_server_that_makes_another_group_has_the_first_tested
    an_accept_is_no_confirm
    a_group_that_is_being_made_is_waited_for
}

/// What a client says to an Accept: a Confirm, or why not, and whether it is out of sync.
type Said = Result<(), (Reason, bool)>;

const OUT_OF_SYNC: Said = Err((Reason::SYNC, true));

fn world(version: u8, seed: u64, max_links: u8) -> World {
    let settings = || Config { max_links, ..config() };
    let ports = usize::from(max_links);
    let mut w = World::of_version(version, seed, [settings(), settings()], [ports; 2]);
    w.established();
    w.wait(SECOND);
    w
}

/// What host 1 says to an Accept that was changed on its way.
fn answer(w: &mut World, change: impl FnOnce(&mut AcceptConfirm)) -> Said {
    let (ids, accept) = w.accept_by_hand(1);
    let mut accept = AcceptConfirm::parse(&accept).expect("an Accept");
    assert!(!accept.first_contact);
    change(&mut accept);
    w.hear(1, ids[1], &accept.emit());
    let said = w.say(1, ids[1]);
    match Decline::parse(&said) {
        Ok(decline) => {
            // Who proposes refuses nobody.
            assert!(w.hosts[1].engine.admission.refusals.pop().is_none());
            Err((decline.reason, decline.out_of_sync))
        }
        Err(_) => {
            let confirm = AcceptConfirm::parse(&said).expect("a Confirm");
            assert_eq!(confirm.kind, MessageType::Confirm);
            Ok(())
        }
    }
}

fn an_accept_names_a_link_that_there_is(version: u8) {
    let mut w = world(version, 41, 1);
    // A group in which host 1 is the server: whoever it is, it is not meant.
    let at = w.connect_from(0);
    let client = w.tcp[at].ends[0].unwrap();
    assert!(w.run(SECOND, |w| w.was_told(0, client, Ready::ESTABLISHED)));
    let groups = w.hosts[0].engine.links().collect::<std::vec::Vec<_>>();
    let other = groups.iter().find(|link| link.role == crate::engine::Role::Client).unwrap().qpns.0;
    let cases: [(&str, fn(&mut AcceptConfirm, u32), Said); 6] = [
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
            // Only version 1 looks at it.
            if version == 1 { OUT_OF_SYNC } else { Ok(()) },
        ),
    ];
    for (what, change, expected) in cases {
        assert_eq!(answer(&mut w, |accept| change(accept, other)), expected, "{what}");
    }
}

/// A server that heard that we are out of sync would end a group whose other link stands.
fn of_a_lost_link_the_group_is_kept(version: u8) {
    let cases: [(&str, fn(&mut AcceptConfirm), Said); 3] = [
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

fn a_group_that_ends_is_used_no_more(version: u8) {
    for max_links in [1, 2] {
        netsim::label!(version, max_links);
        let mut w = world(version, 43, max_links);
        let (ids, accept) = w.accept_by_hand(1);
        let reason = DeleteReason::OPERATOR;
        let body = Body::DeleteLink { link: 0, all: true, orderly: false, reason };
        w.forge_llc(0, (0, 0), false, body);
        assert_eq!(w.hosts[1].engine.groups().next().map(|group| group.active), Some(false));
        w.hear(1, ids[1], &accept);
        let said = Decline::parse(&w.say(1, ids[1])).unwrap();
        assert_eq!((said.reason, said.out_of_sync), (Reason::SYNC, true));
    }
}

/// One in which the roles are the other way round has nothing to do with it.
fn a_server_that_makes_another_group_has_the_first_tested(version: u8) {
    for of_client in [true, false] {
        netsim::label!(version, of_client);
        let mut w = World::of_version(version, 44, [config(), config()], [1, 1]);
        if of_client {
            w.established();
            // The server forgets it: it wants another group.
            w.reboot(0);
        } else {
            let at = w.connect_from(0);
            let client = w.tcp[at].ends[0].unwrap();
            assert!(w.run(SECOND, |w| w.was_told(0, client, Ready::ESTABLISHED)));
        }
        w.wait(SECOND);
        w.listen();
        w.established();
        let tests = w.llc_heard();
        let tests = tests.iter().filter(|(n, llc)| {
            *n == 1 && !llc.response && matches!(llc.body, Body::TestLink { .. })
        });
        assert_eq!(tests.count(), usize::from(of_client));
    }
}

fn an_accept_is_no_confirm(version: u8) {
    let mut w = world(version, 45, 1);
    let (ids, accept) = w.accept_by_hand(1);
    let mut accept = AcceptConfirm::parse(&accept).unwrap();
    accept.kind = MessageType::Confirm;
    w.hear(1, ids[1], &accept.emit());
    assert!(w.was_told(1, ids[1], Ready::FAILED));
    assert_eq!(w.hosts[1].engine.counters().failed, 1);
}

/// By the one of its server, and by no other.
fn a_group_that_is_being_made_is_waited_for(version: u8) {
    for (stranger, expected) in [(false, None), (true, Some((Reason::SYNC, true)))] {
        netsim::label!(version, stranger);
        let mut w = World::of_version(version, 46, [config(), config()], [1, 1]);
        let (first, accept) = w.accept_by_hand(1);
        w.hear(1, first[1], &accept);
        let confirm = w.say(1, first[1]);
        let mut accept = AcceptConfirm::parse(&accept).unwrap();
        accept.first_contact = false;
        if let Some(v2) = &mut accept.v2 {
            v2.first_contact = None;
        }
        if stranger {
            accept.peer_id = PeerId([7; 8]);
        }
        let second = w.by_hand(1);
        w.say(1, second[1]);
        w.hear(1, second[1], &accept.emit());
        let said = Decline::parse(&w.say(1, second[1])).ok();
        assert_eq!(said.map(|decline| (decline.reason, decline.out_of_sync)), expected);
        // When it is made the other one goes on.
        w.hear(0, first[0], &confirm);
        assert!(w.was_told(1, first[1], Ready::ESTABLISHED));
        w.wait(SECOND / 10);
        assert_eq!(w.was_told(1, second[1], Ready::FALLBACK), stranger);
        let said = w.say(1, second[1]);
        assert_eq!(AcceptConfirm::parse(&said).is_ok(), !stranger);
    }
}
