//! Lost, late and declined messages at every step of a handshake. The outcome must match Linux's: both sides use SMC-R,
//! both fall back to TCP, or the connection is reset. One side must never use SMC-R while the other uses TCP, and no
//! side may wait for ever.

use crate::engine::{Config, Ready};
use crate::testing::{Fate, Valve, World, config, pattern};
use crate::wire::Reason;
use core::time::Duration;
use std::vec::Vec;

const SECOND: Duration = Duration::from_secs(1);
/// The server of a connection, and its client.
const HOSTS: [usize; 2] = [0, 1];

in_both_versions! {
    clc_messages_may_be_lost_late_or_declined
    packets_may_be_lost_from_any_on
    packets_may_be_late
}

/// Outcome of a handshake at one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Smc,
    Tcp,
    Reset,
    Waits,
}

/// Opens a connection from host 1 to host 0; `again`: with an existing link group.
fn begin(version: u8, links: u8, again: bool) -> (World, usize) {
    let settings = || Config { max_links: links, ..config() };
    let ports = usize::from(links);
    let mut w = World::of_version(version, 5, [settings(), settings()], [ports; 2]);
    if again {
        let ids = w.established();
        w.wait(SECOND);
        HOSTS.iter().for_each(|&n| w.close(n, ids[n]));
        w.wait(SECOND);
        w.clear_events();
    }
    let at = w.connect_from(1);
    (w, at)
}

fn end_of(w: &World, at: usize, n: usize) -> End {
    let id = w.tcp[at].ends[n].unwrap();
    if w.has_event(n, id, Ready::FAILED) {
        End::Reset
    } else if w.has_event(n, id, Ready::FALLBACK) {
        End::Tcp
    } else if w.has_event(n, id, Ready::ESTABLISHED) {
        End::Smc
    } else {
        End::Waits
    }
}

/// Runs until both sides have an outcome, at most for `limit`. Returns outcomes and time. A reset reaches the other
/// side; bytes after a fallback belong to the application.
fn ends(w: &mut World, at: usize, limit: Duration) -> ([End; 2], Duration) {
    let begun = w.network.now;
    w.run(limit, |w| {
        for n in HOSTS {
            if end_of(w, at, n) == End::Reset && end_of(w, at, 1 - n) == End::Waits {
                let id = w.tcp[at].ends[1 - n].unwrap();
                w.with_engine(1 - n, |engine, ctx, _| engine.handle_tcp_gone(id, ctx));
                // Reports the failure at once, not when the next timer runs.
                w.round();
            }
        }
        HOSTS.iter().all(|&n| end_of(w, at, n) != End::Waits)
    });
    (HOSTS.map(|n| end_of(w, at, n)), w.network.now.since(begun))
}

/// Checks that both sides agree, and if on SMC-R, that it carries data once the fault is over.
fn holds(w: &mut World, at: usize, ends: [End; 2], what: &str) {
    match ends {
        [End::Smc, End::Smc] => {
            w.network.heal();
            let ids = w.tcp[at].ends.map(Option::unwrap);
            w.transfer(1, ids, &pattern(5000, 1), 1000);
            w.transfer(0, ids, &pattern(5000, 2), 1000);
        }
        [End::Tcp, End::Tcp] => {
            w.wait(SECOND);
            assert_eq!(w.tcp[at].bytes, [[]; 2], "{what}: CLC is left in the stream");
        }
        // A reset connection has no bytes left.
        [End::Reset, End::Reset | End::Tcp | End::Smc] | [End::Tcp | End::Smc, End::Reset] => {}
        _ => panic!("{what}: {ends:?}"),
    }
}

/// Messages of a handshake: name, receiving host, and number among the messages that it receives.
const MESSAGES: [(&str, usize, usize); 3] =
    [("Proposal", 0, 0), ("Accept", 1, 0), ("Confirm", 0, 1)];

fn clc_messages_may_be_lost_late_or_declined(version: u8) {
    let late = |ms| Fate::Late(Duration::from_millis(ms));
    let declined = Fate::Declined(Reason::TIMEOUT_CONFIRM_LINK);
    for again in [false, true] {
        for (message, to, number) in MESSAGES {
            for (fate, expected) in [
                (late(500), End::Smc),
                (late(3000), End::Smc),
                // Linux waits 6 s for each.
                (late(5000), End::Smc),
                (late(30_000), End::Reset),
                (Fate::Lost, End::Reset),
                (declined, End::Tcp),
            ] {
                netsim::label!(again, fate);
                let what = std::format!("{message} {fate:?}, again: {again}");
                let (mut w, at) = begin(version, 1, again);
                let valve = Valve { to, at: number, what: fate, seen: 0, late: Vec::new() };
                w.tcp[at].valve = Some(valve);
                let (ends, time) = ends(&mut w, at, 40 * SECOND);
                match (message, fate) {
                    // The server's timeout for the Confirm is 6 s.
                    ("Confirm", Fate::Late(by)) if by >= 5 * SECOND && !again => {
                        holds(&mut w, at, ends, &what);
                        assert!(time <= 9 * SECOND, "{what}: {time:?}");
                        continue;
                    }
                    // A client that reuses a group is established when it has sent the Confirm.
                    ("Confirm", _) if again && expected != End::Smc => {
                        assert_eq!(ends[1], End::Smc, "{what}");
                        continue;
                    }
                    ("Confirm", Fate::Lost) => {
                        assert_eq!(ends, [End::Reset; 2], "{what}");
                        assert!(time <= 7 * SECOND, "{what}: {time:?}");
                        continue;
                    }
                    _ => {}
                }
                assert_eq!(ends[to], expected, "{what}: {ends:?} after {time:?}");
                // With an existing group, Linux may be busy with other handshakes.
                let patience = if again { 26 * SECOND } else { 9 * SECOND };
                assert!(time <= patience, "{what}: {time:?}");
                if fate != declined {
                    holds(&mut w, at, ends, &what);
                }
            }
        }
    }
}

/// Hosts whose packets are lost.
const WAYS: [&[usize]; 3] = [&[0], &[1], &[0, 1]];

/// Drops all packets of one side or both from some packet on, for `time` or for good.
fn with_packets_lost(version: u8, time: Option<Duration>, mut judge: impl FnMut([End; 2], &str)) {
    for links in [1, 2] {
        let frames = {
            let (mut w, at) = begin(version, links, false);
            let before = w.network.sent();
            let (all, _) = ends(&mut w, at, 10 * SECOND);
            assert_eq!(all, [End::Smc; 2]);
            w.network.sent() - before
        };
        for (mute, from) in WAYS.iter().flat_map(|way| (0..=frames).map(move |from| (*way, from))) {
            let what =
                std::format!("{links} links, {mute:?} mute from packet {from}, for {time:?}");
            let (mut w, at) = begin(version, links, false);
            let begun = w.network.sent();
            w.run(10 * SECOND, |w| {
                w.network.sent() - begun >= from
                    || HOSTS.iter().all(|&n| end_of(w, at, n) != End::Waits)
            });
            mute.iter().for_each(|&n| w.network.mute(n, true));
            if let Some(time) = time {
                w.wait(time);
                w.network.heal();
            }
            let (all, took) = ends(&mut w, at, 60 * SECOND);
            assert!(took <= 9 * SECOND, "{what}: {all:?} after {took:?}");
            judge(all, &what);
            if time.is_none_or(|time| time < 2 * SECOND) || all != [End::Smc; 2] {
                holds(&mut w, at, all, &what);
            }
            // A link that was silent for long may be lost. That must not affect the next connection.
            w.network.heal();
            w.reboot(0);
            w.wait(40 * SECOND);
            w.clear_events();
            let id = w.tcp[at].ends[1].unwrap();
            w.close(1, id);
            w.established();
        }
    }
}

fn packets_may_be_lost_from_any_on(version: u8) {
    let mut seen = Vec::new();
    with_packets_lost(version, None, |ends, _| {
        if !seen.contains(&ends) {
            seen.push(ends);
        }
    });
    assert!(seen.contains(&[End::Tcp; 2]) && seen.contains(&[End::Smc; 2]), "{seen:?}");
}

fn packets_may_be_late(version: u8) {
    // Linux's server waits 2 s.
    with_packets_lost(version, Some(3 * SECOND / 2), |ends, what| {
        assert_eq!(ends, [End::Smc; 2], "{what}");
    });
    with_packets_lost(version, Some(5 * SECOND), |_, _| {});
}

/// After some timeouts the next connections need not wait; a successful one unblocks the server.
#[test]
fn server_silent_over_roce_is_blocked_for_a_while() {
    let mut w = World::new(9);
    w.network.mute(0, true);
    let server = w.addresses[0];
    for n in 0..3 {
        let now = w.network.now;
        assert!(!w.hosts[1].engine.doubts(server, now), "blocked after {n} timeouts");
        let at = w.connect_from(1);
        let (all, _) = ends(&mut w, at, 10 * SECOND);
        assert_eq!(all, [End::Tcp; 2]);
        let ids = w.tcp[at].ends.map(Option::unwrap);
        HOSTS.iter().for_each(|&n| w.close(n, ids[n]));
    }
    let now = w.network.now;
    assert!(w.hosts[1].engine.doubts(server, now));
    assert!(!w.hosts[0].engine.doubts(w.addresses[1], now), "only clients block");
    w.network.heal();
    w.wait(31 * SECOND);
    assert!(!w.hosts[1].engine.doubts(server, w.network.now));
    w.established();
    assert!(!w.hosts[1].engine.doubts(server, w.network.now));
}
