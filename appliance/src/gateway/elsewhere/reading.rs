//! `remote read` of the console: reads at random places of a remote volume or a mirror that nobody
//! else uses, so many at a time, and what they took. The volume is not to be found meanwhile.

use crate::console::Progress;
use drivers::hal::{Arena, Instant, Window};
use rand_core::RngCore;
use rdma::rtrs::Name;
use rdma::volume::{Operation, Request, Submitted, Volume, VolumeError};

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gateway) struct Wanted {
    pub count: u32,
    /// Bytes of a read.
    pub size: usize,
    pub depth: u32,
}

/// A volume that is being read.
pub(in crate::gateway) struct Reading {
    pub name: Name,
    pub volume: Box<dyn Volume>,
    pub memory: Window,
    wanted: Wanted,
    started: Instant,
    submitted: u32,
    ended: u32,
    failed: u32,
}

impl Reading {
    /// Begins to read; gives the volume back if there is no memory, or nothing to read.
    pub fn start(
        name: Name,
        volume: Box<dyn Volume>,
        wanted: Wanted,
        arena: &mut Arena,
        now: Instant,
    ) -> Result<Self, (Box<dyn Volume>, String)> {
        let geometry = volume.geometry();
        let sectors = (wanted.size / 512) as u64;
        let block = geometry.logical_block.max(512) as usize;
        if wanted.size == 0 || !wanted.size.is_multiple_of(block) || sectors > geometry.sectors {
            let why = format!("size: a multiple of {block} up to the volume's size");
            return Err((volume, why));
        }
        let Some(memory) = arena.alloc(wanted.size * wanted.depth as usize, 4096) else {
            return Err((volume, "no memory for so many reads".into()));
        };
        let (submitted, ended, failed) = (0, 0, 0);
        Ok(Reading { name, volume, memory, wanted, started: now, submitted, ended, failed })
    }

    /// The console wants no more of it: what is in flight ends.
    pub fn cancel(&mut self) {
        self.wanted.count = self.submitted;
    }

    /// Submits what fits, and takes what has ended; how much.
    pub fn poll(&mut self, rng: &mut dyn RngCore) -> usize {
        let before = (self.submitted, self.ended);
        while let Some(done) = self.volume.poll() {
            self.end(done.result);
        }
        let sectors = (self.wanted.size / 512) as u64;
        let places = self.volume.geometry().sectors / sectors.max(1);
        while self.submitted < self.wanted.count
            && self.submitted - self.ended < self.wanted.depth
            && places > 0
        {
            // Requests end in any order, but all read the same amount: data is overwritten.
            let slot = (self.submitted % self.wanted.depth) as usize;
            let data = self.memory.slice(slot * self.wanted.size, self.wanted.size);
            let sector = rng.next_u64() % places * sectors;
            let data = data.unwrap_or(Window::empty());
            let (tag, operation) = (self.submitted.into(), Operation::Read);
            match self.volume.submit(&Request { tag, operation, sector, data }) {
                Ok(Submitted::Pending) => self.submitted += 1,
                Ok(Submitted::Done | Submitted::Lent(_)) => {
                    self.submitted += 1;
                    self.end(Ok(()));
                }
                Err(VolumeError::Busy) => break,
                Err(error) => {
                    self.submitted += 1;
                    self.end(Err(error));
                }
            }
        }
        self.volume.flush_queue();
        (self.submitted - before.0 + self.ended - before.1) as usize
    }

    fn end(&mut self, result: Result<(), VolumeError>) {
        self.ended += 1;
        self.failed += u32::from(result.is_err());
    }

    /// What came of it, once it is over.
    pub fn verdict(&self, now: Instant) -> Option<Progress> {
        if self.submitted < self.wanted.count || self.ended < self.submitted {
            return None;
        }
        let seconds = now.since(self.started).as_secs_f64().max(1e-9);
        let (ended, size) = (self.ended, self.wanted.size);
        let rate = f64::from(ended) / seconds;
        Some(Progress::Done(match self.failed {
            0 => Ok(format!("{ended} reads of {size} bytes in {seconds:.3} s, {rate:.0} a second")),
            failed => Err(format!("{failed} of {ended} reads failed")),
        }))
    }
}
