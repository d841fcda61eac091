//! A LINX node with a link to an attacker and a link to a victim. The input determines the attacker's packets and the
//! passing time. The initial contents of memory, and the victim's data, are marked. No byte of a mark may reach the
//! attacker, or be delivered as data of the attacker. Afterwards the victim still gets an answer.

use crate::input::Input;
use crate::leak::{self, Owner};
use drivers::hal::{Arena, Instant};
use linx::riocm::{ConnectionConfig, Fragmentation};
use linx::wire::riocm::{Ends, Header, LONGEST, Message, Packet, Part};
use linx::wire::{rlnh, tcp};
use linx::{
    Config, EndpointId, Event, LinkConfig, LinkId, Node, Origin, Phase, Sender, StreamId,
    StreamOrder, TcpConfig, Transport,
};
use std::time::Duration;

const MEMORY: usize = 1 << 20;
const EVENTS: usize = 300;
const ATTACKER: u16 = 0x0202;
const VICTIM: u16 = 0x0303;
const US: u16 = 0x0101;
const MAX: u32 = 20_000;

/// The node, and the state of attacker and victim.
struct World {
    node: Node,
    service: EndpointId,
    riocm: LinkId,
    tcp: LinkId,
    victim: Node,
    client: EndpointId,
    now: Instant,
    /// The attacker's connection, and its next sequence number.
    cid: u16,
    generation: u8,
    mtu: u16,
    sequence: u16,
    stream: Option<StreamId>,
    /// The victim's handle of the service.
    found: Option<linx::PeerId>,
}

fn connection(to: u16, port: u16) -> ConnectionConfig<'static> {
    ConnectionConfig {
        max_message: MAX,
        receive_bytes: 150 << 10,
        send_bytes: 40 << 10,
        ..ConnectionConfig::new("rio0", to, 2, (port, port))
    }
}

/// Runs a list of events.
pub fn run(data: &[u8]) {
    netsim::with_memory(2 * MEMORY + 8192, |memory| {
        let mut arena = Arena::new(memory);
        let [ours, theirs] = [0, 1].map(|_| arena.alloc(MEMORY, 4096).expect("room"));
        leak::fill(ours, Owner::Past);
        let now = Instant::from_nanos(1_000_000_000);
        let config = Config { links: 4, inbox_bytes: 64 << 10, ..Config::default() };
        let mut node = Node::new(config, ours, 1);
        node.add_port("rio0", US, 4096).expect("the configuration is valid");
        let riocm =
            ConnectionConfig { fragmentation: Fragmentation::Patch, ..connection(ATTACKER, 5) };
        let mut link = LinkConfig::new("attacker", Transport::Riocm(riocm));
        (link.max_addresses, link.max_hunts, link.max_unclaimed) = (30, 20, 4);
        let riocm = node.add_link(&link, now).expect("room");
        let stream = TcpConfig {
            max_message: MAX,
            receive_bytes: 60 << 10,
            send_bytes: 40 << 10,
            ..TcpConfig::default()
        };
        (link.name, link.transport) = ("attacker-tcp", Transport::Tcp(stream));
        let tcp = node.add_link(&link, now).expect("room");
        (link.name, link.transport) = ("victim", Transport::Riocm(connection(VICTIM, 6)));
        node.add_link(&link, now).expect("room");
        let service = node.open(b"service", now).expect("room");
        let mut victim = Node::new(config, theirs, 2);
        victim.add_port("rio0", VICTIM, 4096).expect("the configuration is valid");
        (link.name, link.transport) = ("us", Transport::Riocm(connection(US, 6)));
        let victim_link = victim.add_link(&link, now).expect("room");
        let client = victim.open(b"victim", now).expect("room");
        victim.hunt(client, victim_link, b"service", now).expect("room");
        let mut world = World {
            node,
            service,
            riocm,
            tcp,
            victim,
            client,
            now,
            cid: 1,
            generation: 7,
            mtu: 4096,
            sequence: 0,
            stream: None,
            found: None,
        };
        let peer = world.meet();
        let mut input = Input(data);
        input.events(EVENTS, |input| world.event(input));
        // The victim still gets answers.
        let body = leak::mark(Owner::Victim).repeat(4);
        let sent = world.victim.send(Sender::Endpoint(world.client), peer, 77, &body, world.now);
        sent.expect("the link is up");
        assert!(world.run_for(50), "the victim's signal is echoed");
    });
}

impl World {
    /// Runs until the victim has found the service.
    fn meet(&mut self) -> linx::PeerId {
        for _ in 0..200 {
            self.turn(10);
            if let Some(peer) = self.found {
                return peer;
            }
        }
        panic!("the victim does not find the service");
    }

    /// Lets time pass. Returns whether the victim got an answer.
    fn run_for(&mut self, millis: u64) -> bool {
        let mut answered = false;
        for _ in 0..millis.div_ceil(10) {
            self.turn(10);
            while let Some(signal) = self.victim.next_signal(self.client) {
                answered |= signal.number == 78;
                self.victim.release(signal);
            }
        }
        answered
    }

    /// Carries packets.
    fn turn(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
        let mut bytes = vec![0; 1 << 16];
        for _ in 0..4 {
            while let Some(packet) = self.node.poll_transmit(self.now) {
                let (to, length) = (packet.destination, packet.write(&mut bytes));
                if to == VICTIM {
                    self.victim.receive(0, US, &bytes[..length], self.now);
                } else {
                    self.learn(&bytes[..length]);
                }
            }
            if let Some(stream) = self.stream {
                let length = self.node.stream_transmit(self.tcp, stream, &mut bytes, self.now);
                assert_eq!(leak::find(&bytes[..length]), None, "bytes of others to the attacker");
            }
            while let Some(packet) = self.victim.poll_transmit(self.now) {
                let length = packet.write(&mut bytes);
                self.node.receive(0, VICTIM, &bytes[..length], self.now);
            }
            self.serve();
            while let Some((_, order)) = self.node.next_stream_order() {
                match order {
                    StreamOrder::Open(stream) => {
                        self.stream = Some(stream);
                        self.node.stream_opened(self.tcp, stream, self.now);
                    }
                    StreamOrder::Close(stream) if self.stream == Some(stream) => self.stream = None,
                    StreamOrder::Close(_) => (),
                }
            }
            while let Some(event) = self.victim.next_event(self.now) {
                if let Event::Found { peer, .. } = event {
                    self.found = Some(peer);
                }
            }
        }
    }

    /// Updates the attacker's state from a received packet.
    fn learn(&mut self, bytes: &[u8]) {
        assert_eq!(leak::find(bytes), None, "bytes of others to the attacker");
        let (packet, _) = Packet::parse(bytes).expect("a sent packet is valid");
        match packet.header {
            Header::Ack { generation, mtu, cid, .. } => {
                (self.generation, self.mtu, self.cid) = (generation, mtu, cid);
            }
            Header::Request { generation, mtu, .. } => {
                (self.generation, self.mtu) = (generation, mtu)
            }
            _ => (),
        }
    }

    /// The service, which echoes the signals of victim and attacker.
    fn serve(&mut self) {
        while let Some(event) = self.node.next_event(self.now) {
            if let Event::Link(id) = event
                && id == self.riocm
                && self.node.link(id).is_some_and(|link| link.phase == Phase::Down)
            {
                self.sequence = 0;
            }
        }
        while let Some(signal) = self.node.next_signal(self.service) {
            let mut body = vec![0; signal.len()];
            self.node.read(&signal, 0, &mut body);
            let (from, number) = (signal.from, signal.number);
            self.node.release(signal);
            let Origin::Peer(peer) = from else { continue };
            if peer.link() == self.riocm || peer.link() == self.tcp {
                assert_eq!(
                    leak::find(&body),
                    None,
                    "bytes of others in a signal of the attacker's"
                );
            }
            let answer = number.wrapping_add(1);
            let _ = self.node.send(Sender::Endpoint(self.service), peer, answer, &body, self.now);
        }
    }

    fn event(&mut self, input: &mut Input<'_>) {
        let what = input.byte();
        match what % 10 {
            0 => self.turn(u64::from(input.byte()) * 4),
            1 => {
                let length = usize::from(input.byte());
                let bytes = leak::plain(input.take(length));
                let source = if what & 0x80 == 0 { ATTACKER } else { input.word() };
                // The attacker cannot use the victim's id, because RapidIO reports the sender.
                let source = if source == VICTIM { ATTACKER } else { source };
                self.node.receive(0, source, &bytes, self.now);
            }
            2 => self.transmit(Header::Request {
                generation: 9,
                mtu: self.mtu,
                heartbeat: input.byte(),
            }),
            3 => {
                let heartbeat = if what & 0x80 == 0 { 5 } else { input.byte() };
                let acknowledged = self.generation;
                let (mtu, cid) = (self.mtu, u16::from(input.byte()));
                self.transmit(Header::Ack { generation: 9, mtu, acknowledged, heartbeat, cid });
            }
            4 => self.transmit(Header::Reset { generation: 9 }),
            5 | 6 => self.data(what, input),
            7 => {
                let bytes = control(input);
                if what & 0x80 == 0 {
                    self.single(0, 0, &bytes);
                } else {
                    self.stream_message(0, 0, &bytes);
                }
            }
            8 => {
                let (source, destination) = (input.byte().into(), input.byte().into());
                let length = usize::from(input.word()) % 3000;
                let body = leak::plain(&vec![input.byte(); length]);
                if what & 0x80 == 0 {
                    self.single(source, destination, &body);
                } else {
                    self.stream_message(source, destination, &body);
                }
            }
            _ => match what >> 6 {
                0 => {
                    let length = usize::from(input.byte());
                    let bytes = leak::plain(input.take(length));
                    self.stream_bytes(&bytes);
                }
                1 => self.stream_bytes(&tcp::Header::new(tcp::Kind::Connect, 0, 0, 0).emit()),
                2 => self.stream = self.node.stream_accepted(self.tcp, self.now),
                _ => {
                    if let Some(stream) = self.stream.take() {
                        self.node.stream_closed(self.tcp, stream, self.now);
                    }
                }
            },
        }
        self.turn(0);
    }

    /// A data packet with any part of any message.
    fn data(&mut self, what: u8, input: &mut Input<'_>) {
        let id = input.byte() % 4;
        let size = u32::from(input.word());
        let message =
            Message { source: input.byte().into(), destination: input.byte().into(), size };
        let part = match input.below(5) {
            0 => Part::Single(message),
            1 => Part::Start(message),
            2 => Part::Fragment,
            3 => {
                let (fragments, patches) = (input.byte().into(), input.byte().into());
                Part::PatchStart { message, fragments, patches }
            }
            _ => Part::Patch,
        };
        let ahead = if what & 0x80 == 0 { 0 } else { u16::from(input.byte() % 70) };
        let sequence = self.sequence.wrapping_add(ahead);
        if ahead == 0 {
            self.sequence = self.sequence.wrapping_add(1);
        }
        let length = usize::from(input.word()) % 4096;
        let payload = leak::plain(&vec![input.byte(); length]);
        let cid = self.cid;
        self.packet(Header::Data { id, sequence, cid, part }, &payload);
    }

    fn single(&mut self, source: u32, destination: u32, body: &[u8]) {
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1);
        let part = Part::Single(Message { source, destination, size: body.len() as u32 });
        self.packet(Header::Data { id: 0, sequence, cid: self.cid, part }, body);
    }

    fn transmit(&mut self, header: Header) {
        self.sequence = 0;
        self.packet(header, &[]);
    }

    fn packet(&mut self, header: Header, payload: &[u8]) {
        let ends = Ends { to_port: 5, sender: ATTACKER, from_port: 5 };
        let mut bytes = [0; LONGEST];
        let length = Packet { ends, header }.emit(payload.len(), &mut bytes);
        let whole = [&bytes[..length], payload].concat();
        self.node.receive(0, ATTACKER, &whole, self.now);
    }

    fn stream_message(&mut self, source: u32, destination: u32, body: &[u8]) {
        let header = tcp::Header::new(tcp::Kind::Data, source, destination, body.len() as u32);
        self.stream_bytes(&[&header.emit()[..], body].concat());
    }

    fn stream_bytes(&mut self, bytes: &[u8]) {
        if let Some(stream) = self.stream {
            // TCP would keep bytes that the node does not take. Here they are lost, as an additional fault.
            self.node.stream_receive(self.tcp, stream, bytes, self.now);
        }
    }
}

/// A message of RLNH, mostly a valid one.
fn control(input: &mut Input<'_>) -> Vec<u8> {
    let (kind, address) = (input.below(9), u32::from(input.byte() % 40));
    let names: [&[u8]; 4] = [b"service", b"other", b"x", b"victim"];
    let name = names[input.below(4)];
    let message = match kind {
        0 => rlnh::Message::Init { version: 2 },
        1 => rlnh::Message::InitReply { status: 0, features: b"" },
        2 => rlnh::Message::Publish { address, name },
        3 => rlnh::Message::QueryName { hunter: address, name },
        4 => rlnh::Message::Unpublish { address },
        5 => rlnh::Message::UnpublishAck { address },
        6 => rlnh::Message::PublishPeer { address, peer: u32::from(input.byte() % 40) },
        _ => {
            let length = usize::from(input.byte() % 64);
            return leak::plain(input.take(length));
        }
    };
    let mut bytes = [0; rlnh::LONGEST];
    let length = message.emit(&mut bytes);
    bytes[..length].to_vec()
}

/// Lists of events that bring links up, and send in all forms.
pub fn corpus() -> Vec<Vec<u8>> {
    let up = [2, 5, 3, 9, 0, 1];
    let begin = [7, 0, 0, 0, 7, 1, 0, 0, 0, 1];
    let names = [7, 2, 1, 1, 7, 3, 1, 0, 0, 1];
    let signal = [8, 1, 1, 0, 200, 7, 0, 1];
    let riocm = [&up[..], &begin, &names, &signal].concat();
    let parts = |first: [u8; 5], more: &[[u8; 5]]| {
        let packet = |[part, high, low, long, short]: [u8; 5]| match part {
            3 => vec![5, 1, high, low, 1, 1, 3, 1, 1, long, short, 7],
            _ => vec![5, 1, high, low, 1, 1, part, long, short, 7],
        };
        let more = more.iter().flat_map(|it| packet(*it));
        [&riocm[..], &packet(first), &more.collect::<Vec<u8>>(), &[0, 9]].concat()
    };
    // The same over TCP: CONN, then actions with their highest bit set.
    let stream = [
        &[69, 0, 1][..],
        &[137, 0, 0, 0, 137, 1, 0, 0, 0, 1],
        &[137, 2, 1, 1, 137, 3, 1, 0, 0, 1],
        &[138, 1, 1, 0, 200, 7, 0, 1],
    ];
    let stream = stream.concat();
    vec![
        riocm.clone(),
        parts([1, 0x20, 0, 15, 228], &[[2, 0, 0, 15, 240], [2, 0, 0, 0, 60]]),
        parts([3, 0x18, 0, 15, 224], &[[2, 0, 0, 7, 240], [4, 0, 0, 0, 48]]),
        [&riocm[..], &[4, 0, 1], &riocm].concat(),
        [&riocm[..], &[7, 4, 1, 0, 0, 5, 7, 2, 1, 1, 0, 5]].concat(),
        stream,
        [&[0, 60][..], &riocm, &[0, 250, 0, 250, 0, 250]].concat(),
    ]
}
