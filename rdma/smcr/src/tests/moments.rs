//! Faults injected at every frame of a conversation: a lost frame, a cut link, a reboot of both hosts, a close or abort
//! of one side while the other side does the same.

use crate::engine::{Config, Ready, RecvError, SocketId};
use crate::testing::{World, config, pattern};
use core::time::Duration;
use netsim::Place;
use std::vec::Vec;

const SECOND: Duration = Duration::from_secs(1);
/// More than a receive buffer, so that cursors wrap.
const BYTES: usize = 20_000;

in_both_versions! {
    any_frame_may_be_lost
    a_link_may_be_cut_at_any_moment
    both_hosts_may_reboot_at_any_moment
    both_sides_may_close_or_abort_at_any_moment
}

/// A conversation: a question, a half-close, an answer, the ends.
struct Talk {
    w: World,
    at: usize,
    sent: [usize; 2],
    got: [Vec<u8>; 2],
    finished: [bool; 2],
    closed: [bool; 2],
}

impl Talk {
    fn new(version: u8) -> Talk {
        let two = || Config { max_links: 2, ..config() };
        let mut w = World::of_version(version, 77, [two(), two()], [2, 2]);
        let at = w.connect_from(1);
        let empty = || [Vec::new(), Vec::new()];
        Talk { w, at, sent: [0; 2], got: empty(), finished: [false; 2], closed: [false; 2] }
    }

    fn id(&self, n: usize) -> Option<SocketId> {
        self.w.tcp[self.at].ends[n].filter(|_| !self.closed[n])
    }

    fn established(&self, n: usize) -> bool {
        self.id(n).is_some_and(|id| self.w.has_event(n, id, Ready::ESTABLISHED))
    }

    /// Lets the user of host `n` read, write and close; the server answers after the client's shutdown.
    fn act(&mut self, n: usize) {
        let Some(id) = self.id(n).filter(|_| self.established(n)) else { return };
        let mut buffer = std::vec![0; BYTES];
        match self.w.hosts[n].engine.recv(id, &mut buffer) {
            Ok(count) => self.got[n].extend_from_slice(&buffer[..count]),
            Err(RecvError::Finished) => self.finished[n] = true,
            Err(RecvError::Aborted) => {}
        }
        if n == 0 && !self.finished[0] {
            return;
        }
        let all = pattern(BYTES, n as u8);
        let rest = &all[self.sent[n]..];
        let sent = self.w.with_engine(n, |engine, ctx, _| engine.send(id, rest, ctx));
        self.sent[n] += sent.unwrap_or(0);
        if self.sent[n] == BYTES {
            match n {
                1 if self.finished[1] => self.close(1),
                1 => self.w.with_engine(1, |engine, ctx, _| engine.shutdown(id, ctx)),
                _ => self.close(0),
            }
        }
    }

    fn close(&mut self, n: usize) {
        if let Some(id) = self.id(n) {
            self.w.close(n, id);
            self.closed[n] = true;
        }
    }

    fn over(&self) -> bool {
        self.closed == [true; 2] && self.w.hosts.iter().all(|h| h.engine.sockets().count() == 0)
    }

    /// Runs until `done` or for `limit`. Returns whether it was done.
    fn run(&mut self, limit: Duration, mut done: impl FnMut(&mut Talk) -> bool) -> bool {
        let end = self.w.network.now + limit;
        loop {
            self.w.round();
            (0..2).for_each(|n| self.act(n));
            if done(self) {
                return true;
            }
            if self.w.network.now >= end {
                return false;
            }
            self.w.step(end);
        }
    }

    fn right(&self) -> bool {
        (0..2).all(|n: usize| self.got[n] == pattern(BYTES, 1 - n as u8))
    }

    /// Closes all sockets, and checks that no state remains.
    fn ends(&mut self, what: &str) {
        for n in 0..2 {
            self.close(n);
        }
        assert!(self.run(80 * SECOND, |talk| talk.over()), "{what}: {:?}", self.w.hosts);
        for host in &self.w.hosts {
            assert_eq!(host.engine.counters().violations, 0, "{what}");
            assert!(host.engine.groups().all(|group| group.connections == 0), "{what}");
        }
    }
}

/// Number of frames of an undisturbed conversation.
fn frames(version: u8) -> u64 {
    let mut talk = Talk::new(version);
    assert!(talk.run(10 * SECOND, |talk| talk.over()));
    assert!(talk.right());
    talk.w.network.sent()
}

/// A conversation that has reached frame `n`.
fn at_frame(version: u8, n: u64) -> Talk {
    let mut talk = Talk::new(version);
    talk.run(10 * SECOND, |talk| talk.w.network.sent() >= n);
    talk
}

fn any_frame_may_be_lost(version: u8) {
    for n in 0..frames(version) {
        let mut talk = Talk::new(version);
        talk.w.network.lose = Some(n);
        assert!(talk.run(30 * SECOND, |talk| talk.over()), "frame {n}: {:?}", talk.w.hosts);
        assert!(talk.right(), "frame {n}");
    }
}

fn a_link_may_be_cut_at_any_moment(version: u8) {
    let mut exact = 0;
    for n in 0..frames(version) {
        netsim::label!(version, n);
        for port in 0..2 {
            let mut talk = at_frame(version, n);
            // Before the second link is up, there is no failover.
            let two = talk.w.hosts.iter().all(|host| {
                host.engine.links().filter(|link| link.active).count() == 2
                    && host.engine.groups().all(|group| group.connections > 0)
            });
            talk.w.network.set_up(Place { node: 0, port }, false);
            talk.run(40 * SECOND, |talk| talk.over());
            if two {
                let aborted: Vec<_> =
                    talk.w.hosts.iter().map(|host| host.engine.counters().aborted).collect();
                assert!(talk.right(), "frame {n}, port {port}: {aborted:?}");
                exact += 1;
            }
            talk.ends(&std::format!("frame {n}, port {port}"));
        }
    }
    assert!(exact > 15, "two links were up only {exact} times");
}

fn both_hosts_may_reboot_at_any_moment(version: u8) {
    for n in 0..frames(version) {
        let mut talk = at_frame(version, n);
        talk.w.reboot(0);
        talk.w.reboot(1);
        talk.w.tcp.clear();
        talk.w.clear_events();
        let ids = talk.w.established();
        talk.w.transfer(1, ids, &pattern(BYTES, 3), 5000);
        talk.w.transfer(0, ids, &pattern(BYTES, 4), 5000);
        for host in &talk.w.hosts {
            assert_eq!(host.engine.groups().count(), 1, "frame {n}");
            assert!(host.engine.counters().fallbacks.is_empty(), "frame {n}");
        }
    }
}

fn both_sides_may_close_or_abort_at_any_moment(version: u8) {
    for n in 0..frames(version) {
        for (first, second) in [(false, false), (false, true), (true, false), (true, true)] {
            netsim::label!(version, n, first, second);
            let mut talk = at_frame(version, n);
            for (host, abort) in [(0, first), (1, second)] {
                let Some(id) = talk.id(host).filter(|_| abort) else {
                    talk.close(host);
                    continue;
                };
                talk.w.with_engine(host, |engine, ctx, _| engine.abort(id, ctx));
                talk.closed[host] = true;
            }
            talk.ends(&std::format!("frame {n}, aborts {first} {second}"));
            let ids = talk.w.established();
            talk.w.transfer(0, ids, b"fresh connection", 100);
        }
    }
}
