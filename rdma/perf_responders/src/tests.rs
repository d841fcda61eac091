//! Lifetime of a session, over RoCE in virtual time.

use super::perftest;
use super::tools::Server;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::{Arena, Instant, Window};
use net::Neighbours;
use net::Resolution;
use roce::testing::Pair;
use std::format;
use std::string::String;
use std::vec::Vec;
use verbs::{
    Ctx, PathMtu, Payload, Provider, ReadyToReceive, ReadyToSend, RecvRequest, SendOperation,
    SendRequest, SendWith,
};

/// Neighbour table with the client of `ibv_rc_pingpong`, node 1.
struct Known([u8; 6]);

impl Neighbours for Known {
    fn address_towards(&self, _: IpAddr, preferred: IpAddr) -> Option<IpAddr> {
        Some(preferred)
    }
    fn resolve(&mut self, _: IpAddr, _: Instant) -> Resolution {
        Resolution::Known(self.0)
    }
}

/// Neighbour table with two addresses of the client, 10.0.0.2 and fe80::2, and another host. All other hosts are behind
/// a router, which is the client.
struct Several {
    client: [u8; 6],
    /// Lookups of the client that are pending.
    pending: usize,
}

impl Neighbours for Several {
    fn address_towards(&self, _: IpAddr, preferred: IpAddr) -> Option<IpAddr> {
        Some(preferred)
    }
    fn resolve(&mut self, ip: IpAddr, _: Instant) -> Resolution {
        if ip == IpAddr::from([10, 0, 0, 3]) {
            return Resolution::Known([2, 0, 0, 0, 0, 3]);
        }
        if ip == IpAddr::from([10, 0, 0, 2]) && self.pending > 0 {
            self.pending -= 1;
            return Resolution::Pending;
        }
        Resolution::Known(self.client)
    }
    fn is_direct(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => ip.octets()[..3] == [10, 0, 0],
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        }
    }
}

/// A client names a GID over TCP. The responder sends only to the client itself: to the address of the TCP connection, or
/// to another address of the same MAC address.
#[test]
fn gid_of_another_host_is_refused_with_the_reason() {
    let mapped = |last: u8| format!("00000000000000000000ffff0a0000{last:02x}");
    let link_local = String::from("fe800000000000000000000000000002");
    let routed = String::from("fd000000000000000000000000000009");
    let perftest_key = |gid: &str| {
        let bytes: Vec<&str> = (0..16).map(|n| &gid[2 * n..2 * n + 2]).collect();
        format!("0000:0001:000011:7ce4e5:0003a2f1:00007f1c5e1c5000:{}:00000000:\0", bytes.join(":"))
    };
    for (gid, is_own) in
        [(mapped(2), true), (link_local, true), (mapped(3), false), (routed, false)]
    {
        for tool in ["pingpong", "perftest"] {
            netsim::label!(gid, tool);
            let mut pair = Pair::new(9, 1500, false);
            let mut server = Server::new(&mut pair.nodes[0].roce).unwrap();
            let (peer, local, client) = (pair.nodes[1].ip, pair.nodes[0].ip, pair.nodes[1].mac);
            let mut neighbours = Several { client, pending: 1 };
            let (answered, ended) = with_server(&mut pair, &mut server, |server, ctx| {
                let id = server.open(perftest::PORT, peer, local, ctx).unwrap();
                let before = match tool {
                    "pingpong" => {
                        server.receive(id, format!("0000:000011:123456:{gid}\0").as_bytes());
                        0
                    }
                    _ => {
                        // Version, cycle buffer and cache line, path MTU.
                        let begin = [&b"4.5"[..], &[0; 13 + 4 + 4], b"3\0"].concat();
                        server.receive(id, &begin);
                        server.advance(id, ctx, &mut neighbours);
                        server.receive(id, perftest_key(&gid).as_bytes());
                        server.output(id).len()
                    }
                };
                // The neighbour may have to be resolved first.
                (0..3).for_each(|_| server.advance(id, ctx, &mut neighbours));
                let answered = server.output(id).len() > before;
                let ended = server.has_ended(id);
                server.poll(ctx);
                (answered, ended)
            });
            assert_eq!((answered, ended), (is_own, !is_own));
            let refusal = server.refusals().pop();
            let label = refusal.as_ref().map(|refusal| (refusal.who, refusal.reason));
            assert_eq!(label, (!is_own).then_some((Some(peer), "gid_of_another_host")));
            assert_eq!(server.sessions(), usize::from(is_own));
        }
    }
}

fn with_server<T>(
    pair: &mut Pair,
    server: &mut Server,
    act: impl FnOnce(&mut Server, &mut Ctx<'_, roce::Roce>) -> T,
) -> T {
    pair.context(0, |ctx| act(server, ctx))
}

/// Steps until `done`, and polls the server in each step.
fn run(
    pair: &mut Pair,
    server: &mut Server,
    seconds: u64,
    mut done: impl FnMut(&mut Pair) -> bool,
) -> bool {
    pair.run(Duration::from_secs(seconds), |pair| {
        with_server(pair, server, |server, ctx| server.poll(ctx));
        done(pair)
    })
}

/// Runs the client of `ibv_rc_pingpong` on node 1 up to the end of its control connection, and posts one message of
/// `length` bytes; returns its buffer.
fn pingpong(pair: &mut Pair, server: &mut Server, length: usize) -> Window {
    let (peer, local, mac) = (pair.nodes[1].ip, pair.nodes[0].ip, pair.nodes[1].mac);
    let qpn = pair.nodes[1].roce.qp_number(pair.nodes[1].qp).unwrap();
    let line = format!("0000:{qpn:06x}:123456:00000000000000000000ffff0a000002\0");
    let answer = with_server(pair, server, |server, ctx| {
        let id = server.open(perftest::PORT, peer, local, ctx).unwrap();
        server.receive(id, line.as_bytes());
        server.advance(id, ctx, &mut Known(mac));
        let answer = String::from_utf8(server.output(id).to_vec()).unwrap();
        server.receive(id, b"done\0");
        server.advance(id, ctx, &mut Known(mac));
        server.control_closed(id);
        answer
    });
    let number =
        |field: usize| u32::from_str_radix(answer.split(':').nth(field).unwrap(), 16).unwrap();
    let (path_mtu, address) = (PathMtu::Mtu1024, pair.address(1));
    let (remote_qpn, rq_psn) = (number(1), number(2));
    let receive = ReadyToReceive {
        remote_qpn,
        rq_psn,
        path_mtu,
        address,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
    };
    let node = &mut pair.nodes[1];
    let (roce, qp) = (&mut node.roce, node.qp);
    roce.ready_to_receive(qp, &receive).unwrap();
    let send = ReadyToSend { sq_psn: 0x12_3456, ack_timeout: 20, ..Pair::LINUX };
    roce.ready_to_send(qp, &send).unwrap();
    let message = node.arena.alloc(length, 4096).unwrap();
    roce.post_recv(qp, &RecvRequest { id: 0, into: &[message] }).unwrap();
    let operation =
        SendOperation::Send { payload: Payload::Windows(&[message]), with: SendWith::Nothing };
    let request = SendRequest {
        id: 1,
        operation,
        signaled: true,
        solicited: false,
        datagram: None,
        carries: None,
        ack_lazily: false,
    };
    roce.post_send(qp, &request).unwrap();
    message
}

/// On a slow host a large message takes longer than the idle timeout of a session.
#[test]
fn session_with_message_in_flight_outlives_idle_timeout() {
    let mut pair = Pair::new(7, 1500, false);
    let mut server = Server::new(&mut pair.nodes[0].roce).unwrap();
    pingpong(&mut pair, &mut server, 1 << 20);
    for packets in [200, 400, 600] {
        netsim::label!(packets);
        let received = |pair: &mut Pair| pair.nodes[0].roce.counters().received.sends >= packets;
        assert!(run(&mut pair, &mut server, 5, received));
        for node in 0..2 {
            pair.network.mute(node, true);
        }
        assert!(!run(&mut pair, &mut server, 6, |_| false));
        for node in 0..2 {
            pair.network.mute(node, false);
        }
    }
    // The message and its echo have arrived.
    let mut completions = 0;
    let done = |pair: &mut Pair| {
        completions += pair.nodes[1].completions().len();
        completions == 2
    };
    assert!(run(&mut pair, &mut server, 30, done));
    // Nothing is in flight any more; the server notices that at the second poll.
    run(&mut pair, &mut server, 1, |_| false);
    assert_eq!(server.sessions(), 1);
    for _ in 0..2 {
        pair.network.now = pair.network.now + Duration::from_secs(11);
        with_server(&mut pair, &mut server, |server, ctx| server.poll(ctx));
    }
    assert_eq!(server.sessions(), 0);
}

/// A host holds six sessions of eight, whatever it opens; an idle one of its own ends for its next.
#[test]
fn greedy_host_leaves_sessions_to_others() {
    let mut pair = Pair::new(8, 1500, false);
    pair.nodes[0].arena = Arena::on_heap(96 << 20);
    let mut server = Server::new(&mut pair.nodes[0].roce).unwrap();
    let (greedy, local) = (pair.nodes[1].ip, pair.nodes[0].ip);
    let other = IpAddr::from([10, 0, 0, 77]);
    let open = |pair: &mut Pair, server: &mut Server, peer| {
        with_server(pair, server, |server, ctx| server.open(perftest::PORT, peer, local, ctx))
    };
    let first: Vec<_> = (0..6).map(|_| open(&mut pair, &mut server, greedy).unwrap()).collect();
    assert_eq!(open(&mut pair, &mut server, greedy), None);
    assert_eq!((server.sessions(), server.counters.refused), (6, 1));
    assert!(open(&mut pair, &mut server, other).is_some());
    // The control connection of an own session has ended: this session makes room, that of the other host stays.
    server.control_closed(first[0]);
    assert!(open(&mut pair, &mut server, greedy).is_some());
    assert!(server.has_ended(first[0]));
    assert_eq!(server.sessions(), 7);
    assert!(open(&mut pair, &mut server, other).is_some());
}
