//! A user of a volume, with a few random requests at a time, all recorded in the history. It never has two writes to a
//! sector in flight, because a lost request may be executed twice before its answer.

use super::disk::SECTOR;
use super::history::History;
use drivers::hal::{Arena, Instant, Window};
use netsim::Rng;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use storage::volume::{Operation, Request, Submitted, Volume, VolumeError};

/// The user that may write.
pub const WRITER: usize = 1;

/// Most sectors of a request: more than a chunk holds.
const MOST: u64 = 32;

#[derive(Clone, Copy, Debug)]
struct Pending {
    operation: Operation,
    first: u64,
    count: u64,
    /// Value of a write.
    value: u32,
    start: Instant,
}

/// A user of a volume.
#[derive(Debug)]
pub struct User {
    /// Its name in the history.
    name: usize,
    pub history: Rc<RefCell<History>>,
    buffers: Vec<Window>,
    pending: Vec<Option<Pending>>,
    rng: Rng,
    /// When its next request is due.
    next: Instant,
    pause: Duration,
    /// Whether it may write.
    writes: bool,
    /// Requests left to submit.
    pub left: u32,
    /// Completed requests.
    pub ended: u32,
    /// Requests that failed, without those that promise durability.
    pub errors: u32,
    /// Successful writes.
    pub wrote: u32,
    /// Failed requests that promise durability.
    pub broken_promises: u32,
    /// Longest duration of a request.
    pub longest: Duration,
}

impl User {
    /// A user that makes `left` requests, up to `depth` at a time.
    pub fn new(
        name: usize,
        history: Rc<RefCell<History>>,
        depth: usize,
        left: u32,
        arena: &mut Arena,
        mut rng: Rng,
    ) -> Self {
        let bytes = MOST as usize * SECTOR;
        let buffers = (0..depth).map(|_| arena.alloc(bytes, 4096).expect("room")).collect();
        User {
            name,
            history,
            buffers,
            pending: vec![None; depth],
            next: Instant::ZERO,
            pause: Duration::from_micros(rng.pick(&[10, 300, 3000, 40_000])),
            rng,
            writes: name == WRITER,
            left,
            ended: 0,
            errors: 0,
            wrote: 0,
            broken_promises: 0,
            longest: Duration::ZERO,
        }
    }

    /// Whether all requests are done.
    pub fn is_done(&self) -> bool {
        self.left == 0 && self.pending.iter().all(Option::is_none)
    }

    /// The user's machine lost power: its requests are never answered.
    pub fn forget(&mut self) {
        self.pending.fill(None);
        self.history.borrow_mut().users_died();
    }

    /// When it next has work.
    pub fn next(&self) -> Option<Instant> {
        let free = self.pending.iter().any(Option::is_none);
        (free && self.left > 0).then_some(self.next)
    }

    /// Takes completions, and submits requests.
    pub fn work(&mut self, volume: &mut dyn Volume, now: Instant) {
        while let Some(done) = volume.poll() {
            self.end(done.tag.word as usize, done.result, now);
        }
        if volume.geometry().sectors == 0 {
            self.next = now + Duration::from_millis(50);
            return;
        }
        while self.left > 0
            && self.next <= now
            && let Some(slot) = self.pending.iter().position(Option::is_none)
        {
            self.next =
                now + Duration::from_nanos(self.rng.within(1..self.pause.as_nanos() as u64));
            self.left -= 1;
            self.start(slot, volume, now);
        }
        volume.flush_queue();
    }

    fn start(&mut self, slot: usize, volume: &mut dyn Volume, now: Instant) {
        let mut history = self.history.borrow_mut();
        let sectors = history.sectors();
        let first = self.rng.within(0..sectors);
        let longest = if self.rng.chance(100) { MOST } else { 4 };
        let count = self.rng.within(1..longest + 1).min(sectors - first);
        let data = self.buffers[slot].slice(0, count as usize * SECTOR).expect("it fits");
        let met = |other: &Pending| {
            matches!(other.operation, Operation::Write { .. })
                && first < other.first + other.count
                && other.first < first + count
        };
        let may_write = self.writes && !self.pending.iter().flatten().any(met);
        let (operation, data) = match self.rng.within(0..100) {
            0..60 if !self.writes => (Operation::Read, data),
            0..48 if !may_write => (Operation::Read, data),
            0..40 => (Operation::Write { durable: false }, data),
            40..48 => (Operation::Write { durable: true }, data),
            48..60 => (Operation::Flush, Window::empty()),
            _ => (Operation::Read, data),
        };
        let mut value = 0;
        match operation {
            Operation::Write { .. } => {
                value = history.start_write(self.name, first, count, now);
                for n in 0..count {
                    let stamp = history.stamp(first + n, value);
                    data.write(n as usize * SECTOR, &stamp).expect("it fits");
                }
            }
            _ => data.fill(0xee),
        }
        drop(history);
        self.pending[slot] = Some(Pending { operation, first, count, value, start: now });
        let request = Request { tag: (slot as u64).into(), operation, sector: first, data };
        match volume.submit(&request) {
            Ok(Submitted::Pending) => {}
            Ok(Submitted::Done) => self.end(slot, Ok(()), now),
            Ok(Submitted::Lent(lent)) => {
                data.write_window(0, &lent).expect("as long");
                self.end(slot, Ok(()), now);
            }
            Err(error) => self.end(slot, Err(error), now),
        }
    }

    fn end(&mut self, slot: usize, result: Result<(), VolumeError>, now: Instant) {
        let Some(Pending { operation, first, count, value, start }) = self.pending[slot].take()
        else {
            panic!("a completion without a request");
        };
        self.ended += 1;
        self.longest = self.longest.max(now.since(start));
        if netsim::tracing() {
            let (at, from) = (now.as_nanos() / 1000, start.as_nanos() / 1000);
            let name = self.name;
            println!(
                "{at:>12} user {name}: {operation:?} {first}+{count} value {value} since {from}: {result:?}"
            );
        }
        let durable = matches!(operation, Operation::Flush | Operation::Write { durable: true });
        if result.is_err() {
            // A failed write may be executed now or later, completely or in part.
            if let Operation::Write { .. } = operation {
                self.history.borrow_mut().fail_write(first, count, value);
            }
            if durable {
                self.broken_promises += 1;
                self.history.borrow_mut().flush_failed(self.name);
            } else {
                self.errors += 1;
            }
            return;
        }
        let mut history = self.history.borrow_mut();
        match operation {
            Operation::Write { .. } => {
                self.wrote += 1;
                history.end_write(first, count, value, now);
            }
            Operation::Read => {
                let mut bytes = vec![0; count as usize * SECTOR];
                self.buffers[slot].read(0, &mut bytes).expect("it fits");
                history.end_read(first, &bytes, start, now);
            }
            _ => {}
        }
        if durable {
            let own = (operation != Operation::Flush).then_some(value);
            history.flushed(self.name, start, own, now);
        }
    }

    /// Changes to reads only, each sector about once.
    pub fn read_once(&mut self) {
        self.writes = false;
        self.left = 2 * self.history.borrow().sectors() as u32;
    }

    /// Bytes of allocated memory.
    pub fn memory(&self) -> usize {
        self.buffers.iter().map(Window::len).sum()
    }
}
