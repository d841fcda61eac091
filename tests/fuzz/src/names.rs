//! The DNS client and the time client, with servers that send anything.

use crate::input::Input;
use drivers::hal::Instant;
use net::dns::{Action, Lookup, Name, Resolver, Server};
use net::is_host;
use net::randomness::{EntropySources, Randomness};
use net::sntp;
use std::net::SocketAddr;
use std::time::Duration;

fn address(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 53 + n], 53))
}

/// The resolver: answers begin with a query's own header and question, unless the input wants others.
pub fn dns(data: &[u8]) {
    let mut rng = Randomness::new([5; 32], EntropySources::NONE);
    let mut now = Instant::from_nanos(1_000_000_000);
    let mut resolver = Resolver::new(now);
    let server = |n: u8| Server { address: address(n), interface: Some(0), origin: "fuzz" };
    resolver.set_servers(&[server(0), server(1)], now);
    let names: Vec<Name> =
        ["a.x", "b.example.net"].iter().map(|name| name.parse().expect("a name")).collect();
    resolver.follow(names[..1].iter(), now);
    let mut input = Input(data);
    let mut open: Vec<Action> = Vec::new();
    input.events(200, |input| {
        resolver.poll(&mut rng, now);
        while let Some(action) = resolver.next_action() {
            let query = |one: &Action| match one {
                Action::Datagram { query, .. }
                | Action::Stream { query, .. }
                | Action::Close { query } => *query,
            };
            open.retain(|one| query(one) != query(&action));
            if !matches!(action, Action::Close { .. }) {
                open.push(action);
            }
        }
        assert!(open.len() <= 16, "queries in flight: {}", open.len());
        match (input.below(8), open.get(input.below(open.len()))) {
            (0, _) => now = now + Duration::from_secs(input.word().into()),
            (1, _) => drop(resolver.lookup(&names[1], now)),
            (2, Some(Action::Datagram { query, .. } | Action::Stream { query, .. })) => {
                resolver.handle_failure(*query, &mut rng, now);
            }
            (_, Some(Action::Datagram { query, to, message, .. })) => {
                let (query, to) = (*query, *to);
                let datagram = answer(message, input);
                resolver.handle_datagram(query, to, &datagram, &mut rng, now);
            }
            (_, Some(Action::Stream { query, message, .. })) => {
                let query = *query;
                let whole = answer(&message[2..], input);
                let framed = [&(whole.len() as u16).to_be_bytes()[..], &whole].concat();
                resolver.handle_stream(query, &framed, &mut rng, now);
            }
            _ => {}
        }
        for name in &names {
            if let Lookup::Known(addresses) = resolver.peek(name) {
                assert!((1..=16).contains(&addresses.len()));
                assert!(addresses.iter().all(|ip| is_host(*ip)), "{addresses:?}");
            }
        }
        while resolver.next_event().is_some() {}
        assert!(resolver.names(now).count() <= names.len());
    });
}

/// A message with the query's ID and question, flags and counts of the input, and records of the input.
fn answer(query: &[u8], input: &mut Input<'_>) -> Vec<u8> {
    let mut bytes = query.to_vec();
    let flags = input.word();
    bytes[2..4].copy_from_slice(&(flags | 0x8000).to_be_bytes());
    (bytes[7], bytes[9]) = (input.byte() & 15, input.byte() & 3);
    let length = usize::from(input.word() & 0x1ff);
    bytes.extend(input.take(length));
    if input.byte() == 255 {
        let at = input.below(bytes.len());
        bytes[at] ^= input.byte();
    }
    bytes
}

pub fn dns_corpus() -> Vec<Vec<u8>> {
    // An event of an answer: choice, query, flags, counts, length, records, no change.
    let event = |counts: [u8; 2], records: &[u8]| {
        let length = (records.len() as u16).to_be_bytes();
        [&[3, 0, 0x81, 0x80][..], &counts, &length, records, &[0]].concat()
    };
    let a = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 10, 0, 0, 1];
    let aaaa = [&[0xc0, 12, 0, 28, 0, 1, 0, 0, 0, 60, 0, 16, 0xfd][..], &[0; 14], &[1]].concat();
    let cname = [0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 60, 0, 4, 1, b'b', 0xc0, 14];
    let soa = [&[0, 0, 6, 0, 1, 0, 0, 0, 60, 0, 22, 0, 0][..], &[0; 20]].concat();
    let truncated = [3, 0, 0x83, 0x80, 0, 0, 0, 0, 0];
    vec![
        [event([1, 0], &aaaa), event([1, 0], &a)].concat(),
        [event([1, 0], &cname), event([1, 0], &cname), event([2, 0], &[cname, a].concat())]
            .concat(),
        [event([0, 1], &soa), event([0, 1], &soa), vec![0, 0, 0, 60]].concat(),
        [&truncated[..], &event([1, 0], &a)].concat(),
        vec![1, 0, 2, 0, 0, 0, 0, 9, 2, 1],
    ]
}

/// The time client: answers repeat the request's timestamp, unless the input wants another.
pub fn time(data: &[u8]) {
    let possible = 1_735_689_600..4_102_444_800_u64;
    let mut rng = Randomness::new([5; 32], EntropySources::NONE);
    let mut now = Instant::from_nanos(1_000_000_000);
    let mut client = sntp::Client::new(possible.clone());
    let servers: Vec<sntp::Server> = (0..3)
        .map(|n| sntp::Server { address: address(n), interface: 0, entry: n.into() })
        .collect();
    client.set_servers(&servers, now);
    let mut input = Input(data);
    input.events(200, |input| {
        client.poll(&mut rng, now);
        while let Some(action) = client.next_action() {
            let sntp::Action::Send { server, to, message, .. } = action else { continue };
            let mut bytes = input.take(sntp::LENGTH).to_vec();
            bytes.resize(sntp::LENGTH, 0);
            if bytes[47] != 255 {
                bytes[24..32].copy_from_slice(&message[40..48]);
            }
            now = now + Duration::from_millis(input.byte().into());
            client.handle_datagram(server, to, &bytes, now);
        }
        now = client.poll_timeout().map_or(now, |due| due.max(now));
        while client.next_event().is_some() {}
        if let Some(estimate) = client.estimate() {
            let seconds = (estimate.epoch + now.as_nanos()) / 1_000_000_000;
            // The estimate is of the past.
            assert!(seconds + 1 >= possible.start, "{estimate:?}");
            assert!(estimate.epoch / 1_000_000_000 <= possible.end, "{estimate:?}");
        }
        assert_eq!(client.servers(0, now).count(), servers.len());
    });
}

pub fn time_corpus() -> Vec<Vec<u8>> {
    let mut good = [0; 49];
    (good[0], good[1]) = (4 << 3 | 4, 2);
    // 2026-01-01.
    for at in [32, 40] {
        good[at..at + 4].copy_from_slice(&3_976_214_400u32.to_be_bytes());
    }
    let mut kiss = good;
    kiss[1] = 0;
    kiss[12..16].copy_from_slice(b"RATE");
    let mut late = good;
    late[40..44].copy_from_slice(&1u32.to_be_bytes());
    vec![good.repeat(6), [good, kiss, late].concat(), kiss.repeat(6), late.repeat(3)]
}
