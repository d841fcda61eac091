//! A volume on a disk, for the loop of a core that does not own the volume but has a queue of its own to the disk.

use super::{Completion, DiskVolume, OnDisk, OpenCounts, Request, Submitted, Volume, VolumeError};
use alloc::rc::Rc;
use alloc::sync::Arc;
use core::cell::RefCell;
use drivers::hal::{Disk, Geometry};

/// A loop's share of a volume. It counts its requests in flight in the volume's `OpenCounts`, so that the owner does
/// not remove the volume and reuse its extents too early.
pub struct DiskShare<D> {
    volume: DiskVolume<D>,
    counts: Arc<OpenCounts>,
    working: bool,
}

impl<D: Disk> DiskShare<D> {
    /// A share of the volume at `place`, over this loop's own queue to the disk.
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

    /// The loop polls it until `OpenCounts` shows that no request is in flight.
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
