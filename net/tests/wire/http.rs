//! The HTTP server over TCP.

use crate::client::Hosts;
use drivers::hal::Instant;
use net::http::{Handler, Limits, Read, Request, Response, Server, Status};
use netsim::Rng;
use proptest::prelude::*;
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::State;
use std::time::Duration;

const CURL: &[u8] =
    b"GET /healthz HTTP/1.1\r\nHost: 10.0.0.1\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n";

#[derive(Default)]
struct Routes {
    left: usize,
    closed: usize,
    refused: Vec<&'static str>,
}

impl Handler for Routes {
    fn refused(&mut self, refusal: net::refusal::Refusal) {
        self.refused.push(refusal.reason);
    }

    fn handle(&mut self, request: &Request<'_>) -> Response {
        match request.path {
            "/healthz" => Response::new(Status::OK, Response::TEXT, "ok\n"),
            "/large" | "/page" => {
                self.left = if request.path == "/large" { 300_000 } else { 75_000 };
                Response::stream("application/octet-stream", 1, None)
            }
            _ => Response::error(Status::NOT_FOUND),
        }
    }

    fn read(&mut self, _: u64, into: &mut [u8]) -> Read {
        let count = into.len().min(self.left);
        into[..count].fill(b'#');
        self.left -= count;
        if count == 0 { Read::End } else { Read::Bytes(count) }
    }

    fn close(&mut self, _: u64) {
        self.closed += 1;
    }
}

struct World {
    hosts: Hosts,
    server: Server,
    routes: Routes,
}

impl World {
    fn new(limits: Limits) -> Self {
        let mut hosts = Hosts::new();
        let server = Server::new(&mut hosts.interface, 80, limits, None);
        World { hosts, server, routes: Routes::default() }
    }

    fn run(&mut self, time: Duration) {
        let end = self.hosts.now + time;
        while self.hosts.now < end {
            self.hosts.now = self.hosts.now + Duration::from_millis(1);
            self.hosts.step();
            self.server.poll(&mut self.hosts.interface, &mut self.routes, self.hosts.now);
        }
    }

    fn open(&mut self) -> SocketHandle {
        let handle = self.hosts.connect(80);
        // The first connection waits for ARP, whose reply is delayed by 50 ms.
        self.run(Duration::from_millis(70));
        handle
    }

    /// Sends `bytes`, and returns the bytes received in `time`.
    fn ask(&mut self, handle: SocketHandle, bytes: &[u8], time: Duration) -> String {
        self.hosts.socket(handle).send_slice(bytes).unwrap();
        let mut answer = Vec::new();
        for _ in 0..time.as_millis() {
            self.run(Duration::from_millis(1));
            let socket = self.hosts.socket(handle);
            let _ = socket.recv(|b| (b.len(), answer.extend_from_slice(b)));
        }
        String::from_utf8(answer).unwrap()
    }
}

#[test]
fn requests_of_curl_are_answered_repeatedly() {
    let mut world = World::new(Limits::default());
    world.run(Duration::from_millis(20));
    for _ in 0..30 {
        let client = world.open();
        for _ in 0..2 {
            let answer = world.ask(client, CURL, Duration::from_millis(20));
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok\n"));
        }
        world.hosts.socket(client).close();
        world.run(Duration::from_millis(50));
        assert_eq!(world.server.connections(), 0);
    }
    // Also if the server closes first: its wait for the client's FIN does not occupy a socket.
    for _ in 0..30 {
        let client = world.open();
        let request = b"GET /x HTTP/1.0\r\n\r\n";
        let answer = world.ask(client, request, Duration::from_millis(20));
        assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"));
        assert!(answer.contains("Connection: close\r\n"));
        assert_eq!(world.hosts.socket(client).state(), State::CloseWait);
        world.hosts.socket(client).close();
        world.run(Duration::from_millis(20));
    }
}

#[test]
fn large_bodies_are_streamed_through_small_buffers() {
    let mut world = World::new(Limits::default());
    world.run(Duration::from_millis(20));
    let client = world.open();
    let request = b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = world.ask(client, request, Duration::from_millis(1000));
    assert_eq!(answer.matches('#').count(), 300_000);
    assert!(answer.ends_with("\r\n0\r\n\r\n"));
    assert_eq!(world.routes.closed, 1);
}

/// The server closes long before the client has read the whole body.
#[test]
fn slow_client_receives_the_whole_body() {
    let mut world = World::new(Limits::default());
    world.run(Duration::from_millis(20));
    let client = world.open();
    world.hosts.socket(client).send_slice(b"GET /page HTTP/1.0\r\n\r\n").unwrap();
    let mut body = 0;
    for _ in 0..200 {
        world.run(Duration::from_millis(500));
        let taken = world.hosts.socket(client).recv(|bytes| {
            let taken = bytes.len().min(500);
            (taken, bytes[..taken].iter().filter(|&&byte| byte == b'#').count())
        });
        body += taken.unwrap_or(0);
    }
    assert_eq!(body, 75_000);
    assert_eq!(world.hosts.socket(client).state(), State::CloseWait);
}

/// Sequential requests over a wire that loses one frame in `loss`: all are answered in full.
fn ask_over_loss(seed: u64, loss: u64) {
    let mut world = World::new(Limits::default());
    world.run(Duration::from_millis(20));
    let mut random = Rng::new(seed);
    world.hosts.loss = Some(Box::new(move || random.within(0..loss) == 0));
    for request in 0..30 {
        let client = world.open();
        let mut answer = Vec::new();
        let mut asked = false;
        let end = world.hosts.now + Duration::from_secs(120);
        while !answer.ends_with(b"\r\n\r\nok\n") {
            world.run(Duration::from_millis(10));
            let socket = world.hosts.socket(client);
            if socket.may_send() && !asked {
                let close = b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
                asked = socket.send_slice(close).is_ok();
            }
            let _ = socket.recv(|bytes| (bytes.len(), answer.extend_from_slice(bytes)));
            let state = socket.state();
            let text = String::from_utf8_lossy(&answer);
            assert_ne!(state, State::Closed, "request {request} was reset after {text:?}");
            assert!(world.hosts.now < end, "request {request} is {state}, with {text:?}");
        }
        world.hosts.socket(client).close();
        world.hosts.log.clear();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn requests_succeed_on_a_lossy_wire(seed: u64, loss in 15u64..60) {
        ask_over_loss(seed, loss);
    }
}

#[test]
fn stalled_client_is_reset_and_its_stream_closed() {
    let limits = Limits { stall: Duration::from_secs(2), ..Limits::default() };
    let mut world = World::new(limits);
    world.run(Duration::from_millis(20));
    let client = world.open();
    let request = b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n";
    world.hosts.socket(client).send_slice(request).unwrap();
    world.run(Duration::from_secs(3));
    assert_eq!(world.hosts.socket(client).state(), State::Closed, "it was reset");
    assert_eq!((world.routes.closed, world.server.connections()), (1, 0));
    let client = world.open();
    assert!(world.ask(client, CURL, Duration::from_millis(20)).ends_with("ok\n"));
}

#[test]
fn quiet_connections_make_room_for_new_ones() {
    let limits = Limits { connections: 3, ..Limits::default() };
    let mut world = World::new(limits);
    world.run(Duration::from_millis(20));
    for _ in 0..10 {
        let client = world.open();
        let answer = world.ask(client, CURL, Duration::from_millis(50));
        assert!(answer.ends_with("ok\n"), "{answer:?}");
    }
}

/// A host with unfinished requests or slow reads gets half of the places at most, and loses them soon.
#[test]
fn slow_clients_do_not_lock_others_out() {
    let begun = &CURL[..9];
    let mut world = World::new(Limits { connections: 6, ..Limits::default() });
    world.run(Duration::from_millis(20));
    let mut slow: Vec<_> = (0..3).map(|_| world.open()).collect();
    for &client in &slow {
        world.hosts.socket(client).send_slice(begun).unwrap();
    }
    world.run(Duration::from_millis(50));
    assert_eq!(world.server.connections(), 3);
    // There is room, but not for this host, until one of its connections is slow.
    let fourth = world.open();
    assert_eq!(world.hosts.socket(fourth).state(), State::Closed, "it was reset");
    assert_eq!((world.server.connections(), &world.routes.refused[..]), (3, &["connections"][..]));
    for _ in 0..4 {
        world.run(Duration::from_millis(1100));
        let client = world.open();
        world.hosts.socket(client).send_slice(begun).unwrap();
        slow.push(client);
        world.run(Duration::from_millis(50));
        assert_eq!(world.server.connections(), 3);
    }
    assert_eq!(world.routes.refused.len(), 1);
    // If slow connections have all places, the oldest of them is closed for any host.
    let mut world = World::new(Limits { connections: 1, ..Limits::default() });
    world.run(Duration::from_millis(20));
    let slow = world.open();
    world.hosts.socket(slow).send_slice(begun).unwrap();
    world.run(Duration::from_millis(1100));
    assert_eq!(world.server.connections(), 0);
    let client = world.open();
    assert!(world.ask(client, CURL, Duration::from_millis(50)).ends_with("ok\n"));
}

#[test]
fn half_open_connections_do_not_lock_others_out_for_long() {
    let mut world = World::new(Limits { connections: 3, ..Limits::default() });
    world.run(Duration::from_millis(20));
    let client = world.open();
    world.ask(client, CURL, Duration::from_millis(20));
    let syn = world.hosts.log.iter().find(|f| f[12..14] == [8, 0]).unwrap().clone();
    for port in 0..3 {
        let mut syn = syn.clone();
        syn[29] = 99;
        syn[34..36].copy_from_slice(&[0x99, port]);
        fix_checksums(&mut syn);
        let now = world.hosts.now;
        world.hosts.interface.handle_frame(&syn, now);
        world.run(Duration::from_millis(10));
    }
    world.run(Duration::from_secs(4));
    // smoltcp suspends a socket for a second after a failed neighbour resolution.
    let client = world.open();
    world.run(Duration::from_millis(1500));
    assert!(world.ask(client, CURL, Duration::from_millis(50)).ends_with("ok\n"));
}

#[test]
fn idle_server_has_no_timers() {
    let mut world = World::new(Limits::default());
    world.run(Duration::from_millis(20));
    let client = world.open();
    world.ask(client, CURL, Duration::from_millis(100));
    let (server, interface) = (world.server.poll_timeout(), world.hosts.interface.poll_timeout());
    let soon = world.hosts.now + Duration::from_secs(5);
    assert!(server.is_some_and(|at| at > soon), "only the idle timeout");
    assert!(interface.is_none_or(|at| at > soon), "{interface:?}");
    world.run(Duration::from_secs(60));
    assert_eq!(world.hosts.interface.poll_timeout(), None);
    assert_eq!(world.server.poll_timeout(), None);
}

/// Frames of a TCP connection with bytes changed, at every stage of it.
#[test]
fn damaged_segments_do_no_harm() {
    let mut world = World::new(Limits::default());
    world.run(Duration::from_millis(20));
    let client = world.open();
    world.ask(client, CURL, Duration::from_millis(20));
    world.hosts.socket(client).close();
    world.run(Duration::from_millis(20));
    let log = std::mem::take(&mut world.hosts.log);
    let mut random = Rng::new(1);
    let mut next = |n: usize| random.within(0..n as u64) as usize;
    for _ in 0..20_000 {
        let mut frame = log[next(log.len())].clone();
        for _ in 0..next(3) {
            // After the addresses, so that the frame passes the filter.
            let at = 34 + next(20);
            if at < frame.len() {
                frame[at] = next(256) as u8;
            }
        }
        fix_checksums(&mut frame);
        let now = world.hosts.now;
        world.hosts.interface.handle_frame(&frame, now);
        world.run(Duration::from_millis(1));
        world.hosts.log.clear();
    }
    world.run(Duration::from_secs(60));
    let client = world.open();
    assert!(world.ask(client, CURL, Duration::from_millis(50)).ends_with("ok\n"));
}

fn fix_checksums(frame: &mut [u8]) {
    use smoltcp::wire::{IpAddress, Ipv4Packet, TcpPacket};
    let Ok(mut ip) = Ipv4Packet::new_checked(&mut frame[14..]) else { return };
    let (source, destination) = (IpAddress::from(ip.src_addr()), ip.dst_addr().into());
    ip.fill_checksum();
    if let Ok(mut tcp) = TcpPacket::new_checked(ip.payload_mut()) {
        tcp.fill_checksum(&source, &destination);
    }
}

#[test]
fn stop_frees_all_resources() {
    let mut world = World::new(Limits::default());
    world.run(Duration::from_millis(20));
    let client = world.open();
    world.hosts.socket(client).send_slice(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    world.run(Duration::from_millis(20));
    let World { mut hosts, server, mut routes } = world;
    server.stop(&mut hosts.interface, &mut routes);
    assert_eq!(routes.closed, 1);
    hosts.interface.poll(hosts.now);
    assert_eq!(hosts.interface.poll_timeout().filter(|&at| at > Instant::ZERO), None);
}

/// Quiet connections cost nothing, whatever the load on another one.
#[test]
fn quiet_connections_are_not_served() {
    let cost = |quiet: usize| {
        let mut world = World::new(Limits::default());
        world.run(Duration::from_millis(20));
        let others: Vec<_> = (0..quiet).map(|_| world.open()).collect();
        for other in others {
            world.ask(other, CURL, Duration::from_millis(20));
        }
        let client = world.open();
        world.ask(client, CURL, Duration::from_millis(20));
        let before = world.server.looks();
        for _ in 0..20 {
            assert!(world.ask(client, CURL, Duration::from_millis(20)).ends_with("ok\n"));
        }
        assert_eq!(world.server.connections(), quiet + 1);
        world.server.looks() - before
    };
    let alone = cost(0);
    assert!(alone <= 20 * 4, "{alone} looks for 20 requests");
    assert_eq!(cost(6), alone);
}

/// A world whose server speaks TLS on port 443.
fn with_tls(limits: Limits) -> World {
    use net::tls::{Pair, Tls};
    let mut world = World::new(limits);
    let mut byte = 1_u8;
    let mut random = move |into: &mut [u8]| {
        into.iter_mut().for_each(|to| {
            byte = byte.wrapping_mul(5).wrapping_add(7);
            *to = byte;
        });
    };
    let pair = Pair::self_signed("gw", &[], &mut random);
    let tls = Some(Tls::new(pair, Box::new(random)));
    world.server = Server::new(&mut world.hosts.interface, 443, limits, tls);
    world.run(Duration::from_millis(20));
    world
}

fn open_tls(world: &mut World) -> SocketHandle {
    let client = world.hosts.connect(443);
    world.run(Duration::from_millis(70));
    client
}

/// A stalled handshake has the only place, and is closed by its timer without another event.
#[test]
fn stalled_handshake_is_closed_without_an_event() {
    let mut world = with_tls(Limits { connections: 1, ..Limits::default() });
    let stalled = open_tls(&mut world);
    world.hosts.socket(stalled).send_slice(&[0x16, 3, 1]).unwrap();
    world.run(Duration::from_millis(300));
    for _ in 0..4 {
        let honest = open_tls(&mut world);
        world.hosts.socket(honest).send_slice(CURL).unwrap();
        world.run(Duration::from_millis(20));
        let mut answer = Vec::new();
        let _ = world.hosts.socket(honest).recv(|b| (b.len(), answer.extend_from_slice(b)));
        assert_eq!(answer.len(), 7, "the first attempt is answered");
        world.run(Duration::from_millis(300));
    }
}

/// A TLS server answers plain clients with an alert, and closes silent ones.
#[test]
fn client_without_tls_gets_an_alert_and_is_closed() {
    let mut world = with_tls(Limits::default());
    let open = open_tls;
    let plain = open(&mut world);
    world.hosts.socket(plain).send_slice(CURL).unwrap();
    world.run(Duration::from_millis(20));
    let mut answer = Vec::new();
    let _ = world.hosts.socket(plain).recv(|b| (b.len(), answer.extend_from_slice(b)));
    // An alert (RFC 8446, section 6): type 21, two bytes.
    assert_eq!((answer.len(), answer[0]), (7, 21), "{answer:?}");
    assert_eq!(world.hosts.socket(plain).state(), State::CloseWait);
    let silent = open(&mut world);
    let slow = open(&mut world);
    for byte in [0x16, 3, 1, 2] {
        world.hosts.socket(slow).send_slice(&[byte]).unwrap();
        world.run(Duration::from_millis(1000));
    }
    assert_eq!(world.server.connections(), 2);
    world.run(Duration::from_millis(1000));
    for client in [silent, slow] {
        assert_eq!(world.hosts.socket(client).state(), State::CloseWait);
    }
    assert_eq!(world.routes.refused, ["tls_failed", "tls_timeout", "tls_timeout"]);
    assert_eq!(world.server.connections(), 0);
}
