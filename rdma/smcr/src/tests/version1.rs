//! Version 1: selection of the version, messages on the wire, and malicious peers. Tests of streams and links run in
//! both versions, and are in other files.

use super::hostile::{forge, forge_if_alive, server_given};
use crate::engine::{Config, Ready, SocketId, Subnet};
use crate::testing::{World, config, device, ip, mac, pattern, subnet};
use crate::wire::llc::{AddLink, Body, KeyMove, LinkEnd, Llc, Order, Token};
use crate::wire::{
    AcceptConfirm, Eid, MessageType, Negotiated, PathType, PeerId, Prefixes, Proposal, Reason,
};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use proptest::prelude::*;
use std::string::String;
use std::vec::Vec;

const SECOND: Duration = Duration::from_secs(1);
/// Bytes before the payload of a SEND of RoCEv1: Ethernet, GRH, BTH.
const SEND: usize = 14 + 40 + 12;

/// Hosts with version 1 only.
fn world(seed: u64) -> World {
    World::of_version(1, seed, [config(), config()], [1, 1])
}

fn of_others() -> Config {
    Config { eids: std::vec![Eid::new("OTHER").unwrap()], ..config() }
}

/// Result of a connection from host 1: the version of its group, or the fallback reasons.
fn outcome(w: &mut World) -> Result<u8, [Option<Reason>; 2]> {
    let at = w.connect_from(1);
    let ids = w.tcp[at].ends.map(Option::unwrap);
    w.run(10 * SECOND, |w| (0..2).all(|n| w.hosts[n].events.contains_key(&ids[n])));
    if (0..2).all(|n| w.has_event(n, ids[n], Ready::ESTABLISHED)) {
        w.transfer(0, ids, &pattern(40_000, 1), 3000);
        w.transfer(1, ids, &pattern(40_000, 2), 3000);
        return Ok(w.hosts[0].engine.groups().next().unwrap().version);
    }
    Err([0, 1].map(|n| w.hosts[n].engine.fallback(ids[n])))
}

/// The recorded LLC messages in order, with their senders.
fn recorded_llc(w: &mut World) -> Vec<(usize, Llc)> {
    let frames = w.network.record.take().unwrap();
    let messages = frames.iter().filter_map(|(_, frame)| {
        let sender = (0..2).find(|&n| (0..2).any(|port| frame[6..12] == mac(n, port)))?;
        let message = frame.get(SEND..SEND + 44).filter(|_| frame[SEND - 12] == 0x04)?;
        (message[0] != 0xfe).then(|| (sender, Llc::parse(message).unwrap()))
    });
    messages.collect()
}

fn name(message: &Llc) -> String {
    let text = std::format!("{:?}", message.body);
    let kind = text.split([' ', '(']).next().unwrap();
    std::format!("{kind}{}", if message.response { " answered" } else { "" })
}

fn v1(response: bool, body: Body) -> Vec<u8> {
    Llc { version: 1, response, order: Order::Big, body }.emit()
}

#[test]
fn group_is_reused_then_expires() {
    let mut w = world(1);
    let first = w.established();
    for n in 0..2 {
        let group = w.hosts[n].engine.groups().next().unwrap();
        assert_eq!((group.version, group.release, group.eid.as_str()), (1, 0, ""));
        assert_eq!(group.peer, ip(1 - n, 0), "the TCP address");
        let link = w.hosts[n].engine.links().next().unwrap();
        assert_eq!(link.gids, (net::link_local(mac(n, 0)), net::link_local(mac(1 - n, 0))));
    }
    w.transfer(1, first, &pattern(100_000, 1), 5000);
    w.wait(SECOND);
    w.network.record = Some(Vec::new());
    let second = w.established();
    w.wait(SECOND);
    let recorded: Vec<_> = recorded_llc(&mut w).iter().map(|(n, m)| (*n, name(m))).collect();
    let expected = [(0, ""), (1, " answered"), (1, ""), (0, " answered")];
    assert_eq!(recorded, expected.map(|(n, what)| (n, std::format!("ConfirmKey{what}"))));
    w.network.record = Some(Vec::new());
    for ids in [first, second] {
        w.transfer(0, ids, &pattern(100_000, 2), 5000);
        w.close(0, ids[0]);
        w.close(1, ids[1]);
    }
    w.wait(SECOND);
    for (_, message) in recorded_llc(&mut w) {
        let Body::DeleteKey { keys, unknown: 0, negative: false } = &message.body else {
            panic!("{message:?}")
        };
        assert!(keys.iter().all(|&key| key != 0), "the response returns the keys: {message:?}");
    }
    for host in &w.hosts {
        assert_eq!(host.engine.sockets().count(), 0);
        assert_eq!(host.engine.groups().count(), 1);
        assert_eq!(host.engine.counters().malformed, 0);
    }
    w.wait(620 * SECOND);
    assert!(w.hosts.iter().all(|host| host.engine.groups().count() == 0));
}

#[test]
fn version_1_uses_rocev1_only() {
    let mut w = world(2);
    w.network.record = Some(Vec::new());
    let ids = w.established();
    w.transfer(1, ids, &pattern(100_000, 1), 5000);
    w.transfer(0, ids, &pattern(100_000, 2), 5000);
    let frames = w.network.record.take().unwrap();
    assert!(frames.len() > 100);
    for (_, frame) in frames {
        assert_eq!(frame[12..14], [0x89, 0x15]);
        let gids = [22..38, 38..54].map(|at| <[u8; 16]>::try_from(&frame[at]).unwrap());
        let ours = [0, 1].map(|n| net::link_local(mac(n, 0)).octets());
        assert!(gids == ours || gids == [ours[1], ours[0]]);
    }
}

/// EIDs of server and client, and whether each has version 1 enabled.
#[test]
fn version_2_is_preferred() {
    let none = || Config { eids: Vec::new(), ..config() };
    let declined = Err([Some(Reason::NO_DEVICE); 2]);
    for (configs, v1, expected) in [
        ([config(), config()], [true, true], Ok(2)),
        ([config(), config()], [true, false], Ok(2)),
        ([config(), config()], [false, true], Ok(2)),
        ([config(), of_others()], [true, true], Ok(1)),
        ([config(), of_others()], [false, true], declined),
        ([config(), of_others()], [true, false], declined),
        ([config(), none()], [true, true], Ok(1)),
        ([none(), config()], [true, true], Ok(1)),
        ([config(), none()], [false, true], declined),
        ([none(), none()], [true, true], Ok(1)),
        ([none(), none()], [true, false], declined),
    ] {
        let mut w = World::with(3, configs.clone());
        (0..2).filter(|&n| v1[n]).for_each(|n| w.enable_v1(n));
        assert_eq!(outcome(&mut w), expected, "{:?} {v1:?}", configs.map(|c| c.eids));
    }
}

/// Version 1 needs no neighbour table, because the peer sends its MAC address.
#[test]
fn version_2_without_route_falls_back_to_version_1() {
    for (speaks, expected) in [(true, Ok(1)), (false, Err([Some(Reason::NO_ROUTE); 2]))] {
        let mut w = World::new(4);
        (0..2).filter(|_| speaks).for_each(|n| w.enable_v1(n));
        w.hosts[0].neighbours.none = true;
        assert_eq!(outcome(&mut w), expected);
    }
}

#[test]
fn different_subnets_are_declined() {
    let differ = Err([Some(Reason::PREFIX); 2]);
    for (lengths, expected) in [
        ([24, 24], Ok(1)),
        ([30, 30], Ok(1)),
        ([24, 25], differ),
        ([16, 24], differ),
        // The client finds the server outside of its subnet.
        ([24, 32], Err([Some(Reason::NO_DEVICE); 2])),
    ] {
        let mut w = world(5);
        for (n, length) in lengths.into_iter().enumerate() {
            let one = std::vec![subnet(n, 0, length)];
            w.hosts[n].engine.set_subnets(one);
        }
        assert_eq!(outcome(&mut w), expected, "{lengths:?}");
    }
}

/// One common IPv6 prefix is sufficient.
#[test]
fn one_common_ipv6_prefix_is_sufficient() {
    let differ = Err([Some(Reason::PREFIX); 2]);
    for (lengths, besides, expected) in [
        ([64, 64], false, Ok(1)),
        ([64, 60], false, differ),
        ([64, 60], true, Ok(1)),
        ([128, 64], false, differ),
    ] {
        let mut w = world(6);
        for (n, length) in lengths.into_iter().enumerate() {
            let on =
                |address: Ipv6Addr, prefix| Subnet::new(device(n, 0).ip, address.into(), prefix);
            let address = Ipv6Addr::new(0xfd00, 0, 0, 0x10, 0, 0, 0, 1 + n as u16);
            let mut subnets = std::vec![subnet(n, 0, 24), on(address, length)];
            if besides {
                subnets.push(on(Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 1 + n as u16), 48));
            }
            w.hosts[n].engine.set_subnets(subnets);
            w.addresses[n] = address.into();
        }
        assert_eq!(outcome(&mut w), expected, "{lengths:?} {besides}");
    }
}

/// The key exchange for a second link: two keys per message, until both sides have sent all.
#[test]
fn keys_are_exchanged_for_a_second_link() {
    let two = || Config { max_links: 2, ..config() };
    let mut w = World::of_version(1, 7, [two(), two()], [1, 1]);
    let all: Vec<_> = (0..5).map(|_| w.established()).collect();
    // Each host gets a second port.
    for n in 0..2 {
        w.hosts[n].engine.set_devices((0..2).map(|port| device(n, port)).collect());
    }
    w.network.record = Some(Vec::new());
    let both = |w: &mut World| {
        w.hosts.iter().all(|h| h.engine.links().filter(|link| link.active).count() == 2)
    };
    assert!(w.run(2 * SECOND, both));
    let recorded = recorded_llc(&mut w).into_iter().map(|(n, message)| (n, name(&message)));
    // The client also requests a link by ADD_LINK.
    let exchange: Vec<_> = recorded.filter(|one| *one != (1, "AddLink".into())).take(10).collect();
    let keys = ["AddLinkContinue", "AddLinkContinue answered"];
    let expected = [
        "AddLink",
        "AddLink answered",
        keys[0],
        keys[1],
        keys[0],
        keys[1],
        keys[0],
        keys[1],
        "ConfirmLink",
        "ConfirmLink answered",
    ];
    assert_eq!(
        exchange,
        [0, 1].repeat(5).into_iter().zip(expected.map(String::from)).collect::<Vec<_>>()
    );
    w.network.set_up(netsim::Place { node: 0, port: 0 }, false);
    for ids in all {
        w.transfer(0, ids, &pattern(20_000, 3), 5000);
        w.transfer(1, ids, &pattern(20_000, 4), 5000);
    }
}

/// A server with one port offers a link over it, because Linux waits for an offer. A client without another port
/// rejects it, with the version 1 reason.
#[test]
fn offer_without_alternate_path_is_rejected() {
    let two = || Config { max_links: 2, ..config() };
    let mut w = World::of_version(1, 8, [two(), two()], [1, 1]);
    w.network.record = Some(Vec::new());
    w.established();
    w.wait(SECOND);
    let recorded = recorded_llc(&mut w);
    let (n, last) = recorded.last().unwrap();
    let Body::AddLink(add) = &last.body else { panic!("{last:?}") };
    assert_eq!((*n, last.response, add.rejected), (1, true, Some(1)));
    for host in &w.hosts {
        assert_eq!(host.engine.links().count(), 1);
    }
}

/// The Proposal of a version 1 client to host 0.
fn proposal() -> Proposal {
    Proposal {
        version: 1,
        v1_type: PathType::R,
        v2_type: PathType::None,
        peer_id: PeerId::new(7, mac(1, 0)),
        gid: net::link_local(mac(1, 0)),
        mac: mac(1, 0),
        prefixes: Some(Prefixes { v4: (Ipv4Addr::new(10, 0, 0, 0), 24), v6: Vec::new() }),
        v2: None,
    }
}

#[test]
fn proposal_of_no_other_host_is_declined() {
    let gid = |text: &str| text.parse::<Ipv6Addr>().unwrap();
    let bad = Some(Reason::NO_SMCR_DEVICE);
    for (gid, mac, expected) in [
        (proposal().gid, mac(1, 0), None),
        // RoCEv1 GIDs may be IPv4 addresses, too.
        (gid("::ffff:10.0.0.2"), mac(1, 0), None),
        // The MAC address must be that of the GID, or of its address in the neighbour table.
        (proposal().gid, mac(1, 1), Some(Reason::NO_ROUTE)),
        (gid("::ffff:10.0.0.2"), mac(1, 1), Some(Reason::NO_ROUTE)),
        (gid("::"), mac(1, 0), bad),
        (gid("::1"), mac(1, 0), bad),
        (gid("ff02::1"), mac(1, 0), bad),
        (gid("::ffff:10.0.0.1"), mac(1, 0), bad),
        (proposal().gid, mac(0, 0), bad),
        (proposal().gid, [0; 6], bad),
        (proposal().gid, [0xff; 6], bad),
        (proposal().gid, [1, 0, 0x5e, 0, 0, 1], bad),
    ] {
        let mut w = world(9);
        let id = server_given(&mut w, &[&Proposal { gid, mac, ..proposal() }.emit()]);
        assert_eq!(w.hosts[0].engine.fallback(id), expected, "{gid} {mac:?}");
        assert_eq!(w.hosts[0].engine.groups().count(), usize::from(expected.is_none()));
    }
}

/// The Accept of host 0 to [`proposal`].
fn accepted(w: &mut World) -> (SocketId, AcceptConfirm) {
    let id = server_given(w, &[&proposal().emit()]);
    let mut buffer = [0; 100];
    let count = w.hosts[0].engine.poll_clc_bytes(id, &mut buffer);
    assert_eq!(count, 68);
    (id, AcceptConfirm::parse(&buffer[..68]).unwrap())
}

#[test]
fn confirm_of_other_version_or_length_is_refused() {
    let mut w = world(10);
    let (id, accept) = accepted(&mut w);
    assert!(accept.first_contact);
    assert_eq!(
        (accept.version, accept.gid, accept.mac),
        (1, net::link_local(mac(0, 0)), mac(0, 0))
    );
    let confirm = AcceptConfirm { kind: MessageType::Confirm, mac: mac(1, 0), ..accept };
    let blank = Negotiated { eid: Eid::BLANK, first_contact: None, gids: Vec::new() };
    let v2 = AcceptConfirm { version: 2, v2: Some(blank), ..confirm.clone() };
    w.with_engine(0, |engine, ctx, neighbours| {
        engine.handle_clc_bytes(id, &v2.emit(), ctx, neighbours)
    });
    assert_eq!(w.hosts[0].engine.fallback(id), Some(Reason::VERSION));
    for wrong in [67, 69] {
        let mut w = world(10);
        let (id, _) = accepted(&mut w);
        let mut bytes = confirm.emit();
        let trailer = bytes.split_off(64);
        bytes.resize(wrong - 4, 0);
        bytes.extend(trailer);
        bytes[6] = wrong as u8;
        w.with_engine(0, |engine, ctx, neighbours| {
            engine.handle_clc_bytes(id, &bytes, ctx, neighbours)
        });
        assert!(w.run(SECOND, |w| w.has_event(0, id, Ready::FAILED)), "{wrong}");
        assert_eq!(w.hosts[0].engine.groups().count(), 0);
    }
}

#[test]
fn accept_of_version_not_proposed_is_declined() {
    for speaks in [false, true] {
        let mut w = World::new(11);
        w.enable_v1(0);
        let (_, accept) = accepted(&mut w);
        if speaks {
            w.enable_v1(1);
        }
        let at = w.connect_from(1);
        let id = w.tcp.remove(at).ends[1].unwrap();
        w.with_engine(1, |engine, ctx, neighbours| {
            engine.handle_clc_bytes(id, &accept.emit(), ctx, neighbours)
        });
        let declined = (!speaks).then_some(Reason::MODE);
        assert_eq!(w.hosts[1].engine.fallback(id), declined);
        assert_eq!(w.hosts[1].engine.groups().count(), usize::from(speaks));
    }
}

/// Version 2 messages and unsolicited responses change nothing.
#[test]
fn llc_of_other_version_and_unsolicited_responses_are_dropped() {
    let mut w = world(12);
    let ids = w.established();
    let key = KeyMove { known: 1, token: Token { rkey: 2, address: 3 } };
    let keys = |left| Body::AddLinkContinue { link: 1, left, keys: std::vec![key; 2] };
    let test = Body::TestLink { data: [1; 16] };
    let of_2 = Llc { version: 2, response: false, order: Order::Big, body: test }.emit();
    forge(&mut w, &of_2);
    assert_eq!(w.hosts[0].engine.counters().malformed, 1);
    for bytes in [v1(true, keys(255)), v1(false, keys(2)), v1(true, keys(0))] {
        forge(&mut w, &bytes);
    }
    let mut short = v1(true, keys(2));
    short[1] = 43;
    forge(&mut w, &short);
    assert_eq!(w.hosts[0].engine.counters().malformed, 2);
    assert_eq!(w.hosts[0].engine.counters().violations, 0);
    w.transfer(0, ids, &pattern(5000, 1), 100);
}

/// The response marks unknown keys by their positions.
#[test]
fn unknown_keys_come_back_as_a_mask() {
    let mut w = world(13);
    w.established();
    let known = Token { rkey: 77, address: 1 << 20 };
    let confirm =
        Body::ConfirmKey { token: known, others: Vec::new(), negative: false, retry: false };
    forge(&mut w, &v1(false, confirm));
    w.network.record = Some(Vec::new());
    let keys = std::vec![5, 77, 6];
    let body = Body::DeleteKey { keys: keys.clone(), unknown: 0, negative: false };
    forge(&mut w, &v1(false, body));
    let recorded = recorded_llc(&mut w);
    let answer = Body::DeleteKey { keys, unknown: 0b1010_0000, negative: true };
    assert_eq!(recorded.last().unwrap().1.body, answer);
}

/// A client that continues the key exchange endlessly gets no second link, but keeps its connections.
#[test]
fn endless_key_exchange_adds_no_link() {
    let two = || Config { max_links: 2, ..config() };
    let mut w = World::of_version(1, 14, [two(), two()], [1, 1]);
    let ids = w.established();
    w.wait(SECOND);
    w.hosts[0].engine.set_devices((0..2).map(|port| device(0, port)).collect());
    w.hosts[1].engine.ignore_add_link = true;
    w.network.record = Some(Vec::new());
    assert!(w.run(SECOND, |w| w.hosts[0].engine.links().count() == 2));
    let end = LinkEnd { mac: mac(1, 1), gid: net::link_local(mac(1, 1)), qpn: 99 };
    let link = w.hosts[0].engine.links().last().unwrap().number;
    let answer = AddLink { end, link, path_mtu: 3, psn: 1, rejected: None, v2: None };
    forge(&mut w, &v1(true, Body::AddLink(answer)));
    let mut asked = 0;
    while w.hosts[0].engine.links().count() == 2 {
        let body = Body::AddLinkContinue { link, left: 255, keys: Vec::new() };
        forge(&mut w, &v1(true, body));
        asked += 1;
        assert!(asked < 200);
    }
    assert_eq!(asked, 128);
    w.transfer(0, ids, &pattern(5000, 1), 100);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_confuse_a_handshake(
        at in 0usize..52, value: u8, cut in 0usize..52, garbage in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut w = world(15);
        let mut bytes = proposal().emit();
        bytes[at] = value;
        let (first, second) = bytes.split_at(cut);
        let id = server_given(&mut w, &[first, second, &garbage]);
        w.close(0, id);
        w.wait(30 * SECOND);
        prop_assert_eq!(w.hosts[0].engine.sockets().count(), 0);
        prop_assert_eq!(w.hosts[0].engine.groups().count(), 0);
    }

    #[test]
    fn no_message_confuses_a_link(
        messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..44), 1..10),
        kind in 1u8..10, seed in 0u64..100,
    ) {
        let mut w = world(seed);
        let ids = w.established();
        for mut bytes in messages {
            bytes.resize(44, 0);
            (bytes[0], bytes[1]) = (kind, 44);
            forge_if_alive(&mut w, &bytes);
            let _ = w.recv(0, ids[0]);
        }
        w.wait(3 * SECOND);
        w.reboot(1);
        w.clear_events();
        w.established();
    }
}

/// Only the prefix bits are compared.
#[test]
fn subnet_contains_addresses_of_its_prefix() {
    let of = |address: &str, prefix| {
        Subnet::new(Ipv4Addr::UNSPECIFIED, address.parse().unwrap(), prefix)
    };
    for (subnet, other, expected) in [
        (of("10.0.0.1", 24), "10.0.0.255", true),
        (of("10.0.0.1", 24), "10.0.1.0", false),
        (of("10.0.0.1", 0), "192.168.0.1", true),
        (of("10.0.0.1", 32), "10.0.0.1", true),
        (of("10.0.0.1", 255), "10.0.0.2", false),
        (of("fd00::1", 64), "fd00::ffff", true),
        (of("fd00::1", 64), "fd00:0:0:1::1", false),
        (of("fd00::1", 0), "::", true),
        (of("fd00::1", 200), "fd00::2", false),
    ] {
        let other: IpAddr = other.parse().unwrap();
        assert_eq!(subnet.contains(other), expected, "{subnet:?} {other}");
    }
}
