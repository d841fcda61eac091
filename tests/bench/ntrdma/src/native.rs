//! Time measurements with a thread for each machine. NTRDMA and bare memory take turns within one run, so that other
//! load of the host affects both. The best turn is the result.

use crate::fixture::{self, Node};
use crate::request;
use drivers::hal::{Arena, Instant, Window};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time;
use verbs::{Access, MemoryVerbs, Payload, Provider, Region, RemoteAddress, SendOperation};

/// Bytes of a WRITE of the bandwidth test, and number of outstanding WRITEs.
const LONG: usize = 1 << 20;
const DEPTH: u64 = 8;
/// WRITEs in a turn.
const TURN: u64 = 64;
/// Bytes of a WRITE of the latency test, and round trips in a turn.
const SHORT: usize = 64;
const ROUNDS: u32 = 2000;

/// Time since the providers were set up.
pub struct Clock(time::Instant, Instant);

impl Clock {
    /// A clock that starts at `now`.
    pub fn new(now: Instant) -> Self {
        Clock(time::Instant::now(), now)
    }

    /// Current time.
    pub fn now(&self) -> Instant {
        self.1 + self.0.elapsed()
    }
}

fn granted(node: &mut Node, memory: Window) -> RemoteAddress {
    let access = Access::REMOTE_WRITE;
    let Region { address, rkey, .. } =
        node.ntrdma.register(node.pd, memory, access, &mut node.rng).expect("room");
    RemoteAddress { address, rkey }
}

fn write(node: &mut Node, id: u64, from: Window, to: RemoteAddress) {
    let payload = Payload::Windows(&[from]);
    let operation = SendOperation::Write { payload, to, immediate: None };
    node.ntrdma.post_send(node.qp, &request(id, operation)).expect("room");
}

/// Prints bytes per second of WRITEs of 1 MiB and of copies of 1 MiB: the best of `turns`.
pub fn bandwidth(turns: u64) {
    let ([mut a, mut b], now) = fixture::connected();
    let clock = Clock::new(now);
    let from = a.memory(LONG * DEPTH as usize);
    let into = Arena::on_heap(LONG * DEPTH as usize + 4096)
        .alloc(LONG * DEPTH as usize, 4096)
        .expect("as much as that");
    from.fill(1);
    into.fill(2);
    let to = granted(&mut b, into);
    let part =
        |window: &Window, n: u64| window.slice(LONG * (n % DEPTH) as usize, LONG).expect("within");
    let over = AtomicBool::new(false);
    let mut best = [f64::MAX; 2];
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                b.poll(clock.now());
            }
        });
        for _ in 0..turns {
            let start = time::Instant::now();
            let (mut posted, mut done) = (0, 0);
            while done < TURN {
                while posted < TURN && posted < done + DEPTH {
                    let at = to.address + LONG as u64 * (posted % DEPTH);
                    write(&mut a, posted, part(&from, posted), RemoteAddress { address: at, ..to });
                    posted += 1;
                }
                a.poll(clock.now());
                while let Some(completion) = a.ntrdma.poll_cq(a.cq) {
                    assert_eq!(completion.status, verbs::Status::Success);
                    done += 1;
                }
            }
            best[0] = best[0].min(start.elapsed().as_secs_f64());
            let start = time::Instant::now();
            for n in 0..TURN {
                part(&into, n).write_window(0, &part(&from, n)).expect("as long");
            }
            best[1] = best[1].min(start.elapsed().as_secs_f64());
        }
        over.store(true, Ordering::Relaxed);
    });
    let bytes = (LONG as u64 * TURN) as f64;
    println!("{} {}", bytes / best[0], bytes / best[1]);
}

/// Prints seconds of a round trip of WRITEs of 64 bytes, detected by polling memory, and of a cell in bare memory: the
/// best of `turns`.
pub fn latency(turns: u64) {
    let ([mut a, mut b], now) = fixture::connected();
    let clock = Clock::new(now);
    let [from_a, from_b, at_a, at_b] =
        [a.memory(SHORT), b.memory(SHORT), a.memory(SHORT), b.memory(SHORT)];
    [from_a, from_b, at_a, at_b].iter().for_each(|window| window.fill(0));
    let (to_a, to_b) = (granted(&mut a, at_a), granted(&mut b, at_b));
    let cells = Arena::on_heap(8192).alloc(4096, 4096).expect("as much as that");
    cells.fill(0);
    let last = SHORT - 4;
    let total = turns as u32 * ROUNDS;
    let mut best = [f64::MAX; 2];
    thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0..turns as u32 {
                for round in 1..=ROUNDS {
                    let round = turn * ROUNDS + round;
                    while at_b.load32(last) != round {
                        b.poll(clock.now());
                    }
                    while b.ntrdma.poll_cq(b.cq).is_some() {}
                    from_b.store32(last, round);
                    write(&mut b, 0, from_b, to_a);
                    b.poll(clock.now());
                }
                for round in 1..=ROUNDS {
                    let round = turn * ROUNDS + round;
                    while cells.load32(0) != round {}
                    cells.store32(128, round);
                }
            }
            // Poll until the last answer is processed.
            while cells.load32(0) != total + 1 {
                b.poll(clock.now());
            }
        });
        for turn in 0..turns as u32 {
            let start = time::Instant::now();
            for round in 1..=ROUNDS {
                let round = turn * ROUNDS + round;
                from_a.store32(last, round);
                write(&mut a, 0, from_a, to_b);
                a.poll(clock.now());
                while at_a.load32(last) != round {
                    a.poll(clock.now());
                }
                while a.ntrdma.poll_cq(a.cq).is_some() {}
            }
            best[0] = best[0].min(start.elapsed().as_secs_f64());
            let start = time::Instant::now();
            for round in 1..=ROUNDS {
                let round = turn * ROUNDS + round;
                cells.store32(0, round);
                while cells.load32(128) != round {}
            }
            best[1] = best[1].min(start.elapsed().as_secs_f64());
        }
        cells.store32(0, total + 1);
    });
    let rounds = f64::from(ROUNDS);
    println!("{} {}", best[0] / rounds, best[1] / rounds);
}
