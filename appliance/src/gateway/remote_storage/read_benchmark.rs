//! `remote read` of the console: reads random blocks of a remote volume or a mirror, with a number of requests in
//! flight, and measures the time.

use crate::console::Progress;
use drivers::hal::{Arena, Instant, Window};
use management::orders::Reads;
use rand_core::Rng;
use storage::volume::{
    Operation, Request, Submitted, Tag, User, Volume, VolumeError, VolumeId, Volumes,
};

/// A volume that is being read.
pub(in crate::gateway) struct Reading {
    pub volume: VolumeId,
    pub memory: Window,
    wanted: Reads,
    started: Instant,
    submitted: u32,
    ended: u32,
    failed: u32,
}

impl Reading {
    /// Starts to read, if there is memory and the size is valid.
    pub fn start(
        id: VolumeId,
        volume: &dyn Volume,
        wanted: Reads,
        arena: &mut Arena,
        now: Instant,
    ) -> Result<Self, String> {
        let geometry = volume.geometry();
        let sectors = (wanted.size / 512) as u64;
        let block = geometry.logical_block.max(512) as usize;
        if wanted.size == 0 || !wanted.size.is_multiple_of(block) || sectors > geometry.sectors {
            return Err(format!("size: a multiple of {block} up to the volume's size"));
        }
        let memory = arena.alloc(wanted.size * wanted.depth as usize, 4096);
        let memory = memory.ok_or("no memory for so many reads")?;
        let (submitted, ended, failed) = (0, 0, 0);
        Ok(Reading { volume: id, memory, wanted, started: now, submitted, ended, failed })
    }

    /// Cancels it. Requests in flight complete.
    pub fn cancel(&mut self) {
        self.wanted.count = self.submitted;
    }

    /// Submits and completes reads. Returns their number.
    pub fn poll(&mut self, volumes: &mut Volumes, rng: &mut dyn Rng) -> usize {
        let before = (self.submitted, self.ended);
        while let Some((_, done)) = volumes.poll_kept(User::OPERATOR) {
            self.end(done.result);
        }
        // The volume exists while it is being read.
        let Some(volume) = volumes.get_mut(self.volume) else { return 0 };
        let sectors = (self.wanted.size / 512) as u64;
        let places = volume.geometry().sectors / sectors.max(1);
        while self.submitted < self.wanted.count
            && self.submitted - self.ended < self.wanted.depth
            && places > 0
        {
            // Requests end in any order, so a slot may be read twice at a time: the data is not used.
            let slot = (self.submitted % self.wanted.depth) as usize;
            let data = self.memory.slice(slot * self.wanted.size, self.wanted.size);
            let sector = rng.next_u64() % places * sectors;
            let data = data.unwrap_or(Window::empty());
            let tag = Tag::new(User::OPERATOR, self.submitted.into());
            let operation = Operation::Read;
            match volume.submit(&Request { tag, operation, sector, data }) {
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
        volume.flush_queue();
        (self.submitted - before.0 + self.ended - before.1) as usize
    }

    fn end(&mut self, result: Result<(), VolumeError>) {
        self.ended += 1;
        self.failed += u32::from(result.is_err());
    }

    /// The result, once all reads have ended.
    pub fn result(&self, now: Instant) -> Option<Progress> {
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
