//! Tests of LINX as a transport, with two nodes. Rules use the first one.

use super::*;
use crate::linx::{LinkEnd, LinxEnds, LinxTransport};
use crate::names::MessageName;
use crate::transport::{
    Closed, Event, MessageTransport, Over, Reason, Transport as _, Unwritten, Wanted,
};
use ::linx::{
    Config, EndpointId, LinkConfig, LinkId, Node, Origin, Sender, StreamId, StreamOrder, TcpConfig,
    Transport,
};
use core::time::Duration;
use std::string::ToString;
use std::vec;

const OWNER: u32 = 77;

/// Two nodes and the stream between them.
struct Pair {
    now: Instant,
    nodes: [Node; 2],
    links: [LinkId; 2],
    streams: Option<[StreamId; 2]>,
    /// Bytes in flight to each node.
    under_way: [Vec<u8>; 2],
    ends: LinxEnds,
    /// Events of the other node.
    peer_events: Vec<::linx::Event>,
}

impl Pair {
    fn new() -> Pair {
        let now = Instant::ZERO;
        let mut nodes = [1u64, 2].map(|secret| {
            let memory = drivers::hal::Arena::on_heap(2 << 20).alloc(1 << 20, 4096).unwrap();
            Node::new(Config::default(), memory, secret)
        });
        let tcp = TcpConfig {
            max_message: 4096,
            receive_bytes: 64 << 10,
            send_bytes: 16 << 10,
            sends: 8,
            ..TcpConfig::default()
        };
        let links = [0, 1].map(|at: usize| {
            let config = LinkConfig::new("far", Transport::Tcp(tcp));
            nodes[at].add_link(&config, now).unwrap()
        });
        let end = LinkEnd { name: "far".into(), id: links[0], max_message: 4096 };
        let ends = LinxEnds::new(vec![end]);
        let under_way = Default::default();
        let peer_events = Vec::new();
        let mut it = Pair { now, nodes, links, streams: None, under_way, ends, peer_events };
        it.run();
        it
    }

    fn rules(&mut self) -> LinxTransport<'_> {
        LinxTransport { node: &mut self.nodes[0], ends: &mut self.ends, now: self.now }
    }

    /// Runs both nodes for two seconds, and carries their bytes.
    fn run(&mut self) {
        for _ in 0..200 {
            let now = self.now;
            for at in [0, 1] {
                self.nodes[at].poll(now);
                while let Some((_, order)) = self.nodes[at].next_stream_order() {
                    match order {
                        StreamOrder::Open(id) if at == 0 && self.streams.is_none() => {
                            let there = self.nodes[1].stream_accepted(self.links[1], now).unwrap();
                            self.streams = Some([id, there]);
                            self.nodes[0].stream_opened(self.links[0], id, now);
                        }
                        StreamOrder::Open(id) => {
                            self.nodes[at].stream_closed(self.links[at], id, now);
                        }
                        StreamOrder::Close(id) => {
                            if self.streams.is_some_and(|ids| ids[at] == id) {
                                self.cut();
                            }
                        }
                    }
                }
                let Some(ids) = self.streams else { continue };
                let mut bytes = [0; 8192];
                let length =
                    self.nodes[at].stream_transmit(self.links[at], ids[at], &mut bytes, now);
                self.under_way[1 - at].extend(&bytes[..length]);
                let arrived = &self.under_way[at];
                let taken = self.nodes[at].stream_receive(self.links[at], ids[at], arrived, now);
                self.under_way[at].drain(..taken);
            }
            while let Some(event) = self.nodes[0].next_event(now) {
                self.ends.handle(&mut self.nodes[0], event);
            }
            while let Some(event) = self.nodes[1].next_event(now) {
                self.peer_events.push(event);
            }
            self.now = now + Duration::from_millis(10);
        }
    }

    fn cut(&mut self) {
        let Some(ids) = self.streams.take() else { return };
        self.under_way = Default::default();
        for at in [0, 1] {
            self.nodes[at].stream_closed(self.links[at], ids[at], self.now);
        }
    }

    fn events(&mut self) -> Vec<Event<u32>> {
        core::iter::from_fn(|| self.rules().next_owned())
            .map(|(owner, event)| {
                assert_eq!(owner, OWNER);
                event
            })
            .collect()
    }

    /// Opens an endpoint of the other node that hunts for `name`. Returns the endpoint and the peer that it found.
    fn hunt(&mut self, hunter: &[u8], name: &[u8]) -> (EndpointId, ::linx::PeerId) {
        let endpoint = self.nodes[1].open(hunter, self.now).unwrap();
        self.nodes[1].hunt(endpoint, self.links[1], name, self.now).unwrap();
        self.run();
        let found = self.peer_events.drain(..).find_map(|event| match event {
            ::linx::Event::Found { peer, .. } => Some(peer),
            _ => None,
        });
        (endpoint, found.expect("the name is found"))
    }

    fn send_from_peer(
        &mut self,
        (from, to): (EndpointId, ::linx::PeerId),
        number: u32,
        body: &[u8],
    ) {
        self.nodes[1].send(Sender::Endpoint(from), to, number, body, self.now).unwrap();
    }

    fn read(&mut self, key: u32) -> Vec<u8> {
        let length = self.rules().message(key).unwrap().expect("a message");
        let mut all = vec![0; length];
        // In two pieces.
        let first = self.rules().read(key, &mut all[..length / 2]).unwrap();
        let rest = self.rules().read(key, &mut all[first..]).unwrap();
        assert_eq!(first + rest, length);
        all
    }
}

fn wanted(name: &str, signal: Option<u32>) -> Wanted {
    let (link, name) = ("far".to_string(), name.to_string());
    let name = MessageName::Linx { link, name };
    Wanted { name, owner: OWNER, signal, connections: 2, label: "rule".into() }
}

#[test]
fn each_endpoint_of_the_peer_is_a_connection() {
    let mut it = Pair::new();
    it.rules().listen(&wanted("gate", None)).unwrap();
    assert!(it.rules().listen(&wanted("gate", None)).unwrap_err().contains("already in use"));
    assert!(it.rules().obstacle(&wanted("gate", None).name, true).is_some());
    let (a, b) = (it.hunt(b"a", b"gate"), it.hunt(b"b", b"gate"));
    it.send_from_peer(a, 5, b"hello");
    it.send_from_peer(a, 6, b"");
    it.send_from_peer(b, 7, &[9; 3000]);
    it.run();
    let events = it.events();
    let opened: Vec<u32> = events
        .iter()
        .filter_map(|event| match event {
            Event::Opened(key, Over::Linx) => Some(*key),
            _ => None,
        })
        .collect();
    let [first, second] = opened[..] else { panic!("{events:?}") };
    assert_eq!(it.read(first), b"\0\0\0\x05hello");
    assert_eq!(it.read(first), b"\0\0\0\x06");
    assert_eq!(it.rules().message(first), Ok(None));
    assert_eq!(it.read(second)[..6], [0, 0, 0, 7, 9, 9]);
    // A third is one too many.
    let c = it.hunt(b"c", b"gate");
    it.send_from_peer(c, 8, b"x");
    it.run();
    assert_eq!(it.events(), [Event::Refused(1)]);
    // An answer goes to the endpoint of its connection.
    assert_eq!(it.rules().write(second, b"\0\0\0\x01yes"), Ok(7));
    assert_eq!(it.rules().write(second, b"\0\0\0"), Err(Unwritten::Length));
    assert_eq!(it.rules().write(second, &[0; 4097]), Err(Unwritten::Length));
    it.run();
    let signal = it.nodes[1].next_signal(b.0).expect("an answer");
    assert_eq!((signal.number, signal.len()), (1, 3));
    assert!(matches!(signal.from, Origin::Peer(peer) if peer == b.1));
    it.nodes[1].release(signal);
    // A closed endpoint ends its connection after its last signal.
    it.send_from_peer(a, 9, b"last");
    it.nodes[1].close(a.0, it.now);
    it.run();
    assert_eq!(it.read(first), b"\0\0\0\x09last");
    assert_eq!(it.rules().message(first), Err(Closed::Finished));
    assert_eq!(it.rules().reason(first), Reason::PeerGone);
    assert!(matches!(it.rules().write(first, b"\0\0\0\x01"), Err(Unwritten::Ended(_))));
    assert_eq!(it.rules().close(first, false), 0);
    // The closed connection has made room for another.
    it.send_from_peer(c, 8, b"x");
    it.run();
    assert!(it.events().iter().any(|event| matches!(event, Event::Opened(..))));
    it.rules().unlisten(OWNER);
    assert!(it.events().is_empty());
    it.run();
    assert!(it.peer_events.iter().any(|event| matches!(event, ::linx::Event::Gone(_))));
}

#[test]
fn connecting_endpoint_hunts_and_reports_link_down() {
    let mut it = Pair::new();
    let key = it.rules().connect(&wanted("cli", Some(40))).unwrap();
    it.run();
    assert!(it.events().is_empty(), "no endpoint has that name");
    let cli = it.nodes[1].open(b"cli", it.now).unwrap();
    it.run();
    assert_eq!(it.events(), [Event::Opened(key, Over::Linx)]);
    assert_eq!(it.rules().write(key, b"question"), Ok(8));
    it.run();
    let signal = it.nodes[1].next_signal(cli).expect("a question");
    assert_eq!((signal.number, signal.len()), (40, 8));
    let Origin::Peer(to) = signal.from else { panic!("{signal:?}") };
    it.nodes[1].release(signal);
    it.send_from_peer((cli, to), 41, b"of another number");
    it.send_from_peer((cli, to), 40, b"answer");
    it.send_from_peer((cli, to), 40, b"unread");
    it.run();
    assert_eq!(it.ends.counters.other_numbers, 1);
    assert_eq!(it.read(key), b"answer");
    it.cut();
    it.run();
    assert_eq!(it.read(key), b"unread");
    assert_eq!(it.rules().message(key), Err(Closed::Gone));
    assert_eq!(it.rules().reason(key), Reason::LinkDown);
    it.rules().close(key, true);
    // A connection that is closed with unread signals.
    let key = it.rules().connect(&wanted("cli", Some(40))).unwrap();
    it.run();
    assert_eq!(it.rules().write(key, b"question"), Ok(8));
    it.run();
    let signal = it.nodes[1].next_signal(cli).expect("a question");
    let Origin::Peer(to) = signal.from else { panic!("{signal:?}") };
    it.nodes[1].release(signal);
    it.send_from_peer((cli, to), 40, b"one");
    it.send_from_peer((cli, to), 40, b"two");
    it.run();
    assert_eq!(it.rules().close(key, true), 2);
    it.run();
    assert!(
        it.peer_events
            .iter()
            .any(|event| matches!(event, ::linx::Event::Gone(peer) if *peer == to))
    );
}

#[test]
fn full_link_wakes_all_waiting_connections() {
    let mut it = Pair::new();
    let cli = it.nodes[1].open(b"cli", it.now).unwrap();
    let keys = [0, 1].map(|_| it.rules().connect(&wanted("cli", Some(1))).unwrap());
    it.run();
    it.events();
    for key in keys {
        while it.rules().write(key, &[7; 4000]).is_ok() {}
        assert_eq!(it.rules().write(key, &[7; 4000]), Err(Unwritten::Full));
        assert_eq!(it.rules().room(key), 0);
    }
    it.run();
    let events = it.events();
    for key in keys {
        assert!(events.contains(&Event::Ready(key)), "{events:?}");
        assert!(it.rules().room(key) > 0 && it.rules().write(key, b"more").is_ok());
    }
    it.run();
    let count = core::iter::from_fn(|| it.nodes[1].next_signal(cli)).count();
    assert!(count >= 5, "{count}");
}

/// The node has no link of that name for a while, because the former one still closes its connection.
#[test]
fn listener_follows_a_link_that_was_absent_meanwhile() {
    let memory = drivers::hal::Arena::on_heap(2 << 20).alloc(1 << 20, 4096).unwrap();
    let mut other = Node::new(Config::default(), memory, 3);
    let tcp = TcpConfig {
        max_message: 4096,
        receive_bytes: 64 << 10,
        send_bytes: 16 << 10,
        sends: 8,
        ..TcpConfig::default()
    };
    let ids = ["a", "b"].map(|name| {
        other.add_link(&LinkConfig::new(name, Transport::Tcp(tcp)), Instant::ZERO).unwrap()
    });
    let mut it = Pair::new();
    let far = |id| vec![LinkEnd { name: "far".into(), id, max_message: 4096 }];
    let now = it.links[0];
    it.ends.set_links(far(ids[1]));
    it.rules().listen(&wanted("gate", None)).unwrap();
    it.ends.set_links(Vec::new());
    it.ends.set_links(far(now));
    let a = it.hunt(b"a", b"gate");
    it.send_from_peer(a, 5, b"hello");
    it.run();
    assert!(it.events().iter().any(|event| matches!(event, Event::Opened(..))));
    assert_eq!(it.ends.counters.strangers, 0);
}
