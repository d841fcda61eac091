//! Forged segments with guessed sequence numbers, and standstills of the machine.

use super::*;
use crate::testing::{arp_request, sent, tcp, with_address};
use std::vec::Vec;

const PORT: u16 = 7;
const LIMITS: Limits = Limits { connections: 40, receive: 512, transmit: 512 };
const FIN_ACK: u8 = ACK | segment::FIN;

struct World {
    interface: crate::Interface,
    owner: Owner,
    now: Instant,
}

/// A connection opened by the peer: its port, our name for it, and our next number. The peer's next number is 101.
#[derive(Clone, Copy)]
struct Opened {
    port: u16,
    name: Name,
    ours: u32,
}

fn ends(port: u16) -> Ends {
    let (remote, local) = ([10, 0, 0, 2].into(), [10, 0, 0, 1].into());
    Ends { local_port: PORT, remote_port: port, remote, local }
}

impl World {
    fn new() -> Self {
        let mut interface = with_address();
        let owner = interface.connections().open_owner(LIMITS);
        interface.connections().listen(PORT, owner);
        let mut world = World { interface, owner, now: Instant::ZERO };
        world.interface.handle_frame(&arp_request(), world.now);
        world.pass(2000);
        world
    }

    /// Lets time pass, and returns the segments sent: flags, sequence number, acknowledgement.
    fn pass(&mut self, millis: u64) -> Vec<(u8, u32, u32)> {
        self.now = self.now + Duration::from_millis(millis);
        sent(&mut self.interface, self.now)
    }

    /// As [`World::pass`], in steps of 100 ms, with a peer that answers ARP.
    fn pass_with_peer(&mut self, seconds: u64) -> Vec<(u8, u32, u32)> {
        let mut all = Vec::new();
        for _ in 0..10 * seconds {
            all.extend(self.pass(100));
            self.interface.handle_frame(&arp_request(), self.now);
        }
        all
    }

    fn arrive(&mut self, of: Opened, flags: u8, sequence: u32, data: &[u8]) {
        let frame = tcp(ends(of.port), flags, sequence, of.ours, &[], data);
        self.interface.handle_frame(&frame, self.now);
    }

    fn open(&mut self, port: u16) -> Opened {
        let mss = [2, 4, 5, 0xb4];
        self.interface.handle_frame(&tcp(ends(port), SYN, 100, 0, &mss, &[]), self.now);
        let answer = sent(&mut self.interface, self.now);
        let [(0x12, number, 101)] = answer[..] else { panic!("{answer:?}") };
        let ours = number.wrapping_add(1);
        self.interface.handle_frame(&tcp(ends(port), ACK, 101, ours, &[], &[]), self.now);
        let name = self.interface.connections().accept(self.owner).unwrap();
        assert_eq!(self.pass(0), []);
        Opened { port, name, ours }
    }

    fn state(&self, of: Opened) -> State {
        self.interface.tcp().socket(of.name).map_or(State::Closed, tcp::Socket::state)
    }
}

#[test]
fn rst_in_the_window_is_answered_and_ends_nothing() {
    let mut world = World::new();
    let opened = world.open(4000);
    world.arrive(opened, RST, 201, &[]);
    assert_eq!(world.pass(0), [(ACK, opened.ours, 101)]);
    assert_eq!(world.state(opened), State::Established);
    // Not in the window of 512 bytes.
    for sequence in [5000, 101 + 512, 100, 0] {
        world.arrive(opened, RST, sequence, &[]);
        world.arrive(opened, RST | ACK, sequence, &[]);
        assert_eq!(world.pass(0), []);
    }
    world.arrive(opened, ACK, 101, b"still there");
    assert_eq!(world.pass(20), [(ACK, opened.ours, 112)]);
    world.arrive(opened, RST, 101, &[]);
    assert_eq!(world.state(opened), State::Established, "an old number");
    // The expected number also advances by data that we have not acknowledged yet.
    world.arrive(opened, ACK, 112, b"more");
    world.arrive(opened, RST, 116, &[]);
    assert_eq!(world.state(opened), State::Closed);
}

#[test]
fn rst_after_a_fin_has_the_number_behind_it() {
    let mut world = World::new();
    let opened = world.open(4000);
    world.arrive(opened, FIN_ACK, 101, b"end");
    world.arrive(opened, RST, 104, &[]);
    assert_eq!(world.state(opened), State::CloseWait);
    world.arrive(opened, RST, 105, &[]);
    assert_eq!(world.state(opened), State::Closed);
}

#[test]
fn syn_on_an_open_connection_is_answered_and_ends_nothing() {
    let mut world = World::new();
    let opened = world.open(4000);
    for (flags, sequence) in [(SYN, 101), (SYN, 77_777), (SYN | ACK, 150)] {
        world.arrive(opened, flags, sequence, &[]);
        assert_eq!(world.pass(0), [(ACK, opened.ours, 101)]);
    }
    world.arrive(opened, ACK, 101, b"still there");
    assert_eq!(world.pass(20), [(ACK, opened.ours, 112)]);
}

/// A client that restarted connects again from the same port: the challenge ACK shows it the number for its reset.
#[test]
fn client_that_restarted_gets_through() {
    let mut world = World::new();
    let opened = world.open(4000);
    world.arrive(opened, SYN, 900_000, &[]);
    let [(ACK, _, number)] = world.pass(0)[..] else { panic!() };
    world.arrive(opened, RST, number, &[]);
    assert_eq!(world.state(opened), State::Closed);
    world.interface.connections().release(opened.name, false, world.now);
    world.pass(0);
    world.open(4000);
}

#[test]
fn ack_of_unsent_data_is_answered_and_frees_nothing() {
    let mut world = World::new();
    let opened = world.open(4000);
    let socket = world.interface.connections().socket_mut(opened.name).unwrap();
    socket.send_slice(&[7; 100]).unwrap();
    // An ACK of data that is not sent yet.
    let early = Opened { ours: opened.ours.wrapping_add(50), ..opened };
    world.arrive(early, ACK, 101, &[]);
    let socket = world.interface.connections().socket_mut(opened.name).unwrap();
    assert_eq!(socket.send_queue(), 100);
}

#[test]
fn answers_to_forged_segments_are_limited() {
    let mut world = World::new();
    let opened = world.open(4000);
    let mut answers = 0;
    for _ in 0..1000 {
        world.arrive(opened, RST, 201, &[]);
        answers += world.pass(2).len();
    }
    assert!((2..=9).contains(&answers), "{answers} of a connection in two seconds");
    let many: Vec<Opened> = (0..30).map(|n| world.open(5000 + n)).collect();
    let mut answers = 0;
    for n in 0..3000 {
        world.arrive(many[n % 30], RST, 201, &[]);
        answers += world.pass(u64::from(n % 3 == 0)).len();
    }
    assert!((24..=96).contains(&answers), "{answers} of all in a second");
    assert!(many.iter().all(|&opened| world.state(opened) == State::Established));
}

/// The machine is stopped for more than a minute, or for hours.
#[test]
fn standstill_ends_no_connection_with_a_peer_that_answers() {
    for (before, standstill) in [(1, 75), (19, 75), (1, 7200), (30, 58), (0, 61)] {
        let mut world = World::new();
        let opened = world.open(4000);
        let mut open = world.pass_with_peer(before);
        world.now = world.now + Duration::from_secs(standstill);
        open.extend(world.pass(0));
        // The peer answers the keep-alive; earlier ones are lost.
        assert!(open.iter().all(|(flags, ..)| flags & RST == 0), "{before} {standstill} {open:?}");
        assert!(open.contains(&(ACK, opened.ours.wrapping_sub(1), 101)), "{open:?}");
        world.pass(20);
        world.arrive(opened, ACK, 101, &[]);
        let later = world.pass_with_peer(15);
        assert!(later.iter().all(|(flags, ..)| flags & RST == 0));
        world.arrive(opened, ACK, 101, b"second line");
        assert_eq!(world.state(opened), State::Established);
        assert_eq!(world.pass(20).last(), Some(&(ACK, opened.ours, 112)));
    }
}

#[test]
fn vanished_peer_is_given_up_within_about_a_minute() {
    for standstill in [0, 75, 7200] {
        for port in 4000..4020 {
            let mut world = World::new();
            world.open(port - 1);
            let opened = world.open(port);
            world.pass_with_peer(1);
            world.now = world.now + Duration::from_secs(standstill);
            let since = world.now;
            while world.state(opened) != State::Closed {
                world.pass_with_peer(1);
                assert!(world.now.since(since) <= Duration::from_secs(66));
            }
            assert!(world.now.since(since) >= Duration::from_secs(20), "probed first");
        }
    }
}

/// Data sent before the standstill was not acknowledged.
#[test]
fn standstill_with_data_in_flight_ends_nothing() {
    let mut world = World::new();
    let opened = world.open(4000);
    let socket = world.interface.connections().socket_mut(opened.name).unwrap();
    socket.send_slice(b"a line").unwrap();
    for _ in 0..30 {
        world.pass_with_peer(1);
    }
    world.now = world.now + Duration::from_secs(75);
    assert!(world.pass(0).iter().all(|(flags, ..)| flags & RST == 0));
    let after = Opened { ours: opened.ours.wrapping_add(6), ..opened };
    world.arrive(after, ACK, 101, &[]);
    assert!(world.pass_with_peer(10).iter().all(|(flags, ..)| flags & RST == 0));
    assert_eq!(world.state(opened), State::Established);
}

/// The user has closed the connection, and the peer has not acknowledged all data yet.
#[test]
fn standstill_loses_nothing_of_a_connection_that_is_closing() {
    let mut world = World::new();
    let opened = world.open(4000);
    let socket = world.interface.connections().socket_mut(opened.name).unwrap();
    socket.send_slice(b"last words").unwrap();
    world.interface.connections().release(opened.name, false, world.now);
    world.pass_with_peer(2);
    world.now = world.now + Duration::from_secs(75);
    let sent = world.pass(0);
    assert!(sent.iter().all(|(flags, ..)| flags & RST == 0), "{sent:?}");
    assert!(sent.iter().any(|(_, sequence, _)| *sequence == opened.ours), "sent again: {sent:?}");
}
