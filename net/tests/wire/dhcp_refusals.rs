//! The DHCP client with servers that refuse, or whose offers are unusable.

use crate::dhcp_server::*;
use crate::segment;
use drivers::hal::{Instant, Severity};
use net::tcp::{Limits, Listener};
use net::{Addressing, MtuOrigin};
use std::net::Ipv4Addr;
use std::time::Duration;

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

const TEN_MINUTES: (u8, &[u8]) = (51, &[0, 0, 2, 88]);

fn warnings(world: &World) -> Vec<String> {
    let warnings = world.notices.iter().filter(|notice| notice.severity == Severity::Warning);
    warnings.map(ToString::to_string).collect()
}

/// A world after `time` in which the server grants with these options.
fn granted(options: &[(u8, &[u8])], time: Duration) -> World {
    let mut world = World::new();
    world.run(time, &mut |heard| granting(heard, SERVER, options));
    world
}

#[test]
fn refusing_server_is_retried_with_growing_delays_and_logged_once() {
    let mut world = World::new();
    let mut refuse = |heard: &Heard| match heard.kind {
        DISCOVER => lease(heard, 600),
        _ => Vec::from([Reply::bare(heard, SERVER, NAK)]),
    };
    world.run(seconds(10), &mut refuse);
    let first = world.heard.len();
    assert!((4..=10).contains(&first), "{first}");
    world.run(seconds(1190), &mut refuse);
    let all = world.heard.len();
    assert!(all <= 30, "{all} in twenty minutes");
    let warnings = warnings(&world);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("10.7.0.1") && warnings[0].contains("NAK"), "{warnings:?}");
    assert!(!world.interface.has_lease());
}

#[test]
fn lease_whose_renewal_is_always_refused_causes_no_storm() {
    let (mut world, mut granted) = (World::new(), false);
    let mut refuse = |heard: &Heard| match heard.kind {
        REQUEST if granted => Vec::from([Reply::bare(heard, SERVER, NAK)]),
        kind => {
            granted |= kind == REQUEST;
            lease(heard, 20)
        }
    };
    world.run(seconds(9), &mut refuse);
    assert!(world.interface.has_lease());
    let before = world.heard.len();
    world.run(seconds(11), &mut refuse);
    assert!(!world.interface.has_lease());
    let storm = world.heard.len() - before;
    assert!(storm <= 10, "{storm}");
    world.run(seconds(600), &mut refuse);
    assert_eq!(warnings(&world).len(), 1, "{:?}", world.log());
}

/// The server grants a lease and refuses to renew it, repeatedly.
#[test]
fn server_that_grants_and_refuses_in_turn_causes_no_storm() {
    let mut world = World::new();
    world.run(seconds(600), &mut |heard| match heard.client.is_unspecified() {
        true => lease(heard, 4),
        false => Vec::from([Reply::bare(heard, SERVER, NAK)]),
    });
    assert!(world.heard.len() <= 60, "{}", world.heard.len());
    assert_eq!(warnings(&world).len(), 1, "{:?}", world.log());
}

#[test]
fn one_refusal_delays_the_address_by_less_than_two_seconds() {
    let (mut world, mut refused) = (World::probing(), false);
    world.run(seconds(2), &mut |heard| match heard.kind {
        REQUEST if !core::mem::replace(&mut refused, true) => {
            Vec::from([Reply::bare(heard, SERVER, NAK)])
        }
        _ => lease(heard, 600),
    });
    assert_eq!(world.addresses(), ["10.7.0.50/24"]);
    assert_eq!(world.kinds(), [DISCOVER, REQUEST, DISCOVER, REQUEST]);
}

#[test]
fn refusing_server_does_not_block_the_offer_of_another() {
    let mut world = World::new();
    world.run(seconds(10), &mut |heard| {
        let chosen = heard.option(54);
        if chosen == Some(&SERVER.octets()[..]) {
            return Vec::from([Reply::bare(heard, SERVER, NAK)]);
        }
        let mut replies = granting(heard, OTHER, &[MASK, TEN_MINUTES]);
        replies.iter_mut().for_each(|reply| reply.delay = Duration::from_millis(20));
        if heard.kind == DISCOVER {
            replies.extend(lease(heard, 600));
        }
        replies
    });
    assert_eq!(world.addresses(), ["10.7.0.50/24"]);
}

#[test]
fn server_that_offers_but_never_grants_is_given_up() {
    let mut world = World::new();
    world.run(seconds(120), &mut |heard| match heard.kind {
        DISCOVER => lease(heard, 600),
        _ => Vec::new(),
    });
    let discovers = world.kinds().iter().filter(|kind| **kind == DISCOVER).count();
    assert!((3..=5).contains(&discovers), "{:?}", world.kinds());
}

#[test]
fn missing_mask_is_replaced_by_the_class_mask_and_logged_once() {
    let world = granted(&[TEN_MINUTES, ROUTER], seconds(3600));
    assert_eq!(world.addresses(), ["10.7.0.50/8"]);
    assert_eq!(world.interface.gateways().0, Some(SERVER));
    assert_eq!(warnings(&world).len(), 1, "{:?}", world.log());
    assert!(warnings(&world)[0].contains("without a mask"), "{:?}", world.log());
    for (address, wanted) in
        [([172, 16, 1, 9], Some(16)), ([192, 168, 7, 9], Some(24)), ([240, 0, 0, 9], None)]
    {
        let (mut world, address) = (World::new(), Ipv4Addr::from(address));
        world.run(seconds(60), &mut |heard| {
            let mut replies = granting(heard, SERVER, &[TEN_MINUTES]);
            replies.iter_mut().for_each(|reply| reply.address = address);
            replies
        });
        let wanted = wanted.map(|prefix| format!("{address}/{prefix}"));
        assert_eq!(world.addresses(), wanted.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn impossible_mask_gives_no_address_and_one_warning() {
    for mask in [[255, 0, 255, 0], [0; 4], [0, 255, 255, 255], [255, 255, 255, 1]] {
        let world = granted(&[(1, &mask), TEN_MINUTES, ROUTER], seconds(600));
        assert_eq!(world.addresses(), [""; 0], "{mask:?}");
        assert_eq!(warnings(&world).len(), 1, "{:?}", world.log());
        let warning = &warnings(&world)[0];
        let mask = Ipv4Addr::from(mask).to_string();
        assert!(warning.contains("10.7.0.1") && warning.contains(&mask), "{warning}");
        assert!(!world.kinds().contains(&REQUEST), "the offer is not requested");
    }
}

#[test]
fn impossible_addresses_are_rejected() {
    for address in [
        [0, 0, 0, 0],
        [0, 1, 2, 3],
        [127, 0, 0, 1],
        [224, 0, 0, 1],
        [255, 255, 255, 255],
        [10, 7, 0, 0],
        [10, 7, 0, 255],
    ] {
        let (mut world, address) = (World::new(), Ipv4Addr::from(address));
        world.run(seconds(300), &mut |heard| {
            let mut replies = granting(heard, SERVER, &[MASK, TEN_MINUTES]);
            replies.iter_mut().for_each(|reply| reply.address = address);
            replies
        });
        assert!(world.interface.local().v4.is_empty(), "{address}");
        assert_eq!(warnings(&world).len(), 1, "{address}: {:?}", world.log());
    }
    let world = granted(&[(1, &[255, 255, 255, 254]), TEN_MINUTES], seconds(1));
    assert_eq!(world.addresses(), ["10.7.0.50/31"]);
    let world = granted(&[(1, &[255; 4]), TEN_MINUTES, ROUTER], seconds(1));
    assert_eq!(world.addresses(), ["10.7.0.50/32"]);
}

#[test]
fn unusable_offer_does_not_block_a_good_one() {
    let mut world = World::new();
    world.run(seconds(1), &mut |heard| {
        let mut replies = granting(heard, OTHER, &[(1, &[255, 0, 255, 0]), TEN_MINUTES]);
        replies.extend(lease(heard, 600));
        replies
    });
    assert_eq!(world.addresses(), ["10.7.0.50/24"]);
}

#[test]
fn first_usable_router_is_selected() {
    let two = [10, 7, 0, 1, 10, 7, 0, 254];
    let many: Vec<u8> = (1..=60).flat_map(|n| [10, 7, 0, n]).collect();
    let unusable = [0, 0, 0, 0, 224, 0, 0, 1, 10, 7, 0, 50, 10, 7, 0, 9];
    for (routers, gateway) in [
        (&two[..], Some([10, 7, 0, 1])),
        (&many, Some([10, 7, 0, 1])),
        (&unusable, Some([10, 7, 0, 9])),
        (&[], None),
        (&two[..3], None),
        (&two[..5], None),
        (&[224, 0, 0, 1], None),
    ] {
        let world = granted(&[MASK, TEN_MINUTES, (3, routers)], seconds(100));
        assert_eq!(world.addresses(), ["10.7.0.50/24"]);
        assert_eq!(world.interface.gateways().0, gateway.map(Ipv4Addr::from), "{routers:?}");
        let odd = !routers.len().is_multiple_of(4) || routers.is_empty();
        assert_eq!(warnings(&world).len(), usize::from(odd), "{:?}", world.log());
    }
}

#[test]
fn options_of_wrong_length_are_logged_and_harmless() {
    let long_mask: (u8, &[u8]) = (1, &[255, 255, 255, 0, 0]);
    let world = granted(&[long_mask, TEN_MINUTES], seconds(1));
    assert_eq!(world.addresses(), ["10.7.0.50/24"]);
    assert!(warnings(&world)[0].contains("option 1 has 5 bytes"), "{:?}", world.log());
    let world = granted(&[(1, &[255, 255]), TEN_MINUTES], seconds(1));
    assert_eq!(world.addresses(), ["10.7.0.50/8"], "as without a mask");
    // The server's identifier is too long, in every message.
    let mut world = World::new();
    world.run(seconds(1), &mut |heard| {
        let mut replies = lease(heard, 600);
        for reply in &mut replies {
            reply.options[4] = 5;
            reply.options.insert(9, 77);
        }
        replies
    });
    assert_eq!(world.addresses(), ["10.7.0.50/24"]);
    assert_eq!(world.heard[1].option(54), Some(&SERVER.octets()[..]));
    assert!(warnings(&world)[0].contains("option 54 has 5 bytes"), "{:?}", world.log());
    // It is missing: the source address is used.
    let mut world = World::new();
    world.run(seconds(1), &mut |heard| {
        let mut replies = lease(heard, 600);
        replies.iter_mut().for_each(|reply| drop(reply.options.drain(3..9)));
        replies
    });
    assert_eq!(world.addresses(), ["10.7.0.50/24"]);
}

#[test]
fn options_in_file_and_name_are_used_if_option_52_allows() {
    let rest =
        [option(51, &[0, 0, 2, 88]), option(1, &[255, 255, 255, 0]), option(3, &[10, 7, 0, 1])];
    let rest = [rest.concat(), vec![255]].concat();
    for (overload, in_file, in_name) in [
        (Some(1), true, false),
        (Some(2), false, true),
        (Some(3), true, false),
        (Some(3), false, true),
        (Some(1), false, true),
        (Some(2), true, false),
        (None, true, true),
        (Some(4), true, true),
        (Some(0), true, true),
    ] {
        let mut world = World::new();
        world.run(seconds(1), &mut |heard| {
            let mut replies = granting(heard, SERVER, &[]);
            for reply in &mut replies {
                if let Some(overload) = overload {
                    reply.options.extend(option(52, &[overload]));
                }
                reply.file = if in_file { rest.clone() } else { b"boot.img".to_vec() };
                reply.server_name = if in_name { rest.clone() } else { b"server".to_vec() };
            }
            replies
        });
        let counts = matches!(
            (overload, in_file, in_name),
            (Some(1), true, _) | (Some(2), _, true) | (Some(3), ..)
        );
        let wanted = if counts { "10.7.0.50/24" } else { "10.7.0.50/8" };
        assert_eq!(world.addresses(), [wanted], "{overload:?} {in_file} {in_name}");
        let gateway = counts.then_some(SERVER);
        assert_eq!(world.interface.gateways().0, gateway, "{overload:?} {in_file} {in_name}");
    }
}

/// RFC 3396: the order is options, file, name.
#[test]
fn pieces_of_an_option_are_joined() {
    let mut world = World::new();
    world.run(seconds(1), &mut |heard| {
        let mut replies = granting(heard, SERVER, &[(1, &[255, 255]), TEN_MINUTES, (3, &[10, 7])]);
        for reply in &mut replies {
            reply.options.extend(option(1, &[255, 0]));
            reply.options.extend([option(52, &[3]), vec![0, 0]].concat());
            reply.file = [option(3, &[0]), vec![255]].concat();
            reply.server_name = [option(3, &[9]), vec![255]].concat();
        }
        replies
    });
    assert_eq!(world.addresses(), ["10.7.0.50/24"]);
    assert_eq!(world.interface.gateways().0, Some(Ipv4Addr::new(10, 7, 0, 9)));
}

/// Options without an end, in each of the fields.
#[test]
fn truncated_options_do_no_harm() {
    for cut in 0..40 {
        let mut world = World::new();
        world.run(seconds(1), &mut |heard| {
            let mut replies = lease(heard, 600);
            for reply in &mut replies {
                reply.options.extend(option(52, &[3]));
                reply.options.truncate(cut);
                reply.options.extend([3, 250]);
                reply.file = vec![1; 128];
                reply.server_name = vec![255; 64];
            }
            replies
        });
        assert!(world.heard.len() <= 4);
    }
}

#[test]
fn lease_of_zero_seconds_is_rejected() {
    let world = granted(&[MASK, (51, &[0; 4])], seconds(60));
    assert_eq!(world.addresses(), [""; 0]);
    assert!(warnings(&world)[0].contains("0 seconds") && warnings(&world).len() == 1);
}

#[test]
fn impossible_times_are_replaced_by_the_defaults() {
    for (t1, t2, renews) in [
        (None, None, 300),
        (Some(100), None, 100),
        (Some(100), Some(200), 100),
        (None, Some(200), 100),
        (Some(0), Some(200), 300),
        (Some(500), Some(400), 300),
        (Some(700), Some(800), 300),
        (Some(u32::MAX), Some(u32::MAX), 300),
        (Some(200), Some(700), 300),
        (Some(560), None, 560),
    ] {
        let times = [t1, t2].map(|time| time.map(u32::to_be_bytes));
        let mut options = vec![MASK, TEN_MINUTES];
        options.extend(times[0].as_ref().map(|time| (58, &time[..])));
        options.extend(times[1].as_ref().map(|time| (59, &time[..])));
        let mut world = granted(&options, seconds(1));
        world.run(seconds(597), &mut |_| Vec::new());
        let at = world.heard[2].at.since(Instant::ZERO).as_secs();
        assert_eq!(at, renews, "{t1:?} {t2:?}");
    }
}

#[test]
fn mtu_of_a_lease_is_used_within_its_limits() {
    for (mtu, counts) in [
        (576, true),
        (1400, true),
        (1500, true),
        (575, false),
        (0, false),
        (1501, false),
        (9000, false),
    ] {
        let bytes = u16::to_be_bytes(mtu);
        let world = granted(&[MASK, TEN_MINUTES, (26, &bytes)], seconds(100));
        assert_eq!(world.addresses(), ["10.7.0.50/24"]);
        let [v4, v6] = world.interface.mtus();
        let wanted =
            if counts { (mtu.into(), MtuOrigin::Dhcp(SERVER)) } else { (1500, MtuOrigin::Card) };
        assert_eq!(v4, wanted, "{mtu}");
        assert_eq!(v6, (1500, MtuOrigin::Card));
        assert_eq!(warnings(&world).len(), usize::from(!counts), "{:?}", world.log());
    }
    let world = granted(&[MASK, TEN_MINUTES, (26, &[0, 0, 5, 120])], seconds(1));
    assert_eq!(world.interface.mtus()[0].0, 1500, "wrong length");
}

#[test]
fn mtu_of_a_lease_limits_segments() {
    let mut world = granted(&[MASK, TEN_MINUTES, (26, &[5, 120])], seconds(1));
    let limits = Limits { connections: 1, receive: 4096, transmit: 16_384 };
    let mut listener = Listener::new(&mut world.interface, segment::PORT, limits);
    let (client, ours, station) = (SERVER.into(), ADDRESS.into(), 101);
    world.frames.clear();
    world.interface.handle_frame(&segment::syn(station, client, ours), world.now);
    world.run(Duration::from_millis(10), &mut |_| Vec::new());
    let (mss, ack) = segment::handshake(&world.frames, station, client, ours).unwrap();
    assert_eq!(mss, 1360);
    world.interface.handle_frame(&ack, world.now);
    let stream = listener.accept(&mut world.interface, world.now).unwrap();
    listener.write(&mut world.interface, stream, &[7; 6000]).unwrap();
    world.run(seconds(3), &mut |_| Vec::new());
    assert_eq!(segment::lengths(&world.frames).iter().max(), Some(&1400));
}

#[test]
fn configured_mtu_overrides_the_leases_which_ends_with_it() {
    let mut world = granted(&[MASK, TEN_MINUTES, (26, &[5, 120])], seconds(1));
    assert_eq!(world.interface.mtus()[0].0, 1400);
    let fixed = Addressing { dhcp: true, fixed_mtu: true, ..Addressing::default() };
    world.interface.set_addressing(fixed, world.now).unwrap();
    assert_eq!(world.interface.mtus()[0], (1500, MtuOrigin::Configuration));
    let free = Addressing { dhcp: true, ..Addressing::default() };
    world.interface.set_addressing(free, world.now).unwrap();
    assert_eq!(world.interface.mtus()[0].0, 1400);
    world.run(seconds(601), &mut |_| Vec::new());
    assert_eq!((world.interface.has_lease(), world.interface.mtus()[0].0), (false, 1500));
}

#[test]
fn address_in_use_is_declined_and_requested_again_after_ten_seconds() {
    let mut world = World::probing();
    world.stations.push((ADDRESS, 77));
    let mut server = |heard: &Heard| match heard.kind {
        DECLINE => Vec::new(),
        _ => lease(heard, 600),
    };
    world.run(seconds(9), &mut server);
    assert_eq!(world.addresses(), [""; 0]);
    assert_eq!(world.kinds(), [DISCOVER, REQUEST, DECLINE]);
    let decline = world.heard[2].clone();
    assert_eq!(decline.option(50), Some(&ADDRESS.octets()[..]));
    assert_eq!(decline.option(54), Some(&SERVER.octets()[..]));
    assert!(decline.to_all && decline.client.is_unspecified());
    assert_ne!(decline.transaction, world.heard[1].transaction);
    let warnings = warnings(&world);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for part in
        ["duplicate address 10.7.0.50", "02:00:00:00:00:4d", "02:00:00:00:00:01", "10.7.0.1"]
    {
        assert!(warnings[0].contains(part), "{warnings:?}");
    }
    world.stations.pop();
    world.run(seconds(3), &mut server);
    assert_eq!(world.kinds(), [DISCOVER, REQUEST, DECLINE, DISCOVER, REQUEST]);
    assert!(world.heard[3].at.since(decline.at) >= seconds(10));
    assert_eq!(world.addresses(), ["10.7.0.50/24"]);
}

#[test]
fn leased_address_is_unused_until_it_was_probed() {
    let mut world = World::probing();
    world.run(Duration::from_millis(300), &mut |heard| lease(heard, 600));
    assert!(world.interface.local().v4.is_empty() && !world.interface.has_lease());
    world.run(Duration::from_millis(300), &mut |heard| lease(heard, 600));
    assert!(world.interface.has_lease());
    let arp = world.frames.iter().filter(|frame| frame[12..14] == [8, 6]);
    let senders: Vec<&[u8]> = arp.map(|frame| &frame[28..32]).collect();
    assert_eq!(senders, [&[0; 4][..], &[0; 4], &[0; 4], &ADDRESS.octets()]);
}
