//! Handshakes that our side gives up in a link group that has other connections, after its Accept has gone out. Linux as
//! client is done when it has said Confirm, and writes at once: the buffer that it was offered has to be there, and to
//! be nobody else's, until it has let go of it.

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
    given_up_handshake_leaves_other_connections_alone
    given_up_buffer_is_kept_until_the_peer_closes
    declined_handshake_keeps_no_buffer
    late_word_after_a_missed_end_finds_its_buffer
    group_of_kept_buffers_alone_ends_soon
}

/// Why a server gives a handshake up that waits for a Confirm.
#[derive(Clone, Copy, Debug)]
enum Why {
    /// Its user closes, or another handshake takes its place.
    Closed,
    /// The TCP connection is reset, and the Confirm is lost with it.
    Reset,
    /// What comes is no Confirm.
    Broken,
    /// A Confirm of the other version.
    OtherVersion,
    /// It never comes.
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

/// The client is done, and the server never gets its Confirm.
fn half_done(w: &mut World, why: Why) -> [SocketId; 2] {
    let (ids, accept) = w.accept_by_hand(1);
    w.hear(1, ids[1], &accept);
    let mut confirm = w.say(1, ids[1]);
    assert!(w.was_told(1, ids[1], Ready::ESTABLISHED));
    match why {
        Why::Closed => w.close(0, ids[0]),
        Why::Reset => w.with_engine(0, |engine, ctx, _| engine.handle_tcp_gone(ids[0], ctx)),
        Why::Broken => {
            // An Accept is no Confirm.
            confirm[4] = 2;
            w.hear(0, ids[0], &confirm);
        }
        Why::OtherVersion => {
            let other = w.hosts[0].engine.groups().next().map_or(2, |group| 3 - group.version);
            let (mut other, _) = world(other, 1);
            let (theirs, accept) = other.accept_by_hand(1);
            other.hear(1, theirs[1], &accept);
            w.hear(0, ids[0], &other.say(1, theirs[1]));
        }
        Why::Late => w.wait(26 * SECOND),
    }
    w.round();
    if !matches!(why, Why::Closed) {
        let end = if matches!(why, Why::OtherVersion) { Ready::FALLBACK } else { Ready::FAILED };
        assert!(w.was_told(0, ids[0], end), "{why:?}");
        w.close(0, ids[0]);
    }
    ids
}

/// No link was lost and no group ended, on either side.
fn nothing_was_lost(w: &World) {
    for host in &w.hosts {
        let counters = host.engine.counters();
        assert_eq!((counters.links_failed, counters.violations), (0, 0));
        assert_eq!(host.engine.groups().filter(|group| group.active).count(), 1);
    }
}

fn given_up_handshake_leaves_other_connections_alone(version: u8) {
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
        // Nobody else is given it: what is written late is in no stream.
        let later: Vec<_> = (0..8).map(|_| w.established()).collect();
        w.send(1, ids[1], &[0xee; 5000]);
        w.wait(SECOND);
        for (n, &ids) in later.iter().enumerate() {
            assert_eq!(w.recv(0, ids[0]), b"");
            w.transfer(1, ids, &pattern(2000, n as u8), 500);
        }
        // The last word of its own.
        w.close(1, ids[1]);
        w.wait(SECOND);
        assert_eq!(w.hosts[0].engine.retained(), 0);
        for ids in later {
            (0..2).for_each(|n| w.close(n, ids[n]));
        }
        w.wait(10 * SECOND);
        assert_eq!(w.free(0), free, "nothing of it is left");
        nothing_was_lost(&w);
        w.transfer(1, good, &pattern(5000, 1), 1000);
    }
}

/// Who declines has no use for the buffer, and the key is forgotten on both sides.
fn declined_handshake_keeps_no_buffer(version: u8) {
    let (mut w, good) = world(version, 1);
    let known = w.hosts[1].engine.keys_of_peer(0);
    let (ids, _) = w.accept_by_hand(1);
    let (peer_id, os) = (PeerId([7; 8]), Os::LINUX);
    let decline = Decline { version, out_of_sync: false, peer_id, reason: Reason::MEMORY, os };
    w.hear(0, ids[0], &decline.emit());
    assert_eq!((w.hosts[0].engine.retained(), w.hosts[1].engine.keys_of_peer(0)), (0, known));
    nothing_was_lost(&w);
    w.transfer(1, good, &pattern(5000, 1), 1000);
}

/// The peer's word on its end is missed after 10 s; it may still come, with data before it.
fn late_word_after_a_missed_end_finds_its_buffer(version: u8) {
    let (mut w, good) = world(version, 1);
    let ids = w.established();
    w.with_engine(0, |engine, ctx, _| engine.handle_tcp_finished(ids[0], ctx.now));
    assert!(w.run(20 * SECOND, |w| w.was_told(0, ids[0], Ready::ABORTED)));
    w.close(0, ids[0]);
    w.wait(SECOND / 1000);
    assert_eq!(w.hosts[0].engine.sockets().count(), 1);
    assert_eq!(w.hosts[0].engine.retained(), 1);
    w.wait(SECOND);
    // The ABORT has told the client; it closes.
    w.close(1, ids[1]);
    w.wait(SECOND);
    assert_eq!(w.hosts[0].engine.retained(), 0);
    nothing_was_lost(&w);
    w.transfer(1, good, &pattern(5000, 1), 1000);
}

/// A peer that believes that its connection lives is told by the end of the group, when that has no others.
fn group_of_kept_buffers_alone_ends_soon(version: u8) {
    for writes in [false, true] {
        netsim::label!(version, writes);
        let (mut w, good) = world(version, 1);
        let free = w.free(0);
        let ids = half_done(&mut w, Why::Reset);
        if writes {
            w.send(1, ids[1], b"is anybody there?");
            w.wait(SECOND);
        }
        // As long as it has others, it stays.
        w.wait(100 * SECOND);
        w.transfer(1, good, &pattern(5000, 1), 1000);
        let another = w.established();
        let groups = w.hosts[0].engine.groups().count();
        assert_eq!(groups, if writes { 2 } else { 1 }, "one that was misled takes no more");
        for ids in [good, another] {
            (0..2).for_each(|n| w.close(n, ids[n]));
        }
        let limit = if writes { SECOND } else { 31 * SECOND };
        assert!(w.run(limit, |w| w.was_told(1, ids[1], Ready::ABORTED)));
        w.wait(SECOND);
        assert_eq!(w.hosts[0].engine.retained(), 0);
        assert!(w.free(0) >= free);
    }
}

/// What a host makes us keep counts as its connections.
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
                    // It never says that it is done with it.
                    let ids = w.established();
                    w.close(0, ids[0]);
                    ids
                }
            });
        }
        let (gate, host) = (Gate::default(), ip(1, 0));
        let admits =
            |w: &mut World, host| w.hosts[0].engine.admission.admit(host, &gate, true, 1, 0);
        assert!(!admits(&mut w, host), "it holds twenty");
        assert!(admits(&mut w, ip(1, 1)), "others do not");
        let why = w.hosts[0].engine.admission.refusals.pop().unwrap();
        assert!(why.advice.contains("20 of them are over here"), "{}", why.advice);
        for ids in kept {
            w.close(1, ids[1]);
        }
        w.wait(SECOND);
        assert!(admits(&mut w, host));
        w.transfer(1, good, &pattern(5000, 1), 1000);
    }
}

/// However many it leaves behind, they are bounded by the group, and others of the group live.
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

/// The peer goes on over the other link when the first is lost, and writes there.
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

/// A machine that shuts down ends its groups; handshakes under way end with them, and keep nothing.
#[test]
fn shut_down_releases_what_was_offered() {
    let (mut w, _) = world(2, 1);
    let ids = half_done(&mut w, Why::Closed);
    let (waits, accept) = w.accept_by_hand(1);
    w.hear(1, waits[1], &accept);
    let confirm = w.say(1, waits[1]);
    w.with_engine(0, |engine, ctx, _| engine.shut_down(ctx));
    w.send(1, ids[1], b"in the middle of it");
    w.wait(SECOND);
    assert!(w.hosts[0].engine.is_shut_down());
    w.hear(0, waits[0], &confirm);
    assert!(w.was_told(0, waits[0], Ready::FALLBACK), "it is not on SMC-R any more");
    assert_eq!(w.hosts[0].engine.retained(), 0);
    assert!([ids, waits].iter().all(|ids| w.was_told(1, ids[1], Ready::ABORTED)));
}

/// A server may decline after the Confirm, when its client is done: both connections are over, and no link is.
#[test]
fn late_decline_ends_the_connection_of_a_client() {
    let (mut w, good) = world(2, 1);
    let (ids, accept) = w.accept_by_hand(1);
    w.hear(1, ids[1], &accept);
    w.say(1, ids[1]);
    w.with_engine(1, |engine, ctx, _| engine.handle_late_decline(ids[1], ctx));
    w.round();
    assert!(w.was_told(1, ids[1], Ready::ABORTED));
    w.close(1, ids[1]);
    w.wait(SECOND);
    assert_eq!(w.hosts[1].engine.sockets().count(), 1);
    assert_eq!(w.hosts[1].engine.retained(), 0, "who declines has no use for a buffer");
    nothing_was_lost(&w);
    w.transfer(1, good, &pattern(5000, 1), 1000);
}

/// The name of what is kept is nobody else's, though names come again.
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
    // What the peer says of its end is about that one still.
    let last = Cdc { end: End::CLOSED, ..cdc(&w, ids[1], 1) };
    forge(&mut w, &last.emit());
    assert_eq!(w.hosts[0].engine.retained(), 0);
    w.transfer(1, good, &pattern(5000, 1), 1000);
}
