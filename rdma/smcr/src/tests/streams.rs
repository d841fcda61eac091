//! Streams and ends under random schedules, on a network that loses frames.

use crate::engine::{Config, Ready, SocketId};
use crate::testing::{World, config, pattern};
use core::time::Duration;
use netsim::Faults;
use proptest::prelude::*;
use std::vec::Vec;

const SECOND: Duration = Duration::from_secs(1);

/// An action of a user.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send(usize),
    Read(usize),
    Wait(u16),
    Shutdown,
    Close,
}

fn steps(ends: bool) -> impl Strategy<Value = Vec<(usize, Step)>> {
    let step = prop_oneof![
        4 => (1usize..20_000).prop_map(Step::Send),
        4 => (1usize..20_000).prop_map(Step::Read),
        4 => (0u16..2000).prop_map(Step::Wait),
        1 => Just(if ends { Step::Shutdown } else { Step::Wait(1) }),
        1 => Just(if ends { Step::Close } else { Step::Wait(1) }),
    ];
    prop::collection::vec((0usize..2, step), 1..60)
}

/// A connection, and what each side has written and read.
struct Talk {
    w: World,
    ids: [SocketId; 2],
    written: [Vec<u8>; 2],
    read: [Vec<u8>; 2],
    closed: [bool; 2],
}

impl Talk {
    fn new(seed: u64, sizes: [u8; 2]) -> Self {
        let configs = sizes.map(|rmb_size| Config { rmb_size, ..config() });
        let mut w = World::with(seed, configs);
        let ids = w.established();
        let empty = || [Vec::new(), Vec::new()];
        Talk { w, ids, written: empty(), read: empty(), closed: [false; 2] }
    }

    fn send(&mut self, n: usize, len: usize) {
        let all = pattern(self.written[n].len() + len, n as u8 * 77);
        let bytes = &all[self.written[n].len()..];
        let id = self.ids[n];
        let sent = self.w.with_engine(n, |engine, ctx, _| engine.send(id, bytes, ctx));
        self.written[n].extend_from_slice(&bytes[..sent.unwrap_or(0)]);
    }

    fn read(&mut self, n: usize, len: usize) -> usize {
        let mut buffer = std::vec![0; len];
        let count = self.w.hosts[n].engine.recv(self.ids[n], &mut buffer).unwrap_or(0);
        self.read[n].extend_from_slice(&buffer[..count]);
        count
    }

    fn does(&mut self, n: usize, step: Step) {
        let id = self.ids[n];
        if self.closed[n] {
            return;
        }
        match step {
            Step::Send(len) => self.send(n, len),
            Step::Read(len) => drop(self.read(n, len)),
            Step::Wait(micros) => self.w.wait(Duration::from_micros(micros.into())),
            Step::Shutdown => self.w.with_engine(n, |engine, ctx, _| engine.shutdown(id, ctx)),
            Step::Close => {
                self.closed[n] = true;
                self.w.close(n, id);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn streams_are_exact_under_loss(
        seed in 0u64..1000, sizes in [0u8..3, 0u8..3], loss in 0u32..20, steps in steps(false),
    ) {
        let mut talk = Talk::new(seed, sizes);
        talk.w.network.set_faults(Faults { loss, duplication: loss, ..Faults::default() });
        for (n, step) in steps {
            talk.does(n, step);
        }
        let end = talk.w.network.now + 60 * SECOND;
        while (0..2).any(|n| talk.read[1 - n].len() < talk.written[n].len()) {
            prop_assert!(talk.w.network.now < end, "it gets stuck");
            if talk.read(0, 1 << 16) + talk.read(1, 1 << 16) == 0 {
                talk.w.step(end);
            }
        }
        for n in 0..2 {
            prop_assert!(talk.read[1 - n] == talk.written[n]);
        }
    }

    /// Host 0 echoes its data by either function; host 1 reads slowly.
    #[test]
    fn forwarded_streams_are_exact_under_loss(
        seed in 0u64..1000, sizes in [0u8..3, 0u8..3], loss in 0u32..20, steps in steps(false),
        at_once in any::<bool>(),
    ) {
        let mut talk = Talk::new(seed, sizes);
        talk.w.network.set_faults(Faults { loss, duplication: loss, ..Faults::default() });
        let forward = |talk: &mut Talk| {
            let id = talk.ids[0];
            let moved = talk.w.with_engine(0, |engine, ctx, _| match at_once {
                true => engine.turn_back(id, ctx),
                false => engine.forward(id, id, ctx),
            });
            assert_eq!(moved, Ok(()));
        };
        for (_, step) in steps {
            talk.does(1, step);
            forward(&mut talk);
        }
        let end = talk.w.network.now + 60 * SECOND;
        while talk.read[1].len() < talk.written[1].len() {
            prop_assert!(talk.w.network.now < end, "it gets stuck");
            forward(&mut talk);
            if talk.read(1, 1 << 16) == 0 {
                talk.w.step(end);
            }
        }
        prop_assert!(talk.read[1] == talk.written[1]);
    }

    #[test]
    fn sockets_are_freed_after_any_sequence_of_ends(
        seed in 0u64..1000, loss in 0u32..20, steps in steps(true),
    ) {
        let mut talk = Talk::new(seed, [0, 0]);
        talk.w.network.set_faults(Faults { loss, ..Faults::default() });
        for (n, step) in steps {
            talk.does(n, step);
        }
        for n in 0..2 {
            let written = &talk.written[n];
            prop_assert!(written.starts_with(&talk.read[1 - n]));
            talk.does(n, Step::Close);
        }
        talk.w.wait(20 * SECOND);
        for host in &talk.w.hosts {
            prop_assert_eq!(host.engine.sockets().count(), 0);
            prop_assert_eq!(host.engine.counters().violations, 0);
            prop_assert_eq!(host.engine.counters().links_failed, 0, "a key was revoked too early");
            prop_assert!(host.engine.groups().all(|group| group.connections == 0));
        }
    }
}

#[test]
fn messages_wrap_at_every_place() {
    // 97 and the size of the ring are coprime.
    const MESSAGE: usize = 97;
    let mut w = World::new(31);
    let ids = w.established();
    let all = pattern(MESSAGE * (16 << 10), 5);
    for message in all.chunks(MESSAGE) {
        assert_eq!(w.send(1, ids[1], message), MESSAGE);
        let end = w.network.now + SECOND;
        while w.hosts[0].engine.readable(ids[0]) < MESSAGE as u64 {
            assert!(w.network.now < end);
            w.step(end);
        }
        assert!(w.recv(0, ids[0]) == message);
    }
}

#[test]
fn small_reads_make_few_updates() {
    let mut w = World::new(32);
    let ids = w.established();
    w.transfer(1, ids, &pattern(1 << 20, 1), 100);
    let counters = w.hosts[0].engine.counters();
    let most = (1 << 20) / 2304;
    assert!(counters.updates_sent < most, "{} updates, at most {most}", counters.updates_sent);
}

#[test]
fn many_connections_at_once_are_all_exact() {
    let mut w = World::new(33);
    w.network.set_faults(Faults { loss: 5, ..Faults::default() });
    let all: Vec<[SocketId; 2]> = (0..40)
        .map(|_| w.connect_from(1))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|at| w.tcp[at].ends.map(Option::unwrap))
        .collect();
    let up = |w: &World| {
        all.iter().all(|ids| (0..2).all(|n| w.has_event(n, ids[n], Ready::ESTABLISHED)))
    };
    assert!(w.run(10 * SECOND, |w| up(w)));
    let bytes: Vec<Vec<u8>> = (0..40).map(|n| pattern(30_000, n)).collect();
    let (mut sent, mut got) = (std::vec![0; 40], std::vec![Vec::new(); 40]);
    let end = w.network.now + 60 * SECOND;
    while got.iter().any(|got: &Vec<u8>| got.len() < 30_000) {
        assert!(w.network.now < end);
        for (n, ids) in all.iter().enumerate() {
            if sent[n] < 30_000 {
                sent[n] += w.send(1, ids[1], &bytes[n][sent[n]..]);
            }
            let piece = w.recv(0, ids[0]);
            got[n].extend(piece);
        }
        w.step(end);
    }
    assert!(got == bytes);
}

#[test]
fn requests_and_answers_share_acks_and_all_are_acknowledged() {
    let mut w = World::new(21);
    let [server, client] = w.established();
    let acks = |w: &World| w.hosts[0].roce.counters().received.acknowledges;
    let before = acks(&w);
    let millisecond = Duration::from_millis(1);
    for n in 0..20 {
        for (from, ids) in [(1, [server, client]), (0, [client, server])] {
            w.send(from, ids[1], &[n; 64]);
            w.wait(millisecond / 4);
            assert_eq!(w.recv(1 - from, ids[0]), [n; 64]);
        }
    }
    let shared = acks(&w) - before;
    assert!(shared <= 7, "{shared} ACKs for 20 answers");
    // No traffic follows: the last messages request ACKs.
    w.wait(20 * millisecond);
    for (n, id) in [server, client].into_iter().enumerate() {
        let whole = u64::from(w.hosts[n].engine.config().send_buffer);
        assert_eq!(w.hosts[n].engine.writable(id), whole, "host {n}");
        assert_eq!(w.hosts[n].roce.counters().retries, 0);
    }
}
