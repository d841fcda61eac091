//! A volume of a disk as the loop of another core than its owner's works on it, over a queue of its own to that disk.

use super::{Completion, DiskVolume, OnDisk, OpenCounts, Request, Submitted, Volume, VolumeError};
use alloc::rc::Rc;
use alloc::sync::Arc;
use core::cell::RefCell;
use drivers::hal::{Disk, Geometry};

/// The share of a loop. The owner knows by the volume's counts whether there is something under way: what the volume
/// has of its disk may be another's when it is no more.
pub struct DiskShare<D> {
    volume: DiskVolume<D>,
    counts: Arc<OpenCounts>,
    working: bool,
}

impl<D: Disk> DiskShare<D> {
    /// Of a volume that lies there, on this loop's own way to the disk.
    pub fn new(disk: D, place: &OnDisk, counts: &Arc<OpenCounts>) -> Self {
        let volume = match &place.extents {
            None => DiskVolume::new(disk, place.read_only),
            Some(extents) => {
                let extents = Rc::new(RefCell::new(extents.clone()));
                DiskVolume::of_extents(disk, extents, place.read_only)
            }
        };
        DiskShare { volume, counts: counts.clone(), working: false }
    }
}

impl<D: Disk> Volume for DiskShare<D> {
    fn geometry(&self) -> Geometry {
        self.volume.geometry()
    }

    fn submit(&mut self, request: &Request) -> Result<Submitted, VolumeError> {
        if !self.working {
            self.working = true;
            self.counts.begin_work();
        }
        self.volume.submit(request)
    }

    fn flush_queue(&mut self) {
        self.volume.flush_queue();
    }

    fn poll(&mut self) -> Option<Completion> {
        let done = self.volume.poll();
        if done.is_none() && self.working && self.volume.is_idle() {
            self.working = false;
            self.counts.end_work();
        }
        done
    }

    fn give_up(&mut self) {
        self.volume.give_up();
    }

    /// It is polled until the owner knows that nothing is under way.
    fn is_idle(&self) -> bool {
        !self.working && self.volume.is_idle()
    }

    fn move_to(&mut self, place: &OnDisk) {
        self.volume.move_to(place);
    }
}

impl<D> Drop for DiskShare<D> {
    fn drop(&mut self) {
        if self.working {
            self.counts.end_work();
        }
    }
}
