//! Ends of connections: what may still be said and read, and what the other side is told.

use super::hostile::{cdc, forge};
use crate::engine::{Ready, RecvError, Role, SendError, State};
use crate::testing::{World, ip, pattern};
use crate::wire::cdc::{Cdc, End, Producer};
use core::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn state(w: &World, n: usize) -> Option<State> {
    w.hosts[n].engine.sockets().next().map(|status| status.state)
}

/// What was taken before goes first; nothing is taken behind it.
#[test]
fn who_has_ended_its_side_writes_no_more() {
    for close in [false, true] {
        netsim::label!(close);
        let mut w = World::new(91);
        let [server, client] = w.established();
        assert_eq!(w.send(1, client, b"the last words"), 14);
        let late = w.with_engine(1, |engine, ctx, _| {
            match close {
                true => engine.close(client, ctx),
                false => engine.shutdown(client, ctx),
            }
            // Before anything of that is said.
            engine.send(client, b"and more", ctx)
        });
        assert_eq!(late, Err(SendError::Closed));
        w.wait(SECOND);
        assert_eq!(w.recv(0, server), b"the last words");
        assert_eq!(w.hosts[0].engine.recv(server, &mut [0; 9]), Err(RecvError::Finished));
        let late = w.with_engine(1, |engine, ctx, _| engine.send(client, b"and more", ctx));
        assert_eq!(late, Err(SendError::Closed));
        assert_eq!(state(&w, 0), Some(State::AppCloseWait1));
        assert_eq!(state(&w, 1), Some(State::PeerCloseWait1));
    }
}

/// A peer that has closed takes nothing; one that has only stopped sending does.
#[test]
fn to_whom_has_closed_nothing_is_sent() {
    for close in [false, true] {
        netsim::label!(close);
        let mut w = World::new(92);
        let [server, client] = w.established();
        w.with_engine(1, |engine, ctx, _| match close {
            true => engine.close(client, ctx),
            false => engine.shutdown(client, ctx),
        });
        w.wait(SECOND);
        let sent = w.with_engine(0, |engine, ctx, _| engine.send(server, b"x", ctx));
        assert_eq!(sent, if close { Err(SendError::Aborted) } else { Ok(1) });
        let told = |what| w.was_told(0, server, what);
        assert!(told(Ready::READABLE) && !told(Ready::ABORTED) && !told(Ready::CLOSED));
    }
}

/// Both users hear once that both sides have closed, unless they have given the socket up.
#[test]
fn the_end_of_both_sides_is_told() {
    let mut w = World::new(93);
    let [server, client] = w.established();
    w.with_engine(0, |engine, ctx, _| engine.shutdown(server, ctx));
    w.wait(SECOND);
    w.close(1, client);
    w.wait(SECOND);
    assert!(!w.was_told(0, server, Ready::CLOSED), "it may read yet");
    assert_eq!(state(&w, 0), Some(State::AppFinCloseWait));
    w.close(0, server);
    w.wait(SECOND);
    assert_eq!(w.hosts.each_ref().map(|host| host.engine.sockets().count()), [0, 0]);
    // One that was aborted by the peer, and is closed by its user then.
    let [server, client] = w.established();
    w.with_engine(1, |engine, ctx, _| engine.abort(client, ctx));
    w.wait(SECOND);
    assert!(w.was_told(0, server, Ready::ABORTED));
    assert_eq!(state(&w, 0), Some(State::ProcessAbort));
    assert_eq!(w.hosts[0].engine.counters().aborted, 1);
    w.close(0, server);
    w.wait(SECOND);
    assert_eq!(w.hosts.each_ref().map(|host| host.engine.sockets().count()), [0, 0]);
}

/// Not even what was taken before it.
#[test]
fn an_abort_waits_for_nothing() {
    let mut w = World::new(94);
    let [server, client] = w.established();
    let bytes = pattern(100_000, 9);
    let mut sent = 0;
    w.run(SECOND, |w| {
        sent += w.send(1, client, &bytes[sent..]);
        false
    });
    w.with_engine(1, |engine, ctx, _| engine.abort(client, ctx));
    w.wait(SECOND / 100);
    assert!(w.was_told(0, server, Ready::ABORTED));
    assert_eq!(w.hosts[0].engine.recv(server, &mut [0; 9]), Err(RecvError::Aborted));
    // A handshake is broken off.
    let id = w.with_engine(1, |engine, ctx, _| {
        let id = engine.open(Role::Client, [ip(1, 0), ip(0, 0)], 0, ctx).unwrap();
        engine.abort(id, ctx);
        id
    });
    assert_eq!(w.hosts[1].engine.socket_status(id), None);
    assert_eq!(w.hosts[1].engine.counters().failed, 1);
}

/// A user who only stops sending waits as long for what it has said as one who closes.
#[test]
fn what_cannot_be_sent_before_the_end_is_aborted() {
    for close in [false, true] {
        netsim::label!(close);
        let mut w = World::new(95);
        let [server, client] = w.established();
        let bytes = pattern(100_000, 9);
        let mut sent = 0;
        w.run(SECOND, |w| {
            sent += w.send(1, client, &bytes[sent..]);
            false
        });
        w.with_engine(1, |engine, ctx, _| match close {
            true => engine.close(client, ctx),
            false => engine.shutdown(client, ctx),
        });
        let begun = w.network.now;
        assert!(w.run(10 * SECOND, |w| w.was_told(0, server, Ready::ABORTED)));
        let took = w.network.now.since(begun);
        assert!((2 * SECOND..2 * SECOND + SECOND / 100).contains(&took), "{took:?}");
    }
    // What is sent in time is all that there is to it.
    let mut w = World::new(96);
    let [server, client] = w.established();
    w.transfer(1, [server, client], &pattern(5000, 1), 1000);
    w.with_engine(1, |engine, ctx, _| engine.shutdown(client, ctx));
    w.wait(10 * SECOND);
    w.transfer(0, [server, client], &pattern(50_000, 2), 5000);
    assert!((0..2).all(|n| w.hosts[n].engine.counters().aborted == 0));
}

/// Data that came before the last word of a handshake can be read when that has come.
#[test]
fn what_came_before_a_confirm_is_told_with_it() {
    for (data, end) in [(true, false), (false, true), (false, false)] {
        netsim::label!(data, end);
        let mut w = World::new(97);
        w.established();
        let (ids, accept) = w.accept_by_hand(1);
        w.hear(1, ids[1], &accept);
        let confirm = w.say(1, ids[1]);
        if data {
            assert_eq!(w.send(1, ids[1], b"early"), 5);
        }
        if end {
            w.with_engine(1, |engine, ctx, _| engine.shutdown(ids[1], ctx));
        }
        w.wait(SECOND);
        assert_eq!(w.recv(0, ids[0]), b"", "it is not established");
        w.hear_nothing();
        w.hear(0, ids[0], &confirm);
        assert!(w.was_told(0, ids[0], Ready::ESTABLISHED));
        assert_eq!(w.was_told(0, ids[0], Ready::READABLE), data || end);
        match end {
            true => {
                let read = w.hosts[0].engine.recv(ids[0], &mut [0; 9]);
                assert_eq!(read, Err(RecvError::Finished));
                assert_eq!(
                    w.hosts[0].engine.socket_status(ids[0]).unwrap().state,
                    State::AppCloseWait1
                );
            }
            false => assert_eq!(w.recv(0, ids[0]), if data { &b"early"[..] } else { b"" }),
        }
    }
}

/// TCP that ends before a handshake is over breaks it off; later the link is tested, and the connection goes on.
#[test]
fn tcp_that_is_gone_is_no_end_of_a_connection() {
    let mut w = World::new(98);
    let ids = w.established();
    w.wait(SECOND);
    w.listen();
    w.with_engine(0, |engine, ctx, _| engine.handle_tcp_gone(ids[0], ctx));
    w.wait(SECOND);
    assert_eq!(w.llc_heard().len(), 2, "a test, and its answer");
    w.transfer(0, ids, &pattern(5000, 1), 1000);
    let early = w.by_hand(1);
    w.with_engine(0, |engine, ctx, _| engine.handle_tcp_gone(early[0], ctx));
    w.wait(SECOND / 100);
    assert!(w.was_told(0, early[0], Ready::FAILED));
    w.wait(3 * SECOND);
    // Of one that is gone meanwhile it finds out at once, and not after 30 s.
    w.reboot(1);
    let begun = w.network.now;
    w.with_engine(0, |engine, ctx, _| engine.handle_tcp_gone(ids[0], ctx));
    assert!(w.run(20 * SECOND, |w| w.was_told(0, ids[0], Ready::ABORTED)));
    let took = w.network.now.since(begun);
    assert!((2 * SECOND..3 * SECOND).contains(&took), "{took:?}");
}

/// Only the peer's word about the socket ends it in order; the end of TCP is waited after.
#[test]
fn a_word_is_missed_so_long_after_the_end_of_tcp() {
    for (says, within) in [(false, Some(10)), (true, None)] {
        netsim::label!(says);
        let mut w = World::new(99);
        let [server, client] = w.established();
        w.with_engine(0, |engine, ctx, _| engine.handle_tcp_finished(server, ctx.now));
        let begun = w.network.now;
        if says {
            w.wait(SECOND);
            w.close(1, client);
        }
        let aborted = w.run(60 * SECOND, |w| w.was_told(0, server, Ready::ABORTED));
        assert_eq!(aborted, within.is_some());
        if let Some(seconds) = within {
            let (took, expected) = (w.network.now.since(begun), Duration::from_secs(seconds));
            assert!((expected..expected + SECOND / 100).contains(&took), "{took:?}");
        }
    }
}

/// A peer that asks is answered, and who only tells of what it has read is not.
#[test]
fn a_question_is_answered() {
    let mut w = World::new(100);
    let [_, client] = w.established();
    let of = cdc(&w, client, 0);
    let ask = |producer| Cdc { producer, ..of }.emit();
    let sent = |w: &World| w.hosts[0].engine.counters().cdc_sent;
    for (producer, answers) in [
        (Producer::empty(), 0),
        (Producer::UPDATE_REQUESTED, 1),
        (Producer::URGENT_PENDING, 1),
        (Producer::WRITE_BLOCKED, 0),
    ] {
        let before = sent(&w);
        forge(&mut w, &ask(producer));
        assert_eq!(sent(&w) - before, answers, "{producer:?}");
    }
    // The end is told once, however often it is said.
    w.hear_nothing();
    let done = Cdc { end: End::SENDING_DONE, ..of }.emit();
    forge(&mut w, &done);
    let server = w.hosts[0].engine.sockets().next().unwrap().id;
    assert!(w.was_told(0, server, Ready::READABLE));
    w.hear_nothing();
    forge(&mut w, &done);
    assert!(!w.was_told(0, server, Ready::READABLE));
    assert_eq!(state(&w, 0), Some(State::AppCloseWait1));
}
