//! Many neighbours that are resolved at a time, and many connections.

use crate::common::{Wire, fixed};
use drivers::hal::Instant;
use net::connector::{self, ConnectionHandle, Connector, Progress};
use net::tcp::{Limits, Listener};
use std::time::Duration;

const PORT: u16 = 9;
const MS: Duration = Duration::from_millis(1);

/// A node and `others` further ones, all without neighbour entries.
fn strangers(others: u8) -> Wire {
    let mut wire = Wire::new((1..others + 2).map(|n| fixed(&format!("10.0.0.{n}/24"))));
    wire.settle();
    wire
}

fn limits(connections: usize) -> Limits {
    Limits { connections, receive: 2048, transmit: 2048 }
}

fn connectors(count: u8) -> Vec<Connector> {
    let limits = connector::Limits { connections: 4, receive: 2048, transmit: 2048 };
    (0..count).map(|n| Connector::new(limits, n.into())).collect()
}

/// Passes time until `done`, at most `most`. Returns the time it took.
fn until(wire: &mut Wire, most: Duration, mut done: impl FnMut(&mut Wire) -> bool) -> Duration {
    let start = wire.now;
    loop {
        wire.settle();
        if done(wire) {
            return wire.now.since(start);
        }
        assert!(wire.now < start + most, "not within {most:?}");
        wire.now = wire.now + MS;
    }
}

/// Clients connect at the same time. They have a neighbour entry for the server, which has none for them.
#[test]
fn thirty_two_unknown_clients_are_served_within_100_ms() {
    const CLIENTS: u8 = 32;
    let mut wire = strangers(CLIENTS);
    let server = "10.0.0.1".parse().unwrap();
    for n in 1..=usize::from(CLIENTS) {
        wire.nodes[n].resolve(server, wire.now);
    }
    wire.pass(Duration::from_millis(200), MS);
    wire.nodes[0].link_came_up(wire.now);
    let mut listener = Listener::new(&mut wire.nodes[0], PORT, limits(64));
    let mut connectors = connectors(CLIENTS);
    let links: Vec<ConnectionHandle> = connectors
        .iter_mut()
        .zip(&mut wire.nodes[1..])
        .map(|(connector, node)| connector.connect(node, (server, PORT).into(), false).unwrap())
        .collect();
    let mut greeted = vec![false; links.len()];
    until(&mut wire, Duration::from_millis(100), |wire| {
        while let Some(stream) = listener.accept(&mut wire.nodes[0], wire.now) {
            assert_eq!(listener.write(&mut wire.nodes[0], stream, b"hello"), Ok(5));
        }
        for (n, connector) in connectors.iter().enumerate() {
            let read = connector.read(&mut wire.nodes[n + 1], links[n], &mut [0; 9]);
            greeted[n] |= read == Ok(5);
        }
        greeted.iter().all(|&greeted| greeted)
    });
}

#[test]
fn eight_cold_servers_are_reached_within_100_ms() {
    const SERVERS: u8 = 8;
    let mut wire = strangers(SERVERS);
    let _listeners: Vec<Listener> = (1..=usize::from(SERVERS))
        .map(|n| Listener::new(&mut wire.nodes[n], PORT, limits(4)))
        .collect();
    let limits = connector::Limits { connections: 8, receive: 2048, transmit: 2048 };
    let mut connector = Connector::new(limits, 1);
    let links = (0..SERVERS).map(|n| {
        let peer = ([10, 0, 0, n + 2], PORT).into();
        connector.connect(&mut wire.nodes[0], peer, false).unwrap()
    });
    let links: Vec<ConnectionHandle> = links.collect();
    until(&mut wire, Duration::from_millis(100), |wire| {
        let open = Progress::Open { smc: false };
        links.iter().all(|&link| connector.progress(&wire.nodes[0], link) == open)
    });
}

/// The connection fails after three unanswered ARP requests.
#[test]
fn connection_to_an_unreachable_server_fails() {
    let mut wire = strangers(1);
    let limits = connector::Limits { connections: 1, receive: 2048, transmit: 2048 };
    let mut connector = Connector::new(limits, 1);
    let peer = "10.0.0.77:9".parse().unwrap();
    let link = connector.connect(&mut wire.nodes[0], peer, false).unwrap();
    let took = until(&mut wire, Duration::from_secs(4), |wire| {
        connector.progress(&wire.nodes[0], link) == Progress::Gone
    });
    assert!(took >= Duration::from_secs(3));
    assert_eq!(connector.next_news(&mut wire.nodes[0]), Some(link));
    connector.close(&mut wire.nodes[0], link, true);
    wire.settle();
    assert!(connector.connect(&mut wire.nodes[0], peer, false).is_some(), "its place is free");
}

/// The reset of a refused connection waits for its neighbour's resolution, as other segments do.
#[test]
fn unknown_client_that_is_refused_gets_a_reset() {
    let mut wire = strangers(1);
    let server = "10.0.0.1".parse().unwrap();
    wire.nodes[1].resolve(server, wire.now);
    wire.pass(Duration::from_millis(200), MS);
    wire.nodes[0].link_came_up(wire.now);
    let mut listener = Listener::new(&mut wire.nodes[0], PORT, limits(1));
    let mut connector = connectors(1).remove(0);
    let link = connector.connect(&mut wire.nodes[1], (server, PORT).into(), false).unwrap();
    until(&mut wire, Duration::from_millis(100), |wire| {
        if let Some(stream) = listener.accept(&mut wire.nodes[0], wire.now) {
            listener.abort(&mut wire.nodes[0], stream, wire.now);
        }
        connector.progress(&wire.nodes[1], link) == Progress::Gone
    });
    assert!(!listener.is_full(&wire.nodes[0]), "its place is free");
}

/// Time of `rounds` rounds of an echo, beside `idle` other connections.
fn rounds(idle: usize, rounds: usize) -> Duration {
    let mut wire = strangers(1);
    let most = limits(idle + 1);
    let mut listener = Listener::new(&mut wire.nodes[0], PORT, most);
    let Limits { connections, receive, transmit } = most;
    let limits = connector::Limits { connections, receive, transmit };
    let mut connector = Connector::new(limits, 1);
    let mut streams = Vec::new();
    let mut link = None;
    while streams.len() <= idle {
        for _ in 0..(idle + 1 - streams.len()).min(16) {
            let peer = ([10, 0, 0, 1], PORT).into();
            link = connector.connect(&mut wire.nodes[1], peer, false);
        }
        let want = streams.len() + (idle + 1 - streams.len()).min(16);
        until(&mut wire, Duration::from_secs(1), |wire| {
            streams
                .extend(std::iter::from_fn(|| listener.accept(&mut wire.nodes[0], Instant::ZERO)));
            streams.len() == want
        });
    }
    let link = link.unwrap();
    while connector.next_news(&mut wire.nodes[1]).is_some() {}
    while listener.next_news(&mut wire.nodes[0]).is_some() {}
    let started = std::time::Instant::now();
    let mut piece = [0; 64];
    for _ in 0..rounds {
        assert_eq!(connector.write(&mut wire.nodes[1], link, &piece), Ok(64));
        wire.settle();
        // Only the listener with an event is ready.
        assert_eq!(wire.nodes[0].ready(), [listener.owner()]);
        let stream = listener.next_news(&mut wire.nodes[0]).unwrap();
        assert_eq!(listener.next_news(&mut wire.nodes[0]), None);
        assert_eq!(listener.read(&mut wire.nodes[0], stream, &mut piece), Ok(64));
        assert_eq!(listener.write(&mut wire.nodes[0], stream, &piece), Ok(64));
        wire.settle();
        let news = connector.next_news(&mut wire.nodes[1]);
        assert_eq!(news, Some(link));
        assert_eq!(connector.read(&mut wire.nodes[1], link, &mut piece), Ok(64));
        wire.settle();
        while connector.next_news(&mut wire.nodes[1]).is_some() {}
        while listener.next_news(&mut wire.nodes[0]).is_some() {}
        wire.now = wire.now + MS;
    }
    started.elapsed()
}

/// The time of a round is independent of other connections: an iteration over 1000 would take some forty times as long.
#[test]
fn round_costs_the_same_beside_a_thousand_connections() {
    const ROUNDS: usize = 500;
    let fastest = |idle: usize| (0..4).map(|_| rounds(idle, ROUNDS)).min().unwrap();
    let (alone, beside) = (fastest(0), fastest(1000));
    assert!(beside < alone * 3, "{alone:?} alone, {beside:?} beside a thousand");
}
