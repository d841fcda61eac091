//! Path MTU discovery: a link on the path has a smaller MTU than both ends.

use crate::client::{Hosts, Router, report};
use crate::common::fixed;
use net::connector::Connector;
use net::tcp::{Limits, Listener, Stream};
use smoltcp::iface::SocketHandle;
use smoltcp::wire::IpAddress;
use std::time::Duration;

const LIMITS: Limits = Limits { connections: 8, receive: 4096, transmit: 65_536 };
const BYTES: usize = 300_000;

fn hosts(router: Option<Router>) -> Hosts {
    let mut hosts = Hosts::new();
    let mut addressing = fixed("10.0.0.1/24");
    addressing.addresses.push("fd07::1/64".parse().unwrap());
    hosts.interface.set_addressing(addressing, hosts.now).unwrap();
    hosts.router = router;
    hosts
}

fn addresses() -> [(IpAddress, IpAddress); 2] {
    let ip = |text: &str| text.parse().unwrap();
    [(ip("10.0.0.1"), ip("10.0.0.2")), (ip("fd07::1"), ip("fd07::2"))]
}

fn step(hosts: &mut Hosts) {
    hosts.step();
    hosts.now = hosts.now + Duration::from_millis(1);
}

fn accept(hosts: &mut Hosts, listener: &mut Listener, ours: IpAddress) -> (SocketHandle, Stream) {
    let client = hosts.connect_to(ours, 80);
    loop {
        step(hosts);
        if let Some(stream) = listener.accept(&mut hosts.interface, hosts.now) {
            return (client, stream);
        }
    }
}

/// Sends bytes by `write` until the host's socket has read them all in order. Returns the time it took.
fn carry(
    hosts: &mut Hosts,
    socket: SocketHandle,
    bytes: usize,
    mut write: impl FnMut(&mut Hosts, &[u8]) -> usize,
) -> Duration {
    let start = hosts.now;
    let (mut written, mut read) = (0, 0);
    while read < bytes {
        let next: Vec<u8> = (written..bytes).take(8000).map(|n| (n % 251) as u8).collect();
        written += write(hosts, &next);
        let got = hosts.socket(socket).recv(|bytes| (bytes.len(), bytes.to_vec()));
        for byte in got.unwrap_or_default() {
            assert_eq!(byte, (read % 251) as u8);
            read += 1;
        }
        step(hosts);
        assert!(hosts.now.since(start) < Duration::from_secs(60), "{read} bytes after a minute");
    }
    hosts.now.since(start)
}

fn serve(hosts: &mut Hosts, listener: &mut Listener, ours: IpAddress, bytes: usize) -> Duration {
    let (client, stream) = accept(hosts, listener, ours);
    carry(hosts, client, bytes, |hosts, next| {
        listener.write(&mut hosts.interface, stream, next).unwrap()
    })
}

#[test]
fn server_adopts_the_reported_mtu_at_once() {
    for (ours, _) in addresses() {
        for mtu in [1499, 1400, 1280] {
            let mut hosts = hosts(Some(Router { mtu, reports: true }));
            let mut listener = Listener::new(&mut hosts.interface, 80, LIMITS);
            let took = serve(&mut hosts, &mut listener, ours, BYTES);
            assert!(took < Duration::from_secs(1), "{ours} {mtu}: {took:?}");
            // The next connection uses the stored path MTU.
            let mut refused = 0;
            hosts.loss = Some(Box::new(|| false));
            hosts.router = Some(Router { mtu, reports: false });
            let took = serve(&mut hosts, &mut listener, ours, BYTES);
            refused += usize::from(took >= Duration::from_secs(1));
            assert_eq!(refused, 0, "{ours} {mtu}: {took:?}");
        }
    }
}

#[test]
fn client_adopts_the_reported_mtu_at_once() {
    for (_, theirs) in addresses() {
        let mut hosts = hosts(Some(Router { mtu: 1400, reports: true }));
        let socket = hosts.add_socket();
        hosts.socket(socket).listen(80).unwrap();
        let mut connector = Connector::new(LIMITS, 1);
        let peer = std::net::SocketAddr::new(theirs.into(), 80);
        let ours = connector.connect(&mut hosts.interface, peer, false).unwrap();
        for _ in 0..100 {
            step(&mut hosts);
        }
        let took = carry(&mut hosts, socket, BYTES, |hosts, next| {
            connector.write(&mut hosts.interface, ours, next).unwrap()
        });
        assert!(took < Duration::from_secs(1), "{theirs}: {took:?}");
    }
}

/// Without a router's report, smaller and smaller segments are tried, and the size is stored.
#[test]
fn path_mtu_is_found_without_reports() {
    for (at, (ours, _)) in addresses().into_iter().enumerate() {
        for (mtu, seconds) in [(1450, 5), (1300, 9), (600, 17)] {
            if mtu < 1280 && at == 1 {
                continue;
            }
            let mut hosts = hosts(Some(Router { mtu, reports: false }));
            let mut listener = Listener::new(&mut hosts.interface, 80, LIMITS);
            let took = serve(&mut hosts, &mut listener, ours, BYTES);
            assert!(took < Duration::from_secs(seconds), "{ours} {mtu}: {took:?}");
            let took = serve(&mut hosts, &mut listener, ours, BYTES);
            assert!(took < Duration::from_secs(2), "{ours} {mtu}, later: {took:?}");
        }
    }
}

/// The largest packet that the interface sends to the host.
fn largest(hosts: &mut Hosts, listener: &mut Listener, ours: IpAddress) -> usize {
    for size in (0..1600).step_by(4) {
        let (client, stream) = accept(hosts, listener, ours);
        hosts.router = Some(Router { mtu: size, reports: false });
        listener.write(&mut hosts.interface, stream, &[7; 1460]).unwrap();
        for _ in 0..5 {
            step(hosts);
        }
        let arrived = hosts.socket(client).recv_queue();
        hosts.router = None;
        listener.abort(&mut hosts.interface, stream, hosts.now);
        hosts.socket(client).abort();
        step(hosts);
        if arrived > 100 {
            return size;
        }
    }
    0
}

/// Reports can be forged, so they must quote a segment in flight.
#[test]
fn forged_report_changes_nothing() {
    let (ours, _) = addresses()[0];
    let mut hosts = hosts(None);
    let mut listener = Listener::new(&mut hosts.interface, 80, LIMITS);
    let (client, stream) = accept(&mut hosts, &mut listener, ours);
    // A segment in flight.
    hosts.router = Some(Router { mtu: 100, reports: false });
    listener.write(&mut hosts.interface, stream, &[7; 1460]).unwrap();
    hosts.interface.poll(hosts.now);
    let mut port = netsim::Collector::new(8);
    hosts.interface.transmit(&mut port, |_| ());
    let frame = port.frames.iter().find(|frame| frame.len() > 1000).unwrap().clone();
    // Another number, port, host or protocol; an MTU that is not below the packet's length, or impossibly small.
    let mut reports = Vec::new();
    for (at, by) in [(38, 1), (40, 0x80), (34, 1), (36, 1), (33, 1), (29, 1), (23, 8)] {
        let mut other = frame.clone();
        other[at] ^= by;
        reports.push(report(&other, 576));
    }
    reports.push(report(&frame, 1500));
    reports.push(report(&frame, 9000));
    reports.push(report(&frame, 60));
    let mut damaged = report(&frame, 576);
    damaged[36] ^= 1;
    reports.push(damaged);
    for report in reports {
        hosts.interface.handle_frame(&report, hosts.now);
        assert_eq!(hosts.interface.path_mtu([10, 0, 0, 2].into(), hosts.now), 1500);
    }
    // A valid report below the allowed minimum.
    hosts.interface.handle_frame(&report(&frame, 100), hosts.now);
    assert_eq!(hosts.interface.path_mtu([10, 0, 0, 2].into(), hosts.now), 576);
    hosts.router = None;
    for _ in 0..2000 {
        step(&mut hosts);
    }
    assert_eq!(hosts.socket(client).recv_queue(), 1460);
    // The quoted segment is acknowledged.
    assert!(largest(&mut hosts, &mut listener, ours) <= 576);
}

#[test]
fn larger_packets_are_tried_again_after_ten_minutes() {
    let (ours, _) = addresses()[0];
    let mut hosts = hosts(Some(Router { mtu: 1400, reports: true }));
    let mut listener = Listener::new(&mut hosts.interface, 80, LIMITS);
    serve(&mut hosts, &mut listener, ours, BYTES);
    assert_eq!(hosts.interface.path_mtu([10, 0, 0, 2].into(), hosts.now), 1400);
    hosts.router = None;
    assert!((1380..=1400).contains(&largest(&mut hosts, &mut listener, ours)));
    hosts.now = hosts.now + Duration::from_secs(601);
    assert_eq!(hosts.interface.path_mtu([10, 0, 0, 2].into(), hosts.now), 1500);
    assert!((1480..=1500).contains(&largest(&mut hosts, &mut listener, ours)));
}
