//! The data plane, the cable, and the peer at its other end.

use super::super::*;
use crate::gateway::plane::{DataPlane, Devices, Settings};
use crate::gateway::udp_engines::UdpEngines;
use crate::randomness::EntropySources;
use core::time::Duration;
use drivers::hal::{Frame, Packet, Port, PortCounters, TransmitError, TransmitProgress};
use net::{PortAddresses, datagram};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use usnic::InterfaceConfig;

pub const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const OURS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
pub const PEER_PORTS: [u16; 3] = [8001, 8002, 8003];

/// Frames to and from the plane.
#[derive(Default)]
pub struct Ends {
    pub arrives: VecDeque<Vec<u8>>,
    pub sent: VecDeque<Vec<u8>>,
    /// Flows steered to a receive queue.
    pub steered: Vec<UdpFlow>,
    /// Frames that the device accepts before it is full.
    pub room: usize,
}

pub struct Cable {
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
    fn steer(&mut self, flow: UdpFlow, _: &mut Arena) -> bool {
        self.ends.lock().unwrap().steered.push(flow);
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
        ends.sent.push_back(crate::gateway::test_cable::bytes(packet));
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

pub struct Lab {
    pub plane: DataPlane,
    pub config: Config,
    pub ends: Arc<Mutex<Ends>>,
    pub peer: Engine,
    pub endpoint: EndpointId,
    pub now: Instant,
    /// MAC address of the frames of the peer.
    pub from: [u8; 6],
    /// Bytes of the longest frame that the plane has sent.
    pub longest: usize,
    /// Frames passed to the control plane.
    pub control: usize,
}

pub fn peer_interface(isn: u16) -> InterfaceConfig {
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

pub fn peer_engine(isn: u16) -> Engine {
    let memory = Arena::on_heap(48 << 20).alloc(32 << 20, 4096).unwrap();
    let limits = usnic::Config { endpoints: 4, max_message: 1 << 20, ..usnic::Config::default() };
    let mut peer = Engine::new(limits, memory, 99, Instant::ZERO);
    peer.add_interface(peer_interface(isn)).unwrap();
    peer
}

impl Lab {
    pub fn new(more: &str) -> Lab {
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
        let settings = Settings {
            config: config.clone(),
            arena: arena.share(),
            seed: [7; 32],
            entropy: EntropySources::NONE,
            storage: None,
        };
        let devices = Devices { ports: vec![port], ..Devices::default() };
        let mut plane = DataPlane::of_core(settings, devices, now);
        plane.udp_engines = UdpEngines::of(
            &config,
            &mut plane.ports,
            &|net| (net == 0).then_some(0),
            &mut arena,
            &mut *plane.rng,
            now,
        );
        let has_peers = !more.contains("10.9.1.0/24");
        let has_queries = plane.udp_engines.next_hops.take_queries();
        assert_eq!(has_queries, has_peers, "queries for the control plane");
        plane.udp_engines.next_hops.learn_wanted(PEER_MAC, now);
        let mut peer = peer_engine(400);
        let ours = config.usnic[0].interface(&config.net[0], 65530).unwrap().modex();
        let mut endpoint = EndpointConfig::new(0, 1 << 32 | 1, 1 << 32, ours);
        endpoint.layout = config.usnic[0].layout.0;
        let endpoint = peer.add_endpoint(&endpoint, now).unwrap();
        let from = PEER_MAC;
        Lab { plane, config, ends, peer, endpoint, now, from, longest: 0, control: 0 }
    }

    /// Carries frames between the peer and the plane.
    pub fn carry(&mut self) {
        let modexes: Vec<Modex> = (0..2).map_while(|number| self.peer.modex(number)).collect();
        while let Some(out) = self.peer.poll_transmit(self.now) {
            let modex = &modexes[out.interface];
            let port = match out.channel {
                Channel::Priority => modex.priority_port,
                Channel::Data => modex.data_port,
                Channel::Ping => modex.ping_port,
            };
            let from = SocketAddrV4::new(PEER, port);
            let headers =
                datagram::headers([self.from, OUR_MAC], from, out.to, out.header(), out.payload());
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
            self.longest = self.longest.max(frame.len());
            let datagram = Datagram::parse(&frame, &local).unwrap();
            let port = datagram.to.port();
            let has = |modex: &Modex| {
                [modex.priority_port, modex.data_port, modex.ping_port].contains(&port)
            };
            let number = modexes.iter().position(has).unwrap();
            self.peer.receive(number, datagram.from, port, datagram.payload, self.now);
        }
    }

    /// Runs the plane in rounds 20 µs apart.
    pub fn run(&mut self, time: Duration) {
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

    pub fn send(&mut self, tag: u8, message: &[u8]) {
        self.peer.send(self.endpoint, tag, message, self.now).unwrap();
    }

    /// Returns the messages received by the peer, with their tags.
    pub fn came(&mut self) -> Vec<(u8, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some(message) = self.peer.take_message(self.endpoint) {
            let mut bytes = vec![0; message.bytes.len()];
            message.bytes.read(0, &mut bytes).unwrap();
            all.push((message.tag, bytes));
            self.peer.release(message);
        }
        all
    }

    pub fn report(&mut self) -> String {
        management::usnic::told(&self.plane.udp_engines.statuses()).to_text()
    }

    pub fn order(&mut self, verb: UsnicVerb, words: &[&str]) -> Result<Managed, String> {
        self.plane.udp_engines.order("usnic", verb, words, self.now)
    }
}

/// Returns the value of a name in a report.
pub fn value<'a>(report: &'a str, name: &str) -> &'a str {
    let words = |line: &'a str| line.trim_start().split_once(char::is_whitespace);
    let found = report.lines().filter_map(words).find(|(key, _)| *key == name);
    found.map(|(_, value)| value.trim()).unwrap_or_default()
}

pub fn message(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + (i >> 8)) as u8).collect()
}
