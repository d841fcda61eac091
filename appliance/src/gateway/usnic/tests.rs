//! A data plane with usNIC on a port, and an engine by itself at the other end of the cable.

mod exchanges;

use super::*;
use crate::gateway::plane::{DataPlane, Settings};
use crate::gateway::udp_engines::UdpEngines;
use core::time::Duration;
use drivers::hal::{Frame, Packet, Port, PortCounters, TransmitError, TransmitProgress, Window};
use net::PortAddresses;
use net::datagram;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use usnic::{InterfaceConfig, State};

const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const OURS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const PEER_PORTS: [u16; 3] = [8001, 8002, 8003];

/// Frames to the plane and from it.
#[derive(Default)]
struct Ends {
    arrives: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
    /// Frames that the device takes before it is full.
    room: usize,
}

struct Cable {
    ends: Arc<Mutex<Ends>>,
    frame: Vec<u8>,
}

impl Port for Cable {
    fn mac(&self) -> [u8; 6] {
        OUR_MAC
    }
    fn mtu(&self) -> usize {
        9000
    }
    fn link_up(&mut self) -> bool {
        true
    }
    fn receive(&mut self) -> Option<Frame> {
        self.frame = self.ends.lock().unwrap().arrives.pop_front()?;
        Some(Frame { buffer: 0, len: self.frame.len() as u32 })
    }
    fn bytes(&self, _: &Frame) -> &[u8] {
        &self.frame
    }
    fn recycle(&mut self, _: Frame) {}
    fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        let mut ends = self.ends.lock().unwrap();
        if ends.sent.len() >= ends.room {
            return Err(TransmitError::Full);
        }
        let mut frame = packet.header.to_vec();
        for window in packet.payload {
            window.for_each_block(|block| frame.extend(block));
        }
        frame.extend(packet.trailer);
        ends.sent.push_back(frame);
        Ok(())
    }
    fn progress(&mut self) -> TransmitProgress {
        TransmitProgress::NOTHING_HELD
    }
    fn flush(&mut self) {}
    fn set_interrupts(&mut self, _: bool) {}
    fn pending(&self) -> bool {
        !self.ends.lock().unwrap().arrives.is_empty()
    }
    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}

struct Lab {
    plane: DataPlane,
    config: Config,
    ends: Arc<Mutex<Ends>>,
    peer: Engine,
    endpoint: EndpointId,
    now: Instant,
    /// Frames that the plane left to the control plane.
    control: usize,
}

fn peer_interface(isn: u16) -> InterfaceConfig {
    let [priority_port, data_port, ping_port] = PEER_PORTS;
    let netmask = Ipv4Addr::new(255, 255, 255, 0);
    InterfaceConfig {
        address: PEER,
        netmask,
        priority_port,
        data_port,
        ping_port,
        link_speed: 10_000,
        mtu: 1500,
        isn,
    }
}

fn peer_engine(isn: u16) -> Engine {
    let memory = Arena::on_heap(48 << 20).alloc(32 << 20, 4096).unwrap();
    let limits = usnic::Config { endpoints: 4, max_message: 1 << 20, ..usnic::Config::default() };
    let mut peer = Engine::new(limits, memory, 99, Instant::ZERO);
    peer.add_interface(peer_interface(isn)).unwrap();
    peer
}

impl Lab {
    fn new(more: &str) -> Lab {
        let modex = peer_interface(400).modex();
        let text = format!(
            "[[net]]\naddress = \"{OURS}/24\"\n[roce]\nenabled = false\n[[usnic]]\nname = \"u\"\n\
             address = \"{OURS}\"\ndata_port = 7001\npriority_port = 7002\nping_port = 7003\nisn = 65530\n\
             sender = \"1.0\"\n{more}\n[[usnic.peer]]\nname = \"a\"\nsender = \"1.1\"\nmodex = \"{modex}\"\n"
        );
        let config = config::check(text.as_bytes()).unwrap();
        let ends = Arc::new(Mutex::new(Ends { room: 64, ..Ends::default() }));
        let cable = Cable { ends: ends.clone(), frame: Vec::new() };
        let mut port = PlanePort::new("net0".into(), Box::new(cable), false);
        port.local = PortAddresses { mac: OUR_MAC, v4: [OURS].into(), v6: Vec::new() };
        let mut arena = Arena::on_heap(300 << 20);
        let now = Instant::ZERO + Duration::from_secs(1);
        let settings =
            Settings { config: config.clone(), arena: arena.share(), seed: [7; 32], storage: None };
        let mut plane = DataPlane::new(settings, vec![port], now);
        plane.udp_engines = UdpEngines::of(
            &config,
            &plane.ports,
            &|net| (net == 0).then_some(0),
            &mut arena,
            &mut *plane.rng,
            now,
        );
        let has_peers = !more.contains("10.9.1.0/24");
        let asks = plane.udp_engines.next_hops.take_news();
        assert_eq!(asks, has_peers, "the control plane is asked");
        plane.udp_engines.next_hops.learn_wanted(PEER_MAC, now);
        let mut peer = peer_engine(400);
        let ours = config.usnic[0].interface(&config.net[0], 65530).unwrap().modex();
        let mut endpoint = EndpointConfig::new(0, 1 << 32 | 1, 1 << 32, ours);
        endpoint.layout = config.usnic[0].layout.0;
        let endpoint = peer.add_endpoint(&endpoint, now).unwrap();
        Lab { plane, config, ends, peer, endpoint, now, control: 0 }
    }

    /// What the peer sends reaches the plane.
    fn carry(&mut self) {
        let [priority, data, ping] = PEER_PORTS;
        while let Some(out) = self.peer.poll_transmit(self.now) {
            let port = match out.channel {
                Channel::Priority => priority,
                Channel::Data => data,
                Channel::Ping => ping,
            };
            let from = SocketAddrV4::new(PEER, port);
            let headers =
                datagram::headers([PEER_MAC, OUR_MAC], from, out.to, out.header(), out.payload());
            let mut frame = headers.unwrap().to_vec();
            frame.extend(out.header());
            for window in out.payload() {
                window.for_each_block(|block| frame.extend(block));
            }
            self.ends.lock().unwrap().arrives.push_back(frame);
        }
        let local = PortAddresses { mac: PEER_MAC, v4: [PEER].into(), v6: Vec::new() };
        let sent = core::mem::take(&mut self.ends.lock().unwrap().sent);
        for frame in sent {
            let datagram = Datagram::parse(&frame, &local).unwrap();
            self.peer.receive(0, datagram.from, datagram.to.port(), datagram.payload, self.now);
        }
    }

    /// Rounds of the plane, 20 µs apart.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.carry();
            let control = &mut self.control;
            self.plane.receive(self.now, |_, _| *control += 1);
            self.plane.serve(self.now);
            self.plane.transmit_fabric(self.now);
            self.now = self.now + Duration::from_micros(20);
        }
    }

    fn send(&mut self, tag: u8, message: &[u8]) {
        self.peer.send(self.endpoint, tag, message, self.now).unwrap();
    }

    /// What came to the peer, with the tags.
    fn came(&mut self) -> Vec<(u8, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some(message) = self.peer.take_message(self.endpoint) {
            let mut bytes = vec![0; message.bytes.len()];
            message.bytes.read(0, &mut bytes).unwrap();
            all.push((message.tag, bytes));
            self.peer.release(message);
        }
        all
    }

    fn report(&mut self) -> String {
        self.plane.udp_engines.report("usnic").to_text()
    }

    fn order(&mut self, order: &str, words: &[&str]) -> Result<Managed, String> {
        self.plane.udp_engines.order("usnic", order, words, self.now)
    }
}

/// The line of a report that begins with a name.
fn value<'a>(report: &'a str, name: &str) -> &'a str {
    let words = |line: &'a str| line.trim_start().split_once(char::is_whitespace);
    let found = report.lines().filter_map(words).find(|(key, _)| *key == name);
    found.map(|(_, value)| value.trim()).unwrap_or_default()
}

fn message(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + (i >> 8)) as u8).collect()
}

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
        assert_eq!(value(&report, "pings"), "answered", "it asks, too");
        assert_eq!(lab.control, 0, "nothing of it is the control plane's");
        lab.run(Duration::from_millis(500));
        let free = value(&lab.report(), "memory_free").to_string();
        assert_eq!(free, value(&Lab::new("services = \"echo\"").report(), "memory_free"));
    }
}

#[test]
fn a_fixed_tag_is_that_of_every_answer_and_what_is_discarded_is_counted() {
    let mut lab = Lab::new("services = \"echo\"\ntag = 65");
    let filter = net::capture::Filter::parse("udp port 7001 payload").unwrap();
    lab.plane.capture.start(filter, 1 << 20);
    lab.send(9, b"hello");
    lab.run(Duration::from_millis(5));
    assert_eq!(lab.came(), [(65, b"hello".to_vec())]);
    assert!(lab.plane.capture.counts().0 >= 2, "captures have both ways");
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
fn puts_go_where_they_may_and_nowhere_else() {
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
    let looked = |lab: &mut Lab, words: &[&str]| match lab.order("look", words) {
        Ok(Managed::Told(text)) => text,
        other => panic!("{other:?}"),
    };
    let crc = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC).checksum(&bytes);
    let told = looked(&mut lab, &["a", "5", "40000"]);
    assert_eq!(told, format!("crc32 {crc:08x} of 40000 bytes from 5\n"));
    let all = looked(&mut lab, &["a"]);
    // Its last byte would lie behind the memory.
    let at = SINK_ADDRESS + (SINK - bytes.len() + 1) as u64;
    lab.peer.put(lab.endpoint, at, windows, 2, lab.now).unwrap();
    lab.run(Duration::from_millis(20));
    assert!(lab.peer.next_completion(lab.endpoint).is_none());
    assert_ne!(value(&lab.report(), "puts_refused"), "0");
    assert_eq!(looked(&mut lab, &["a"]), all, "nothing was written");
    assert!(lab.order("look", &["a", "1", "1048576"]).is_err());
    assert!(lab.order("look", &["b"]).unwrap_err().contains("accepted: a"));
}

#[test]
fn strangers_and_damaged_datagrams_reach_nobody() {
    let mut lab = Lab::new("services = [\"echo\"]");
    let to = SocketAddrV4::new(OURS, 7001);
    let stranger = SocketAddrV4::new(Ipv4Addr::new(10, 9, 0, 77), 8002);
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
    let all = [frame(stranger, None), frame(peer, Some(60)), without];
    lab.ends.lock().unwrap().arrives.extend(all);
    lab.run(Duration::from_millis(1));
    assert_eq!((value(&lab.report(), "num_unk_recvs"), lab.control), ("1", 0));
    let mut refused = Vec::new();
    lab.plane.udp_engines.take_refusals(|refusals| refused.extend(refusals.pop()));
    let told: Vec<_> = refused.iter().map(|one| (one.who, one.reason, &*one.asked)).collect();
    let who = Some(IpAddr::V4(*stranger.ip()));
    assert_eq!(told, [(who, "unknown_sender", "UDP port 7001 from port 8002")]);
    let mut page = String::new();
    let mut writer = net::metrics::Writer::new(&mut page);
    lab.plane.udp_engines.metrics(&mut writer).unwrap();
    let lost = "isthmus_udp_engine_lost_total{engine=\"usnic\",reason=\"checksum\"} 2";
    assert!(page.contains(lost), "{page}");
    assert!(page.contains("isthmus_usnic_unknown_senders_total{usnic=\"u\"} 1"), "{page}");
    // Another port of ours is none of its business.
    let other =
        datagram::headers([PEER_MAC, OUR_MAC], peer, SocketAddrV4::new(OURS, 514), b"", &[]);
    lab.ends.lock().unwrap().arrives.push_back(other.unwrap().to_vec());
    lab.run(Duration::from_millis(1));
    assert_eq!(lab.control, 1);
}

#[test]
fn a_port_that_is_full_takes_the_rest_later() {
    let mut lab = Lab::new("services = [\"echo\"]");
    lab.ends.lock().unwrap().room = 3;
    lab.send(1, &message(200_000));
    lab.run(Duration::from_millis(100));
    assert_eq!(lab.came(), [(1, message(200_000))]);
    assert_eq!(value(&lab.report(), "num_resends"), "0", "nothing was lost");
}

#[test]
fn an_idle_engine_is_due_never_and_a_ping_is_told() {
    let mut lab = Lab::new("services = [\"echo\"]");
    lab.run(Duration::from_millis(1));
    assert_eq!(lab.plane.udp_engines.due(), None);
    assert!(matches!(lab.order("ping", &["a"]), Ok(Managed::Started)));
    lab.run(Duration::from_millis(100));
    let mut news = Vec::new();
    while let Some(progress) = lab.plane.udp_engines.progress(lab.now) {
        news.push(progress);
    }
    let [Progress::Line(small), Progress::Done(Ok(large))] = &news[..] else {
        panic!("{news:?}");
    };
    assert!(
        small.starts_with("a: small PING answered") && large.starts_with("a: large PING answered")
    );
    assert_eq!(lab.plane.udp_engines.due(), None, "nothing is asked any more");
}

#[test]
fn a_peer_with_another_modex_takes_the_place_of_one() {
    let mut lab = Lab::new("services = [\"echo\"]");
    lab.send(1, b"one");
    lab.run(Duration::from_millis(5));
    assert_eq!(lab.came().len(), 1);
    // It begins anew: with an old endpoint nothing it says would be new.
    lab.peer = peer_engine(5000);
    let mut config = lab.config.clone();
    config.usnic[0].peer[0].modex = Some(peer_interface(5000).modex());
    lab.plane.udp_engines.configure(&config, lab.now);
    let ours = config.usnic[0].interface(&config.net[0], 65530).unwrap().modex();
    let endpoint = EndpointConfig::new(0, 1 << 32 | 1, 1 << 32, ours);
    lab.endpoint = lab.peer.add_endpoint(&endpoint, lab.now).unwrap();
    lab.send(1, b"two");
    lab.run(Duration::from_millis(5));
    assert_eq!(lab.came(), [(1, b"two".to_vec())]);
    // One that begins anew with the same modex is reset.
    lab.peer = peer_engine(5000);
    lab.endpoint = lab.peer.add_endpoint(&endpoint, lab.now).unwrap();
    lab.order("reset", &["a"]).unwrap();
    lab.send(1, b"three");
    lab.run(Duration::from_millis(5));
    assert_eq!(lab.came(), [(1, b"three".to_vec())]);
    assert_eq!(lab.peer.state(lab.endpoint), Some(State::Open));
    // One that is not in the document any more is nobody.
    config.usnic[0].peer.clear();
    lab.plane.udp_engines.configure(&config, lab.now);
    lab.send(1, b"four");
    lab.run(Duration::from_millis(5));
    assert_eq!(lab.came(), []);
    assert_ne!(value(&lab.report(), "num_unk_recvs"), "0");
}

#[test]
fn who_is_in_none_of_the_networks_is_not_admitted() {
    let mut lab = Lab::new("services = [\"echo\"]\nhosts = [\"10.9.1.0/24\"]");
    lab.send(1, b"one");
    lab.run(Duration::from_millis(5));
    assert_eq!(lab.came(), []);
    let report = lab.report();
    assert!(value(&report, "state").contains("10.9.0.2 is in none of the networks"), "{report}");
    assert!(lab.order("ping", &["a"]).unwrap_err().contains("in none of the networks"));
}
