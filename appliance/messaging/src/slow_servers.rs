//! Tests of servers that stall or are silent over RoCE in the middle of an SMC-R handshake, for longer than the rule's
//! connect timeout. As with a Linux client, the connection works or falls back to TCP, and the server does not count as
//! down.

use super::machine::{LIMITS, Machine, RULE, ip};
use super::*;
use crate::relay::balance::Backend;
use core::net::SocketAddr;
use core::time::Duration;
use net::connector::{Connector, Progress};
use smcr::echo::ECHO_PORT;

const STEP: Duration = Duration::from_millis(2);

/// Misbehaviour of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slow {
    /// The server stalls before its Accept, for this time.
    Accept(Duration),
    /// The server stalls before its Confirm Link request.
    ConfirmLink(Duration),
    /// No RoCE packet of the server arrives.
    Mute,
}

/// Start of a CLC Accept: eye-catcher and type.
const ACCEPT: [u8; 5] = [0xe2, 0xd4, 0xc3, 0xd9, 2];

/// Connects through the gateway to a slow server. Returns whether the echo came back, after how long, and the rule's
/// state of the server and counters.
fn connect_through(slow: Slow) -> (bool, Duration, Backend, relay::Counters) {
    let mut now = Instant::from_nanos(1_000_000_000);
    let [mut gateway, mut server] = [1, 2].map(|n| Machine::new(n, now));
    gateway.relay(SocketAddr::from((ip(2), ECHO_PORT)), now);
    server.echo(true, LIMITS);
    let mut client = Connector::new(LIMITS, 1);
    let to = SocketAddr::from((ip(1), RULE));
    let link = client.connect(&mut server.interface, to, false).unwrap();
    let begun = now;
    let (mut wrote, mut accepted) = (0, None);
    while now.since(begun) < Duration::from_secs(20) {
        now = now + STEP;
        let stalls = match (slow, accepted) {
            (Slow::Accept(by), _) => now.since(begun) < by,
            (Slow::ConfirmLink(by), Some(at)) => now.since(at) < by,
            _ => false,
        };
        gateway.round(now);
        if !stalls {
            server.round(now);
        }
        let sent = gateway.sent(now);
        server.receive(&sent, now);
        let mut sent = server.sent(now);
        let accepts = |frame: &Vec<u8>| frame.windows(ACCEPT.len()).any(|part| part == ACCEPT);
        if sent[0].iter().any(accepts) {
            accepted.get_or_insert(now);
        }
        if slow == Slow::Mute {
            sent[1].clear();
        }
        gateway.receive(&sent, now);
        if wrote == 0 {
            wrote = client.write(&mut server.interface, link, b"hello").unwrap_or(0);
        }
        if !matches!(client.progress(&server.interface, link), Progress::Open { .. }) {
            continue;
        }
        let mut piece = [0; 64];
        match client.read(&mut server.interface, link, &mut piece) {
            Ok(0) => {}
            read => {
                let fine = read == Ok(5) && &piece[..5] == b"hello";
                let (_, relay) = gateway.users.rules().next().unwrap();
                let backend = relay.backends()[0].clone();
                return (fine, now.since(begun), backend, *relay.counters());
            }
        }
    }
    let (_, relay) = gateway.users.rules().next().unwrap();
    (false, now.since(begun), relay.backends()[0].clone(), *relay.counters())
}

#[test]
fn slow_server_is_awaited_as_long_as_by_linux_or_reached_over_tcp() {
    let seconds = Duration::from_secs;
    let cases = [
        // No delay, and a delay beyond the rule's connect timeout over TCP.
        (Slow::Accept(Duration::ZERO), Some(true)),
        (Slow::Accept(seconds(5)), Some(true)),
        // Linux's client waits for 2 s, and a second more for a Decline.
        (Slow::ConfirmLink(seconds(1)), Some(true)),
        (Slow::ConfirmLink(seconds(3)), None),
        (Slow::ConfirmLink(seconds(5)), None),
        (Slow::Mute, Some(false)),
    ];
    for (slow, smc) in cases {
        let (fine, time, backend, counters) = connect_through(slow);
        let what = std::format!("{slow:?}: {time:?}, {backend:?}, {counters:?}");
        assert!(fine, "{what}");
        assert!(time < seconds(10), "{what}");
        assert!(backend.up && backend.failures == 0, "{what}");
        assert_eq!(counters.refused + counters.aborted, 0, "{what}");
        if let Some(smc) = smc {
            assert_eq!(counters.smc_servers == 1, smc, "{what}");
        }
    }
}
