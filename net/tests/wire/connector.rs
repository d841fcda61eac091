//! Connections to others, and the SMC option between two of ours.

use crate::common::{Wire, fixed};
use net::connector::{ConnectionHandle, Connector, Limits, Progress};
use net::tcp::{self, Closed, Listener};
use std::time::Duration;

const LIMITS: Limits = Limits { connections: 2, receive: 512, transmit: 512 };

fn wire() -> Wire {
    Wire::new([fixed("10.0.0.1/24"), fixed("10.0.0.2/24")])
}

/// Connects node 1 to port 9 of node 0.
fn connect(w: &mut Wire, connector: &mut Connector, smc: bool) -> ConnectionHandle {
    let link = connector.connect(&mut w.nodes[1], "10.0.0.1:9".parse().unwrap(), smc);
    w.pass(Duration::from_millis(100), Duration::from_millis(10));
    link.unwrap()
}

fn listen(w: &mut Wire) -> Listener {
    let limits = tcp::Limits { connections: 2, receive: 512, transmit: 512 };
    Listener::new(&mut w.nodes[0], 9, limits)
}

#[test]
fn bytes_go_both_ways_and_places_come_back() {
    let mut w = wire();
    let mut listener = listen(&mut w);
    let mut connector = Connector::new(LIMITS, 1);
    for _ in 0..10 {
        let link = connect(&mut w, &mut connector, false);
        let open = connector.progress(&mut w.nodes[1], link);
        assert_eq!(open, Progress::Open { smc: false });
        let stream = listener.accept(&mut w.nodes[0], w.now).unwrap();
        assert_eq!(connector.write(&mut w.nodes[1], link, b"hello"), Ok(5));
        w.settle();
        let mut bytes = [0; 9];
        assert_eq!(listener.read(&mut w.nodes[0], stream, &mut bytes), Ok(5));
        listener.close(&mut w.nodes[0], stream, w.now);
        w.settle();
        assert_eq!(connector.read(&mut w.nodes[1], link, &mut bytes), Err(Closed::Finished));
        connector.close(&mut w.nodes[1], link, false);
        assert_eq!(connector.progress(&mut w.nodes[1], link), Progress::Gone);
        for _ in 0..3 {
            w.settle();
            connector.poll(&mut w.nodes[1], w.now);
            listener.accept(&mut w.nodes[0], w.now);
        }
    }
}

#[test]
fn nobody_there_is_told() {
    let mut w = wire();
    let mut connector = Connector::new(LIMITS, 1);
    let link = connect(&mut w, &mut connector, false);
    assert_eq!(connector.progress(&mut w.nodes[1], link), Progress::Gone, "refused");
    connector.close(&mut w.nodes[1], link, true);
    let silent = connector.connect(&mut w.nodes[1], "10.0.0.7:9".parse().unwrap(), false);
    w.pass(Duration::from_secs(1), Duration::from_millis(100));
    let silent = silent.unwrap();
    assert_eq!(connector.progress(&mut w.nodes[1], silent), Progress::Opening);
    w.pass(Duration::from_secs(12), Duration::from_millis(100));
    assert_eq!(connector.progress(&mut w.nodes[1], silent), Progress::Gone);
}

#[test]
fn both_learn_whether_the_other_offers_smc() {
    for (client, server) in [(true, true), (true, false), (false, true)] {
        let mut w = wire();
        let mut listener = listen(&mut w);
        listener.offer_smc(&mut w.nodes[0], server);
        let mut connector = Connector::new(LIMITS, 1);
        let link = connect(&mut w, &mut connector, client);
        let open = connector.progress(&mut w.nodes[1], link);
        let smc = client && server;
        assert_eq!(open, Progress::Open { smc }, "{client} {server}");
        let stream = listener.accept(&mut w.nodes[0], w.now).unwrap();
        assert_eq!(listener.offers_smc(&w.nodes[0], stream), smc);
    }
}
