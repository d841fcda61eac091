//! Negotiation of link group parameters, and reasons to decline: modified version 2 Proposals and Accepts.

use crate::engine::{Config, GroupStatus, Ready};
use crate::testing::{World, config, device, ip, mac};
use crate::wire::{AcceptConfirm, Decline, FirstContact, PeerId, Proposal, ProposalV2, Reason};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Hosts with two ports, and up to 100 connections in a group.
fn world() -> World {
    let settings = || Config { max_links: 2, max_conns: 100, ..config() };
    World::with_ports(121, [settings(), settings()], [2, 2])
}

/// The group that a server creates for a modified Proposal, or the reason of its Decline.
fn proposed(w: &mut World, change: impl FnOnce(&mut ProposalV2)) -> Result<GroupStatus, Reason> {
    let ids = w.by_hand(1);
    let mut proposal = Proposal::parse(&w.take_clc(1, ids[1])).unwrap();
    change(proposal.v2.as_mut().unwrap());
    w.feed_clc(0, ids[0], &proposal.emit());
    match Decline::parse(&w.take_clc(0, ids[0])) {
        Ok(decline) => Err(decline.reason),
        Err(_) => Ok(w.hosts[0].engine.groups().next().unwrap()),
    }
}

/// The lower limit of both sides, with at least 16 connections and one link; release 0 negotiates nothing.
#[test]
fn server_negotiates_limits() {
    for ((release, conns, links), expected) in [
        ((1, 255, 2), Ok((1, 100, 2))),
        ((1, 99, 1), Ok((1, 99, 1))),
        ((1, 16, 9), Ok((1, 16, 2))),
        ((1, 15, 2), Err(Reason::MAX_CONNECTIONS)),
        ((1, 255, 0), Err(Reason::MAX_LINKS)),
        ((9, 255, 2), Ok((1, 100, 2))),
        ((0, 255, 2), Ok((0, 100, 1))),
        ((0, 3, 0), Ok((0, 100, 1))),
    ] {
        let made = proposed(&mut world(), |v2| {
            (v2.release, v2.max_conns, v2.max_links) = (release, conns, links);
        });
        let made = made.map(|group| (group.release, group.max_conns, group.max_links));
        assert_eq!(made, expected, "release {release}, {conns} connections, {links} links");
    }
}

/// In version 2 the client's GID must be an IPv4 address of another host.
#[test]
fn server_declines_gid_of_no_other_host() {
    for (gid, good) in [
        ("::ffff:10.0.0.2", true),
        ("::ffff:10.0.0.1", false),
        ("::ffff:10.0.1.1", false),
        ("::ffff:0.0.0.0", false),
        ("::ffff:127.0.0.1", false),
        ("::ffff:224.0.0.1", false),
        ("::ffff:255.255.255.255", false),
        ("::", false),
        ("fe80::5054:ff:fe00:2", false),
        ("2001:db8::2", false),
    ] {
        let made = proposed(&mut world(), |v2| v2.gid = gid.parse().unwrap());
        let expected = if good { None } else { Some(Reason::NO_SMCR_DEVICE) };
        assert_eq!(made.err(), expected, "{gid}");
    }
}

/// A client's answer to a modified Accept of a first contact: the group, or the reason of its Decline.
fn accepted(
    w: &mut World,
    change: impl FnOnce(&mut AcceptConfirm),
) -> Result<GroupStatus, Option<Reason>> {
    let (ids, accept) = w.accept_by_hand(1);
    let mut accept = AcceptConfirm::parse(&accept).unwrap();
    change(&mut accept);
    w.feed_clc(1, ids[1], &accept.emit());
    if w.has_event(1, ids[1], Ready::FAILED) {
        return Err(None);
    }
    match Decline::parse(&w.take_clc(1, ids[1])) {
        Ok(decline) => Err(Some(decline.reason)),
        Err(_) => Ok(w.hosts[1].engine.groups().next().unwrap()),
    }
}

fn contact(accept: &mut AcceptConfirm) -> &mut FirstContact {
    accept.v2.as_mut().unwrap().first_contact.as_mut().unwrap()
}

#[test]
fn client_checks_negotiated_limits() {
    for ((release, conns, links), expected) in [
        ((1, 16, 1), Ok((1, 16, 1))),
        ((1, 255, 2), Ok((1, 255, 2))),
        ((1, 15, 2), Err(Some(Reason::MAX_CONNECTIONS))),
        ((1, 100, 0), Err(Some(Reason::MAX_LINKS))),
        ((1, 100, 3), Err(Some(Reason::MAX_LINKS))),
        ((0, 3, 0), Ok((0, 100, 1))),
    ] {
        let made = accepted(&mut world(), |accept| {
            let contact = contact(accept);
            (contact.release, contact.limits) = (release, Some((conns, links, 0)));
        });
        let made = made.map(|group| (group.release, group.max_conns, group.max_links));
        assert_eq!(made, expected, "release {release}, {conns} connections, {links} links");
    }
    let indirect = accepted(&mut world(), |accept| contact(accept).direct = false);
    assert_eq!(indirect.err(), Some(Some(Reason::INDIRECT)));
    let ours = accepted(&mut world(), |accept| accept.gid = device(1, 1).ip.to_ipv6_mapped());
    assert_eq!(ours.err(), Some(Some(Reason::NO_SMCR_DEVICE)));
    let nobody = accepted(&mut world(), |accept| accept.gid = Ipv6Addr::UNSPECIFIED);
    assert_eq!(nobody.err(), Some(Some(Reason::NO_SMCR_DEVICE)));
}

/// The Confirm has another release than the Accept.
#[test]
fn confirm_of_other_release_is_declined() {
    for (release, expected) in [(1, None), (0, Some(Reason::RELEASE)), (2, Some(Reason::RELEASE))] {
        let mut w = world();
        let (ids, accept) = w.accept_by_hand(1);
        w.feed_clc(1, ids[1], &accept);
        let mut confirm = AcceptConfirm::parse(&w.take_clc(1, ids[1])).unwrap();
        contact(&mut confirm).release = release;
        w.feed_clc(0, ids[0], &confirm.emit());
        assert_eq!(w.hosts[0].engine.fallback(ids[0]), expected, "{release}");
        assert_eq!(w.has_event(0, ids[0], Ready::ESTABLISHED), expected.is_none());
    }
}

/// The port of the TCP connection, else the first one.
#[test]
fn a_group_begins_at_the_port_of_its_connection() {
    let other = |n: u8| IpAddr::from(Ipv4Addr::new(192, 0, 2, n));
    for (addresses, port) in
        [([ip(0, 0), ip(1, 0)], 0), ([ip(0, 1), ip(1, 1)], 1), ([other(1), other(2)], 0)]
    {
        let mut w = world();
        w.addresses = addresses;
        w.established();
        w.wait(SECOND);
        for n in 0..2 {
            let links: std::vec::Vec<_> =
                w.hosts[n].engine.links().map(|link| link.device).collect();
            assert_eq!(links, [device(n, port).ip, device(n, 1 - port).ip], "{addresses:?}");
        }
    }
}

/// A client with another peer ID or GID is a different client.
#[test]
fn group_is_reused_only_by_the_same_client() {
    let cases: [(&str, fn(&mut Proposal), usize); 3] = [
        ("the same", |_| (), 1),
        ("another name", |proposal| proposal.peer_id = PeerId::new(9, mac(1, 0)), 2),
        (
            "another GID",
            |proposal| {
                proposal.v2.as_mut().unwrap().gid = device(1, 1).ip.to_ipv6_mapped();
            },
            2,
        ),
    ];
    for (what, change, groups) in cases {
        let mut w = world();
        w.established();
        w.wait(SECOND);
        let ids = w.by_hand(1);
        let mut proposal = Proposal::parse(&w.take_clc(1, ids[1])).unwrap();
        change(&mut proposal);
        w.feed_clc(0, ids[0], &proposal.emit());
        let accept = AcceptConfirm::parse(&w.take_clc(0, ids[0])).unwrap();
        assert_eq!(accept.first_contact, groups == 2, "{what}");
        assert_eq!(w.hosts[0].engine.groups().count(), groups, "{what}");
    }
}
