//! Outgoing connections, and the SMC option between two interfaces.

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
fn connections_carry_data_and_free_their_places() {
    let mut w = wire();
    let mut listener = listen(&mut w);
    let mut connector = Connector::new(LIMITS, 1);
    for _ in 0..10 {
        let link = connect(&mut w, &mut connector, false);
        let open = connector.progress(&w.nodes[1], link);
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
        assert_eq!(connector.progress(&w.nodes[1], link), Progress::Gone);
        for _ in 0..3 {
            w.settle();
            connector.poll(&mut w.nodes[1], w.now);
            listener.accept(&mut w.nodes[0], w.now);
        }
    }
}

#[test]
fn refused_and_unanswered_connections_are_reported() {
    let mut w = wire();
    let mut connector = Connector::new(LIMITS, 1);
    let link = connect(&mut w, &mut connector, false);
    assert_eq!(connector.progress(&w.nodes[1], link), Progress::Gone, "refused");
    connector.close(&mut w.nodes[1], link, true);
    let silent = connector.connect(&mut w.nodes[1], "10.0.0.7:9".parse().unwrap(), false);
    w.pass(Duration::from_secs(1), Duration::from_millis(100));
    let silent = silent.unwrap();
    assert_eq!(connector.progress(&w.nodes[1], silent), Progress::Opening);
    w.pass(Duration::from_secs(12), Duration::from_millis(100));
    assert_eq!(connector.progress(&w.nodes[1], silent), Progress::Gone);
}

#[test]
fn smc_is_used_if_both_ends_offer_it() {
    for (client, server) in [(true, true), (true, false), (false, true)] {
        let mut w = wire();
        let mut listener = listen(&mut w);
        listener.offer_smc(&mut w.nodes[0], server);
        let mut connector = Connector::new(LIMITS, 1);
        let link = connect(&mut w, &mut connector, client);
        let open = connector.progress(&w.nodes[1], link);
        let smc = client && server;
        assert_eq!(open, Progress::Open { smc }, "{client} {server}");
        let stream = listener.accept(&mut w.nodes[0], w.now).unwrap();
        assert_eq!(listener.offers_smc(&w.nodes[0], stream), smc);
    }
}

/// Both ends of a connection that carried some bytes and was then made idle at both ends.
fn idle(w: &mut Wire, listener: &mut Listener, connector: &mut Connector) -> Both {
    let link = connect(w, connector, true);
    let stream = listener.accept(&mut w.nodes[0], w.now).unwrap();
    let mut bytes = [0; 600];
    for count in [1, 300, 512] {
        assert_eq!(connector.write(&mut w.nodes[1], link, &bytes[..count]), Ok(count));
        w.settle();
        assert_eq!(listener.read(&mut w.nodes[0], stream, &mut bytes), Ok(count));
        assert_eq!(listener.write(&mut w.nodes[0], stream, &bytes[..count / 2]), Ok(count / 2));
        w.settle();
        assert_eq!(connector.read(&mut w.nodes[1], link, &mut bytes), Ok(count / 2));
    }
    // Data under way is delivered first.
    assert_eq!(connector.write(&mut w.nodes[1], link, b"last"), Ok(4));
    connector.make_idle(&mut w.nodes[1], link);
    listener.make_idle(&mut w.nodes[0], stream);
    w.pass(Duration::from_millis(100), Duration::from_millis(10));
    assert_eq!(listener.room(&mut w.nodes[0], stream), 512, "unread data keeps the buffers");
    assert_eq!(listener.read(&mut w.nodes[0], stream, &mut bytes), Ok(4));
    w.pass(Duration::from_millis(100), Duration::from_millis(10));
    assert!(listener.room(&mut w.nodes[0], stream) < 100);
    assert!(connector.room(&mut w.nodes[1], link) < 100);
    // Neither end sends keep-alives or times out.
    w.pass(Duration::from_secs(300), Duration::from_secs(1));
    assert!(matches!(connector.progress(&w.nodes[1], link), Progress::Open { .. }));
    assert_eq!(listener.read(&mut w.nodes[0], stream, &mut bytes), Ok(0));
    assert_eq!(connector.read(&mut w.nodes[1], link, &mut bytes), Ok(0));
    Both { link, stream }
}

struct Both {
    link: ConnectionHandle,
    stream: tcp::Stream,
}

#[test]
fn idle_connections_release_buffers_and_close_normally() {
    let mut w = wire();
    let mut listener = listen(&mut w);
    listener.offer_smc(&mut w.nodes[0], true);
    let mut connector = Connector::new(LIMITS, 1);
    let mut bytes = [0; 600];
    for _ in 0..5 {
        // Either end closes first, or either end resets.
        let Both { link, stream } = idle(&mut w, &mut listener, &mut connector);
        listener.finish(&mut w.nodes[0], stream);
        w.settle();
        assert_eq!(connector.read(&mut w.nodes[1], link, &mut bytes), Err(Closed::Finished));
        connector.close(&mut w.nodes[1], link, false);
        w.settle();
        assert_eq!(listener.read(&mut w.nodes[0], stream, &mut bytes), Err(Closed::Finished));
        listener.close(&mut w.nodes[0], stream, w.now);
        w.settle();

        let Both { link, stream } = idle(&mut w, &mut listener, &mut connector);
        connector.finish(&mut w.nodes[1], link);
        w.settle();
        assert_eq!(listener.read(&mut w.nodes[0], stream, &mut bytes), Err(Closed::Finished));
        listener.close(&mut w.nodes[0], stream, w.now);
        w.settle();
        assert_eq!(connector.read(&mut w.nodes[1], link, &mut bytes), Err(Closed::Finished));
        connector.close(&mut w.nodes[1], link, false);
        w.settle();

        let Both { link, stream } = idle(&mut w, &mut listener, &mut connector);
        listener.abort(&mut w.nodes[0], stream, w.now);
        w.settle();
        assert_eq!(connector.read(&mut w.nodes[1], link, &mut bytes), Err(Closed::Gone));
        connector.close(&mut w.nodes[1], link, true);
        w.settle();

        let Both { link, stream } = idle(&mut w, &mut listener, &mut connector);
        connector.close(&mut w.nodes[1], link, true);
        w.settle();
        assert_eq!(listener.read(&mut w.nodes[0], stream, &mut bytes), Err(Closed::Gone));
        listener.close(&mut w.nodes[0], stream, w.now);
        w.settle();
    }
}

#[test]
fn data_on_an_idle_connection_is_delivered() {
    let mut w = wire();
    let mut listener = listen(&mut w);
    let mut connector = Connector::new(LIMITS, 1);
    let Both { link, stream } = idle(&mut w, &mut listener, &mut connector);
    let (sent, mut bytes): (Vec<u8>, _) = ((0..200).collect(), [0; 600]);
    for back in [false, true] {
        let (mut written, mut read) = (0, 0);
        for _ in 0..200 {
            let rest = &sent[written..];
            written += match back {
                true => listener.write(&mut w.nodes[0], stream, rest).unwrap(),
                false => connector.write(&mut w.nodes[1], link, rest).unwrap(),
            };
            w.pass(Duration::from_millis(100), Duration::from_millis(10));
            read += match back {
                true => connector.read(&mut w.nodes[1], link, &mut bytes[read..]).unwrap(),
                false => listener.read(&mut w.nodes[0], stream, &mut bytes[read..]).unwrap(),
            };
        }
        assert_eq!(&bytes[..read], sent, "{back}");
    }
}
