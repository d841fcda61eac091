//! Requests of a loop that wait for a limit.

use super::{Class, Limiter};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use core::time::Duration;
use drivers::hal::Instant;

/// Least time between two turns. Meanwhile tokens accumulate: requests continue in batches, not each by a wake-up.
const PAUSE: Duration = Duration::from_micros(500);
/// Longest time between two turns: changed limits take effect.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// Requests of one class. Owners take turns.
#[derive(Debug)]
struct Line<O, T> {
    /// Requests by owner. An owner without any keeps its memory until it is [forgotten](Throttle::forget).
    waiting: BTreeMap<O, VecDeque<T>>,
    /// Owners with requests, in the order of their turns.
    turns: VecDeque<O>,
    count: usize,
}

impl<O: Ord + Copy, T: PartialEq + Copy> Line<O, T> {
    const fn new() -> Self {
        Line { waiting: BTreeMap::new(), turns: VecDeque::new(), count: 0 }
    }

    fn push(&mut self, owner: O, request: T) {
        let queue = self.waiting.entry(owner).or_default();
        if queue.is_empty() {
            self.turns.push_back(owner);
        }
        queue.push_back(request);
        self.count += 1;
    }

    /// The first request of the owner whose turn it is.
    fn pop(&mut self) -> Option<(O, T)> {
        let owner = self.turns.pop_front()?;
        let queue = self.waiting.get_mut(&owner)?;
        let request = queue.pop_front()?;
        if !queue.is_empty() {
            self.turns.push_back(owner);
        }
        self.count -= 1;
        Some((owner, request))
    }

    /// Removes requests.
    fn extract(&mut self, gone: &mut impl FnMut(O, T) -> bool, into: &mut Vec<T>) {
        for (&owner, queue) in &mut self.waiting {
            queue.retain(|&request| {
                let is_gone = gone(owner, request);
                if is_gone {
                    into.push(request);
                }
                !is_gone
            });
        }
        let waiting = &self.waiting;
        self.turns.retain(|owner| waiting.get(owner).is_some_and(|queue| !queue.is_empty()));
        self.count = self.waiting.values().map(VecDeque::len).sum();
    }

    fn forget(&mut self, owner: O, into: &mut Vec<T>) {
        let Some(queue) = self.waiting.remove(&owner) else { return };
        self.count -= queue.len();
        self.turns.retain(|one| *one != owner);
        into.extend(queue);
    }
}

/// Requests of one loop that wait for a limit. Owners, such as queues or devices, take turns: one with many requests
/// does not delay one with few. The requests hold what their owner lets them; here they are only named.
#[derive(Debug)]
pub struct Throttle<O, T> {
    limiter: Arc<Limiter>,
    reads: Line<O, T>,
    writes: Line<O, T>,
    /// Until when the time of waiting is counted. None while no request waits.
    counted: Option<Instant>,
    due: Option<Instant>,
    /// Credit that is left to other loops in this turn: of reads, and of writes.
    floors: [u64; 2],
    /// Class of the last request that continued.
    last: Class,
}

impl<O: Ord + Copy, T: PartialEq + Copy> Throttle<O, T> {
    /// No requests.
    pub fn new(limiter: Arc<Limiter>) -> Self {
        Throttle {
            limiter,
            reads: Line::new(),
            writes: Line::new(),
            counted: None,
            due: None,
            floors: [0; 2],
            last: Class::Write,
        }
    }

    /// The limits.
    pub fn limiter(&self) -> &Arc<Limiter> {
        &self.limiter
    }

    fn line(&mut self, class: Class) -> &mut Line<O, T> {
        match class {
            Class::Read => &mut self.reads,
            Class::Write => &mut self.writes,
        }
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.reads.count + self.writes.count == 0
    }

    /// Whether a new request has to wait: for the limit, or behind others of its class.
    pub fn must_wait(&mut self, class: Class, now: Instant) -> bool {
        self.line(class).count > 0 || self.limiter.credit(class, now).is_none()
    }

    /// Makes a request wait. Returns when the next turn is due.
    pub fn wait(&mut self, class: Class, owner: O, request: T, now: Instant) -> Instant {
        self.line(class).push(owner, request);
        self.limiter.delayed.fetch_add(1, Ordering::Relaxed);
        if self.counted.is_none() {
            self.counted = Some(now);
            self.limiter.loops.fetch_add(1, Ordering::Relaxed);
        }
        let due = self.due.map_or(Instant::from_nanos(u64::MAX), |due| due);
        let due = due.min(self.next_turn(class, now));
        self.due = Some(due);
        due
    }

    fn next_turn(&self, class: Class, now: Instant) -> Instant {
        self.limiter.ready_at(class).max(now + PAUSE).min(now + LONGEST_PAUSE)
    }

    /// When the next turn is due. None while no request waits.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Begins a turn: then take requests with [`Throttle::next`], and end it with [`Throttle::end_turn`].
    pub fn begin_turn(&mut self, now: Instant) {
        let loops = u64::from(self.limiter.loops.load(Ordering::Relaxed).max(1));
        self.floors = [Class::Read, Class::Write].map(|class| {
            let credit = self.limiter.credit(class, now).unwrap_or(0);
            credit - credit / loops
        });
    }

    /// The next request that may continue. The caller executes it, and so [charges](Limiter::charge) it.
    pub fn next(&mut self, now: Instant) -> Option<(O, T)> {
        let other = match self.last {
            Class::Read => Class::Write,
            Class::Write => Class::Read,
        };
        for class in [other, self.last] {
            let floor = self.floors[class as usize];
            if self.limiter.credit(class, now).is_some_and(|credit| credit >= floor)
                && let Some(next) = self.line(class).pop()
            {
                self.last = class;
                return Some(next);
            }
        }
        None
    }

    /// Ends a turn, and counts the time. Returns when the next one is due. `more`: the caller's budget ended it.
    pub fn end_turn(&mut self, more: bool, now: Instant) -> Option<Instant> {
        self.count_time(now);
        let lines = [(Class::Read, self.reads.count), (Class::Write, self.writes.count)];
        let waiting = lines.into_iter().filter(|(_, count)| *count > 0);
        let next = |(class, _)| if more { now } else { self.next_turn(class, now) };
        self.due = waiting.map(next).min();
        self.due
    }

    fn count_time(&mut self, now: Instant) {
        let Some(since) = self.counted else { return };
        let nanos = now.since(since).as_nanos() as u64;
        self.limiter.nanos.fetch_add(nanos, Ordering::Relaxed);
        self.counted = (!self.is_empty()).then_some(now);
        if self.counted.is_none() {
            self.due = None;
            self.limiter.loops.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Removes an owner. Returns its requests.
    pub fn forget(&mut self, owner: O, now: Instant) -> Vec<T> {
        let mut gone = Vec::new();
        self.reads.forget(owner, &mut gone);
        self.writes.forget(owner, &mut gone);
        self.count_time(now);
        gone
    }

    /// Removes the requests for which `gone` is true, and returns them. It looks at all.
    pub fn extract(&mut self, now: Instant, mut gone: impl FnMut(O, T) -> bool) -> Vec<T> {
        let mut all = Vec::new();
        self.reads.extract(&mut gone, &mut all);
        self.writes.extract(&mut gone, &mut all);
        self.count_time(now);
        all
    }
}

impl<O, T> Drop for Throttle<O, T> {
    fn drop(&mut self) {
        if self.counted.is_some() {
            self.limiter.loops.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
