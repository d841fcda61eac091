//! The TCP listener, from its user's point of view.

use crate::client::Hosts;
use net::tcp::{Closed, Limits, Listener, Stream};
use smoltcp::socket::tcp::State;
use std::time::Duration;

const LIMITS: Limits = Limits { connections: 2, receive: 512, transmit: 512 };

/// Exchanges frames until a connection is accepted.
fn accept(hosts: &mut Hosts, listener: &mut Listener) -> Option<Stream> {
    for _ in 0..20 {
        hosts.step();
        if let Some(stream) = listener.accept(&mut hosts.interface, hosts.now) {
            return Some(stream);
        }
        hosts.now = hosts.now + Duration::from_millis(10);
    }
    None
}

fn settle(hosts: &mut Hosts, listener: &mut Listener) {
    for _ in 0..20 {
        hosts.step();
        assert_eq!(listener.accept(&mut hosts.interface, hosts.now), None);
        hosts.now = hosts.now + Duration::from_millis(10);
    }
}

#[test]
fn data_goes_both_ways_and_each_side_closes_separately() {
    let mut hosts = Hosts::new();
    let mut listener = Listener::new(&mut hosts.interface, 18515, LIMITS);
    let client = hosts.connect(18515);
    let stream = accept(&mut hosts, &mut listener).unwrap();
    let (peer, ours) = listener.ends(&mut hosts.interface, stream).unwrap();
    assert_eq!((peer.ip().to_string(), ours.to_string()), ("10.0.0.2".into(), "10.0.0.1".into()));

    let mut bytes = [0; 16];
    assert_eq!(listener.read(&mut hosts.interface, stream, &mut bytes), Ok(0));
    hosts.socket(client).send_slice(b"question").unwrap();
    hosts.socket(client).close();
    settle(&mut hosts, &mut listener);
    assert_eq!(listener.read(&mut hosts.interface, stream, &mut bytes), Ok(8));
    assert_eq!(&bytes[..8], b"question");
    let end = listener.read(&mut hosts.interface, stream, &mut bytes);
    assert_eq!(end, Err(Closed::Finished));

    assert_eq!(listener.write(&mut hosts.interface, stream, b"answer"), Ok(6));
    listener.finish(&mut hosts.interface, stream);
    let late = listener.write(&mut hosts.interface, stream, b"more");
    assert_eq!(late, Err(Closed::Finished));
    listener.close(&mut hosts.interface, stream, hosts.now);
    let gone = listener.write(&mut hosts.interface, stream, b"more");
    assert_eq!(gone, Err(Closed::Gone));
    settle(&mut hosts, &mut listener);
    assert_eq!(hosts.socket(client).recv_slice(&mut bytes), Ok(6));
    assert_eq!(&bytes[..6], b"answer");
}

#[test]
fn reads_and_writes_are_limited_by_the_buffers() {
    let mut hosts = Hosts::new();
    let mut listener = Listener::new(&mut hosts.interface, 18515, LIMITS);
    let client = hosts.connect(18515);
    let stream = accept(&mut hosts, &mut listener).unwrap();
    assert_eq!(listener.write(&mut hosts.interface, stream, &[7; 1000]), Ok(512));
    hosts.socket(client).send_slice(&[8; 1000]).unwrap();
    settle(&mut hosts, &mut listener);
    let mut bytes = [0; 2000];
    assert_eq!(listener.read(&mut hosts.interface, stream, &mut bytes), Ok(512));
    settle(&mut hosts, &mut listener);
    assert_eq!(listener.read(&mut hosts.interface, stream, &mut bytes), Ok(488));
}

#[test]
fn places_are_reused_and_old_names_are_invalid() {
    let mut hosts = Hosts::new();
    let mut listener = Listener::new(&mut hosts.interface, 18515, LIMITS);
    let mut before: Option<Stream> = None;
    for round in 0..10 {
        let client = hosts.connect(18515);
        let stream = accept(&mut hosts, &mut listener).unwrap();
        assert_ne!(Some(stream), before);
        if let Some(old) = before {
            let read = listener.read(&mut hosts.interface, old, &mut [0; 8]);
            assert_eq!(read, Err(Closed::Gone));
        }
        before = Some(stream);
        match round % 3 {
            0 => listener.abort(&mut hosts.interface, stream, hosts.now),
            1 => {
                hosts.socket(client).abort();
                settle(&mut hosts, &mut listener);
                let read = listener.read(&mut hosts.interface, stream, &mut [0; 8]);
                assert_eq!(read, Err(Closed::Gone));
                listener.close(&mut hosts.interface, stream, hosts.now);
            }
            _ => listener.close(&mut hosts.interface, stream, hosts.now),
        }
        hosts.socket(client).close();
        settle(&mut hosts, &mut listener);
        assert!(!matches!(hosts.socket(client).state(), State::Established));
    }
}

#[test]
fn peer_without_fin_does_not_keep_its_place() {
    let mut hosts = Hosts::new();
    let mut listener = Listener::new(&mut hosts.interface, 18515, LIMITS);
    let mut clients = Vec::new();
    for _ in 0..2 {
        clients.push(hosts.connect(18515));
        let stream = accept(&mut hosts, &mut listener).unwrap();
        listener.close(&mut hosts.interface, stream, hosts.now);
        settle(&mut hosts, &mut listener);
    }
    hosts.connect(18515);
    assert!(accept(&mut hosts, &mut listener).is_some());
    // The client is not reset: a reset could destroy unread data.
    hosts.now = hosts.now + Duration::from_secs(10);
    settle(&mut hosts, &mut listener);
    for client in clients {
        assert_eq!(hosts.socket(client).state(), State::CloseWait);
    }
}

/// Closed connections whose clients read nothing keep their places for a while.
#[test]
fn unsent_data_of_closed_connections_does_not_lock_others_out_for_long() {
    let mut hosts = Hosts::new();
    let limits = Limits { transmit: 100_000, ..LIMITS };
    let mut listener = Listener::new(&mut hosts.interface, 18515, limits);
    for _ in 0..2 {
        hosts.connect(18515);
        let stream = accept(&mut hosts, &mut listener).unwrap();
        assert_eq!(listener.write(&mut hosts.interface, stream, &[1; 100_000]), Ok(100_000));
        listener.close(&mut hosts.interface, stream, hosts.now);
        settle(&mut hosts, &mut listener);
    }
    assert!(listener.is_full(&hosts.interface) && listener.has_closing(&hosts.interface));
    let client = hosts.connect(18515);
    settle(&mut hosts, &mut listener);
    assert_ne!(hosts.socket(client).state(), State::Established);
    hosts.now = hosts.now + Duration::from_secs(5);
    settle(&mut hosts, &mut listener);
    hosts.connect(18515);
    assert!(accept(&mut hosts, &mut listener).is_some());
}

/// A repeated SYN belongs to one connection, whether or not the first SYN-ACK was lost.
#[test]
fn lost_syn_ack_is_retransmitted() {
    for lost in 1..4 {
        let mut hosts = Hosts::new();
        let mut listener = Listener::new(&mut hosts.interface, 18515, LIMITS);
        let client = hosts.connect(18515);
        let mut frames = 0;
        // The first frames in either direction are ARP's.
        hosts.loss = Some(Box::new(move || {
            frames += 1;
            (4..4 + lost).contains(&frames)
        }));
        let end = hosts.now + Duration::from_secs(20);
        let accepted = loop {
            if let Some(stream) = accept(&mut hosts, &mut listener) {
                break stream;
            }
            assert!(hosts.now < end && hosts.socket(client).is_open(), "{lost} lost");
        };
        assert_eq!(hosts.socket(client).state(), State::Established);
        assert_eq!(listener.write(&mut hosts.interface, accepted, b"there"), Ok(5));
    }
}

/// Many connections have more data than the queue holds, the port accepts less, and one frame of 25 is lost. No
/// retransmission is lost and no connection is starved: none stalls for longer than a few retransmissions in a row
/// take.
#[test]
fn no_connection_stalls_on_a_lossy_wire() {
    const CONNECTIONS: usize = 40;
    const BYTES: usize = 3_000_000;
    let mut hosts = Hosts::new();
    let limits = Limits { connections: CONNECTIONS, receive: 512, transmit: 16_384 };
    let mut listener = Listener::new(&mut hosts.interface, 18515, limits);
    let mut streams = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = hosts.connect(18515);
        streams.push((accept(&mut hosts, &mut listener).unwrap(), client));
    }
    let mut seed: u32 = 2;
    hosts.loss = Some(Box::new(move || {
        // Numerical Recipes' generator.
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        seed >> 16 < 65_536 / 25
    }));
    hosts.room = 8;
    let mut left = [BYTES; CONNECTIONS];
    let mut got = [0; CONNECTIONS];
    let mut moved = [hosts.now; CONNECTIONS];
    while got.iter().any(|&got| got < BYTES) {
        for (n, &(stream, client)) in streams.iter().enumerate() {
            let bytes = vec![n as u8; left[n].min(16_384)];
            left[n] -= listener.write(&mut hosts.interface, stream, &bytes).unwrap();
            let read = hosts.socket(client).recv(|bytes| (bytes.len(), bytes.len())).unwrap();
            got[n] += read;
            if read > 0 || got[n] == BYTES {
                moved[n] = hosts.now;
            }
            let stood = hosts.now.nanos_since(moved[n]) / 1_000_000_000;
            assert!(stood < 20, "connection {n} stalled for {stood} s at {} bytes", got[n]);
        }
        hosts.step();
        hosts.now = hosts.now + Duration::from_millis(1);
    }
}
