//! Ends of connections: allowed reads and writes, and events at the other side.

use super::hostile::{cdc, forge};
use crate::engine::{Ready, RecvError, Role, SendError, State};
use crate::testing::{World, ip, pattern};
use crate::wire::cdc::{Cdc, End, Producer};
use core::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn state(w: &World, n: usize) -> Option<State> {
    w.hosts[n].engine.sockets().next().map(|status| status.state)
}

/// Bytes accepted before the end are sent; later writes are refused.
#[test]
fn write_after_shutdown_or_close_is_refused() {
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
            // Before the end flag is sent.
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

/// A closed peer accepts no data; a peer that has only stopped sending does.
#[test]
fn write_to_closed_peer_is_refused() {
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
        let told = |what| w.has_event(0, server, what);
        assert!(told(Ready::READABLE) && !told(Ready::ABORTED) && !told(Ready::CLOSED));
    }
}

/// CLOSED is not reported for sockets that their user has closed.
#[test]
fn sockets_are_freed_when_both_sides_have_ended() {
    let mut w = World::new(93);
    let [server, client] = w.established();
    w.with_engine(0, |engine, ctx, _| engine.shutdown(server, ctx));
    w.wait(SECOND);
    w.close(1, client);
    w.wait(SECOND);
    assert!(!w.has_event(0, server, Ready::CLOSED), "it may still read");
    assert_eq!(state(&w, 0), Some(State::AppFinCloseWait));
    w.close(0, server);
    w.wait(SECOND);
    assert_eq!(w.hosts.each_ref().map(|host| host.engine.sockets().count()), [0, 0]);
    // The peer aborts, then the user closes.
    let [server, client] = w.established();
    w.with_engine(1, |engine, ctx, _| engine.abort(client, ctx));
    w.wait(SECOND);
    assert!(w.has_event(0, server, Ready::ABORTED));
    assert_eq!(state(&w, 0), Some(State::ProcessAbort));
    assert_eq!(w.hosts[0].engine.counters().aborted, 1);
    w.close(0, server);
    w.wait(SECOND);
    assert_eq!(w.hosts.each_ref().map(|host| host.engine.sockets().count()), [0, 0]);
}

/// Bytes accepted before an abort are discarded.
#[test]
fn abort_discards_unsent_data() {
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
    assert!(w.has_event(0, server, Ready::ABORTED));
    assert_eq!(w.hosts[0].engine.recv(server, &mut [0; 9]), Err(RecvError::Aborted));
    // An abort fails a handshake.
    let id = w.with_engine(1, |engine, ctx, _| {
        let id = engine.open(Role::Client, [ip(1, 0), ip(0, 0)], 0, ctx).unwrap();
        engine.abort(id, ctx);
        id
    });
    assert_eq!(w.hosts[1].engine.socket_status(id), None);
    assert_eq!(w.hosts[1].engine.counters().failed, 1);
}

/// A shutdown has the same linger time as a close.
#[test]
fn shutdown_or_close_aborts_after_the_linger_time() {
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
        assert!(w.run(10 * SECOND, |w| w.has_event(0, server, Ready::ABORTED)));
        let took = w.network.now.since(begun);
        assert!((2 * SECOND..2 * SECOND + SECOND / 100).contains(&took), "{took:?}");
    }
    // A connection whose data is sent in time is not aborted.
    let mut w = World::new(96);
    let [server, client] = w.established();
    w.transfer(1, [server, client], &pattern(5000, 1), 1000);
    w.with_engine(1, |engine, ctx, _| engine.shutdown(client, ctx));
    w.wait(10 * SECOND);
    w.transfer(0, [server, client], &pattern(50_000, 2), 5000);
    assert!((0..2).all(|n| w.hosts[n].engine.counters().aborted == 0));
}

/// Data that arrived before the Confirm can be read once the Confirm has arrived.
#[test]
fn data_before_the_confirm_is_reported_with_it() {
    for (data, end) in [(true, false), (false, true), (false, false)] {
        netsim::label!(data, end);
        let mut w = World::new(97);
        w.established();
        let (ids, accept) = w.accept_by_hand(1);
        w.feed_clc(1, ids[1], &accept);
        let confirm = w.take_clc(1, ids[1]);
        if data {
            assert_eq!(w.send(1, ids[1], b"early"), 5);
        }
        if end {
            w.with_engine(1, |engine, ctx, _| engine.shutdown(ids[1], ctx));
        }
        w.wait(SECOND);
        assert_eq!(w.recv(0, ids[0]), b"", "it is not established");
        w.clear_events();
        w.feed_clc(0, ids[0], &confirm);
        assert!(w.has_event(0, ids[0], Ready::ESTABLISHED));
        assert_eq!(w.has_event(0, ids[0], Ready::READABLE), data || end);
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

/// A TCP reset during a handshake fails it. Later it triggers a test of the link, and the connection continues.
#[test]
fn tcp_reset_triggers_a_link_test() {
    let mut w = World::new(98);
    let ids = w.established();
    w.wait(SECOND);
    w.record_frames();
    w.with_engine(0, |engine, ctx, _| engine.handle_tcp_gone(ids[0], ctx));
    w.wait(SECOND);
    assert_eq!(w.recorded_llc().len(), 2, "a test, and its answer");
    w.transfer(0, ids, &pattern(5000, 1), 1000);
    let early = w.by_hand(1);
    w.with_engine(0, |engine, ctx, _| engine.handle_tcp_gone(early[0], ctx));
    w.wait(SECOND / 100);
    assert!(w.has_event(0, early[0], Ready::FAILED));
    w.wait(3 * SECOND);
    // The loss of a rebooted peer is noticed at once, not after 30 s.
    w.reboot(1);
    let begun = w.network.now;
    w.with_engine(0, |engine, ctx, _| engine.handle_tcp_gone(ids[0], ctx));
    assert!(w.run(20 * SECOND, |w| w.has_event(0, ids[0], Ready::ABORTED)));
    let took = w.network.now.since(begun);
    assert!((2 * SECOND..3 * SECOND).contains(&took), "{took:?}");
}

/// The peer must send CLOSED or ABORT within 10 s after its FIN on TCP.
#[test]
fn missing_close_after_tcp_fin_times_out() {
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
        let aborted = w.run(60 * SECOND, |w| w.has_event(0, server, Ready::ABORTED));
        assert_eq!(aborted, within.is_some());
        if let Some(seconds) = within {
            let (took, expected) = (w.network.now.since(begun), Duration::from_secs(seconds));
            assert!((expected..expected + SECOND / 100).contains(&took), "{took:?}");
        }
    }
}

/// A request for an update is answered; other messages are not.
#[test]
fn update_request_is_answered() {
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
    // A repeated end flag is reported once.
    w.clear_events();
    let done = Cdc { end: End::SENDING_DONE, ..of }.emit();
    forge(&mut w, &done);
    let server = w.hosts[0].engine.sockets().next().unwrap().id;
    assert!(w.has_event(0, server, Ready::READABLE));
    w.clear_events();
    forge(&mut w, &done);
    assert!(!w.has_event(0, server, Ready::READABLE));
    assert_eq!(state(&w, 0), Some(State::AppCloseWait1));
}
