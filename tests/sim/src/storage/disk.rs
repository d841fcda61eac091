//! A disk with a cache, which is slow, fails, and loses its cache at a power cut.

use drivers::hal::{
    Completion, Disk, DiskError, Features, Geometry, Instant, Operation, Request, SubmitError,
};
use netsim::Rng;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// Bytes of a sector.
pub const SECTOR: usize = 512;

/// Behaviour of a disk.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    /// Whether completed writes may be lost until they are flushed.
    pub cache: bool,
    /// Longest time of a request without a stall.
    pub latency: Duration,
    /// Requests in a thousand that fail.
    pub errors: u32,
    /// Requests in a thousand that take seconds.
    pub stalls: u32,
    /// Sectors in a thousand that survive a power cut without a flush.
    pub kept: u32,
}

#[derive(Debug)]
struct InFlight {
    due: Instant,
    request: Request,
    fails: bool,
    /// Number of the last write that a flush makes durable.
    mark: u64,
}

#[derive(Debug)]
struct State {
    manners: Manners,
    now: Instant,
    rng: Rng,
    /// Contents for reads.
    latest: Vec<u8>,
    /// Contents that survive a power cut.
    durable: Vec<u8>,
    /// Sectors in the cache, in the order of writing, with the number of their request.
    cached: VecDeque<(u64, usize, [u8; SECTOR])>,
    written: u64,
    in_flight: Vec<InFlight>,
}

/// A disk. Clones share it, so it outlives the machine that uses it.
#[derive(Clone, Debug)]
pub struct SimDisk(Rc<RefCell<State>>);

impl SimDisk {
    /// A disk of zeroes.
    pub fn new(sectors: usize, manners: Manners, rng: Rng) -> Self {
        SimDisk(Rc::new(RefCell::new(State {
            manners,
            now: Instant::ZERO,
            rng,
            latest: vec![0; sectors * SECTOR],
            durable: vec![0; sectors * SECTOR],
            cached: VecDeque::new(),
            written: 0,
            in_flight: Vec::new(),
        })))
    }

    /// Sets its clock.
    pub fn set_now(&self, now: Instant) {
        self.0.borrow_mut().now = now;
    }

    /// When the next request completes.
    pub fn next(&self) -> Option<Instant> {
        self.0.borrow().in_flight.iter().map(|request| request.due).min()
    }

    /// Turns off failures and stalls.
    pub fn heal(&self) {
        let manners = &mut self.0.borrow_mut().manners;
        (manners.errors, manners.stalls) = (0, 0);
    }

    /// Fails all requests in flight after executing parts of them. Returns whether there were any.
    pub fn interrupt(&self) -> bool {
        let state = &mut *self.0.borrow_mut();
        let now = state.now;
        for request in &mut state.in_flight {
            (request.fails, request.due) = (true, now);
        }
        !state.in_flight.is_empty()
    }

    /// Contents for reads.
    pub fn contents(&self) -> Vec<u8> {
        self.0.borrow().latest.clone()
    }

    /// Cuts the power of the disk only: each sector that is not durable is kept or lost at random.
    pub fn lose_cache(&self) {
        let state = &mut *self.0.borrow_mut();
        for (_, sector, bytes) in core::mem::take(&mut state.cached) {
            if state.rng.chance(state.manners.kept) {
                state.durable[sector * SECTOR..][..SECTOR].copy_from_slice(&bytes);
            }
        }
        state.latest.clone_from(&state.durable);
    }

    /// Cuts the power of disk and machine: requests in flight are executed in part, or not at all.
    pub fn cut_power(&self) {
        self.lose_cache();
        let state = &mut *self.0.borrow_mut();
        for InFlight { request, .. } in core::mem::take(&mut state.in_flight) {
            if let Operation::Write = request.operation {
                for n in 0..request.data.len() / SECTOR {
                    if state.rng.chance(state.manners.kept) {
                        let at = (request.sector as usize + n) * SECTOR;
                        let sector = &mut state.durable[at..at + SECTOR];
                        request.data.read(n * SECTOR, sector).expect("in the window");
                    }
                }
            }
        }
        state.latest.clone_from(&state.durable);
    }
}

impl State {
    fn write(&mut self, sector: usize, bytes: [u8; SECTOR]) {
        self.latest[sector * SECTOR..][..SECTOR].copy_from_slice(&bytes);
        if self.manners.cache {
            self.cached.push_back((self.written, sector, bytes));
        } else {
            self.durable[sector * SECTOR..][..SECTOR].copy_from_slice(&bytes);
        }
    }

    fn execute(&mut self, done: &InFlight) {
        let request = &done.request;
        let first = request.sector as usize;
        match request.operation {
            Operation::Read if !done.fails => {
                let bytes = &self.latest[first * SECTOR..][..request.data.len()];
                request.data.write(0, bytes).expect("in the window");
            }
            Operation::Write => {
                self.written += 1;
                for n in 0..request.data.len() / SECTOR {
                    // A failed write may have written any of its sectors.
                    if !done.fails || self.rng.chance(500) {
                        let mut bytes = [0; SECTOR];
                        request.data.read(n * SECTOR, &mut bytes).expect("in the window");
                        self.write(first + n, bytes);
                    }
                }
            }
            Operation::Flush if !done.fails => {
                while self.cached.front().is_some_and(|(number, ..)| *number <= done.mark) {
                    let (_, sector, bytes) = self.cached.pop_front().expect("just seen");
                    self.durable[sector * SECTOR..][..SECTOR].copy_from_slice(&bytes);
                }
            }
            _ => {}
        }
    }
}

impl Disk for SimDisk {
    fn geometry(&self) -> Geometry {
        let state = self.0.borrow();
        let mut features = Features::empty();
        features.set(Features::VOLATILE_CACHE, state.manners.cache);
        Geometry {
            sectors: (state.latest.len() / SECTOR) as u64,
            logical_block: 512,
            physical_block: 512,
            max_transfer: 4096,
            max_discard_sectors: 0,
            discard_granularity: 0,
            max_write_zeroes_sectors: 0,
            features,
        }
    }
    fn depth(&self) -> usize {
        8
    }
    fn submit(&mut self, request: &Request) -> Result<(), SubmitError> {
        let state = &mut *self.0.borrow_mut();
        if state.in_flight.len() == 8 {
            return Err(SubmitError::Full);
        }
        let most = state.manners.latency.as_nanos() as u64;
        let mut latency = Duration::from_nanos(state.rng.within(1000..most));
        if state.rng.chance(state.manners.stalls) {
            latency += Duration::from_millis(state.rng.within(100..4000));
        }
        state.in_flight.push(InFlight {
            due: state.now + latency,
            request: *request,
            fails: state.rng.chance(state.manners.errors),
            mark: state.written,
        });
        Ok(())
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<Completion> {
        let state = &mut *self.0.borrow_mut();
        let due = state.in_flight.iter().position(|request| request.due <= state.now)?;
        let done = state.in_flight.swap_remove(due);
        state.execute(&done);
        let result = if done.fails { Err(DiskError::Io) } else { Ok(()) };
        Some(Completion { tag: done.request.tag, result })
    }
    fn set_interrupts(&mut self, _: bool) {}
    fn interrupts(&self) -> u64 {
        0
    }
}
