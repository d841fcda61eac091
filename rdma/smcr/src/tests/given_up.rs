//! Handshakes that the server gives up after it has sent its Accept, in a link group with other connections. Linux as
//! client is established when it has sent the Confirm, and writes at once. So the offered buffer must remain, unused by
//! others, until the client has released it.

use super::failover::cut;
use super::hostile::{cdc, forge};
use crate::admission::Gate;
use crate::engine::{Config, Ready, SocketId};
use crate::testing::{World, config, ip, pattern};
use crate::wire::cdc::{Cdc, End};
use crate::wire::{Decline, Os, PeerId, Reason};
use core::time::Duration;
use std::vec::Vec;

const SECOND: Duration = Duration::from_secs(1);

in_both_versions! {
    given_up_handshake_leaves_other_connections_undisturbed
    given_up_buffer_is_kept_until_the_peer_closes
    declined_handshake_keeps_no_buffer
    late_close_after_timeout_releases_the_buffer
    group_with_retained_buffers_only_ends_soon
}

/// Reason why a server gives up a handshake that waits for a Confirm.
#[derive(Clone, Copy, Debug)]
enum Why {
    /// The user closes, or the handshake is evicted.
    Closed,
    /// The TCP connection is reset, and the Confirm is lost.
    Reset,
    /// Another message arrives instead of the Confirm.
    Broken,
    /// A Confirm of the other version.
    OtherVersion,
    /// The Confirm never arrives.
    Late,
}

const ALL: [Why; 5] = [Why::Closed, Why::Reset, Why::Broken, Why::OtherVersion, Why::Late];

fn world(version: u8, links: u8) -> (World, [SocketId; 2]) {
    let settings = || Config { max_links: links, ..config() };
    let mut w = World::of_version(version, 61, [settings(), settings()], [usize::from(links); 2]);
    let ids = w.established();
    w.wait(SECOND);
    (w, ids)
}

/// The client is established, but the server never gets its Confirm.
fn half_done(w: &mut World, why: Why) -> [SocketId; 2] {
    let (ids, accept) = w.accept_by_hand(1);
    w.feed_clc(1, ids[1], &accept);
    let mut confirm = w.take_clc(1, ids[1]);
    assert!(w.has_event(1, ids[1], Ready::ESTABLISHED));
    match why {
        Why::Closed => w.close(0, ids[0]),
        Why::Reset => w.with_engine(0, |engine, ctx, _| engine.handle_tcp_gone(ids[0], ctx)),
        Why::Broken => {
            // An Accept is no Confirm.
            confirm[4] = 2;
            w.feed_clc(0, ids[0], &confirm);
        }
        Why::OtherVersion => {
            let other = w.hosts[0].engine.groups().next().map_or(2, |group| 3 - group.version);
            let (mut other, _) = world(other, 1);
            let (theirs, accept) = other.accept_by_hand(1);
            other.feed_clc(1, theirs[1], &accept);
            w.feed_clc(0, ids[0], &other.take_clc(1, theirs[1]));
        }
        Why::Late => w.wait(26 * SECOND),
    }
    w.round();
    if !matches!(why, Why::Closed) {
        let end = if matches!(why, Why::OtherVersion) { Ready::FALLBACK } else { Ready::FAILED };
        assert!(w.has_event(0, ids[0], end), "{why:?}");
        w.close(0, ids[0]);
    }
    ids
}

/// Checks that no link was lost and no group ended, on either side.
fn nothing_was_lost(w: &World) {
    for host in &w.hosts {
        let counters = host.engine.counters();
        assert_eq!((counters.links_failed, counters.violations), (0, 0));
        assert_eq!(host.engine.groups().filter(|group| group.active).count(), 1);
    }
}

fn given_up_handshake_leaves_other_connections_undisturbed(version: u8) {
    for (links, why) in [1, 2].into_iter().flat_map(|links| ALL.map(|why| (links, why))) {
        netsim::label!(version, links, why);
        let (mut w, good) = world(version, links);
        let ids = half_done(&mut w, why);
        assert_eq!(w.send(1, ids[1], b"written at once"), 15);
        w.wait(SECOND);
        nothing_was_lost(&w);
        w.transfer(1, good, &pattern(5000, 1), 1000);
        w.transfer(0, good, &pattern(5000, 2), 1000);
    }
}

fn given_up_buffer_is_kept_until_the_peer_closes(version: u8) {
    for why in ALL {
        netsim::label!(version, why);
        let (mut w, good) = world(version, 1);
        let free = w.free(0);
        let ids = half_done(&mut w, why);
        assert_eq!(w.hosts[0].engine.retained(), 1);
        // The buffer is not reused: late writes appear in no stream.
        let later: Vec<_> = (0..8).map(|_| w.established()).collect();
        w.send(1, ids[1], &[0xee; 5000]);
        w.wait(SECOND);
        for (n, &ids) in later.iter().enumerate() {
            assert_eq!(w.recv(0, ids[0]), b"");
            w.transfer(1, ids, &pattern(2000, n as u8), 500);
        }
        // The client closes.
        w.close(1, ids[1]);
        w.wait(SECOND);
        assert_eq!(w.hosts[0].engine.retained(), 0);
        for ids in later {
            (0..2).for_each(|n| w.close(n, ids[n]));
        }
        w.wait(10 * SECOND);
        assert_eq!(w.free(0), free, "all memory is freed");
        nothing_was_lost(&w);
        w.transfer(1, good, &pattern(5000, 1), 1000);
    }
}

/// A client that declines does not use the buffer, and both sides remove its key.
fn declined_handshake_keeps_no_buffer(version: u8) {
    let (mut w, good) = world(version, 1);
    let known = w.hosts[1].engine.keys_of_peer(0);
    let (ids, _) = w.accept_by_hand(1);
    let (peer_id, os) = (PeerId([7; 8]), Os::LINUX);
    let decline = Decline { version, out_of_sync: false, peer_id, reason: Reason::MEMORY, os };
    w.feed_clc(0, ids[0], &decline.emit());
    assert_eq!((w.hosts[0].engine.retained(), w.hosts[1].engine.keys_of_peer(0)), (0, known));
    nothing_was_lost(&w);
    w.transfer(1, good, &pattern(5000, 1), 1000);
}

/// The peer's CLOSED times out after 10 s; it may still arrive, with data before it.
fn late_close_after_timeout_releases_the_buffer(version: u8) {
    let (mut w, good) = world(version, 1);
    let ids = w.established();
    w.with_engine(0, |engine, ctx, _| engine.handle_tcp_finished(ids[0], ctx.now));
    assert!(w.run(20 * SECOND, |w| w.has_event(0, ids[0], Ready::ABORTED)));
    w.close(0, ids[0]);
    w.wait(SECOND / 1000);
    assert_eq!(w.hosts[0].engine.sockets().count(), 1);
    assert_eq!(w.hosts[0].engine.retained(), 1);
    w.wait(SECOND);
    // The client has received the ABORT, and closes.
    w.close(1, ids[1]);
    w.wait(SECOND);
    assert_eq!(w.hosts[0].engine.retained(), 0);
    nothing_was_lost(&w);
    w.transfer(1, good, &pattern(5000, 1), 1000);
}

/// A client that believes its connection lives learns of its end when the group ends, which has no other connections.
fn group_with_retained_buffers_only_ends_soon(version: u8) {
    for writes in [false, true] {
        netsim::label!(version, writes);
        let (mut w, good) = world(version, 1);
        let free = w.free(0);
        let ids = half_done(&mut w, Why::Reset);
        if writes {
            w.send(1, ids[1], b"still connected?");
            w.wait(SECOND);
        }
        // The group remains as long as it has other connections.
        w.wait(100 * SECOND);
        w.transfer(1, good, &pattern(5000, 1), 1000);
        let another = w.established();
        let groups = w.hosts[0].engine.groups().count();
        assert_eq!(
            groups,
            if writes { 2 } else { 1 },
            "a group with a misled peer takes no connections"
        );
        for ids in [good, another] {
            (0..2).for_each(|n| w.close(n, ids[n]));
        }
        let limit = if writes { SECOND } else { 31 * SECOND };
        assert!(w.run(limit, |w| w.has_event(1, ids[1], Ready::ABORTED)));
        w.wait(SECOND);
        assert_eq!(w.hosts[0].engine.retained(), 0);
        assert!(w.free(0) >= free);
    }
}

/// Retained buffers count as connections of their host.
#[test]
fn kept_buffers_count_against_the_share_of_their_host() {
    for established in [false, true] {
        netsim::label!(established);
        let (mut w, good) = world(2, 1);
        w.hosts[0].engine.admission = crate::admission::Admission::new(1 << 30, 20);
        let mut kept = Vec::new();
        for _ in 0..20 {
            kept.push(match established {
                false => half_done(&mut w, Why::Reset),
                true => {
                    // The client never closes.
                    let ids = w.established();
                    w.close(0, ids[0]);
                    ids
                }
            });
        }
        let (gate, host) = (Gate::default(), ip(1, 0));
        let admits =
            |w: &mut World, host| w.hosts[0].engine.admission.admit(host, &gate, true, 1, 0);
        assert!(!admits(&mut w, host), "limit of 20 connections");
        assert!(admits(&mut w, ip(1, 1)), "another host has room");
        let why = w.hosts[0].engine.admission.refusals.pop().unwrap();
        assert!(why.advice.contains("20 are closed here"), "{}", why.advice);
        for ids in kept {
            w.close(1, ids[1]);
        }
        w.wait(SECOND);
        assert!(admits(&mut w, host));
        w.transfer(1, good, &pattern(5000, 1), 1000);
    }
}

/// The group bounds the number of retained buffers, and its other connections continue.
#[test]
fn peer_that_leaves_many_behind_gets_another_group() {
    let (mut w, good) = world(2, 1);
    for _ in 0..32 {
        half_done(&mut w, Why::Reset);
    }
    assert_eq!(w.hosts[0].engine.groups().count(), 1);
    let next = w.established();
    assert_eq!(w.hosts[0].engine.groups().count(), 2);
    w.transfer(1, next, &pattern(5000, 1), 1000);
    w.transfer(1, good, &pattern(5000, 1), 1000);
    assert!(w.hosts.iter().all(|host| host.engine.counters().links_failed == 0));
}

/// The peer fails over when the first link is lost, and writes to the retained buffer over the other link.
#[test]
fn kept_buffer_is_there_on_the_other_link() {
    let (mut w, good) = world(2, 2);
    let ids = half_done(&mut w, Why::Reset);
    cut(&mut w, 0, 0);
    w.transfer(1, good, &pattern(5000, 1), 1000);
    w.send(1, ids[1], b"over the other one");
    w.wait(5 * SECOND);
    w.transfer(1, good, &pattern(5000, 2), 1000);
    w.transfer(0, good, &pattern(5000, 3), 1000);
    assert!(w.hosts.iter().all(|host| host.engine.counters().aborted == 0));
}

/// A shutdown ends all groups and handshakes under way, and retains no buffers.
#[test]
fn shut_down_releases_offered_buffers() {
    let (mut w, _) = world(2, 1);
    let ids = half_done(&mut w, Why::Closed);
    let (waits, accept) = w.accept_by_hand(1);
    w.feed_clc(1, waits[1], &accept);
    let confirm = w.take_clc(1, waits[1]);
    w.with_engine(0, |engine, ctx, _| engine.shut_down(ctx));
    w.send(1, ids[1], b"in the middle of it");
    w.wait(SECOND);
    assert!(w.hosts[0].engine.is_shut_down());
    w.feed_clc(0, waits[0], &confirm);
    assert!(w.has_event(0, waits[0], Ready::FALLBACK), "SMC-R has ended");
    assert_eq!(w.hosts[0].engine.retained(), 0);
    assert!([ids, waits].iter().all(|ids| w.has_event(1, ids[1], Ready::ABORTED)));
}

/// A server may decline after the Confirm, when its client is established: the connection ends on both sides, but no
/// link does.
#[test]
fn late_decline_ends_the_connection_of_a_client() {
    let (mut w, good) = world(2, 1);
    let (ids, accept) = w.accept_by_hand(1);
    w.feed_clc(1, ids[1], &accept);
    w.take_clc(1, ids[1]);
    w.with_engine(1, |engine, ctx, _| engine.handle_late_decline(ids[1], ctx));
    w.round();
    assert!(w.has_event(1, ids[1], Ready::ABORTED));
    w.close(1, ids[1]);
    w.wait(SECOND);
    assert_eq!(w.hosts[1].engine.sockets().count(), 1);
    assert_eq!(w.hosts[1].engine.retained(), 0, "a server that declines does not use the buffer");
    nothing_was_lost(&w);
    w.transfer(1, good, &pattern(5000, 1), 1000);
}

/// The ID of a retained buffer is not given to another socket, although IDs repeat.
#[test]
fn names_of_kept_buffers_are_not_reused() {
    let (mut w, good) = world(2, 1);
    let ids = half_done(&mut w, Why::Reset);
    let mut met = false;
    for _ in 0..70_000 {
        let next = w.by_hand(1);
        assert_ne!(next[0], ids[0]);
        met |= next[0].place() == ids[0].place();
        (0..2).for_each(|n| w.close(n, next[n]));
    }
    assert!(met);
    // The peer's CLOSED still refers to the retained buffer.
    let last = Cdc { end: End::CLOSED, ..cdc(&w, ids[1], 1) };
    forge(&mut w, &last.emit());
    assert_eq!(w.hosts[0].engine.retained(), 0);
    w.transfer(1, good, &pattern(5000, 1), 1000);
}
