//! A data plane with usNIC on a port, and an engine by itself at the other end of the cable.

mod exchanges;
mod lab;
mod processes;

use super::*;
use core::time::Duration;
use drivers::hal::Window;
use lab::*;
use net::datagram;
use usnic::State;

#[test]
fn messages_are_echoed_in_both_layouts() {
    for layout in ["4", "5"] {
        let mut lab = Lab::new(&format!("services = \"echo\"\nlayout = \"{layout}\""));
        let sizes = [0, 1, 1000, 1440, 1441, 5000, 300_001];
        for size in sizes {
            lab.send(9, &message(size));
        }
        lab.run(Duration::from_millis(60));
        let mut came = lab.came();
        came.sort_by_key(|(_, bytes)| bytes.len());
        let expected: Vec<_> = sizes.map(|size| (9, message(size))).into();
        assert!(came == expected, "layout {layout}: {} came", came.len());
        assert_eq!(lab.peer.connectivity(lab.endpoint), Some((true, true)));
        let report = lab.report();
        assert_eq!((value(&report, "messages"), value(&report, "echoed")), ("7", "7"), "{report}");
        assert_eq!(value(&report, "state"), "open");
        assert_eq!(value(&report, "pings"), "answered", "the appliance pings, too");
        assert_eq!(lab.control, 0, "no frame went to the control plane");
        lab.run(Duration::from_millis(500));
        let free = value(&lab.report(), "memory_free").to_string();
        assert_eq!(free, value(&Lab::new("services = \"echo\"").report(), "memory_free"));
    }
}

#[test]
fn fixed_tag_is_used_for_echoes_and_discards_are_counted() {
    let mut lab = Lab::new("services = \"echo\"\ntag = 65");
    let filter = net::capture::Filter::parse("udp port 7001 payload").unwrap();
    lab.plane.capture.start(filter, 1 << 20);
    lab.send(9, b"hello");
    lab.run(Duration::from_millis(5));
    assert_eq!(lab.came(), [(65, b"hello".to_vec())]);
    assert!(lab.plane.capture.counts().0 >= 2, "the capture has both directions");
    for (services, unserved) in [("[\"discard\"]", "0"), ("[]", "2")] {
        let mut lab = Lab::new(&format!("services = {services}"));
        lab.send(9, b"hello");
        lab.send(9, &[7; 3000]);
        lab.run(Duration::from_millis(5));
        assert_eq!(lab.came(), []);
        let report = lab.report();
        assert_eq!((value(&report, "messages"), value(&report, "bytes")), ("2", "3005"));
        assert_eq!(value(&report, "unserved"), unserved);
        assert_eq!(lab.peer.backlog(lab.endpoint), Some((0, 0)), "it was acknowledged");
    }
}

#[test]
fn puts_reach_granted_memory_only() {
    let mut lab = Lab::new("services = [\"put-sink\"]");
    let bytes = message(40_000);
    let window = Arena::on_heap(1 << 20).alloc(bytes.len(), 64).unwrap();
    window.write(0, &bytes).unwrap();
    lab.peer.permit_put(lab.endpoint, SINK_ADDRESS, 2 * SINK as u64);
    let windows = [window, Window::empty()];
    lab.peer.put(lab.endpoint, SINK_ADDRESS + 5, windows, 1, lab.now).unwrap();
    lab.run(Duration::from_millis(20));
    let end = lab.peer.next_completion(lab.endpoint).unwrap();
    assert!(end.acknowledged);
    let look = |lab: &mut Lab, words: &[&str]| match lab.order(UsnicVerb::Look, words) {
        Ok(Managed::Told(text)) => text,
        other => panic!("{other:?}"),
    };
    let crc = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC).checksum(&bytes);
    let line = look(&mut lab, &["a", "5", "40000"]);
    assert_eq!(line, format!("crc32 {crc:08x} of 40000 bytes from 5\n"));
    let all = look(&mut lab, &["a"]);
    // Its last byte would be past the end of the memory.
    let at = SINK_ADDRESS + (SINK - bytes.len() + 1) as u64;
    lab.peer.put(lab.endpoint, at, windows, 2, lab.now).unwrap();
    lab.run(Duration::from_millis(20));
    assert!(lab.peer.next_completion(lab.endpoint).is_none());
    assert_ne!(value(&lab.report(), "puts_refused"), "0");
    assert_eq!(look(&mut lab, &["a"]), all, "nothing was written");
    assert!(lab.order(UsnicVerb::Look, &["a", "1", "1048576"]).is_err());
    assert!(lab.order(UsnicVerb::Look, &["b"]).unwrap_err().contains("accepted: a"));
}

#[test]
fn put_order_writes_sink_data_to_an_address_of_the_peer() {
    let mut lab = Lab::new("services = [\"put-sink\", \"echo\"]");
    let bytes = message(40_000);
    let mut arena = Arena::on_heap(1 << 20);
    let [from, into] = [0, 1].map(|_| arena.alloc(bytes.len(), 64).unwrap());
    from.write(0, &bytes).unwrap();
    lab.peer.permit_put(lab.endpoint, SINK_ADDRESS, SINK as u64);
    lab.peer.put(lab.endpoint, SINK_ADDRESS, [from, Window::empty()], 1, lab.now).unwrap();
    lab.peer.grant(lab.endpoint, 0x7000, into).unwrap();
    lab.run(Duration::from_millis(20));
    let started = lab.order(UsnicVerb::Put, &["a", "0x7010", "5", "30000"]);
    assert!(matches!(started, Ok(Managed::Started)), "{started:?}");
    // Messages are echoed meanwhile.
    lab.send(9, b"hello");
    lab.run(Duration::from_millis(20));
    let progress = lab.plane.udp_engines.progress(lab.now);
    let Some(Progress::Done(Ok(line))) = progress else { panic!("{progress:?}") };
    assert!(line.starts_with("a: 30000 bytes acknowledged, "), "{line}");
    assert_eq!(lab.came(), [(9, b"hello".to_vec())]);
    let mut written = vec![0; bytes.len()];
    into.read(0, &mut written).unwrap();
    let expected = [&[0; 16], &bytes[5..30_005], &[0; 9984][..]].concat();
    assert!(written == expected);
    // A PUT that the peer refuses ends with the endpoint. The end of the PUT before does not count.
    assert!(matches!(lab.order(UsnicVerb::Put, &["a", "28671", "0", "10"]), Ok(Managed::Started)));
    lab.run(Duration::from_millis(20));
    assert_eq!(lab.plane.udp_engines.progress(lab.now), None);
    lab.order(UsnicVerb::Reset, &["a"]).unwrap();
    let progress = lab.plane.udp_engines.progress(lab.now);
    assert!(matches!(progress, Some(Progress::Done(Err(_)))), "{progress:?}");
    for (words, why) in [
        (&["a", "0x7000", "0"][..], "accepted"),
        (&["b", "0x7000", "0", "1"], "accepted: a"),
        (&["a", "0x7000", "0", "1048577"], "1048576 bytes"),
        (&["a", "0x7000", "1048576", "1"], "1048576 bytes"),
        (&["a", "x", "0", "1"], "is no address"),
        (&["a", "0", "0", "1"], "has not permitted"),
        (&["a", "0xffffffffffffffff", "0", "2"], "has not permitted"),
        (&["a", "0x7000", "0", "0"], "has not permitted"),
    ] {
        let error = lab.order(UsnicVerb::Put, words).unwrap_err();
        assert!(error.contains(why), "{words:?}: {error}");
    }
    let mut lab = Lab::new("services = [\"echo\"]");
    assert!(lab.order(UsnicVerb::Put, &["a", "1", "0", "1"]).unwrap_err().contains("put-sink"));
}

#[test]
fn unknown_senders_and_damaged_datagrams_are_dropped() {
    let mut lab = Lab::new("services = [\"echo\"]");
    let to = SocketAddrV4::new(OURS, 7001);
    let unknown = SocketAddrV4::new(Ipv4Addr::new(10, 9, 0, 77), 8002);
    let frame = |from: SocketAddrV4, damage: Option<usize>| {
        let headers = datagram::headers([PEER_MAC, OUR_MAC], from, to, &[1; 40], &[]).unwrap();
        let mut frame = [&headers[..], &[1; 40]].concat();
        if let Some(at) = damage {
            frame[at] ^= 4;
        }
        frame
    };
    let peer = SocketAddrV4::new(PEER, PEER_PORTS[1]);
    let mut without = frame(peer, None);
    without[40..42].fill(0);
    let all = [frame(unknown, None), frame(peer, Some(60)), without];
    lab.ends.lock().unwrap().arrives.extend(all);
    lab.run(Duration::from_millis(1));
    assert_eq!((value(&lab.report(), "num_unk_recvs"), lab.control), ("1", 0));
    let mut refused = Vec::new();
    lab.plane.udp_engines.take_refusals(|refusals| refused.extend(refusals.pop()));
    let reported: Vec<_> = refused.iter().map(|one| (one.who, one.reason, &*one.asked)).collect();
    let who = Some(IpAddr::V4(*unknown.ip()));
    assert_eq!(reported, [(who, "unknown_sender", "UDP port 7001 from port 8002")]);
    let mut page = String::new();
    let mut writer = net::metrics::Writer::new(&mut page);
    let engines = lab.plane.udp_engines.statuses();
    management::metrics::udp_engines::of_engines(&engines, &mut writer).unwrap();
    let lost = "isthmus_udp_engine_lost_total{engine=\"usnic\",reason=\"checksum\"} 2";
    assert!(page.contains(lost), "{page}");
    assert!(page.contains("isthmus_usnic_unknown_senders_total{usnic=\"u\"} 1"), "{page}");
    // Datagrams to another port of ours go to the control plane.
    let other =
        datagram::headers([PEER_MAC, OUR_MAC], peer, SocketAddrV4::new(OURS, 514), b"", &[]);
    lab.ends.lock().unwrap().arrives.push_back(other.unwrap().to_vec());
    lab.run(Duration::from_millis(1));
    assert_eq!(lab.control, 1);
}

/// A station with the address and the ports of the peer, and another MAC address.
#[test]
fn datagrams_of_another_station_are_dropped_counted_and_reported_once_a_minute() {
    let mut lab = Lab::new("services = [\"echo\"]");
    lab.send(9, b"one");
    lab.run(Duration::from_millis(5));
    assert_eq!(lab.came().len(), 1);
    let wrong = |lab: &mut Lab| lab.plane.udp_engines.statuses()[0].losses.wrong_mac;
    assert_eq!(wrong(&mut lab), 0);
    let mut refused = Vec::new();
    // The table is asked once a second.
    lab.now = lab.now + Duration::from_secs(2);
    for (seconds, reports) in [(30, 1), (31, 1), (31, 2)] {
        lab.from = [2, 9, 9, 9, 9, 9];
        let before = wrong(&mut lab);
        lab.send(9, b"two");
        lab.run(Duration::from_millis(20));
        assert!(wrong(&mut lab) > before);
        assert_eq!(lab.came(), []);
        assert!(lab.plane.udp_engines.next_hops.take_queries(), "the peer may have moved");
        // The table still has the address of the peer.
        let now = lab.now;
        lab.plane.udp_engines.next_hops.learn_wanted(PEER_MAC, now);
        let refusals = |refusals: &mut Refusals| refused.extend(refusals.pop());
        lab.plane.udp_engines.take_refusals(refusals);
        assert_eq!(refused.len(), reports, "{seconds}");
        // What the peer itself sends arrives.
        lab.from = PEER_MAC;
        lab.run(Duration::from_millis(500));
        assert_eq!(lab.came().len(), 1);
        lab.now = lab.now + Duration::from_secs(seconds);
    }
    let refusal = &refused[0];
    let label = (refusal.who, refusal.what, refusal.reason);
    assert_eq!(label, (Some(PEER.into()), "udp_datagram", "wrong_mac"));
    assert!(refusal.advice.contains("02:09:09:09:09:09"), "{}", refusal.advice);
}

/// The MTU of the network is below that of the interface.
#[test]
fn packets_obey_the_mtu_of_the_network_and_grow_again() {
    let mut lab = Lab::new("services = \"echo\"");
    let local = lab.plane.ports[0].local.clone();
    for (passes, longest) in [(1400, 1414), (9000, 1514)] {
        lab.longest = 0;
        lab.plane.set_addresses(0, &local, [passes, 9000]);
        lab.send(9, &message(30_000));
        lab.run(Duration::from_millis(60));
        assert_eq!(lab.came(), [(9, message(30_000))]);
        assert_eq!(lab.longest, longest);
    }
}

#[test]
fn data_and_acknowledgements_are_steered_to_a_receive_queue() {
    let lab = Lab::new("");
    let address = OURS.octets();
    let steered = [7001, 7002].map(|port| UdpFlow { address, port });
    assert_eq!(lab.ends.lock().unwrap().steered, steered);
}

#[test]
fn full_port_sends_the_rest_later() {
    let mut lab = Lab::new("services = [\"echo\"]");
    lab.ends.lock().unwrap().room = 3;
    lab.send(1, &message(200_000));
    lab.run(Duration::from_millis(100));
    assert_eq!(lab.came(), [(1, message(200_000))]);
    assert_eq!(value(&lab.report(), "num_resends"), "0", "nothing was lost");
}

#[test]
fn idle_engine_has_no_timer_and_ping_is_reported() {
    let mut lab = Lab::new("services = [\"echo\"]");
    lab.run(Duration::from_millis(1));
    assert_eq!(lab.plane.udp_engines.due(), None);
    assert!(matches!(lab.order(UsnicVerb::Ping, &["a"]), Ok(Managed::Started)));
    lab.run(Duration::from_millis(100));
    let mut steps = Vec::new();
    while let Some(progress) = lab.plane.udp_engines.progress(lab.now) {
        steps.push(progress);
    }
    let [Progress::Line(small), Progress::Done(Ok(large))] = &steps[..] else {
        panic!("{steps:?}");
    };
    assert!(
        small.starts_with("a: small PING answered") && large.starts_with("a: large PING answered")
    );
    assert_eq!(lab.plane.udp_engines.due(), None, "no PING is pending");
}

#[test]
fn peer_with_a_new_modex_replaces_the_old_one() {
    let mut lab = Lab::new("services = [\"echo\"]");
    lab.send(1, b"one");
    lab.run(Duration::from_millis(5));
    assert_eq!(lab.came().len(), 1);
    // The peer restarts. An old endpoint would drop its messages as duplicates.
    lab.peer = peer_engine(5000);
    let mut config = lab.config.clone();
    let modex = config::usnic::PeerModex(vec![peer_interface(5000).modex()]);
    config.usnic[0].peer[0].modex = Some(modex);
    lab.plane.udp_engines.configure(&config, lab.now);
    let ours = config.usnic[0].interface(&config.net[0], 65530).unwrap().modex();
    let endpoint = EndpointConfig::new(0, 1 << 32 | 1, 1 << 32, ours);
    lab.endpoint = lab.peer.add_endpoint(&endpoint, lab.now).unwrap();
    lab.send(1, b"two");
    lab.run(Duration::from_millis(5));
    assert_eq!(lab.came(), [(1, b"two".to_vec())]);
    // A peer that restarts with the same modex needs a reset.
    lab.peer = peer_engine(5000);
    lab.endpoint = lab.peer.add_endpoint(&endpoint, lab.now).unwrap();
    lab.order(UsnicVerb::Reset, &["a"]).unwrap();
    lab.send(1, b"three");
    lab.run(Duration::from_millis(5));
    assert_eq!(lab.came(), [(1, b"three".to_vec())]);
    assert_eq!(lab.peer.state(lab.endpoint), Some(State::Open));
    // A peer that is removed from the configuration is unknown.
    config.usnic[0].peer.clear();
    lab.plane.udp_engines.configure(&config, lab.now);
    lab.send(1, b"four");
    lab.run(Duration::from_millis(5));
    assert_eq!(lab.came(), []);
    assert_ne!(value(&lab.report(), "num_unk_recvs"), "0");
}

#[test]
fn peer_outside_the_configured_networks_is_not_admitted() {
    let mut lab = Lab::new("services = [\"echo\"]\nhosts = [\"10.9.1.0/24\"]");
    lab.send(1, b"one");
    lab.run(Duration::from_millis(5));
    assert_eq!(lab.came(), []);
    let report = lab.report();
    assert!(value(&report, "state").contains("10.9.0.2 is in none of the networks"), "{report}");
    assert!(lab.order(UsnicVerb::Ping, &["a"]).unwrap_err().contains("in none of the networks"));
}
