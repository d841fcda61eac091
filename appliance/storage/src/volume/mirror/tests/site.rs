//! A mirror of two local disks that the test can silence. When a disk responds again it executes its
//! requests, from and to the memory that they name.

use super::*;
use crate::volume::DiskVolume;
use core::cell::RefCell;
use drivers::hal;

pub(super) const READ: Operation = Operation::Read;

pub(super) const MEGABYTE: usize = 1 << 20;

/// Selects the requests that a disk does not complete.
pub(super) type Mute = fn(&hal::Request) -> bool;

pub(super) struct Medium {
    pub bytes: Vec<u8>,
    pub queue: VecDeque<hal::Request>,
    mute: Option<Mute>,
    /// Completions of requests that the test had it execute while it is silent.
    ended: VecDeque<hal::Completion>,
    /// It rejects discards and write-zeroes that it advertises.
    pub refuses: bool,
}

/// A disk without a cache that executes its requests when it is polled, except those that it is silent at.
#[derive(Clone)]
pub(super) struct Local(pub Rc<RefCell<Medium>>);

impl Local {
    pub(super) fn new() -> Self {
        let bytes = alloc::vec![0; BYTES];
        let (queue, ended) = Default::default();
        Local(Rc::new(RefCell::new(Medium { bytes, queue, mute: None, ended, refuses: false })))
    }

    pub(super) fn silence(&self, mute: Mute) {
        self.0.borrow_mut().mute = Some(mute);
    }

    pub(super) fn answer(&self) {
        self.0.borrow_mut().mute = None;
    }

    /// Sets its number of sectors after the reserved ones; new sectors are filled with 0x5a.
    pub(super) fn resize(&self, sectors: usize) {
        self.0.borrow_mut().bytes.resize((RESERVED as usize + sectors) * 512, 0x5a);
    }

    pub(super) fn has(&self) -> usize {
        self.0.borrow().queue.len()
    }

    /// Has the silent disk execute one request and report its completion.
    pub(super) fn do_one(&self) -> bool {
        let mute = self.0.borrow_mut().mute.take();
        let done = hal::Disk::poll(&mut self.clone());
        let medium = &mut *self.0.borrow_mut();
        medium.mute = mute;
        medium.ended.extend(done);
        done.is_some()
    }

    pub(super) fn sector(&self, sector: u64) -> u8 {
        self.0.borrow().bytes[(RESERVED + sector) as usize * 512]
    }

    pub(super) fn data(&self) -> Vec<u8> {
        self.0.borrow().bytes[RESERVED as usize * 512..].to_vec()
    }

    pub(super) fn record(&self) -> Superblock {
        Superblock::newest(self.0.borrow().bytes.first_chunk().unwrap()).expect("a record").1
    }
}

impl hal::Disk for Local {
    fn geometry(&self) -> Geometry {
        Geometry {
            sectors: (self.0.borrow().bytes.len() / 512) as u64,
            logical_block: 512,
            physical_block: 512,
            max_transfer: 1 << 20,
            max_discard_sectors: 16,
            discard_granularity: 512,
            max_write_zeroes_sectors: 16,
            features: Features::DISCARD | Features::WRITE_ZEROES,
        }
    }
    fn depth(&self) -> usize {
        256
    }
    fn submit(&mut self, request: &hal::Request) -> Result<(), hal::SubmitError> {
        self.0.borrow_mut().queue.push_back(*request);
        Ok(())
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<hal::Completion> {
        let medium = &mut *self.0.borrow_mut();
        if let Some(ended) = medium.ended.pop_front() {
            return Some(ended);
        }
        let executes = |request: &hal::Request| !medium.mute.is_some_and(|mute| mute(request));
        let next = medium.queue.iter().position(executes)?;
        let request = medium.queue.remove(next)?;
        let at = request.sector as usize * 512;
        let result = match request.operation {
            hal::Operation::Discard { .. } | hal::Operation::WriteZeroes { .. }
                if medium.refuses =>
            {
                Err(hal::DiskError::Unsupported)
            }
            hal::Operation::Discard { sectors } | hal::Operation::WriteZeroes { sectors, .. } => {
                medium.bytes[at..at + sectors as usize * 512].fill(0);
                Ok(())
            }
            operation => {
                let bytes = &mut medium.bytes[at..at + request.data.len()];
                match operation {
                    hal::Operation::Read => request.data.write(0, bytes).unwrap(),
                    _ => request.data.read(0, bytes).unwrap(),
                }
                Ok(())
            }
        };
        Some(hal::Completion { tag: request.tag, result })
    }
    fn set_interrupts(&mut self, _: bool) {}
    fn interrupts(&self) -> u64 {
        0
    }
}

pub(super) fn all(_: &hal::Request) -> bool {
    true
}

pub(super) fn reads(request: &hal::Request) -> bool {
    matches!(request.operation, hal::Operation::Read)
}

pub(super) fn data_writes(request: &hal::Request) -> bool {
    !reads(request) && request.sector >= RESERVED
}

pub(super) fn records(request: &hal::Request) -> bool {
    !reads(request) && request.sector < RESERVED
}

/// The mirror, and a user with some buffers of 512 bytes.
pub(super) struct Site {
    pub disks: [Local; 2],
    pub mirror: Mirror,
    pub memory: Window,
    pub buffers: Vec<Window>,
    pub now: Instant,
}

impl Site {
    /// A mirror in sync, with so many pages of bounce buffers.
    pub(super) fn new(pages: usize) -> Self {
        let mut arena = Arena::on_heap(4 * MEGABYTE);
        let memory = arena.alloc(Mirror::MEMORY + pages * 4096, 4096).unwrap();
        let buffers = (0..2 * DEPTH).map(|_| arena.alloc(512, 512).unwrap()).collect();
        let disks = [Local::new(), Local::new()];
        let mirror = Mirror::create(Self::members(&disks), memory, [7; 16]);
        let now = Instant::from_nanos(1);
        let mut site = Site { disks, mirror, memory, buffers, now };
        site.settle();
        site
    }

    pub(super) fn members(disks: &[Local; 2]) -> [Box<dyn Volume>; 2] {
        disks.each_ref().map(|disk| Box::new(DiskVolume::new(disk.clone(), false)) as Box<_>)
    }

    /// The power fails and returns: the disks have no requests, and respond.
    pub(super) fn cut_power(&mut self) {
        for disk in &self.disks {
            let medium = &mut *disk.0.borrow_mut();
            (medium.queue, medium.ended, medium.mute) = Default::default();
        }
        self.mirror = Mirror::assemble(Site::members(&self.disks), self.memory);
    }

    /// Passes so many milliseconds; returns the tags and results of completed requests.
    pub(super) fn pass(&mut self, millis: u64) -> Vec<(u64, Result<(), VolumeError>)> {
        let mut results = Vec::new();
        for _ in 0..millis / 10 {
            self.now = self.now + Duration::from_millis(10);
            self.mirror.clock.set(self.now);
            let second = (self.now.as_nanos() / 1_000_000 / 10).is_multiple_of(100);
            if self.mirror.clock.take_due() || second {
                self.mirror.tend(self.now);
            }
            // Completions lead to further requests, which are executed as well.
            for _ in 0..8 {
                let ended = core::iter::from_fn(|| self.mirror.poll());
                results.extend(ended.map(|done| (done.tag.word, done.result)));
            }
        }
        results
    }

    /// Passes time until both members are in sync, and checks that they hold the same data.
    pub(super) fn settle(&mut self) {
        assert_eq!(self.pass(10_000), []);
        assert_eq!(self.states(), [MemberState::InSync; 2]);
        self.compare();
    }

    /// Checks that both members hold the same data up to the end of the mirror.
    pub(super) fn compare(&self) {
        let used = self.mirror.geometry().sectors as usize * 512;
        let [first, second] = self.disks.each_ref().map(|disk| disk.data()[..used].to_vec());
        assert!(first == second, "the members differ");
    }

    pub(super) fn states(&self) -> [MemberState; 2] {
        self.mirror.status().get().members
    }

    /// Submits a request with the buffer of that number.
    pub(super) fn ask(&mut self, tag: usize, operation: Operation, sector: u64, byte: u8) {
        self.buffers[tag].fill(byte);
        let data = match operation {
            Operation::Read | Operation::Write { .. } => self.buffers[tag],
            _ => Window::empty(),
        };
        let request = Request { tag: (tag as u64).into(), operation, sector, data };
        self.mirror.submit(&request).unwrap();
    }

    pub(super) fn write(&mut self, tag: usize, sector: u64, byte: u8) {
        self.ask(tag, Operation::Write { durable: false }, sector, byte);
    }

    pub(super) fn byte(&self, tag: usize) -> u8 {
        let mut byte = [0];
        self.buffers[tag].read(0, &mut byte).unwrap();
        byte[0]
    }
}
