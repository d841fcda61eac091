//! Links over TCP: connection setup, PING, faults and flow control.

use super::*;
use crate::wire::tcp::{Header, Kind};

/// Two nodes and the streams between them, which carry a few bytes at a time.
struct Streams {
    machines: [Machine; 2],
    /// Open streams: ids at both ends, and bytes under way to either end.
    open: Vec<([Option<StreamId>; 2], [Vec<u8>; 2])>,
    /// Whether SYNs arrive.
    connects: bool,
}

impl Streams {
    fn new() -> Streams {
        let machines = [0u64, 1].map(|side| {
            let mut machine = Machine::new(50 + side);
            let config = LinkConfig::new("tcp", Transport::Tcp(TcpConfig::default()));
            machine.links.push(machine.node.add_link(&config, machine.now).unwrap());
            machine
        });
        Streams { machines, open: Vec::new(), connects: true }
    }

    fn run(&mut self, millis: u64) {
        let end = self.machines[0].now + Duration::from_millis(millis);
        while self.machines[0].now < end {
            for side in 0..2 {
                let now = self.machines[side].now;
                self.machines[side].node.poll(now);
                self.orders(side);
                for (ids, under_way) in &mut self.open {
                    let Some(id) = ids[side] else { continue };
                    let machine = &mut self.machines[side];
                    let mut bytes = [0; 1000];
                    let length =
                        machine.node.stream_transmit(machine.links[0], id, &mut bytes, now);
                    under_way[1 - side].extend(&bytes[..length]);
                    let there = under_way[side].len().min(777);
                    let part = &under_way[side][..there];
                    let taken = machine.node.stream_receive(machine.links[0], id, part, now);
                    under_way[side].drain(..taken);
                }
                self.machines[side].events();
            }
            self.machines.iter_mut().for_each(|it| it.now = it.now + Duration::from_millis(5));
        }
    }

    fn orders(&mut self, side: usize) {
        let now = self.machines[side].now;
        while let Some((_, order)) = self.machines[side].node.next_stream_order() {
            match order {
                StreamOrder::Open(id) if self.connects => {
                    let link = self.machines[1 - side].links[0];
                    let there = self.machines[1 - side].node.stream_accepted(link, now);
                    let mut ids = [None; 2];
                    (ids[side], ids[1 - side]) = (Some(id), there);
                    self.open.push((ids, Default::default()));
                    let machine = &mut self.machines[side];
                    machine.node.stream_opened(machine.links[0], id, now);
                }
                StreamOrder::Open(id) => {
                    let machine = &mut self.machines[side];
                    machine.node.stream_closed(machine.links[0], id, now);
                }
                StreamOrder::Close(id) => {
                    let Some(at) = self.open.iter().position(|it| it.0[side] == Some(id)) else {
                        continue;
                    };
                    let (ids, _) = self.open.remove(at);
                    let machine = &mut self.machines[1 - side];
                    if let Some(id) = ids[1 - side] {
                        machine.node.stream_closed(machine.links[0], id, now);
                    }
                }
            }
        }
    }
}

/// Both ends open streams: random delays decide which end accepts the other's.
#[test]
fn nodes_connect_although_both_open_streams() {
    let mut it = Streams::new();
    it.run(60_000);
    for machine in &mut it.machines {
        assert_eq!(machine.phase(), Phase::Up);
        assert_eq!(machine.take_log(), ["tcp Up"]);
    }
    // The idle link stays up.
    it.run(60_000);
    assert!(it.machines.iter_mut().all(|machine| machine.take_log().is_empty()));
    // One node restarts without closing its stream: the other detects it, and they reconnect.
    let mut again = Machine::new(99);
    let config = LinkConfig::new("tcp", Transport::Tcp(TcpConfig::default()));
    (again.now, again.links) = (it.machines[1].now, Vec::new());
    again.links.push(again.node.add_link(&config, again.now).unwrap());
    it.machines[1] = again;
    it.open.iter_mut().for_each(|open| open.0[1] = None);
    it.run(90_000);
    assert_eq!(it.machines[0].take_log(), ["tcp Down", "tcp Up"]);
    assert_eq!(it.machines[1].take_log(), ["tcp Up"]);
}

#[test]
fn signals_of_all_sizes_arrive() {
    let mut it = Streams::new();
    it.run(60_000);
    let [a, b] = &mut it.machines;
    b.open("server");
    let client = a.open("client");
    a.hunt(client, "server");
    it.run(50);
    let mut expected = Vec::new();
    for size in [0, 1, 100, 1023, 1024, 4096, 60_000, 65_532] {
        let body: Vec<u8> = (0..size).map(|n| (n * 3 + size) as u8).collect();
        let [a, _] = &mut it.machines;
        a.node.send(Sender::Endpoint(client), a.found[0], size as u32, &body, a.now).unwrap();
        expected.push(body);
        it.run(2000);
    }
    let [a, b] = &mut it.machines;
    let received: Vec<Vec<u8>> = b.received.drain(..).map(|it| it.2).collect();
    assert!(received == expected);
    let long = a.node.send(Sender::Endpoint(client), a.found[0], 1, &[0; 65_533], a.now);
    assert_eq!(long, Err(SendError::TooLong));
    let window = memory(100);
    window.fill(3);
    a.node.send_windows(Sender::Endpoint(client), a.found[0], [window, window], 17, a.now).unwrap();
    it.run(50);
    assert_eq!(it.machines[0].take_log().last().unwrap(), "sent 17 true");
    assert_eq!(it.machines[1].received[0].2, [3; 196]);
}

#[test]
fn passive_end_answers_conn() {
    let mut machine = Machine::new(1);
    let config = LinkConfig::new("tcp", Transport::Tcp(TcpConfig::default()));
    let link = machine.node.add_link(&config, machine.now).unwrap();
    let Some((_, StreamOrder::Open(own))) = machine.node.next_stream_order() else { panic!() };
    // Its own attempt fails while the peer's stream is open.
    let stream = machine.node.stream_accepted(link, machine.now).unwrap();
    let conn = Header::new(Kind::Connect, 0, 0, 0).emit();
    assert_eq!(machine.node.stream_receive(link, stream, &conn, machine.now), 0, "not yet");
    machine.node.stream_closed(link, own, machine.now);
    assert_eq!(machine.node.stream_receive(link, stream, &conn, machine.now), 16);
    let mut out = [0; 100];
    let length = machine.node.stream_transmit(link, stream, &mut out, machine.now);
    assert_eq!(out[..16], conn);
    assert!(length > 32, "PING and INIT follow");
}

#[test]
fn wrong_versions_and_types_end_the_link() {
    // A second CONN ends the link.
    let mut it = ScriptedPeer::new(|_| ());
    let second = Header::new(Kind::Connect, 0, 0, 0).emit();
    it.receive(&second);
    let status = it.machine.node.link(it.link).unwrap();
    assert!(matches!(status.why, Some(Down::Fault(riocm::Fault::Stream(0x43)))), "{status:?}");
    it.connect();
    it.receive(&[9; 16]);
    let status = it.machine.node.link(it.link).unwrap();
    assert_eq!(status.why, Some(Down::Fault(riocm::Fault::Stream(9))));
    it.connect();
    it.receive(&Header::new(Kind::Data, 1, 1, 70_000).emit());
    let status = it.machine.node.link(it.link).unwrap();
    assert_eq!(status.why, Some(Down::Fault(riocm::Fault::TooLong(70_000))));
    it.connect();
    it.sent();
    it.receive(&Header::new(Kind::Ping, 0, 0, 0).emit());
    assert_eq!(it.sent(), ["PONG"]);
    it.receive(&Header::new(Kind::Pong, 0, 0, 0).emit());
    // No message for several seconds.
    for _ in 0..5 {
        it.machine.now = it.machine.now + Duration::from_secs(1);
        it.machine.node.poll(it.machine.now);
        it.sent();
    }
    assert_eq!(it.machine.node.link(it.link).unwrap().why, Some(Down::Silent));
}

/// A peer that sends faster than the user reads is stopped, and nothing is lost.
#[test]
fn full_inbox_stops_the_peer_without_loss() {
    let mut it = ScriptedPeer::up(|_| ());
    let server = it.machine.open("server");
    it.send(Message::Publish { address: 1, name: b"x" });
    it.send(Message::QueryName { hunter: 1, name: b"server" });
    it.sent();
    it.machine.reads = false;
    it.machine.node.config.inbox_bytes = usize::MAX;
    let mut one = Header::new(Kind::Data, 1, 1, 60_000).emit().to_vec();
    one.extend([7; 60_000]);
    let all = one.repeat(20);
    let mut taken = 0;
    while taken < all.len() {
        let now = it.receive(&all[taken..]);
        taken += now;
        if now == 0 {
            // A stopped peer does not count as silent.
            for _ in 0..4 {
                it.machine.now = it.machine.now + Duration::from_millis(600);
                it.machine.node.poll(it.machine.now);
                assert_eq!(it.receive(&all[taken..]), 0);
            }
            assert_eq!(it.machine.phase(), Phase::Up);
            let before = it.machine.received.len();
            it.machine.take(server);
            assert!(it.machine.received.len() > before, "stopped, but the inbox is empty");
        }
    }
    it.machine.take(server);
    assert_eq!(it.machine.received.len(), 20);
    assert!(it.machine.received.iter().all(|it| it.2 == [[7; 60_000].as_slice()].concat()[4..]));
}
