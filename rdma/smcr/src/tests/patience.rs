//! Timeouts: CLC messages, responses over RoCE, silent links, groups without connections.

use crate::engine::{Config, Ready, SocketId};
use crate::testing::{Fate, Valve, World, config, pattern};
use crate::wire::llc::{Body, DeleteReason};
use crate::wire::{Decline, Reason};
use core::time::Duration;
use std::vec::Vec;

const SECOND: Duration = Duration::from_secs(1);

in_both_versions! {
    missing_clc_message_times_out
    accept_timeout_is_longer_with_a_group
    unanswered_key_declines_the_handshake
    late_key_response_is_accepted
    mute_link_times_out
    a_silent_link_is_tested
    standstill_ends_no_link_with_a_peer_that_answers
    idle_group_ends_orderly
    unconfirmed_link_is_removed
    shut_down_is_not_orderly
}

/// Runs until FAILED or FALLBACK is reported for a socket. Returns the time and the event; None after 90 s.
fn first_end_event(w: &mut World, n: usize, id: SocketId) -> Option<(Duration, Ready)> {
    let begun = w.network.now;
    let ends = Ready::FAILED | Ready::FALLBACK;
    let is = |w: &World| w.hosts[n].events.get(&id).map_or(Ready::empty(), |ready| *ready & ends);
    let came = w.run(90 * SECOND, |w| !is(w).is_empty());
    came.then(|| (w.network.now.since(begun), is(w)))
}

/// A world with one link, without connections; `again`: with an existing group.
fn world(version: u8, again: bool) -> World {
    let mut w = World::of_version(version, 71, [config(), config()], [1, 1]);
    if again {
        let ids = w.established();
        w.transfer(1, ids, &pattern(1000, 1), 1000);
        (0..2).for_each(|n| w.close(n, ids[n]));
        w.wait(SECOND);
    }
    w
}

fn missing_clc_message_times_out(version: u8) {
    for (what, again, seconds) in [
        ("Proposal", false, 6),
        ("Accept", false, 7),
        ("Confirm", false, 6),
        // Linux first waits for its turn to announce its buffer.
        ("Confirm", true, 25),
    ] {
        netsim::label!(version, what, again);
        let mut w = world(version, again);
        let failed = w.hosts.each_ref().map(|host| host.engine.counters().failed);
        let (n, id) = match what {
            "Proposal" => (0, w.by_hand(1)[0]),
            "Accept" => (1, w.by_hand(1)[1]),
            _ => {
                let ids = w.by_hand(1);
                let proposal = w.take_clc(1, ids[1]);
                w.feed_clc(0, ids[0], &proposal[..]);
                (0, ids[0])
            }
        };
        let (took, how) = first_end_event(&mut w, n, id).unwrap();
        assert_eq!(how, Ready::FAILED);
        let expected = Duration::from_secs(seconds);
        // A quarter of a second passes while it receives.
        let early = if what == "Confirm" { SECOND / 4 } else { Duration::ZERO };
        assert!((expected - early..=expected + SECOND / 50).contains(&took), "{took:?}");
        assert_eq!(w.hosts[n].engine.counters().failed, failed[n] + 1);
    }
}

/// Linux as server processes handshakes one after another: a client with a group may have to wait.
fn accept_timeout_is_longer_with_a_group(version: u8) {
    let mut w = world(version, true);
    let id = w.by_hand(1)[1];
    assert_eq!(first_end_event(&mut w, 1, id), Some((20 * SECOND, Ready::FAILED)));
    // Host 0 is a client without a group of its own.
    let id = w.by_hand(0)[0];
    assert_eq!(first_end_event(&mut w, 0, id), Some((7 * SECOND, Ready::FAILED)));
}

/// A server without a CONFIRM_RKEY response sends no Accept.
fn unanswered_key_declines_the_handshake(version: u8) {
    let two = || Config { max_links: 2, ..config() };
    let mut w = World::of_version(version, 72, [two(), two()], [2, 2]);
    let first = w.established();
    w.wait(SECOND);
    w.mute(true);
    let ids = w.by_hand(1);
    let proposal = w.take_clc(1, ids[1]);
    let begun = w.network.now;
    w.feed_clc(0, ids[0], &proposal);
    // Meanwhile the links are lost, too, which takes at least as long.
    let (took, how) = first_end_event(&mut w, 0, ids[0]).unwrap();
    let took = took + (w.network.now.since(begun) - took);
    assert_eq!(how, Ready::FALLBACK);
    assert!((4 * SECOND..5 * SECOND).contains(&took), "{took:?}");
    let decline = Decline::parse(&w.take_clc(0, ids[0])).unwrap();
    assert!([Reason::REGISTER_BUFFER, Reason::NO_ACTIVE_LINK].contains(&decline.reason));
    assert!(!w.has_event(0, first[0], Ready::FALLBACK));
}

/// The response for one key arrives while the next is being announced.
fn late_key_response_is_accepted(version: u8) {
    if version > 1 {
        // Version 2 announces keys only with two links, which would be lost here.
        return;
    }
    let mut w = world(1, false);
    w.established();
    w.wait(SECOND);
    w.network.mute(1, true);
    let all: Vec<_> = (0..2).map(|_| w.connect_from(1)).collect();
    w.wait(5 * SECOND / 2);
    w.network.heal();
    let up = |w: &World, at: usize| {
        (0..2).all(|n| w.has_event(n, w.tcp[at].ends[n].unwrap(), Ready::ESTABLISHED))
    };
    assert!(w.run(3 * SECOND / 2, |w| all.iter().all(|&at| up(w, at))));
    assert!(w.hosts.iter().all(|host| host.engine.counters().fallbacks.is_empty()));
}

/// All RoCE packets to one side or both are lost from the start.
fn mute_link_times_out(version: u8) {
    let second = |millis| Duration::from_millis(millis);
    for (what, mute, lost, n, expected, how) in [
        ("the server times out", [true, true], false, 0, second(2500), Ready::FALLBACK),
        ("the client gets the Decline", [true, true], false, 1, second(2500), Ready::FALLBACK),
        ("the client times out", [true, true], true, 1, second(8000), Ready::FALLBACK),
        ("the client has answered", [false, true], true, 1, second(7000), Ready::FAILED),
    ] {
        netsim::label!(version, what);
        let mut w = World::of_version(version, 73, [config(), config()], [1, 1]);
        (0..2).filter(|&n| mute[n]).for_each(|n| w.network.mute(n, true));
        let at = w.connect_from(1);
        if lost {
            // Drops all CLC messages of the server after its Accept.
            let (what, late) = (Fate::Lost, Vec::new());
            w.tcp[at].valve = Some(Valve { to: 1, at: 1, what, seen: 0, late });
        }
        let id = w.tcp[at].ends[n].unwrap();
        let (took, came) = first_end_event(&mut w, n, id).unwrap();
        assert_eq!(came, how);
        // The neighbour is resolved first.
        assert!((expected..expected + SECOND / 20).contains(&took), "{took:?}");
        let reason = (how == Ready::FALLBACK).then_some(Reason::TIMEOUT_CONFIRM_LINK);
        assert_eq!(w.hosts[n].engine.fallback(id), reason);
        w.wait(40 * SECOND);
        assert_eq!(w.hosts[n].engine.groups().count(), 0);
    }
}

/// A link is tested after 30 s of silence, and lost after 2 s without any message.
fn a_silent_link_is_tested(version: u8) {
    let mut w = world(version, false);
    let ids = w.established();
    let begun = w.network.now;
    w.record_frames();
    w.wait(95 * SECOND);
    let tests = |w: &mut World| {
        let heard = w.recorded_llc();
        let test = |n, answer| {
            let is = |llc: &crate::wire::llc::Llc| matches!(llc.body, Body::TestLink { .. });
            heard
                .iter()
                .filter(|(from, llc)| *from == n && llc.response == answer && is(llc))
                .count()
        };
        [0, 1].map(|n| (test(n, false), test(1 - n, true)))
    };
    let counts = tests(&mut w);
    for (asked, answered) in counts {
        assert_eq!(asked, answered);
    }
    let asked = counts[0].0 + counts[1].0;
    assert!((3..=6).contains(&asked), "{counts:?}");
    // A link with traffic is not tested.
    for n in 0..10 {
        w.wait(10 * SECOND);
        w.transfer(1, ids, &pattern(100, n), 100);
        w.transfer(0, ids, &pattern(100, n), 100);
    }
    assert_eq!(tests(&mut w), [(0, 0); 2]);
    w.wait(SECOND);
    w.mute(true);
    let muted = w.network.now;
    assert!(w.run(60 * SECOND, |w| w.has_event(0, ids[0], Ready::ABORTED)));
    let took = w.network.now.since(muted);
    assert!((30 * SECOND..33 * SECOND).contains(&took), "{took:?} {:?}", muted.since(begun));
}

/// The machine pauses right after a TEST_LINK, and the response is lost.
fn standstill_ends_no_link_with_a_peer_that_answers(version: u8) {
    for seconds in [10, 75, 7200] {
        netsim::label!(version, seconds);
        let mut w = world(version, false);
        let ids = w.established();
        w.record_frames();
        let asks = |w: &mut World| {
            let heard = w.recorded_llc();
            heard.iter().any(|(_, llc)| !llc.response && matches!(llc.body, Body::TestLink { .. }))
        };
        assert!(w.run(60 * SECOND, asks));
        w.mute(true);
        w.wait(SECOND / 2);
        w.mute(false);
        w.network.now = w.network.now + Duration::from_secs(seconds);
        w.wait(10 * SECOND);
        assert!((0..2).all(|n| !w.has_event(n, ids[n], Ready::ABORTED)));
        w.transfer(1, ids, &pattern(100, 1), 100);
        w.transfer(0, ids, &pattern(100, 2), 100);
    }
}

fn ended(w: &mut World) -> Vec<(usize, bool, DeleteReason)> {
    let heard = w.recorded_llc().into_iter();
    let ended = heard.filter_map(|(n, llc)| match llc.body {
        Body::DeleteLink { all: true, orderly, reason, .. } => Some((n, orderly, reason)),
        _ => None,
    });
    ended.collect()
}

/// After 600 s as server and 610 s as client; DELETE_LINK is marked orderly.
fn idle_group_ends_orderly(version: u8) {
    for (server, client, n, after) in
        [(600, 610, 0, 600), (700, 610, 1, 610), (3, 610, 0, 3), (700, 3, 1, 3)]
    {
        netsim::label!(version, after, n);
        let keep = (Duration::from_secs(server), Duration::from_secs(client));
        let settings = || Config { keep, ..config() };
        let mut w = World::of_version(version, 74, [settings(), settings()], [1, 1]);
        let ids = w.established();
        w.wait(SECOND);
        (0..2).for_each(|n| w.close(n, ids[n]));
        let begun = w.network.now;
        w.record_frames();
        let active = |w: &World, n: usize| w.hosts[n].engine.groups().any(|group| group.active);
        assert!(w.run(800 * SECOND, |w| !active(w, n)));
        let took = w.network.now.since(begun);
        let expected = Duration::from_secs(after);
        assert!((expected..expected + SECOND / 100).contains(&took), "{took:?}");
        // It acknowledges the peer's messages for a quarter of a second.
        w.wait(SECOND / 5);
        assert_eq!(w.hosts.each_ref().map(|host| host.engine.groups().count()), [1, 1]);
        w.wait(SECOND / 10);
        assert_eq!(w.hosts.each_ref().map(|host| host.engine.groups().count()), [0, 0]);
        assert_eq!(ended(&mut w)[0], (n, true, DeleteReason::PROGRAM));
    }
}

fn shut_down_is_not_orderly(version: u8) {
    for used in [true, false] {
        netsim::label!(version, used);
        let mut w = world(version, !used);
        if used {
            w.established();
        }
        w.record_frames();
        w.with_engine(0, |engine, ctx, _| engine.shut_down(ctx));
        w.wait(SECOND);
        assert_eq!(ended(&mut w)[0], (0, false, DeleteReason::OPERATOR));
    }
}

/// Resolution is retried with increasing pauses, and given up before the other side times out.
#[test]
fn unresolved_neighbour_causes_fallback() {
    for n in 0..2 {
        netsim::label!(n);
        let mut w = world(2, false);
        w.hosts[n].neighbours.silent = true;
        let at = w.connect_from(1);
        let id = w.tcp[at].ends[n].unwrap();
        // The client's hold begins when the server has resolved its neighbour.
        let expected = 5 * SECOND + n as u32 * SECOND / 200;
        assert_eq!(first_end_event(&mut w, n, id), Some((expected, Ready::FALLBACK)));
        assert_eq!(w.hosts[n].engine.fallback(id), Some(Reason::NO_ROUTE));
        let asked = w.hosts[n].neighbours.asked;
        assert!((30..=45).contains(&asked), "{asked} times");
        w.wait(SECOND);
        assert_eq!(w.hosts[n].engine.groups().count(), 0);
    }
}

/// The client accepts an offer, but gets no CONFIRM_LINK.
fn unconfirmed_link_is_removed(version: u8) {
    let two = || Config { max_links: 2, ..config() };
    let mut w = World::of_version(version, 75, [two(), two()], [2, 2]);
    w.hosts[1].engine.ignore_delete_link = true;
    w.network.set_up(netsim::Place { node: 0, port: 1 }, false);
    let ids = w.established();
    let links = |w: &World| w.hosts[1].engine.links().count();
    assert!(w.run(SECOND, |w| links(w) == 2));
    let begun = w.network.now;
    assert!(w.run(20 * SECOND, |w| links(w) == 1));
    let took = w.network.now.since(begun);
    assert!((8 * SECOND..8 * SECOND + SECOND / 10).contains(&took), "{took:?}");
    assert_eq!(w.hosts[1].engine.counters().links_failed, 0, "it was never up");
    w.transfer(1, ids, &pattern(5000, 1), 1000);
}
