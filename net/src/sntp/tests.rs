//! The client with honest, lying, silent, slow and unsynchronised servers.

use super::client::{Action, Client, Server, ServerState};
use super::packet::{self, Answer, Fault};
use super::*;
use crate::randomness::{EntropySources, Randomness};
use core::net::SocketAddr;
use core::time::Duration;
use drivers::hal::Instant;
use proptest::prelude::*;
use std::vec::Vec;

/// Wall-clock time at `Instant::ZERO`: 2026-01-01.
const EPOCH: i64 = 1_767_225_600_000_000_000;
const MILLI: i64 = 1_000_000;

/// A server's answer: its time less the true one, its header, and the ways there and back.
#[derive(Clone, Copy)]
struct Reply {
    offset: i64,
    leap: u8,
    stratum: u8,
    code: [u8; 4],
    root_delay: u32,
    there: Duration,
    back: Duration,
}

const HONEST: Reply = Reply {
    offset: 0,
    leap: 0,
    stratum: 2,
    code: [10, 0, 0, 1],
    root_delay: 0,
    there: Duration::from_millis(2),
    back: Duration::from_millis(2),
};

fn timestamp(unix_nanos: i64) -> [u8; 8] {
    let seconds = unix_nanos.div_euclid(1_000_000_000) + 2_208_988_800;
    let fraction = (unix_nanos.rem_euclid(1_000_000_000) as u64) << 32;
    let fraction = fraction.div_ceil(1_000_000_000);
    ((seconds as u64) << 32 | fraction).to_be_bytes()
}

/// The answer to a request that arrives at the server at this time.
fn answer(request: &[u8], reply: &Reply, at: i64) -> Vec<u8> {
    let mut bytes = std::vec![0; 48];
    bytes[0] = reply.leap << 6 | 4 << 3 | 4;
    bytes[1] = reply.stratum;
    bytes[4..8].copy_from_slice(&reply.root_delay.to_be_bytes());
    bytes[12..16].copy_from_slice(&reply.code);
    bytes[24..32].copy_from_slice(&request[40..48]);
    bytes[32..40].copy_from_slice(&timestamp(at + reply.offset));
    bytes[40..48].copy_from_slice(&timestamp(at + reply.offset));
    bytes
}

struct World {
    client: Client,
    rng: Randomness,
    now: Instant,
    /// By how many millionths our clock is slow.
    slow: u64,
}

fn server(n: usize, entry: usize) -> Server {
    Server { address: SocketAddr::from(([10, 0, 0, n as u8 + 1], PORT)), interface: 0, entry }
}

impl World {
    fn new(servers: usize) -> World {
        let now = Instant::from_nanos(5_000_000_000);
        let mut client = Client::new(1_735_689_600..4_102_444_800);
        let list: Vec<Server> = (0..servers).map(|n| server(n, n)).collect();
        client.set_servers(&list, now);
        World { client, rng: Randomness::new([3; 32], EntropySources::NONE), now, slow: 0 }
    }

    /// Runs for this time. A server without a reply is silent.
    fn run(&mut self, seconds: u64, reply: impl Fn(usize) -> Option<Reply>) -> usize {
        let end = self.now + Duration::from_secs(seconds);
        let mut sent = 0;
        while let Some(due) = self.client.poll_timeout().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.client.poll(&mut self.rng, self.now);
            while let Some(action) = self.client.next_action() {
                let Action::Send { server, to, message, .. } = action else { continue };
                sent += 1;
                let Some(reply) = reply(server) else { continue };
                let behind = self.now.as_nanos() / 1_000_000 * self.slow;
                let arrived = EPOCH + (self.now + reply.there).as_nanos() as i64 + behind as i64;
                let bytes = answer(&message, &reply, arrived);
                let at = self.now + reply.there + reply.back;
                self.client.handle_datagram(server, to, &bytes, at);
            }
        }
        self.now = end;
        sent
    }

    fn states(&self) -> Vec<ServerState> {
        self.client.servers(0, self.now).map(|one| one.state).collect()
    }

    /// Error of the estimate in nanoseconds.
    fn error(&self) -> Option<i64> {
        self.client.estimate().map(|estimate| estimate.epoch as i64 - EPOCH)
    }
}

#[test]
fn one_server_gives_the_time_within_half_the_round_trip() {
    for (there, back) in [(2, 2), (0, 8), (8, 0)] {
        let reply = Reply {
            there: Duration::from_millis(there),
            back: Duration::from_millis(back),
            ..HONEST
        };
        let mut w = World::new(1);
        assert_eq!(w.run(1, |_| Some(reply)), 1);
        let expected = (there as i64 - back as i64) * MILLI / 2;
        assert!((w.error().unwrap() - expected).abs() < 1000, "{:?}", w.error());
        assert_eq!(w.states(), [ServerState::Good]);
        assert!(w.client.estimate().unwrap().error >= Duration::from_millis((there + back) / 2));
    }
}

#[test]
fn server_is_asked_ever_less_and_never_more_than_once_in_four_seconds() {
    let mut w = World::new(1);
    let of_hour = w.run(3600, |_| Some(HONEST));
    assert!((8..=12).contains(&of_hour), "{of_hour}");
    let of_day = w.run(86_400, |_| Some(HONEST));
    assert!((84..=86).contains(&of_day), "{of_day}");
    let mut w = World::new(1);
    let silent = w.run(3600, |_| None);
    assert!((9..=12).contains(&silent), "{silent}");
    assert_eq!((w.states(), w.error()), ([ServerState::Silent].into(), None));
}

#[test]
fn best_of_several_samples_is_used() {
    let mut w = World::new(1);
    w.run(200, |_| Some(HONEST));
    let bad = Reply { back: Duration::from_millis(700), ..HONEST };
    w.run(70, |_| Some(bad));
    assert!(w.error().unwrap().abs() < MILLI);
}

#[test]
fn unsynchronised_distant_and_impossible_times_are_refused() {
    use ServerState::{Denied, Distant, Nonsense, Unsynchronised};
    let year = 31_556_952_000_000_000;
    for (reply, state) in [
        (Reply { leap: 3, ..HONEST }, Unsynchronised),
        (Reply { stratum: 16, ..HONEST }, Unsynchronised),
        (Reply { stratum: 255, ..HONEST }, Unsynchronised),
        (Reply { stratum: 0, code: *b"INIT", ..HONEST }, Unsynchronised),
        (Reply { stratum: 0, code: *b"DENY", ..HONEST }, Denied),
        (Reply { stratum: 0, code: *b"RSTR", ..HONEST }, Denied),
        (Reply { stratum: 0, code: *b"RATE", ..HONEST }, ServerState::Rate),
        (Reply { root_delay: 4 << 16, ..HONEST }, Distant),
        (Reply { back: Duration::from_millis(1500), ..HONEST }, Distant),
        (Reply { offset: -2 * year, ..HONEST }, Nonsense),
        (Reply { offset: 75 * year, ..HONEST }, Nonsense),
    ] {
        let mut w = World::new(1);
        w.run(3, |_| Some(reply));
        assert_eq!((w.states(), w.error()), ([state].into(), None));
        assert_eq!(w.client.counters().refused, 1);
        // It recovers, unless it has refused service.
        w.run(2000, |_| Some(HONEST));
        assert_eq!(w.error().is_some(), state != Denied, "{state:?}");
    }
}

#[test]
fn zero_and_backward_timestamps_are_nonsense() {
    let request = packet::request(7);
    let good = answer(&request, &HONEST, EPOCH);
    for at in [32, 40] {
        let mut zero = good.clone();
        zero[at..at + 8].fill(0);
        assert_eq!(packet::parse(&zero, 7), Answer::Faulty(Fault::Nonsense));
    }
    let mut backward = good.clone();
    backward[40..48].copy_from_slice(&timestamp(EPOCH - MILLI));
    assert_eq!(packet::parse(&backward, 7), Answer::Faulty(Fault::Nonsense));
    assert!(matches!(packet::parse(&good, 7), Answer::Time { sent: EPOCH, .. }));
}

#[test]
fn server_that_claims_to_have_taken_longer_than_the_exchange_is_refused() {
    let mut w = World::new(1);
    w.client.poll(&mut w.rng, w.now);
    let Some(Action::Send { server, to, message, .. }) = w.client.next_action() else { panic!() };
    let arrived = EPOCH + w.now.as_nanos() as i64;
    let mut late = answer(&message, &HONEST, arrived);
    late[40..48].copy_from_slice(&timestamp(arrived + 3600 * 1_000_000_000));
    w.client.handle_datagram(server, to, &late, w.now + Duration::from_millis(5));
    assert_eq!((w.states(), w.error()), ([ServerState::Nonsense].into(), None));
}

#[test]
fn times_after_2036_are_of_the_next_era() {
    // 2040-01-01.
    let late = 2_208_988_800_000_000_000;
    let good = answer(&packet::request(7), &HONEST, late);
    assert!(matches!(packet::parse(&good, 7), Answer::Time { sent, .. } if sent == late));
}

#[test]
fn foreign_datagrams_are_ignored_and_counted() {
    let mut w = World::new(1);
    w.client.poll(&mut w.rng, w.now);
    let Some(Action::Send { server, to, message, port, .. }) = w.client.next_action() else {
        panic!()
    };
    assert!(port >= 1024);
    assert!(message[..40].iter().skip(1).all(|byte| *byte == 0), "it tells nothing");
    let good = answer(&message, &HONEST, EPOCH + w.now.as_nanos() as i64);
    let mut other_nonce = good.clone();
    other_nonce[31] ^= 1;
    let mut a_request = good.clone();
    a_request[0] = 4 << 3 | 3;
    let mut old_version = good.clone();
    old_version[0] = 2 << 3 | 4;
    for bytes in [&other_nonce, &a_request, &old_version, &good[..47].to_vec()] {
        w.client.handle_datagram(server, to, bytes, w.now);
    }
    let elsewhere = SocketAddr::from(([10, 0, 0, 9], PORT));
    w.client.handle_datagram(server, elsewhere, &good, w.now);
    assert_eq!((w.client.counters().foreign, w.error()), (5, None));
    w.client.handle_datagram(server, to, &good, w.now);
    assert!(w.error().is_some());
    // A repeated answer is no answer any more.
    w.client.handle_datagram(server, to, &good, w.now);
    assert_eq!(w.client.counters().foreign, 6);
}

#[test]
fn falsetickers_are_outvoted_and_two_that_differ_are_not_believed() {
    let wrong = Reply { offset: 3600 * 1_000_000_000, ..HONEST };
    let mut w = World::new(3);
    w.run(1, |n| Some(if n == 0 { wrong } else { HONEST }));
    assert!(w.error().unwrap().abs() < MILLI);
    use ServerState::{Falseticker, Good, NoMajority};
    assert_eq!(w.states(), [Falseticker, Good, Good]);
    let mut w = World::new(2);
    w.run(1, |n| Some(if n == 0 { wrong } else { HONEST }));
    assert_eq!(w.states(), [NoMajority, NoMajority]);
    w.run(3600, |n| Some(if n == 0 { wrong } else { HONEST }));
    assert_eq!(w.error(), None);
    // One that turns into a falseticker.
    let mut w = World::new(3);
    w.run(300, |_| Some(HONEST));
    w.run(20_000, |n| Some(if n == 2 { wrong } else { HONEST }));
    assert_eq!(w.states(), [Good, Good, Falseticker]);
    assert!(w.error().unwrap().abs() < MILLI);
}

#[test]
fn time_stays_while_servers_are_silent_and_servers_that_stay_keep_their_state() {
    let mut w = World::new(2);
    w.run(300, |_| Some(HONEST));
    w.run(7200, |_| None);
    assert_eq!(w.states(), [ServerState::Silent; 2]);
    assert!(w.error().unwrap().abs() < MILLI);
    w.client.set_servers(&[server(1, 0)], w.now);
    assert_eq!(w.states(), [ServerState::Silent]);
    assert!(w.client.servers(0, w.now).all(|one| one.answers > 3));
}

#[test]
fn servers_of_one_name_do_not_outvote_the_others() {
    let wrong = Reply { offset: 3600 * 1_000_000_000, ..HONEST };
    let mut w = World::new(0);
    let list: Vec<Server> = (0..6).map(|n| server(n, n.saturating_sub(3))).collect();
    w.client.set_servers(&list, w.now);
    w.run(1, |n| Some(if n < 4 { wrong } else { HONEST }));
    assert!(w.error().unwrap().abs() < MILLI);
    use ServerState::{Falseticker, Good};
    assert_eq!(w.states()[3..], [Falseticker, Good, Good]);
    // Within a single name most servers decide.
    let mut w = World::new(0);
    let list: Vec<Server> = (0..4).map(|n| server(n, 0)).collect();
    w.client.set_servers(&list, w.now);
    w.run(1, |n| Some(if n == 0 { wrong } else { HONEST }));
    assert_eq!(w.states(), [Falseticker, Good, Good, Good]);
}

#[test]
fn first_of_several_new_servers_to_answer_does_not_set_the_clock() {
    let wrong = Reply { offset: 3600 * 1_000_000_000, ..HONEST };
    let mut w = World::new(3);
    w.run(300, |_| Some(HONEST));
    let others: Vec<Server> = (10..13).map(|n| server(n, n)).collect();
    w.client.set_servers(&others, w.now);
    w.client.poll(&mut w.rng, w.now);
    let actions: Vec<Action> = core::iter::from_fn(|| w.client.next_action()).collect();
    let sent = actions.into_iter().filter(|action| matches!(action, Action::Send { .. }));
    for (n, action) in sent.enumerate() {
        let Action::Send { server, to, message, .. } = action else { panic!() };
        let reply = if n == 0 { wrong } else { HONEST };
        let bytes = answer(&message, &reply, EPOCH + w.now.as_nanos() as i64);
        w.client.handle_datagram(server, to, &bytes, w.now + Duration::from_millis(4));
        assert!(w.error().unwrap().abs() < 10 * MILLI, "{:?}", w.error());
    }
}

#[test]
fn honest_servers_agree_although_our_clock_is_slow() {
    let mut w = World::new(2);
    w.slow = 120;
    w.run(400, |_| Some(HONEST));
    // One misses an answer, so that they are asked at different times from now on.
    w.run(700, |n| (n == 0).then_some(HONEST));
    for _ in 0..100 {
        w.run(97, |_| Some(HONEST));
        let states = w.states();
        assert!(states.iter().all(|state| *state != ServerState::NoMajority), "{states:?}");
    }
}

#[test]
fn clock_of_the_only_server_is_followed_when_it_is_set() {
    let mut w = World::new(1);
    w.run(3000, |_| Some(HONEST));
    let hour = 3600 * 1_000_000_000;
    let slow = Duration::from_millis(400);
    w.run(1100, |_| Some(Reply { offset: hour, there: slow, back: slow, ..HONEST }));
    assert!((w.error().unwrap() - hour).abs() < MILLI, "{:?}", w.error());
}

#[test]
fn good_servers_of_a_name_stay_and_entries_share_the_places() {
    let all: Vec<SocketAddr> = (0..9).map(|n| server(n, 0).address).collect();
    assert_eq!(choose(&[], &all[..2], 1), all[..2]);
    assert_eq!(choose(&[], &all, 1), all[..4]);
    assert_eq!(choose(&all[4..6], &all[5..], 1), all[4..8]);
    assert_eq!(choose(&[], &all, 6), all[..2]);
    assert_eq!(choose(&all[1..2], &all, 40), all[1..2]);
}

proptest! {
    #[test]
    fn no_message_makes_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let _ = packet::parse(&bytes, 7);
        let mut near = answer(&packet::request(7), &HONEST, EPOCH);
        near.iter_mut().zip(&bytes).for_each(|(to, from)| *to ^= from & 0x11);
        let _ = packet::parse(&near, 7);
    }
}
