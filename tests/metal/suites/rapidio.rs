//! RapidIO from enumeration to channels, over the driver of the Tsi721 on its model: several machines on one network,
//! in one process.

use drivers::hal::{Instant, Packet, Platform, Port, TransmitError};
use drivers::rapidio::{Doorbell, IdSize};
use drivers::registry::Class;
use metal::Metal;
use models::rapidio::{Answer, Board, End, Network, Shared, Topology};
use models::tsi721::{Config, Tsi721};
use rapidio::end_point::{self, EndPoint};
use rapidio::enumeration::{Event, Master, Role, State};
use rapidio::rio_cm::{self, Engine, HEADER, Peer};
use rapidio::rionet::{self, Members, Rionet, SharedPort};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Three machines at two switches.
const ROW: &str = "A=s0.0,B=s0.3,s0.4=s1.3,C=s1.2";
const TURN: Duration = Duration::from_micros(50);

struct Node {
    machine: Metal<Tsi721>,
    port: SharedPort,
    master: Master,
    rionet: Rionet,
    members: Members,
    channels: Engine,
    now: Instant,
}

fn network(topology: &str) -> Shared {
    let topology: Topology = topology.parse().unwrap();
    let network = Network::new(&topology, topology.endpoints, |_| Board::new(Answer::Take, 0));
    Arc::new(Mutex::new(network))
}

impl Node {
    fn new(network: &Shared, me: usize, role: Role, size: IdSize) -> Node {
        let model = Tsi721::new(Config::default(), network.clone(), me);
        let mut machine = Metal::new(model, 8 << 20);
        let device = machine.find().take(Class::RapidIo).remove(0);
        let mut port = device.open_rapidio(&mut machine).unwrap();
        if size == IdSize::Large {
            // How wide ids are is configured; the id itself is the host's to give.
            port.set_own_id(size, size.any());
        }
        for mailbox in [rionet::MAILBOX, rio_cm::MAILBOX] {
            assert!(port.open_mailbox(mailbox, machine.arena()));
        }
        let port: SharedPort = Rc::new(RefCell::new(port));
        let (rionet, members) = rionet::open(&port);
        Node {
            machine,
            master: Master::new(role, size),
            rionet,
            members,
            channels: Engine::new(size.any(), rio_cm::MAILBOX),
            port,
            now: Instant::ZERO,
        }
    }

    /// A turn of the loop.
    fn turn(&mut self) {
        self.port.borrow_mut().flush();
        self.machine.run();
        self.now = self.machine.pass(TURN);
        self.port.borrow_mut().poll(self.now);
        self.master.poll(&mut *self.port.borrow_mut(), self.now);
        while let Some(event) = self.master.event() {
            if event == Event::Changed {
                let network = self.master.network();
                self.members.set_network(network);
                self.channels.set_own_id(network.own_id);
                let gone = |id| !network.end_points().any(|device| device.id == id);
                self.channels.devices_gone(gone);
            }
        }
        while let Some(doorbell) = { self.port.borrow_mut().doorbell() } {
            assert!(self.members.on_doorbell(&doorbell));
        }
        while let Some(lost) = { self.port.borrow_mut().undelivered() } {
            if lost.mailbox == rionet::MAILBOX {
                self.members.undelivered(&lost);
            }
        }
        self.members.poll(self.now);
        while let Some(message) = { self.port.borrow_mut().receive(rio_cm::MAILBOX) } {
            let mut bytes = vec![0; message.len.into()];
            self.port.borrow().payload(&message).read(0, &mut bytes).unwrap();
            self.channels.deliver(message.from, &bytes, self.now);
            self.port.borrow_mut().recycle(message);
        }
        while let Some((to, header)) = self.channels.outgoing() {
            let packet = Packet { header: &header, payload: &[], trailer: &[] };
            if self.port.borrow_mut().send(rio_cm::MAILBOX, to, &packet).is_err() {
                break;
            }
            self.channels.was_sent();
        }
        self.channels.poll(self.now);
    }

    fn id(&self) -> u16 {
        self.master.network().own_id
    }

    fn frame(&self, to: [u8; 6], len: usize) -> Vec<u8> {
        let mut frame = [&to[..], &self.rionet.mac(), &[0x08, 0x00]].concat();
        frame.extend((14..len).map(|n| (n * 7) as u8));
        frame
    }

    fn transmit(&mut self, frame: &[u8]) -> Result<(), TransmitError> {
        self.rionet.transmit(&Packet { header: frame, payload: &[], trailer: &[] })
    }

    fn frames(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while let Some(frame) = self.rionet.receive() {
            all.push(self.rionet.bytes(&frame).to_vec());
            self.rionet.recycle(frame);
        }
        all
    }

    fn say(&mut self, channel: u16, bytes: &[u8]) {
        let (to, header) = self.channels.header(channel, bytes.len()).unwrap();
        assert_eq!(header.len(), HEADER);
        let packet = Packet { header: &[&header[..], bytes].concat(), payload: &[], trailer: &[] };
        self.port.borrow_mut().send(rio_cm::MAILBOX, to, &packet).unwrap();
    }
}

fn turns(nodes: &mut [Node], count: usize) {
    for _ in 0..count {
        nodes.iter_mut().for_each(Node::turn);
    }
}

/// All are enumerated and have joined.
fn lab(topology: &str, size: IdSize) -> (Shared, Vec<Node>) {
    let network = network(topology);
    let count = network.lock().unwrap().endpoints();
    let role = |n| if n == 0 { Role::Host(1) } else { Role::Agent };
    let mut nodes: Vec<Node> = (0..count).map(|n| Node::new(&network, n, role(n), size)).collect();
    until(&mut nodes, |nodes| {
        let active = |node: &Node| {
            let others = nodes.iter().map(Node::id).filter(|id| *id != node.id());
            others.clone().count() == count - 1
                && others.clone().all(|id| node.members.is_active(id))
        };
        nodes.iter().all(|node| node.master.state() == State::Ready && active(node))
    });
    (network, nodes)
}

fn until(nodes: &mut [Node], is: impl Fn(&[Node]) -> bool) {
    for _ in 0..400_000 {
        if is(nodes) {
            return;
        }
        turns(nodes, 1);
    }
    let states: Vec<State> = nodes.iter().map(|node| node.master.state()).collect();
    panic!("it does not come to that: {states:?}");
}

#[test]
fn frames_of_all_sizes_and_broadcasts_cross_two_switches() {
    for size in [IdSize::Small, IdSize::Large] {
        let (_, mut nodes) = lab(ROW, size);
        assert_eq!(nodes.iter().map(Node::id).collect::<Vec<_>>(), [1, 0, 2]);
        assert_eq!(nodes[2].rionet.mac(), [0, 1, 0, 1, 0, 2]);
        assert_eq!(nodes[0].rionet.mtu(), 4082);
        for len in (14..100).chain([1514, 4088, 4089, 4096]) {
            for (from, to) in [(0, 2), (2, 0), (1, 2)] {
                let mac = nodes[to].rionet.mac();
                let mut frame = nodes[from].frame(mac, len);
                nodes[from].transmit(&frame).unwrap();
                turns(&mut nodes, 3);
                frame.resize(len.next_multiple_of(8), 0);
                assert_eq!(nodes[to].frames(), [frame], "{len} from {from} to {to}");
            }
        }
        let long = nodes[0].frame([0, 1, 0, 1, 0, 2], 4097);
        assert_eq!(nodes[0].transmit(&long), Err(TransmitError::TooLarge));
        let all = nodes[0].frame([0xff; 6], 64);
        nodes[0].transmit(&all).unwrap();
        // Nobody has these addresses.
        for mac in [[0, 1, 0, 1, 0, 77], [2, 0, 0, 0, 0, 1]] {
            let frame = nodes[0].frame(mac, 64);
            nodes[0].transmit(&frame).unwrap();
        }
        turns(&mut nodes, 3);
        assert_eq!(nodes[1].frames(), std::slice::from_ref(&all));
        assert_eq!(nodes[2].frames(), [all]);
        assert_eq!(nodes[0].members.counters().tx_unknown, 2);
    }
}

#[test]
fn a_broadcast_goes_to_more_peers_than_a_mailbox_holds() {
    let (_, mut nodes) = lab("A=s0.0,B=s0.1", IdSize::Small);
    let mut network = nodes[0].master.network().clone();
    let one = network.end_points().next().unwrap().clone();
    // Nobody has these ids, so that each message is told to be undelivered, to whom.
    network.devices = (10..210)
        .map(|id| {
            let mut device = one.clone();
            device.id = id;
            device
        })
        .collect();
    let node = &mut nodes[0];
    node.members.set_network(&network);
    for id in 10..210 {
        let to = node.id();
        assert!(node.members.on_doorbell(&Doorbell { from: id, to, info: rionet::JOIN }));
    }
    assert_eq!(node.members.active_count(), 200);
    let all = node.frame([0xff; 6], 64);
    let mut lost = Vec::new();
    for round in 1..=2 {
        assert!(node.rionet.has_room());
        node.transmit(&all).unwrap();
        assert!(!node.rionet.has_room() && node.transmit(&all) == Err(TransmitError::Full));
        for _ in 0..60_000 {
            node.rionet.flush();
            node.machine.run();
            node.now = node.machine.pass(TURN);
            node.port.borrow_mut().poll(node.now);
            while let Some(undelivered) = { node.port.borrow_mut().undelivered() } {
                lost.push(undelivered.to);
            }
            if lost.len() == round * 200 {
                break;
            }
        }
        assert!(node.rionet.has_room(), "it has ended");
    }
    assert_eq!(lost, (10..210).chain(10..210).collect::<Vec<u16>>());
    assert_eq!(node.rionet.counters().tx_frames, 2);
}

#[test]
fn a_burst_is_taken_as_far_as_there_is_room_and_loses_nothing() {
    let (_, mut nodes) = lab("A=B", IdSize::Small);
    let (mut sent, mut seen) = (0u32, 0u32);
    let mut refused = 0;
    while seen < 3000 {
        for _ in 0..50 {
            let mut frame = nodes[0].frame([0, 1, 0, 1, 0, 0], 64);
            frame[14..18].copy_from_slice(&sent.to_be_bytes());
            if sent == 3000 {
                break;
            }
            match nodes[0].transmit(&frame) {
                Ok(()) => sent += 1,
                Err(_) => {
                    refused += 1;
                    break;
                }
            }
        }
        turns(&mut nodes, 1);
        for frame in nodes[1].frames() {
            assert_eq!(frame[14..18], seen.to_be_bytes());
            seen += 1;
        }
    }
    assert!(refused > 0);
    assert_eq!(nodes[0].rionet.counters().tx_frames, 3000);
}

#[test]
fn who_leaves_gets_no_more_frames_until_it_joins_again() {
    let (_, mut nodes) = lab("A=B", IdSize::Small);
    nodes[1].members.leave();
    turns(&mut nodes, 10);
    assert!(!nodes[0].members.is_active(0));
    let frame = nodes[0].frame([0, 1, 0, 1, 0, 0], 64);
    nodes[0].transmit(&frame).unwrap();
    turns(&mut nodes, 10);
    assert!(nodes[1].frames().is_empty());
    // Whoever is missing is asked, and answers.
    until(&mut nodes, |nodes| nodes[0].members.is_active(0));
}

#[test]
fn a_hundred_channels_echo_both_ways() {
    let (_, mut nodes) = lab(ROW, IdSize::Small);
    nodes[2].channels.listen(10).unwrap();
    let now = nodes[0].now;
    let peer = Peer { device: nodes[2].id(), channel: 10 };
    let mut mine = Vec::new();
    let mut theirs = Vec::new();
    for _ in 0..100 {
        let channel = nodes[0].channels.connect(peer, now).unwrap();
        mine.push(channel);
        turns(&mut nodes, 4);
        let now = nodes[2].now;
        theirs.push(nodes[2].channels.accept(10, now).unwrap().unwrap().0);
        turns(&mut nodes, 4);
        assert!(nodes[0].channels.peer(channel).unwrap().is_some());
    }
    for len in [0, 1, 4, 100, 4000, 4076] {
        for n in 0..100 {
            let bytes: Vec<u8> = (0..len).map(|at| (at + n) as u8).collect();
            nodes[0].say(mine[n], &bytes);
            turns(&mut nodes, 3);
            let there = nodes[2].channels.receive(theirs[n], <[u8]>::to_vec).unwrap();
            assert_eq!(there.as_ref(), Some(&bytes));
            nodes[2].say(theirs[n], &bytes);
            turns(&mut nodes, 3);
            let back = nodes[0].channels.receive(mine[n], <[u8]>::to_vec).unwrap();
            assert_eq!(back, Some(bytes));
        }
    }
    for channel in mine {
        nodes[0].channels.close(channel);
    }
    turns(&mut nodes, 300);
    for channel in theirs {
        assert_eq!(nodes[2].channels.peer(channel), Err(rio_cm::Error::ClosedByPeer));
    }
}

#[test]
fn a_cable_is_pulled_fifty_times_under_load_and_others_do_not_notice() {
    let (network, mut nodes) = lab(ROW, IdSize::Small);
    let mut between_others = 0u32;
    for round in 0..50 {
        for cut in [true, false] {
            network.lock().unwrap().cut(End::Endpoint(2), cut);
            for _ in 0..40 {
                for to in [0, 2] {
                    // A's frames to B go on; those to C may be lost.
                    let frame = nodes[0].frame([0, 1, 0, 1, 0, to], 512);
                    nodes[0].transmit(&frame).unwrap();
                }
                turns(&mut nodes, 10);
                between_others += nodes[1].frames().len() as u32;
                nodes[2].frames();
            }
            let here = if cut { 1 } else { 2 };
            until(&mut nodes, |nodes| {
                nodes[0].master.network().end_points().count() == here
                    && (cut || nodes[2].master.state() == State::Ready)
            });
            between_others += nodes[1].frames().len() as u32;
        }
        assert_eq!(nodes[0].id(), 1, "{round}");
        until(&mut nodes, |nodes| nodes[0].members.is_active(2) && nodes[2].members.is_active(1));
        between_others += nodes[1].frames().len() as u32;
    }
    turns(&mut nodes, 100);
    between_others += nodes[1].frames().len() as u32;
    assert_eq!(between_others, 50 * 2 * 40, "none of B's frames is lost");
    let complaints = nodes[0].machine.model(|model| model.complaints.clone());
    assert!(complaints.is_empty(), "{complaints:?}");
}

/// A machine whose end point has an echo service.
struct Echoing {
    machine: Metal<Tsi721>,
    end_point: EndPoint,
    rionet: Rionet,
}

impl Echoing {
    fn new(network: &Shared, me: usize, settings: Config) -> Echoing {
        let mut machine = Metal::new(Tsi721::new(settings, network.clone(), me), 8 << 20);
        let port =
            machine.find().take(Class::RapidIo).remove(0).open_rapidio(&mut machine).unwrap();
        let config = end_point::Config { role: Role::Agent, size: IdSize::Small, echo: Some(ECHO) };
        let (end_point, rionet) = EndPoint::new(port, config, machine.arena()).unwrap();
        Echoing { machine, end_point, rionet }
    }

    fn turn(&mut self) {
        self.rionet.flush();
        self.machine.run();
        let now = self.machine.pass(TURN);
        self.end_point.poll(now, |_, _| {});
    }
}

const ECHO: u16 = 10;

#[test]
fn an_end_point_says_back_what_is_said_also_to_who_does_not_listen_at_once() {
    const MESSAGES: usize = 60;
    let network = network("A=B");
    let mut node = [Node::new(&network, 0, Role::Host(1), IdSize::Small)];
    let mut echoing = Echoing::new(&network, 1, Config::default());
    let turns = |node: &mut [Node; 1], echoing: &mut Echoing, count: usize| {
        for _ in 0..count {
            node[0].turn();
            echoing.turn();
        }
    };
    while !(node[0].master.state() == State::Ready && echoing.rionet.link_up()) {
        turns(&mut node, &mut echoing, 1);
    }
    assert_eq!(echoing.rionet.mac(), [0, 1, 0, 1, 0, 0]);
    let peer = Peer { device: 0, channel: ECHO };
    let now = node[0].now;
    // Two of them have credits.
    let channels = [false, false, true, true].map(|offers| {
        let engine = &mut node[0].channels;
        if offers { engine.connect_offering(peer, now) } else { engine.connect(peer, now) }.unwrap()
    });
    turns(&mut node, &mut echoing, 10);
    let bytes = |channel: u16, n: usize| vec![(usize::from(channel) + n) as u8; 17 * n];
    // More than an outbound mailbox holds, and nothing is read meanwhile, unless there is no credit without that.
    let mut back = [0; 4];
    let mut read = |node: &mut [Node; 1], at: usize| {
        while let Some(said) = node[0].channels.receive(channels[at], <[u8]>::to_vec).unwrap() {
            assert_eq!(said, bytes(channels[at], back[at]), "{} of {at}", back[at]);
            back[at] += 1;
        }
        back[at]
    };
    for n in 0..MESSAGES {
        for (at, channel) in channels.into_iter().enumerate() {
            while !node[0].port.borrow().has_room(rio_cm::MAILBOX, 1) {
                turns(&mut node, &mut echoing, 1);
            }
            while !node[0].channels.has_credit(channel) {
                read(&mut node, at);
                turns(&mut node, &mut echoing, 1);
            }
            node[0].say(channel, &bytes(channel, n));
        }
    }
    let mut waited = 0;
    while (0..4).map(|at| read(&mut node, at)).sum::<usize>() < 4 * MESSAGES {
        turns(&mut node, &mut echoing, 1);
        waited += 1;
        assert!(waited < 5000, "not all of it comes back");
    }
    channels.into_iter().for_each(|channel| node[0].channels.close(channel));
    assert_eq!(echoing.end_point.echoed(), ((4 * MESSAGES) as u64, 4));
    turns(&mut node, &mut echoing, 100);
    assert_eq!(echoing.end_point.echoed().1, 0, "closed channels are forgotten");
}

/// Nor does it take more than a handful of accesses to registers, with either kind of interrupts.
#[test]
fn an_echo_ends_one_halt() {
    const ECHOES: u64 = 200;
    for (vectors, most) in [(true, 4), (false, 6)] {
        let network = network("A=B");
        let mut node = [Node::new(&network, 0, Role::Host(1), IdSize::Small)];
        let mut echoing = Echoing::new(&network, 1, Config { vectors, ..Config::default() });
        let turns = |node: &mut [Node; 1], echoing: &mut Echoing, count: usize| {
            for _ in 0..count {
                node[0].turn();
                echoing.turn();
            }
        };
        while !(node[0].master.state() == State::Ready && echoing.rionet.link_up()) {
            turns(&mut node, &mut echoing, 1);
        }
        let now = node[0].now;
        let peer = Peer { device: 0, channel: ECHO };
        let channel = node[0].channels.connect(peer, now).unwrap();
        turns(&mut node, &mut echoing, 200);
        // What was raised while nobody halted is over.
        echoing.rionet.set_interrupts(true);
        echoing.rionet.set_interrupts(false);
        let interrupts = |echoing: &Echoing| echoing.rionet.counters().interrupts;
        let before = (interrupts(&echoing), echoing.machine.accesses());
        for n in 0..ECHOES {
            echoing.rionet.set_interrupts(true);
            assert!(!echoing.rionet.pending(), "{n}");
            node[0].say(channel, &[n as u8; 1004]);
            node[0].turn();
            echoing.machine.run();
            assert_eq!(interrupts(&echoing) - before.0, n + 1);
            assert!(echoing.rionet.pending());
            echoing.rionet.set_interrupts(false);
            let now = echoing.machine.pass(Duration::from_micros(20));
            let polled = end_point::Polled { done: 1, leaves_work: false };
            assert_eq!(echoing.end_point.poll(now, |_, _| {}), polled);
            echoing.rionet.flush();
            echoing.machine.run();
            node[0].turn();
            // The answer has arrived, and nobody here is told.
            echoing.machine.run();
            let back = node[0].channels.receive(channel, <[u8]>::to_vec).unwrap();
            assert_eq!(back, Some(vec![n as u8; 1004]), "{n}");
        }
        assert_eq!(echoing.end_point.echoed().0, ECHOES);
        assert_eq!(interrupts(&echoing) - before.0, ECHOES);
        let accesses = (echoing.machine.accesses() - before.1) as f64 / ECHOES as f64;
        assert!(accesses <= f64::from(most), "{accesses} for an echo, vectors: {vectors}");
    }
}

/// What nobody waits for any more keeps no loop from halting: neither answers nor port-writes.
#[test]
fn an_end_point_can_rest_with_and_without_a_link() {
    let (network, mut nodes) = lab(ROW, IdSize::Small);
    for _ in 0..20 {
        for cut in [true, false] {
            network.lock().unwrap().cut(End::Endpoint(0), cut);
            let up =
                |state: State| if cut { state == State::NoLink } else { state == State::Ready };
            until(&mut nodes, |nodes| up(nodes[0].master.state()));
            turns(&mut nodes, 7);
            until(&mut nodes, |nodes| !nodes[0].port.borrow().pending());
            if cut {
                turns(&mut nodes, 1000);
                assert!(!nodes[0].port.borrow().pending());
            }
        }
    }
}
