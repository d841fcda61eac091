//! Tests of nodes in one process: two nodes over RIOCM or TCP, and a node with a scripted peer.

mod hostile;
mod names;
mod original;
mod tcp;
mod watch;

use super::*;
use crate::riocm::ConnectionConfig;
use crate::riocm::{Down, SendError};
use crate::tcpcm::{StreamId, TcpConfig};
use crate::wire::rlnh::{LONGEST, Message};
use std::string::{String, ToString};
use std::time::Duration;
use std::{format, vec::Vec};

fn memory(bytes: usize) -> Window {
    drivers::hal::Arena::on_heap(bytes + 8192).alloc(bytes, 4096).unwrap()
}

/// A node and its links, with a log of its events.
struct Machine {
    node: Node,
    links: Vec<LinkId>,
    now: Instant,
    log: Vec<String>,
    received: Vec<(Origin, u32, Vec<u8>)>,
    found: Vec<PeerId>,
    reads: bool,
}

impl Machine {
    fn new(seed: u64) -> Machine {
        let config = Config { links: 8, endpoints: 2000, ..Config::default() };
        Machine {
            node: Node::new(config, memory(8 << 20), seed),
            links: Vec::new(),
            now: Instant::from_nanos(1_000_000_000),
            log: Vec::new(),
            received: Vec::new(),
            found: Vec::new(),
            reads: true,
        }
    }

    fn open(&mut self, name: &str) -> EndpointId {
        self.node.open(name.as_bytes(), self.now).unwrap()
    }

    fn hunt(&mut self, from: EndpointId, name: &str) -> HuntId {
        self.node.hunt(from, self.links[0], name.as_bytes(), self.now).unwrap()
    }

    fn phase(&self) -> Phase {
        self.node.link(self.links[0]).unwrap().phase
    }

    fn counters(&self) -> LinkCounters {
        self.node.link(self.links[0]).unwrap().counters
    }

    fn events(&mut self) {
        while let Some(event) = self.node.next_event(self.now) {
            let name = |peer| {
                String::from_utf8_lossy(self.node.peer_name(peer).unwrap_or(b"?")).into_owned()
            };
            match event {
                Event::Link(id) => {
                    let Some(status) = self.node.link(id) else { continue };
                    let is_up = if status.phase == Phase::Up { "Up" } else { "Down" };
                    self.log.push(format!("{} {is_up}", status.name));
                }
                Event::Found { peer, .. } => {
                    self.log.push(format!("found {}", name(peer)));
                    self.found.push(peer);
                }
                Event::Gone(_) => self.log.push("gone".into()),
                Event::Signals(id) if self.reads => self.take(id),
                Event::Signals(_) => (),
                Event::Dropped(_) => self.log.push("dropped".into()),
                Event::Room(_) => self.log.push("room".into()),
                Event::Sent { cookie, done } => self.log.push(format!("sent {cookie} {done}")),
            }
        }
    }

    fn take(&mut self, id: EndpointId) {
        while let Some(signal) = self.node.next_signal(id) {
            let mut bytes = std::vec![0; signal.len()];
            assert_eq!(self.node.read(&signal, 0, &mut bytes), bytes.len());
            let lengths: usize = self.node.windows(&signal).map(|window| window.len()).sum();
            assert_eq!(lengths, bytes.len());
            self.received.push((signal.from, signal.number, bytes));
            self.node.release(signal);
        }
    }

    fn take_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }
}

fn riocm(side: u16, port: u16) -> ConnectionConfig<'static> {
    ConnectionConfig::new("rio0", 2 - side, 2, (port, port))
}

/// Two nodes with a RIOCM link.
struct Pair {
    machines: [Machine; 2],
}

impl Pair {
    fn new() -> Pair {
        Pair::with(|_, _| ())
    }

    fn with(mut change: impl FnMut(usize, &mut LinkConfig<'_>)) -> Pair {
        let machines = [0u16, 1].map(|side| {
            let mut machine = Machine::new(side.into());
            machine.node.add_port("rio0", side + 1, 4096).unwrap();
            let mut config = LinkConfig::new("link", Transport::Riocm(riocm(side, 5)));
            change(side.into(), &mut config);
            let id = machine.node.add_link(&config, machine.now).unwrap();
            machine.links.push(id);
            machine
        });
        Pair { machines }
    }

    fn up() -> Pair {
        let mut pair = Pair::new();
        pair.run(1000);
        pair.machines.iter_mut().for_each(|it| assert_eq!(it.take_log(), ["link Up"]));
        pair
    }

    fn run(&mut self, millis: u64) {
        for _ in 0..millis.div_ceil(10) {
            loop {
                let mut any = false;
                for side in 0..2 {
                    let mut bytes = [0; 4096];
                    let [a, b] = &mut self.machines;
                    let (from, to) = if side == 0 { (a, b) } else { (b, a) };
                    while let Some(packet) = from.node.poll_transmit(from.now) {
                        let length = packet.write(&mut bytes);
                        to.node.receive(0, side as u16 + 1, &bytes[..length], to.now);
                        any = true;
                    }
                    from.events();
                    to.events();
                }
                if !any {
                    break;
                }
            }
            self.machines.iter_mut().for_each(|it| it.now = it.now + Duration::from_millis(10));
        }
    }
}

/// A machine with a scripted peer, over TCP.
struct ScriptedPeer {
    machine: Machine,
    link: LinkId,
    stream: StreamId,
}

impl ScriptedPeer {
    fn new(change: impl FnOnce(&mut LinkConfig<'_>)) -> ScriptedPeer {
        let mut machine = Machine::new(3);
        let mut config = LinkConfig::new("link", Transport::Tcp(TcpConfig::default()));
        (config.max_addresses, config.max_peer_addresses) = (50, 50);
        change(&mut config);
        let link = machine.node.add_link(&config, machine.now).unwrap();
        machine.links.push(link);
        let mut it = ScriptedPeer { machine, link, stream: StreamId(0) };
        it.connect();
        it
    }

    /// Opens the ordered stream, and answers CONN.
    fn connect(&mut self) {
        for _ in 0..20 {
            match self.machine.node.next_stream_order() {
                Some((_, StreamOrder::Open(stream))) => {
                    self.stream = stream;
                    self.machine.node.stream_opened(self.link, stream, self.machine.now);
                    assert_eq!(self.sent(), ["CONN"]);
                    self.receive(
                        &crate::wire::tcp::Header::new(crate::wire::tcp::Kind::Connect, 0, 0, 0)
                            .emit(),
                    );
                    return;
                }
                Some(_) => (),
                None => {
                    self.machine.now = self.machine.now + Duration::from_secs(1);
                    self.machine.node.poll(self.machine.now);
                }
            }
        }
        panic!("no stream is ordered");
    }

    fn up(change: impl FnOnce(&mut LinkConfig<'_>)) -> ScriptedPeer {
        let mut it = ScriptedPeer::new(change);
        it.begin();
        it
    }

    fn begin(&mut self) {
        assert_eq!(self.sent(), ["INIT version 2"]);
        self.send(Message::Init { version: 2 });
        assert_eq!(self.sent(), ["INIT_REPLY status 0 features \"\""]);
        self.send(Message::InitReply { status: 0, features: &[] });
        assert_eq!(self.machine.phase(), Phase::Up);
    }

    fn receive(&mut self, bytes: &[u8]) -> usize {
        let taken =
            self.machine.node.stream_receive(self.link, self.stream, bytes, self.machine.now);
        self.machine.events();
        taken
    }

    fn message(&mut self, source: u32, destination: u32, bytes: &[u8]) {
        use crate::wire::tcp::{Header, Kind};
        let header = Header::new(Kind::Data, source, destination, bytes.len() as u32).emit();
        let whole = [&header[..], bytes].concat();
        assert_eq!(self.receive(&whole), whole.len());
    }

    fn send(&mut self, message: Message<'_>) {
        let mut bytes = [0; LONGEST];
        let length = message.emit(&mut bytes);
        self.message(0, 0, &bytes[..length]);
    }

    /// Messages of the node, as lines.
    fn sent(&mut self) -> Vec<String> {
        use crate::wire::tcp::{Header, Kind, LEN};
        let mut bytes = std::vec![0; 1 << 20];
        let now = self.machine.now;
        let length = self.machine.node.stream_transmit(self.link, self.stream, &mut bytes, now);
        self.machine.events();
        let (mut rest, mut lines) = (&bytes[..length], Vec::new());
        while let Some((header, behind)) = rest.split_first_chunk::<LEN>() {
            let header = Header::parse(header).unwrap();
            let (body, behind) = behind.split_at(header.size as usize);
            rest = behind;
            lines.push(match header.kind {
                Kind::Connect => "CONN".into(),
                Kind::Ping => continue,
                Kind::Pong => "PONG".into(),
                Kind::Data if header.destination == 0 => Message::parse(body).unwrap().to_string(),
                Kind::Data => format!("{} > {} {:?}", header.source, header.destination, body),
            });
        }
        lines
    }
}
