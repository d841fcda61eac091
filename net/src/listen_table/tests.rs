//! Handshakes of incoming connections: cookies, floods, and the destination of SYN-ACKs.

use super::{GUESS, GUESSES, MAX_STORED, RETRY};
use crate::Interface;
use crate::connections::{Limits, Owner};
use crate::segment::{ACK, Ends, RST, SYN, Segment};
use crate::testing::{OUR_MAC, PEER_MAC, arp_request, sent, tcp, with_address};
use core::time::Duration;
use drivers::hal::Instant;
use std::vec::Vec;

const PORT: u16 = 7;
const LIMITS: Limits = Limits { connections: 3, receive: 512, transmit: 512 };
const MSS: [u8; 4] = [2, 4, 5, 0xb4];

fn ends(from: u16, to: u16) -> Ends {
    let (remote, local) = ("10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap());
    Ends { local_port: to, remote_port: from, remote, local }
}

/// A listening interface that has a neighbour entry for 10.0.0.2.
fn listening() -> (Interface, Owner) {
    let mut interface = with_address();
    let owner = interface.connections().open_owner(LIMITS);
    interface.connections().listen(PORT, owner);
    interface.handle_frame(&arp_request(), Instant::ZERO);
    (interface, owner)
}

/// Destination MAC addresses of the segments that an interface sends.
fn destinations(interface: &mut Interface, now: Instant) -> Vec<[u8; 6]> {
    let mut port = netsim::Collector::new(usize::MAX);
    interface.poll(now);
    interface.transmit(&mut port, |_| ());
    let segments = port.frames.iter().filter(|frame| Segment::of(frame).is_some());
    segments.map(|frame| frame[..6].try_into().unwrap()).collect()
}

/// An ARP reply: 10.0.0.3 is at this MAC address.
fn reply(mac: [u8; 6]) -> Vec<u8> {
    let mut frame = [OUR_MAC, mac].concat();
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
    frame.extend([&mac[..], &[10, 0, 0, 3], &OUR_MAC, &[10, 0, 0, 1]].concat());
    frame
}

fn third(remote_port: u16) -> Ends {
    Ends { remote: "10.0.0.3".parse().unwrap(), ..ends(remote_port, PORT) }
}

/// Fills the store with handshakes of another host.
fn overflow(interface: &mut Interface, now: Instant) {
    for port in 0..=MAX_STORED as u16 {
        interface.handle_frame(&tcp(third(port + 1), SYN, 1, 0, &MSS, &[]), now);
    }
}

#[test]
fn answer_goes_to_the_station_of_the_neighbour_table_and_to_no_other() {
    let (mut interface, _) = listening();
    let now = Instant::ZERO;
    // Another station forges the source address of a known neighbour.
    let mut syn = tcp(ends(4000, PORT), SYN, 100, 0, &MSS, &[]);
    syn[6..12].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
    interface.handle_frame(&syn, now);
    assert_eq!(destinations(&mut interface, now), [PEER_MAC]);
    let refusal = interface.refusals().pop().expect("reported");
    let remote = ends(4000, PORT).remote;
    let label = (refusal.who, refusal.what, refusal.reason);
    assert_eq!(label, (Some(remote), "tcp_connection", "wrong_mac"));
    assert!(refusal.advice.contains("02:09:09:09:09:09"), "{}", refusal.advice);
    // Once a minute; others are counted.
    interface.handle_frame(&syn, now);
    assert!(interface.refusals().is_empty());
    assert!(interface.refusals().take_more().eq([("tcp_connection", "wrong_mac", 1)]));
    assert_eq!(interface.counters().foreign_syns, 2);
    assert_eq!(destinations(&mut interface, now), [PEER_MAC]);
    // It forges the address of an unknown neighbour: the SYN-ACK waits for resolution.
    let mut syn = tcp(third(4000), SYN, 100, 0, &MSS, &[]);
    syn[6..12].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
    interface.handle_frame(&syn, now);
    assert!(destinations(&mut interface, now).is_empty());
    assert!(destinations(&mut interface, now + RETRY / 2).is_empty());
    let station = [2, 0, 0, 0, 0, 3];
    interface.handle_frame(&reply(station), now + RETRY / 2);
    assert_eq!(destinations(&mut interface, now + RETRY / 2), [station]);
    assert_eq!(interface.refusals().pop().map(|refusal| refusal.who), Some(Some(third(1).remote)));
    assert_eq!(interface.counters().foreign_syns, 3);
    // The station of the neighbour table is not reported.
    interface.handle_frame(&tcp(ends(4001, PORT), SYN, 100, 0, &MSS, &[]), now);
    assert_eq!(destinations(&mut interface, now), [PEER_MAC]);
    assert_eq!((interface.refusals().is_empty(), interface.counters().foreign_syns), (true, 3));
}

#[test]
fn unstored_cookie_is_accepted_only_after_an_overflow() {
    for overflows in [false, true] {
        let (mut interface, owner) = listening();
        let mut now = Instant::ZERO;
        if overflows {
            overflow(&mut interface, now);
            sent(&mut interface, now);
        }
        interface.handle_frame(&tcp(ends(4000, PORT), SYN, 100, 0, &MSS, &[]), now);
        let number = sent(&mut interface, now).pop().unwrap().1;
        // The reset removes a stored handshake.
        interface.handle_frame(&tcp(ends(4000, PORT), RST, 101, 0, &[], &[]), now);
        now = now + Duration::from_secs(1);
        let ack = tcp(ends(4000, PORT), ACK, 101, number.wrapping_add(1), &[], b"hello");
        interface.handle_frame(&ack, now);
        assert_eq!(interface.connections().accept(owner).is_some(), overflows);
    }
}

/// Blind segments from an address that does not answer, a million a second, during a SYN flood. A wrong cookie passes
/// with the chance 2^-23, so the cookies that are checked open a connection in one of 2,000 attacks of 2^26 segments.
#[test]
fn blind_acknowledgements_open_nothing() {
    const SEGMENTS: u32 = 1 << 18;
    for overflows in [false, true] {
        let (mut interface, owner) = listening();
        let mut now = Instant::ZERO;
        if overflows {
            overflow(&mut interface, now);
            sent(&mut interface, now);
        }
        for n in 0..SEGMENTS {
            let guess = n.wrapping_mul(0x9e37_79b9);
            let blind = tcp(third(5000), ACK, 101, guess, &[], b"x");
            interface.handle_frame(&blind, now);
            now = now + Duration::from_micros(1);
            if n % 64 == 0 {
                sent(&mut interface, now);
            }
        }
        assert_eq!(interface.connections().accept(owner), None);
        let looked_at = GUESSES + (now.since(Instant::ZERO).as_nanos() / GUESS.as_nanos()) as u32;
        let chance = f64::from(looked_at) / f64::from(1 << 23);
        assert!(chance < 1.0 / 20_000.0, "{looked_at}");
        // Most of the others are counted.
        let guesses = interface.counters().cookie_guesses;
        assert_eq!(guesses > u64::from(SEGMENTS / 2), overflows, "{guesses}");
        assert_eq!(guesses == 0, !overflows);
    }
}

/// Completes a handshake from port `from`.
fn open(interface: &mut Interface, from: u16, now: Instant) {
    interface.handle_frame(&tcp(ends(from, PORT), SYN, 100, 0, &MSS, &[]), now);
    let answer = sent(interface, now);
    let [(0x12, number, 101)] = answer[..] else { panic!("{answer:?}") };
    let acknowledged = number.wrapping_add(1);
    interface.handle_frame(&tcp(ends(from, PORT), ACK, 101, acknowledged, &[], &[]), now);
}

#[test]
fn connection_is_made_when_the_cookie_returns() {
    let (mut interface, owner) = listening();
    let now = Instant::ZERO;
    let syn = tcp(ends(4000, PORT), SYN, 100, 0, &MSS, &[]);
    interface.handle_frame(&syn, now);
    let first = sent(&mut interface, now);
    // A retransmitted SYN gets the same answer.
    let later = now + Duration::from_secs(1);
    interface.handle_frame(&syn, later);
    assert_eq!(sent(&mut interface, later), first);
    assert_eq!(interface.tcp().sizes()[0], 0);
    let number = first[0].1;
    for wrong in [0, number, number.wrapping_add(2), !number] {
        interface.handle_frame(&tcp(ends(4000, PORT), ACK, 101, wrong, &[], &[]), later);
        assert_eq!(interface.tcp().sizes()[0], 0);
    }
    // The handshake's ACK was lost, and the client's first data arrives.
    let data = tcp(ends(4000, PORT), ACK, 101, number.wrapping_add(1), &[], b"hello");
    interface.handle_frame(&data, later);
    let name = interface.connections().accept(owner).unwrap();
    let socket = interface.connections().socket_mut(name).unwrap();
    assert_eq!(socket.recv(|bytes| (bytes.len(), bytes == b"hello")), Ok(true));
    assert_eq!(interface.connections().accept(owner), None);
    interface.handle_frame(&tcp(ends(4002, PORT + 1), SYN, 1, 0, &MSS, &[]), later);
    assert!(sent(&mut interface, later).iter().any(|s| s.0 == 0x14), "no listener on that port");
}

#[test]
fn lost_syn_ack_is_retransmitted_three_times() {
    let (mut interface, _) = listening();
    interface.handle_frame(&tcp(ends(4000, PORT), SYN, 100, 0, &MSS, &[]), Instant::ZERO);
    let mut answers = sent(&mut interface, Instant::ZERO);
    for second in 0..100 {
        answers.extend(sent(&mut interface, Instant::ZERO + Duration::from_secs(second)));
    }
    assert_eq!(answers.len(), 4);
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    assert!(!interface.tcp().has_stored_handshake(ends(4000, PORT)));
}

/// Ten thousand SYNs a second from spoofed addresses, and one honest client.
#[test]
fn honest_client_connects_during_a_syn_flood() {
    let (mut interface, owner) = listening();
    let mut now = Instant::ZERO;
    for n in 0..50_000u32 {
        let spoofed = core::net::Ipv4Addr::from(0x0a00_0000 | (n % 60_000 + 10)).into();
        let flood = Ends { remote: spoofed, remote_port: n as u16 | 1, ..ends(1, PORT) };
        interface.handle_frame(&tcp(flood, SYN, n, 0, &MSS, &[]), now);
        assert!(interface.tcp().sizes()[0] <= 3);
        if n % 10_000 == 5000 {
            sent(&mut interface, now);
            open(&mut interface, 4000, now);
            let name = interface.connections().accept(owner).expect("the honest client");
            interface.connections().release(name, true, now);
        }
        if n % 10 == 9 {
            sent(&mut interface, now);
            now = now + Duration::from_millis(1);
        }
    }
    assert!(
        interface.neighbours_known() <= 1 + MAX_STORED,
        "only sources of stored handshakes are resolved"
    );
}
