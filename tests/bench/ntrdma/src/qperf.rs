//! qperf's tests, under their names: `rc_bw`, `rc_rdma_write_bw`, `rc_rdma_read_bw` (64 KiB each, bytes per second),
//! `rc_lat`, `rc_rdma_write_lat` (one byte in each direction; nanoseconds one way) and `rc_rdma_read_lat` (nanoseconds
//! until the data arrives). Each machine has a thread. The best turn is the result.

use crate::fixture::{self, Node};
use crate::native::Clock;
use crate::request;
use drivers::hal::Window;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;
use verbs::{
    Access, CompletedOperation, Completion, MemoryVerbs, Payload, Provider, RecvRequest, Region,
    RemoteAddress, SendOperation, SendWith, Status,
};

/// Bytes of a message of the bandwidth tests, and number of outstanding messages.
const LONG: usize = 64 << 10;
const DEPTH: u64 = 16;
/// Messages in a turn.
const TURN: u64 = 512;

/// Kind of a message.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Send,
    Write,
    Read,
}

/// An end with its memory, and the target memory at the other end.
struct End {
    node: Node,
    memory: Window,
    to: RemoteAddress,
}

impl End {
    fn post(&mut self, kind: Kind, bytes: usize) {
        let part = self.memory.slice(0, bytes).expect("within");
        let payload = Payload::Windows(&[part]);
        let operation = match kind {
            Kind::Send => SendOperation::Send { payload, with: SendWith::Nothing },
            Kind::Write => SendOperation::Write { payload, to: self.to, immediate: Some(0) },
            Kind::Read => SendOperation::Read { into: &[part], from: self.to },
        };
        self.node.ntrdma.post_send(self.node.qp, &request(0, operation)).expect("room");
    }

    fn post_receive(&mut self) {
        let request = RecvRequest { id: 0, into: &[self.memory] };
        self.node.ntrdma.post_recv(self.node.qp, &request).expect("room");
    }

    /// The next completion, if there is one.
    fn poll(&mut self, clock: &Clock) -> Option<Completion> {
        self.node.poll(clock.now());
        let completion = self.node.ntrdma.poll_cq(self.node.cq)?;
        assert_eq!(completion.status, Status::Success);
        Some(completion)
    }
}

/// Two ends with receives posted.
fn ends() -> ([End; 2], Clock) {
    let (nodes, now) = fixture::connected();
    let mut ends = nodes.map(|mut node| {
        let memory = node.memory(LONG);
        memory.fill(1);
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let Region { address, rkey, .. } =
            node.ntrdma.register(node.pd, memory, access, &mut node.rng).expect("room");
        End { node, memory, to: RemoteAddress { address, rkey } }
    });
    let [a, b] = &mut ends;
    std::mem::swap(&mut a.to, &mut b.to);
    for end in &mut ends {
        (0..2 * DEPTH).for_each(|_| end.post_receive());
    }
    (ends, Clock::new(now))
}

/// Runs `measured` `turns` times at one end, while `other` runs at the other. Returns the shortest time in seconds.
fn shortest(
    turns: u64,
    mut measured: impl FnMut(&mut End, &Clock),
    mut other: impl FnMut(&mut End, Completion) + Send,
) -> f64 {
    let ([mut a, mut b], clock) = ends();
    let over = AtomicBool::new(false);
    let mut best = f64::MAX;
    thread::scope(|scope| {
        let (over, clock) = (&over, &clock);
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                if let Some(completion) = b.poll(clock) {
                    other(&mut b, completion);
                }
            }
        });
        for _ in 0..turns {
            let start = Instant::now();
            measured(&mut a, clock);
            best = best.min(start.elapsed().as_secs_f64());
        }
        over.store(true, Ordering::Relaxed);
    });
    best
}

fn bandwidth(kind: Kind, turns: u64) -> f64 {
    let measured = |end: &mut End, clock: &Clock| {
        let (mut posted, mut done) = (0, 0);
        while done < TURN {
            while posted < TURN && posted < done + DEPTH {
                end.post(kind, LONG);
                posted += 1;
            }
            done += u64::from(end.poll(clock).is_some());
        }
    };
    let time = shortest(turns, measured, |end, completion| {
        if completion.operation != CompletedOperation::Send {
            end.post_receive();
        }
    });
    (TURN * LONG as u64) as f64 / time
}

fn latency(kind: Kind, turns: u64) -> f64 {
    // Each arrived message is answered by the same kind of message.
    let answered = |completion: Completion| completion.operation != CompletedOperation::Send;
    let measured = |end: &mut End, clock: &Clock| {
        for _ in 0..TURN {
            end.post(kind, 1);
            let sent = kind == Kind::Read;
            while !end.poll(clock).is_some_and(|completion| sent || answered(completion)) {}
            if !sent {
                end.post_receive();
            }
        }
    };
    let time = shortest(turns, measured, |end, completion| {
        if answered(completion) {
            end.post(kind, 1);
            end.post_receive();
        }
    });
    let ways = if kind == Kind::Read { 1.0 } else { 2.0 };
    1e9 * time / TURN as f64 / ways
}

/// Prints all six results, in the order of the suite's list.
pub fn measure(turns: u64) {
    for kind in [Kind::Send, Kind::Write, Kind::Read] {
        print!("{} {} ", bandwidth(kind, turns), latency(kind, turns));
    }
    println!();
}
