//! The DHCP client with conforming servers, and with foreign messages.

use crate::dhcp_server::*;
use drivers::hal::Instant;
use net::Addressing;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn silence(_: &Heard) -> Vec<Reply> {
    Vec::new()
}

fn ten_minutes(heard: &Heard) -> Vec<Reply> {
    lease(heard, 600)
}

#[test]
fn lease_is_taken_renewed_and_lost() {
    let mut world = World::new();
    let before = world.interface.generation();
    world.run(Duration::from_millis(100), &mut ten_minutes);
    assert!(world.interface.has_lease());
    assert_eq!(world.interface.local().v4, [ADDRESS]);
    assert_eq!(world.interface.gateways().0, Some(SERVER));
    let far = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    assert_eq!(world.interface.next_hop(far), Some(SERVER.into()));
    assert_ne!(world.interface.generation(), before);
    assert_eq!(world.kinds(), [DISCOVER, REQUEST]);
    world.run(seconds(3600), &mut ten_minutes);
    assert!(world.interface.has_lease(), "renewed");
    let renewals = &world.heard[2..];
    assert!((11..=12).contains(&renewals.len()), "{}", renewals.len());
    for renewal in renewals {
        assert_eq!((renewal.kind, renewal.client, renewal.to_all), (REQUEST, ADDRESS, false));
        assert_eq!((renewal.option(50), renewal.option(54)), (None, None));
    }
    world.run(seconds(601), &mut silence);
    assert!(!world.interface.has_lease(), "not renewed");
    assert!(world.interface.local().v4.is_empty());
    world.run(seconds(65), &mut ten_minutes);
    assert!(world.interface.has_lease());
    world.interface.set_addressing(Addressing::default(), world.now).unwrap();
    assert!(world.interface.local().v4.is_empty() && !world.interface.has_lease());
    assert_eq!(world.log(), [""; 0]);
}

#[test]
fn requests_have_the_required_options() {
    let mut world = World::new();
    world.run(seconds(1), &mut ten_minutes);
    let [discover, request] = &world.heard[..] else { panic!("{:?}", world.kinds()) };
    for heard in [discover, request] {
        assert_eq!(heard.option(12), Some(&b"gate-1"[..]));
        assert_eq!(heard.option(61), Some(&[&[1], &crate::common::mac(1)[..]].concat()[..]));
        assert!(heard.option(55).unwrap().contains(&26), "the MTU is requested");
        assert!(heard.to_all && heard.length >= 300);
        assert_eq!(heard.client, Ipv4Addr::UNSPECIFIED);
    }
    assert_eq!(discover.transaction, request.transaction);
    assert_eq!(request.option(50), Some(&ADDRESS.octets()[..]));
    assert_eq!(request.option(54), Some(&SERVER.octets()[..]));
}

/// RFC 2131 section 4.1: 4, 8, 16, 32, 64 seconds, each plus or minus a second.
#[test]
fn client_without_a_server_retries_with_growing_delays() {
    let mut world = World::new();
    let wakeups = world.run(seconds(400), &mut silence);
    let times: Vec<Instant> = world.heard.iter().map(|heard| heard.at).collect();
    let gaps = times.windows(2).map(|pair| pair[1].since(pair[0]).as_millis() as i64);
    let gaps: Vec<i64> = gaps.collect();
    for (gap, wanted) in gaps.iter().zip([4000, 8000, 16_000, 32_000, 64_000, 64_000, 64_000]) {
        assert!((gap - wanted).abs() <= 1000, "{gaps:?}");
    }
    assert!(gaps.len() >= 7 && gaps.iter().any(|gap| gap % 1000 != 0), "{gaps:?}");
    assert!(wakeups <= 40, "{wakeups}");
    world.interface.link_came_up(world.now);
    world.run(Duration::from_millis(100), &mut ten_minutes);
    assert!(world.interface.has_lease(), "link-up restarts the client at once");
}

#[test]
fn unanswered_renewals_are_a_minute_apart_and_then_broadcast() {
    let mut world = World::new();
    world.run(seconds(1), &mut ten_minutes);
    world.run(seconds(590), &mut silence);
    let asked: Vec<(u64, bool)> = world.heard[2..]
        .iter()
        .map(|heard| (heard.at.since(Instant::ZERO).as_secs(), heard.to_all))
        .collect();
    // T1 300, half the time to T2 at 525, then 60 each; T2, 60.
    let wanted = [(300, false), (412, false), (472, false), (525, true), (585, true)];
    assert_eq!(asked, wanted);
    assert!(world.interface.has_lease());
    let transactions: Vec<_> = world.heard[2..].iter().map(|heard| heard.transaction).collect();
    assert_eq!(transactions[0], transactions[2]);
    assert_ne!(transactions[2], transactions[3]);
}

#[test]
fn another_server_renews_a_lease_after_t2() {
    let other = |heard: &Heard| match heard.client.is_unspecified() {
        true => lease(heard, 600),
        false => granting(heard, OTHER, &[MASK, (51, &600u32.to_be_bytes())]),
    };
    let mut world = World::new();
    world.run(seconds(520), &mut { other });
    let asked = world.heard.len();
    assert!(asked > 3, "an answer of another server to a unicast request is ignored");
    world.run(seconds(60), &mut { other });
    assert!(world.interface.has_lease());
    assert_eq!(world.heard.len(), asked + 1);
    assert_eq!(world.interface.gateways().0, None, "this server names no router");
}

#[test]
fn infinite_lease_is_never_renewed() {
    let mut world = World::new();
    world.run(seconds(5_000_000), &mut |heard| lease(heard, u32::MAX));
    assert!(world.interface.has_lease());
    assert_eq!(world.heard.len(), 2);
}

#[test]
fn short_lease_is_kept_without_a_storm() {
    for length in [1, 2, 5, 20] {
        let mut world = World::new();
        world.run(seconds(1), &mut |heard| lease(heard, length));
        let before = world.heard.len();
        world.run(seconds(100), &mut |heard| {
            let mut replies = lease(heard, length);
            replies.iter_mut().for_each(|reply| reply.delay = Duration::from_millis(5));
            replies
        });
        assert!(world.interface.has_lease(), "{length} s");
        let asked = world.heard.len() - before;
        assert!(asked <= 220, "{length} s: {asked}");
    }
}

#[test]
fn one_of_several_offers_is_taken_from_its_server() {
    let mut world = World::new();
    world.run(seconds(30), &mut |heard| {
        let time = (51, &[0, 0, 2, 88][..]);
        let mut replies = granting(heard, OTHER, &[MASK, time]);
        replies.extend(granting(heard, SERVER, &[MASK, ROUTER, time]));
        replies
    });
    assert_eq!(world.kinds(), [DISCOVER, REQUEST]);
    assert_eq!(world.heard[1].option(54), Some(&OTHER.octets()[..]));
    assert_eq!(world.addresses(), ["10.7.0.50/24"]);
}

/// Messages that differ from the right answer in one field.
#[test]
fn messages_with_a_wrong_field_are_ignored() {
    type Change = fn(&mut Reply);
    let changes: [(&str, Change); 4] = [
        ("transaction", |reply| reply.transaction[3] ^= 1),
        ("hardware address", |reply| reply.hardware[5] ^= 1),
        ("server", |reply| {
            reply.options[5..9].copy_from_slice(&OTHER.octets());
            reply.source = OTHER;
        }),
        ("kind", |reply| reply.options[2] = 9),
    ];
    for (what, change) in changes {
        for kind in [ACK, NAK] {
            let mut world = World::new();
            world.run(seconds(3), &mut |heard| {
                let mut replies = lease(heard, 600);
                if heard.kind == REQUEST {
                    let mut false_one =
                        Reply { options: option(53, &[kind]), ..replies[0].clone() };
                    false_one.options.extend(option(54, &SERVER.octets()));
                    false_one.options.extend([1, 4, 255, 0, 0, 0]);
                    change(&mut false_one);
                    replies[0].delay = Duration::from_millis(10);
                    replies.insert(0, false_one);
                }
                replies
            });
            assert_eq!(world.addresses(), ["10.7.0.50/24"], "{what}, {kind}");
            assert_eq!(world.kinds(), [DISCOVER, REQUEST], "{what}, {kind}");
        }
    }
}

#[test]
fn lease_is_confirmed_when_the_link_comes_up() {
    let mut world = World::new();
    world.run(seconds(10), &mut ten_minutes);
    world.interface.link_came_up(world.now);
    world.run(seconds(10), &mut ten_minutes);
    assert_eq!(world.kinds(), [DISCOVER, REQUEST, REQUEST]);
    let asked = world.heard.last().unwrap();
    assert_eq!((asked.option(50), asked.option(54)), (Some(&ADDRESS.octets()[..]), None));
    assert!(asked.to_all && asked.client.is_unspecified());
    // No server answers: the lease is kept.
    world.interface.link_came_up(world.now);
    world.run(seconds(60), &mut silence);
    assert!(world.interface.has_lease());
    assert_eq!(world.heard.len(), 5);
    world.run(seconds(600), &mut ten_minutes);
    assert!(world.interface.has_lease());
}

#[test]
fn client_that_moved_to_another_network_soon_gets_an_address() {
    let mut world = World::probing();
    world.run(seconds(10), &mut ten_minutes);
    world.interface.link_came_up(world.now);
    let there = Ipv4Addr::new(10, 8, 0, 9);
    let mut server_there = |heard: &Heard| match heard.option(50) {
        Some(wanted) if wanted != there.octets() => Vec::from([Reply::bare(heard, OTHER, NAK)]),
        _ => {
            let time = 600u32.to_be_bytes();
            let mut replies = granting(heard, OTHER, &[MASK, (51, &time)]);
            replies.iter_mut().for_each(|reply| reply.address = there);
            replies
        }
    };
    world.run(seconds(2), &mut server_there);
    assert_eq!(world.addresses(), ["10.8.0.9/24"]);
}

/// An authoritative server without our lease, beside the one that granted it.
#[test]
fn nak_of_another_server_does_not_end_a_confirmed_lease() {
    let mut world = World::new();
    world.run(seconds(10), &mut ten_minutes);
    let mut both = |heard: &Heard| {
        let mut replies = Vec::from([Reply::bare(heard, OTHER, NAK)]);
        replies.extend(lease(heard, 600));
        replies[1].delay = Duration::from_millis(300);
        replies
    };
    world.interface.link_came_up(world.now);
    world.run(seconds(400), &mut both);
    assert_eq!(world.addresses(), ["10.7.0.50/24"]);
    assert_eq!(world.kinds(), [DISCOVER, REQUEST, REQUEST, REQUEST], "confirmed, and renewed");
}

#[test]
fn name_servers_of_the_lease_are_known_and_impossible_ones_are_not() {
    let servers = |world: &World| world.interface.name_servers().collect::<Vec<_>>();
    let of = |option: &'static [u8]| {
        move |heard: &Heard| granting(heard, SERVER, &[(1, &[255, 255, 255, 0]), (6, option)])
    };
    let mut world = World::new();
    world.run(seconds(1), &mut of(&[127, 0, 0, 1, 10, 0, 0, 53, 0, 0, 0, 0, 10, 0, 0, 54]));
    let known = [[10, 0, 0, 53], [10, 0, 0, 54]].map(|ip| (IpAddr::from(ip), "DHCP"));
    assert_eq!(servers(&world), known);
    let [discover, ..] = &world.heard[..] else { panic!() };
    assert!(discover.option(55).unwrap().contains(&6), "they are requested");
    world.interface.set_addressing(Addressing::default(), world.now).unwrap();
    assert_eq!(servers(&world), []);
    let mut world = World::new();
    world.run(seconds(1), &mut of(&[10, 0, 0, 53, 10]));
    assert!(world.interface.has_lease() && servers(&world).is_empty());
    assert!(world.log()[0].contains("option 6 (name servers) has 5 bytes"), "{:?}", world.log());
}
