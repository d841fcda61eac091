//! The resolver against servers of the test: honest, silent, lying and gone ones.

mod answers;

use super::cache::{Lookup, Problem};
use super::message::{self, Family, Reply, Unfit};
use super::query::Action;
use super::resolver::{Resolver, Server};
use super::*;
use crate::randomness::{EntropySources, Randomness};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use drivers::hal::Instant;
use proptest::prelude::*;
use std::format;
use std::vec;
use std::vec::Vec;

const SERVERS: [&str; 2] = ["10.0.0.53:53", "[fd00::53]:5353"];
const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const C: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));

/// A record: its owner, seconds, and data.
#[derive(Clone, Copy)]
enum Record<'a> {
    Address(&'a str, u32, IpAddr),
    Alias(&'a str, u32, &'a str),
    /// The SOA record, with its own TTL and MINIMUM.
    Authority(u32, u32),
}

impl Record<'_> {
    fn emit(&self, into: &mut Vec<u8>) {
        let (owner, kind, ttl, data) = match self {
            Record::Address(owner, ttl, IpAddr::V4(ip)) => {
                (*owner, 1u16, *ttl, ip.octets().to_vec())
            }
            Record::Address(owner, ttl, IpAddr::V6(ip)) => (*owner, 28, *ttl, ip.octets().to_vec()),
            Record::Alias(owner, ttl, target) => (*owner, 5, *ttl, message::wire_name(target)),
            Record::Authority(ttl, minimum) => {
                let mut data = [message::wire_name("ns.x"), message::wire_name("root.x")].concat();
                data.extend([0; 16]);
                data.extend(minimum.to_be_bytes());
                ("x", 6, *ttl, data)
            }
        };
        into.extend(message::wire_name(owner));
        into.extend(kind.to_be_bytes());
        into.extend(1u16.to_be_bytes());
        into.extend(ttl.to_be_bytes());
        into.extend((data.len() as u16).to_be_bytes());
        into.extend(data);
    }
}

/// An answer to a query with this RCODE and these records. `flags` are added to the first byte of flags.
fn answer(query: &[u8], flags: u8, rcode: u8, records: &[Record<'_>]) -> Vec<u8> {
    let mut bytes = query.to_vec();
    (bytes[2], bytes[3]) = (0x81 | flags, 0x80 | rcode);
    let authorities = records.iter().filter(|one| matches!(one, Record::Authority(..))).count();
    bytes[7] = (records.len() - authorities) as u8;
    bytes[9] = authorities as u8;
    records.iter().for_each(|record| record.emit(&mut bytes));
    bytes
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// The type that a query asks for.
fn family(query: &[u8]) -> Family {
    if query[query.len() - 3] == 1 { Family::V4 } else { Family::V6 }
}

struct World {
    resolver: Resolver,
    rng: Randomness,
    now: Instant,
}

impl World {
    fn new(servers: usize) -> World {
        let now = Instant::from_nanos(1_000_000_000);
        let mut resolver = Resolver::new(now);
        let list: Vec<Server> = SERVERS[..servers]
            .iter()
            .enumerate()
            .map(|(n, text)| Server {
                address: text.parse().unwrap(),
                interface: Some(n),
                origin: "test",
            })
            .collect();
        resolver.set_servers(&list, now);
        World { resolver, rng: Randomness::new([7; 32], EntropySources::NONE), now }
    }

    fn poll(&mut self) -> Vec<Action> {
        self.resolver.poll(&mut self.rng, self.now);
        core::iter::from_fn(|| self.resolver.next_action()).collect()
    }

    fn look(&mut self, text: &str) -> Lookup {
        self.resolver.lookup(&name(text), self.now)
    }

    fn wait(&mut self, seconds: u64) {
        self.now = self.now + Duration::from_secs(seconds);
    }

    /// Answers datagrams with what `reply` makes of the server and the query, until no query is sent. Without a reply
    /// time passes. Returns the number of datagrams.
    fn serve(&mut self, mut reply: impl FnMut(SocketAddr, &[u8]) -> Option<Vec<u8>>) -> usize {
        let mut sent = 0;
        loop {
            let actions = self.poll();
            let mut queries = 0;
            for action in actions {
                let Action::Datagram { query, to, message, .. } = action else { continue };
                (queries, sent) = (queries + 1, sent + 1);
                if let Some(reply) = reply(to, &message) {
                    self.resolver.handle_datagram(query, to, &reply, &mut self.rng, self.now);
                }
            }
            if self.resolver.queries_in_flight() == 0 && queries == 0 {
                return sent;
            }
            if queries == 0 {
                self.now = self.resolver.poll_timeout().unwrap();
            }
        }
    }

    /// Serves addresses of one name, and nothing of others.
    fn serve_one(&mut self, text: &str, ttl: u32, addresses: &[IpAddr]) -> usize {
        self.serve(|_, query| {
            let is_of = |ip: &&IpAddr| ip.is_ipv4() == (family(query) == Family::V4);
            let all: Vec<Record> = addresses
                .iter()
                .filter(is_of)
                .map(|ip| Record::Address(text, ttl, *ip))
                .chain([Record::Authority(60, 60)])
                .collect();
            Some(answer(query, 0, 0, &all))
        })
    }
}

#[test]
fn name_has_addresses_of_both_families_until_their_ttl_ends() {
    let mut w = World::new(1);
    assert_eq!(w.look("Nas.X."), Lookup::Pending);
    assert!(w.resolver.wants_poll());
    assert_eq!(w.serve_one("nas.x", 20, &[B, A, C]), 2);
    assert_eq!(w.look("nas.x"), Lookup::Known(vec![C, A, B]));
    assert!(!w.resolver.wants_poll());
    w.wait(19);
    assert_eq!(w.look("nas.x"), Lookup::Known(vec![C, A, B]));
    assert_eq!(w.poll(), []);
    w.wait(1);
    w.poll();
    assert_eq!(w.look("nas.x"), Lookup::Pending, "it is not followed, and was dropped");
}

#[test]
fn ttl_has_a_floor_and_a_ceiling() {
    for (ttl, kept) in [(0, 5), (1 << 31, 5), (300, 300), (1_000_000, 3600)] {
        let mut w = World::new(1);
        let followed = name("nas.x");
        w.resolver.follow([&followed].into_iter(), w.now);
        w.serve_one("nas.x", ttl, &[A, C]);
        let due = w.resolver.poll_timeout().unwrap();
        assert_eq!(due.since(w.now).as_secs(), kept, "{ttl}");
    }
}

#[test]
fn queries_differ_in_id_port_and_case() {
    let mut w = World::new(1);
    for n in 0..16 {
        w.look(&format!("abcdefghijklmnop{n}.example"));
    }
    let mut seen = Vec::new();
    for action in w.poll() {
        let Action::Datagram { port, message, .. } = action else { panic!("{action:?}") };
        assert!(port >= 1024 && port != 4791);
        let case: Vec<bool> = message[13..29].iter().map(u8::is_ascii_uppercase).collect();
        seen.push((port, [message[0], message[1]], case));
    }
    assert_eq!(seen.len(), 16, "further ones wait");
    for one in &seen {
        let alike = |other: &&(u16, [u8; 2], Vec<bool>)| {
            other.0 == one.0 || other.1 == one.1 || other.2 == one.2
        };
        assert_eq!(seen.iter().filter(alike).count(), 1, "{one:?}");
    }
}

#[test]
fn forged_answers_are_ignored_and_many_of_them_lead_to_tcp() {
    let mut w = World::new(1);
    let followed = name("nas.x");
    w.look("nas.x");
    let actions = w.poll();
    let Action::Datagram { query, to, message, .. } = &actions[0] else { panic!() };
    let good = answer(message, 0, 0, &[Record::Address("nas.x", 60, C)]);
    let mut forged = Vec::new();
    let change = |at: usize, by: u8| {
        let mut bytes = good.clone();
        bytes[at] ^= by;
        bytes
    };
    // The ID, a query, the opcode, the name, its case, the type.
    for (at, by) in [(0, 1), (2, 0x80), (2, 0x10), (13, 1), (14, 0x20), (20, 1)] {
        forged.push((*to, change(at, by)));
    }
    forged.push((SocketAddr::new(B, 53), good.clone()));
    for (from, bytes) in &forged {
        w.resolver.handle_datagram(*query, *from, bytes, &mut w.rng, w.now);
        assert_eq!(w.resolver.peek(&followed), Lookup::Pending);
    }
    assert_eq!(w.resolver.counters().foreign, forged.len() as u64);
    assert_eq!(w.resolver.next_action(), None);
    let other_port = SocketAddr::new(to.ip(), to.port() + 1);
    w.resolver.handle_datagram(*query, other_port, &good, &mut w.rng, w.now);
    let Some(Action::Stream { query, message, .. }) = w.resolver.next_action() else { panic!() };
    // Datagrams no longer count.
    w.resolver.handle_datagram(query, *to, &good, &mut w.rng, w.now);
    let good = answer(&message[2..], 0, 0, &[Record::Address("nas.x", 60, C)]);
    let framed = [&(good.len() as u16).to_be_bytes()[..], &good].concat();
    for piece in framed.chunks(7) {
        w.resolver.handle_stream(query, piece, &mut w.rng, w.now);
    }
    w.serve_one("nas.x", 60, &[]);
    assert_eq!(w.look("nas.x"), Lookup::Known(vec![C]));
}

#[test]
fn truncated_answer_is_fetched_over_tcp_and_not_used() {
    let mut w = World::new(1);
    w.look("nas.x");
    let actions = w.poll();
    for action in &actions {
        let Action::Datagram { query, to, message, .. } = action else { panic!() };
        let cut = answer(message, 2, 0, &[Record::Address("nas.x", 60, B)]);
        w.resolver.handle_datagram(*query, *to, &cut, &mut w.rng, w.now);
        let Some(Action::Stream { query, message, .. }) = w.resolver.next_action() else {
            panic!()
        };
        let whole = answer(&message[2..], 0, 0, &[Record::Address("nas.x", 60, A)]);
        let framed = [&(whole.len() as u16).to_be_bytes()[..], &whole].concat();
        w.resolver.handle_stream(query, &framed, &mut w.rng, w.now);
        assert_eq!(w.resolver.next_action(), Some(Action::Close { query }));
    }
    assert_eq!(w.look("nas.x"), Lookup::Known(vec![A]));
    assert_eq!(w.resolver.counters().over_tcp, 2);
}

#[test]
fn silent_and_failing_servers_are_followed_by_the_next() {
    for failing in [None, Some(2), Some(5)] {
        let mut w = World::new(2);
        w.look("nas.x");
        let mut asked = Vec::new();
        w.serve(|to, query| {
            asked.push(to);
            match to.ip() {
                IpAddr::V4(_) => failing.map(|rcode| answer(query, 0, rcode, &[])),
                IpAddr::V6(_) => Some(answer(query, 0, 0, &[Record::Address("nas.x", 60, A)])),
            }
        });
        assert_eq!(w.look("nas.x"), Lookup::Known(vec![A]));
        let [first, second] = SERVERS.map(|text| text.parse::<SocketAddr>().unwrap());
        assert_eq!(asked, [first, first, second, second]);
        // The one that answers is asked first from now on.
        w.look("b.x");
        assert!(w.poll().iter().all(|a| matches!(a, Action::Datagram { to, .. } if *to == second)));
    }
}

#[test]
fn name_without_any_answer_fails_in_bounded_time_and_is_tried_again() {
    let mut w = World::new(2);
    let followed = name("nas.x");
    w.resolver.follow([&followed].into_iter(), w.now);
    let start = w.now;
    w.poll();
    while w.look("nas.x") == Lookup::Pending {
        w.now = w.resolver.poll_timeout().unwrap();
        w.poll();
    }
    assert_eq!(w.look("nas.x"), Lookup::Failed(Problem::NoAnswer));
    assert_eq!(w.now.since(start).as_secs(), 6);
    let event = w.resolver.next_event().unwrap();
    assert_eq!(event.lookup, Lookup::Failed(Problem::NoAnswer));
    assert!(event.followed);
    w.wait(1);
    assert_eq!(w.serve_one("nas.x", 60, &[A]), 2);
    assert_eq!(w.look("nas.x"), Lookup::Known(vec![A]));
    assert_eq!(w.resolver.next_event().unwrap().lookup, Lookup::Known(vec![A]));
}

#[test]
fn negative_answers_are_kept_for_the_lesser_of_the_soa_times() {
    for (rcode, problem) in [(0, Problem::NoAddress), (3, Problem::NoSuchName)] {
        for (soa, kept) in [(Some((60, 3600)), 60), (Some((3600, 90)), 90), (None, 5)] {
            let mut w = World::new(1);
            let followed = name("gone.x");
            w.resolver.follow([&followed].into_iter(), w.now);
            let records: Vec<_> =
                soa.map(|(ttl, least)| Record::Authority(ttl, least)).into_iter().collect();
            assert_eq!(w.serve(|_, query| Some(answer(query, 0, rcode, &records))), 2);
            assert_eq!(w.look("gone.x"), Lookup::Failed(problem));
            assert_eq!(w.resolver.poll_timeout().unwrap().since(w.now).as_secs(), kept);
        }
    }
}

#[test]
fn last_addresses_are_used_for_a_day_while_no_server_answers() {
    let mut w = World::new(1);
    let followed = name("nas.x");
    w.resolver.follow([&followed].into_iter(), w.now);
    w.serve_one("nas.x", 60, &[A, C]);
    let end = w.now + Duration::from_secs(60 + 86_400);
    while w.now < end {
        assert_eq!(w.look("nas.x"), Lookup::Known(vec![C, A]));
        w.now = w.resolver.poll_timeout().unwrap();
        w.poll();
    }
    w.wait(120);
    w.serve(|_, _| None);
    assert_eq!(w.look("nas.x"), Lookup::Failed(Problem::NoAnswer));
    // A server's word ends them at once.
    let mut w = World::new(1);
    w.resolver.follow([&followed].into_iter(), w.now);
    w.serve_one("nas.x", 60, &[A, C]);
    w.wait(60);
    w.serve(|_, query| Some(answer(query, 0, 3, &[])));
    assert_eq!(w.look("nas.x"), Lookup::Failed(Problem::NoSuchName));
}

#[test]
fn changed_answer_is_an_event_and_an_equal_one_is_not() {
    let mut w = World::new(1);
    let followed = name("nas.x");
    w.resolver.follow([&followed].into_iter(), w.now);
    let mut known = Vec::new();
    for address in [A, A, B] {
        w.serve_one("nas.x", 60, &[address]);
        known.extend(core::iter::from_fn(|| w.resolver.next_event()).map(|event| event.lookup));
        w.wait(60);
    }
    assert_eq!(known, [Lookup::Known(vec![A]), Lookup::Known(vec![B])]);
}

fn parsed(records: &[Record<'_>]) -> Result<Reply, Unfit> {
    let query = message::query(7, &message::wire_name("a.x"), Family::V4);
    message::parse(&answer(&query, 0, 0, records), &query, Family::V4)
}

#[test]
fn aliases_are_followed_in_any_order_to_a_bounded_depth() {
    let good = parsed(&[
        Record::Address("C.x", 90, A),
        Record::Alias("b.x", 30, "c.x"),
        Record::Alias("A.X", 60, "B.x"),
        Record::Address("other.x", 1, B),
    ]);
    assert_eq!(good, Ok(Reply::Addresses { addresses: vec![A], ttl: 30 }));
    assert_eq!(
        parsed(&[Record::Alias("a.x", 1, "b.x"), Record::Alias("b.x", 1, "a.x")]),
        Err(Unfit::Malformed)
    );
    let names: Vec<_> =
        (0..12).map(|n| if n == 0 { "a.x".into() } else { format!("a{n}.x") }).collect();
    let chain = |count: usize| {
        let mut all: Vec<_> =
            (0..count).map(|n| Record::Alias(&names[n], 9, &names[n + 1])).collect();
        all.push(Record::Address(&names[count], 9, A));
        parsed(&all)
    };
    assert_eq!(chain(8), Ok(Reply::Addresses { addresses: vec![A], ttl: 9 }));
    assert_eq!(chain(9), Err(Unfit::Malformed));
    let alias = parsed(&[Record::Alias("a.x", 1, "b.x")]);
    assert_eq!(alias, Ok(Reply::Alias { target: message::wire_name("b.x"), ttl: 1 }));
    let nothing = parsed(&[Record::Alias("a.x", 1, "b.x"), Record::Authority(7, 9)]);
    assert_eq!(nothing, Ok(Reply::Nothing { exists: true, ttl: Some(1) }));
}

#[test]
fn alias_without_addresses_is_asked_for_itself_and_an_endless_one_ends() {
    let mut w = World::new(1);
    w.look("a.x");
    w.serve(|_, query| {
        let asked = message::shown(&query[12..]).to_ascii_lowercase();
        Some(match asked.as_str() {
            "a.x" => answer(query, 0, 0, &[Record::Alias("a.x", 60, "b.x")]),
            _ => answer(query, 0, 0, &[Record::Address("b.x", 60, A)]),
        })
    });
    assert_eq!(w.look("a.x"), Lookup::Known(vec![A]));
    w.look("c.x");
    let mut count = 0;
    w.serve(|_, query| {
        count += 1;
        let asked = message::shown(&query[12..]).to_ascii_lowercase();
        Some(answer(query, 0, 0, &[Record::Alias(&asked, 60, &format!("n{count}.x"))]))
    });
    assert_eq!(count, 2 * (1 + MOST_ALIASES));
}

#[test]
fn impossible_addresses_are_not_used() {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    assert_eq!(parsed(&[Record::Address("a.x", 9, loopback)]), Ok(Reply::Unusable(loopback)));
    let some = parsed(&[Record::Address("a.x", 9, loopback), Record::Address("a.x", 9, A)]);
    assert_eq!(some, Ok(Reply::Addresses { addresses: vec![A], ttl: 9 }));
    // What they mean depends on the link.
    for of_link in ["169.254.169.254", "fe80::1"] {
        let ip: IpAddr = of_link.parse().unwrap();
        let (kind, family) = if ip.is_ipv4() { (1, Family::V4) } else { (28, Family::V6) };
        let query = message::query(7, &message::wire_name("a.x"), family);
        assert_eq!(query[query.len() - 3], kind);
        let reply = answer(&query, 0, 0, &[Record::Address("a.x", 9, ip)]);
        assert_eq!(message::parse(&reply, &query, family), Ok(Reply::Unusable(ip)));
    }
    let many: Vec<_> = (1..=40)
        .map(|n| Record::Address("a.x", 9, IpAddr::V4(Ipv4Addr::new(10, 0, 0, n))))
        .collect();
    let Ok(Reply::Addresses { addresses, .. }) = parsed(&many) else { panic!() };
    assert_eq!(addresses.len(), MOST_ADDRESSES);
}

#[test]
fn cache_is_bounded_and_followed_names_stay() {
    let mut w = World::new(1);
    let followed = name("nas.x");
    w.resolver.follow([&followed].into_iter(), w.now);
    w.serve_one("nas.x", 3600, &[A, C]);
    for n in 0..1000 {
        w.look(&format!("n{n}.x"));
        w.wait(0);
    }
    assert_eq!(w.resolver.names(w.now).count(), MOST_NAMES);
    assert_eq!(w.look("nas.x"), Lookup::Known(vec![C, A]));
    let many: Vec<Name> = (0..300).map(|n| name(&format!("m{n}.x"))).collect();
    w.resolver.follow(many.iter(), w.now);
    assert_eq!(w.look("m299.x"), Lookup::Failed(Problem::TooMany));
}

#[test]
fn names_wait_for_a_server_after_the_start_and_then_fail() {
    let mut w = World::new(0);
    let followed = name("nas.x");
    w.resolver.follow([&followed].into_iter(), w.now);
    assert_eq!(w.poll(), []);
    assert_eq!(w.look("nas.x"), Lookup::Pending);
    w.now = w.resolver.poll_timeout().unwrap();
    w.poll();
    assert_eq!(w.look("nas.x"), Lookup::Failed(Problem::NoServer));
    let address = SERVERS[0].parse().unwrap();
    let without = Server { address, interface: None, origin: "test" };
    w.resolver.set_servers(&[without], w.now);
    w.poll();
    assert_eq!(w.look("nas.x"), Lookup::Failed(Problem::NoServer));
    w.resolver.set_servers(&[Server { interface: Some(0), ..without }], w.now);
    assert_eq!(w.serve_one("nas.x", 60, &[A]), 2);
    assert_eq!(w.look("nas.x"), Lookup::Known(vec![A]));
}

proptest! {
    #[test]
    fn no_message_makes_the_parser_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        cut in 0usize..200,
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
    ) {
        let query = message::query(7, &message::wire_name("a.x"), Family::V4);
        let _ = message::parse(&bytes, &query, Family::V4);
        let records = [
            Record::Alias("a.x", 9, "b.x"),
            Record::Address("b.x", 9, A),
            Record::Authority(60, 60),
        ];
        let mut near = answer(&query, 0, 0, &records);
        for (at, by) in flips {
            let at = at.index(near.len());
            near[at] ^= by;
        }
        near.truncate(near.len().saturating_sub(cut));
        let _ = message::parse(&near, &query, Family::V4);
    }
}
