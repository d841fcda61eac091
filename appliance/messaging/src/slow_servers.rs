//! Servers that are slow, or mute over RoCE, in the middle of SMC-R's handshake, behind a rule whose patience with
//! a server is shorter than that: as with Linux as client, the connection works or goes back to TCP, and the server
//! does not count as one that is not there.

use super::machine::{LIMITS, Machine, RULE, ip};
use super::*;
use crate::relay::balance::Backend;
use core::net::SocketAddr;
use core::time::Duration;
use net::connector::{Connector, Progress};
use smcr::echo::ECHO_PORT;

const STEP: Duration = Duration::from_millis(2);

/// How a server misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slow {
    /// It stands still before its Accept, for so long.
    Accept(Duration),
    /// It stands still before it asks to confirm the link.
    ConfirmLink(Duration),
    /// Nothing of it arrives over RoCE.
    Mute,
}

/// What a frame from a server begins with that says an Accept: an eye-catcher, and the type.
const ACCEPT: [u8; 5] = [0xe2, 0xd4, 0xc3, 0xd9, 2];

/// What became of a connection through the gateway to a server that is slow: whether the echo came back, after how
/// long, and what the rule says of it.
fn tell(slow: Slow) -> (bool, Duration, Backend, relay::Counters) {
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
        let still = match (slow, accepted) {
            (Slow::Accept(by), _) => now.since(begun) < by,
            (Slow::ConfirmLink(by), Some(at)) => now.since(at) < by,
            _ => false,
        };
        gateway.round(now);
        if !still {
            server.round(now);
        }
        let said = gateway.sent(now);
        server.hear(&said, now);
        let mut said = server.sent(now);
        let accepts = |frame: &Vec<u8>| frame.windows(ACCEPT.len()).any(|part| part == ACCEPT);
        if said[0].iter().any(accepts) {
            accepted.get_or_insert(now);
        }
        if slow == Slow::Mute {
            said[1].clear();
        }
        gateway.hear(&said, now);
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
fn a_slow_server_is_waited_for_as_linux_does_or_spoken_to_over_tcp() {
    let seconds = Duration::from_secs;
    let cases = [
        // Who is not slow, and one that is slower than the rule's patience with TCP.
        (Slow::Accept(Duration::ZERO), Some(true)),
        (Slow::Accept(seconds(5)), Some(true)),
        // Linux's client waits for 2 s, and a second more for a Decline.
        (Slow::ConfirmLink(seconds(1)), Some(true)),
        (Slow::ConfirmLink(seconds(3)), None),
        (Slow::ConfirmLink(seconds(5)), None),
        (Slow::Mute, Some(false)),
    ];
    for (slow, smc) in cases {
        let (fine, time, backend, counters) = tell(slow);
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
