//! Syslog messages to a server.

use crate::common::{Wire, fixed};
use net::syslog::{Record, Sender, Severity, Timestamp, Unavailable};
use smoltcp::wire::{Ipv4Packet, UdpPacket};
use std::time::Duration;

/// The syslog messages that node 0 sent.
fn messages(wire: &Wire) -> Vec<String> {
    let sent = wire.log.iter().filter(|(from, frame)| *from == 0 && frame[12..14] == [8, 0]);
    sent.map(|(_, frame)| {
        let ip = Ipv4Packet::new_checked(&frame[14..]).unwrap();
        let udp = UdpPacket::new_checked(ip.payload()).unwrap();
        assert_eq!(udp.dst_port(), 514);
        String::from_utf8(udp.payload().to_vec()).unwrap()
    })
    .collect()
}

#[test]
fn records_arrive_in_order_and_whole() {
    let mut wire = Wire::new([fixed("10.0.0.1/24"), fixed("10.0.0.2/24")]);
    let server = "10.0.0.2:514".parse().unwrap();
    let mut sender = Sender::new(&mut wire.nodes[0], server, "gate-1", "isthmus");
    let mut record = Record {
        severity: Severity::Warning,
        time: Some(Timestamp(Duration::from_millis(1_763_636_868_250))),
        source: "rtrs",
        text: "session host-a@10.0.0.9 closed:\nno heartbeat \u{fc}",
    };
    sender.send(&mut wire.nodes[0], &record).unwrap();
    let long = "\u{fc}".repeat(1000);
    (record.text, record.time) = (&long, None);
    sender.send(&mut wire.nodes[0], &record).unwrap();
    wire.pass(Duration::from_secs(2), Duration::from_millis(100));
    let messages = messages(&wire);
    let expected = "<12>1 2025-11-20T11:07:48.250000Z gate-1 isthmus - rtrs - \
        session host-a@10.0.0.9 closed: no heartbeat \u{fc}";
    assert_eq!(messages[0], expected);
    assert!(messages[1].starts_with("<12>1 - gate-1 "), "without a clock: {}", messages[1]);
    assert!((1023..=1024).contains(&messages[1].len()) && messages[1].ends_with('\u{fc}'));
    assert_eq!((messages.len(), sender.sent()), (2, 2));
    sender.stop(&mut wire.nodes[0]);
}

#[test]
fn record_without_route_or_room_is_refused() {
    let mut wire = Wire::new([fixed("10.0.0.1/24")]);
    let record = Record { severity: Severity::Error, time: None, source: "", text: "text" };
    let node = &mut wire.nodes[0];
    let mut lost = Sender::new(node, "192.0.2.1:514".parse().unwrap(), "a", "b");
    assert_eq!(lost.send(node, &record), Err(Unavailable), "no route");
    let mut silent = Sender::new(node, "10.0.0.3:514".parse().unwrap(), "a", "b");
    let queued = (0..100).take_while(|_| silent.send(node, &record).is_ok()).count();
    assert!((1..20).contains(&queued), "{queued}");
}
