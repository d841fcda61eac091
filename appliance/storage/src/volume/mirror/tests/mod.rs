//! The mirror on members whose completions and results the test controls.

mod choices;
mod copies;
mod grow;
mod members;
mod random;
mod rules;
mod silent;
mod site;
mod zeroes;

use super::*;
use crate::volume::Operation;
use drivers::hal::Arena;
use std::vec::Vec;
use superblock::Superblock;

/// Sectors of a member after the reserved ones: four regions.
const SECTORS: usize = 32;
const BYTES: usize = (RESERVED as usize + SECTORS) * 512;

/// A disk with a cache, whose requests wait until the test completes them.
struct Plan {
    /// Requests that were given up, and that it may still execute.
    given_up: Vec<(Request, Vec<u8>)>,
    cache: Vec<u8>,
    durable: Vec<u8>,
    /// Number of sectors that it reports.
    sectors: u64,
    queue: VecDeque<Request>,
    done: VecDeque<Completion>,
}

#[derive(Clone)]
struct Disk(Rc<core::cell::RefCell<Plan>>);

impl Disk {
    fn new() -> Self {
        let (cache, durable) = (alloc::vec![0; BYTES], alloc::vec![0; BYTES]);
        let (queue, done) = Default::default();
        let given_up = Vec::new();
        Disk(Rc::new(core::cell::RefCell::new(Plan {
            given_up,
            cache,
            durable,
            sectors: (BYTES / 512) as u64,
            queue,
            done,
        })))
    }

    /// Ends the requests that `wanted` selects: executes them, or fails them.
    fn end(&self, wanted: impl Fn(&Request) -> bool, error: Option<VolumeError>) -> usize {
        let plan = &mut *self.0.borrow_mut();
        let (now, later): (VecDeque<_>, _) = plan.queue.drain(..).partition(|r| wanted(r));
        plan.queue = later;
        for request in &now {
            let at = request.sector as usize * 512;
            let bytes = &mut plan.cache[at..at + request.data.len()];
            match request.operation {
                _ if error.is_some() => {}
                Operation::Read => request.data.write(0, bytes).unwrap(),
                Operation::Write { durable } => {
                    request.data.read(0, bytes).unwrap();
                    if durable {
                        plan.durable.copy_from_slice(&plan.cache);
                    }
                }
                _ => plan.durable.copy_from_slice(&plan.cache),
            }
            plan.done.push_back(Completion { tag: request.tag, result: error.map_or(Ok(()), Err) });
        }
        now.len()
    }

    /// Executes given-up requests late.
    fn end_given_up(&self) -> usize {
        let plan = &mut *self.0.borrow_mut();
        let late = core::mem::take(&mut plan.given_up);
        for (request, bytes) in &late {
            if let Operation::Write { .. } = request.operation {
                let at = request.sector as usize * 512;
                plan.cache[at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
        late.len()
    }

    fn waits(&self, wanted: impl Fn(&Request) -> bool) -> bool {
        self.0.borrow().queue.iter().any(wanted)
    }

    fn cut_power(&self) {
        let plan = &mut *self.0.borrow_mut();
        plan.cache.copy_from_slice(&plan.durable);
        (plan.queue, plan.done) = Default::default();
    }

    fn record(&self) -> Superblock {
        let plan = self.0.borrow();
        Superblock::newest(plan.durable.first_chunk().unwrap()).expect("a record").1
    }

    /// Tears the record that is being written.
    fn tear(&self) {
        let plan = &mut *self.0.borrow_mut();
        let record = plan.queue.iter().find(|request| own(request)).expect("one is written");
        let at = record.sector as usize * 512;
        plan.durable[at..at + 512].fill(0x55);
        plan.cache[at..at + 512].fill(0x55);
    }

    fn data(&self) -> Vec<u8> {
        self.0.borrow().cache[RESERVED as usize * 512..].to_vec()
    }
}

impl Volume for Disk {
    fn geometry(&self) -> Geometry {
        Geometry {
            sectors: self.0.borrow().sectors,
            logical_block: 512,
            physical_block: 512,
            max_transfer: 1 << 20,
            max_discard_sectors: 0,
            discard_granularity: 0,
            max_write_zeroes_sectors: 0,
            features: Features::VOLATILE_CACHE,
        }
    }
    fn submit(&mut self, request: &Request) -> Result<Submitted, VolumeError> {
        self.0.borrow_mut().queue.push_back(*request);
        Ok(Submitted::Pending)
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<Completion> {
        self.0.borrow_mut().done.pop_front()
    }
    fn is_idle(&self) -> bool {
        let plan = self.0.borrow();
        plan.queue.is_empty() && plan.done.is_empty() && plan.given_up.is_empty()
    }
    /// As for a remote volume.
    fn releases_memory(&self) -> bool {
        true
    }
    fn give_up(&mut self) {
        let plan = &mut *self.0.borrow_mut();
        for request in plan.queue.drain(..) {
            plan.done.push_back(Completion { tag: request.tag, result: Err(VolumeError::Io) });
            let mut bytes = alloc::vec![0; request.data.len()];
            request.data.read(0, &mut bytes).unwrap();
            plan.given_up.push((request, bytes));
        }
    }
}

/// Whether it is a request for the reserved sectors.
fn own(request: &Request) -> bool {
    request.sector < RESERVED && matches!(request.operation, Operation::Write { .. })
}

fn data(request: &Request) -> bool {
    request.sector >= RESERVED && matches!(request.operation, Operation::Write { .. })
}

fn any(_: &Request) -> bool {
    true
}

struct World {
    disks: [Disk; 2],
    mirror: Mirror,
    memory: Window,
    buffer: Window,
    now: Instant,
}

impl World {
    /// A mirror with both members in sync.
    fn new() -> Self {
        let mut arena = Arena::on_heap(1 << 20);
        let memory = arena.alloc(Mirror::MEMORY, 4096).unwrap();
        let buffer = arena.alloc(512, 512).unwrap();
        let disks = [Disk::new(), Disk::new()];
        let mirror = Mirror::create(Self::members(&disks), memory, [7; 16]);
        let mut world = World { disks, mirror, memory, buffer, now: Instant::from_nanos(1) };
        world.settle();
        world
    }

    fn members(disks: &[Disk; 2]) -> [Box<dyn Volume>; 2] {
        disks.each_ref().map(|disk| Box::new(disk.clone()) as Box<dyn Volume>)
    }

    fn tend(&mut self) {
        self.now = self.now + core::time::Duration::from_secs(2);
        self.mirror.tend(self.now);
    }

    /// Completes all waiting requests; returns the results for the user.
    fn run(&mut self) -> Vec<Result<(), VolumeError>> {
        let mut results = Vec::new();
        loop {
            results.extend(core::iter::from_fn(|| self.mirror.poll()).map(|done| done.result));
            if self.disks.iter().map(|disk| disk.end(any, None)).sum::<usize>() == 0 {
                return results;
            }
        }
    }

    /// Until both members are in sync.
    fn settle(&mut self) {
        for _ in 0..10 {
            self.tend();
            assert!(self.run().is_empty());
        }
        assert_eq!(self.mirror.status().get().members, [MemberState::InSync; 2]);
    }

    fn submit(&mut self, operation: Operation, sector: u64, byte: u8) {
        self.buffer.write(0, &[byte; 512]).unwrap();
        let data = match operation {
            Operation::Flush => Window::empty(),
            _ => self.buffer,
        };
        self.mirror.submit(&Request { tag: 1.into(), operation, sector, data }).unwrap();
    }

    fn write(&mut self, sector: u64, byte: u8) {
        self.submit(Operation::Write { durable: false }, sector, byte);
    }

    /// Completes all requests, among them the records, except the user's writes.
    fn log(&mut self) {
        for _ in 0..3 {
            for disk in &self.disks {
                disk.end(own, None);
            }
            assert_eq!(self.mirror.poll(), None);
        }
    }

    /// The second member fails a write that the first one executes.
    fn drop_second(&mut self, sector: u64, byte: u8) {
        self.write(sector, byte);
        self.log();
        assert_eq!(self.disks[1].end(data, Some(VolumeError::Io)), 1);
        assert_eq!(self.disks[0].end(data, None), 1);
    }

    /// Passes so many milliseconds as the loop does; `first` says whether the first member responds.
    fn wait(&mut self, millis: u64, first: bool) -> Vec<Result<(), VolumeError>> {
        let mut results = Vec::new();
        for _ in 0..millis / 10 {
            self.now = self.now + Duration::from_millis(10);
            self.mirror.clock.set(self.now);
            if self.mirror.clock.take_due() {
                self.mirror.tend(self.now);
            }
            loop {
                results.extend(core::iter::from_fn(|| self.mirror.poll()).map(|done| done.result));
                if !first || self.disks[0].end(any, None) == 0 {
                    break;
                }
            }
        }
        results
    }

    fn reboot(&mut self) {
        self.disks.iter().for_each(Disk::cut_power);
        self.mirror = Mirror::assemble(Self::members(&self.disks), self.memory);
    }
}
