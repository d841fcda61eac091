//! What the loop that owns the volumes tells loops of other cores of them.

use super::{OnDisk, OpenCounts, RamMemory};
use crate::rnbd::server::Export;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use drivers::hal::Geometry;
use rtrs::Name;
use spin::Mutex;

/// A volume, as it is told of.
#[derive(Debug)]
pub struct Listed {
    /// Its name.
    pub name: Name,
    /// Its shape.
    pub geometry: Geometry,
    /// Its memory, if every loop can work on that.
    pub memory: Option<Arc<RamMemory>>,
    /// Where it lies on a disk, if loops can work on that which have a queue of their own to the disk. Where neither is
    /// so, the owner is asked.
    pub on_disk: Option<OnDisk>,
    /// Who has it open.
    pub counts: Arc<OpenCounts>,
}

/// Everything that is told.
#[derive(Debug, Default)]
pub struct Listing {
    /// By id; None where there is none (any more).
    pub volumes: Vec<Option<Listed>>,
    /// What is exported.
    pub exports: Vec<Export>,
}

/// Where it is told. Who looks for news loads a word; the lock is held for as long as a pointer is copied.
#[derive(Debug, Default)]
pub struct Catalog {
    revision: AtomicU64,
    listing: Mutex<Arc<Listing>>,
}

impl Catalog {
    /// Tells something new.
    pub fn publish(&self, listing: Arc<Listing>) {
        let mut place = self.listing.lock();
        *place = listing;
        self.revision.fetch_add(1, Ordering::Release);
    }

    /// What is told since revision `known`, if anything, and its revision.
    pub fn newer_than(&self, known: u64) -> Option<(u64, Arc<Listing>)> {
        if self.revision.load(Ordering::Acquire) == known {
            return None;
        }
        let place = self.listing.lock();
        Some((self.revision.load(Ordering::Acquire), place.clone()))
    }

    /// Whether there is something new since revision `known`.
    pub fn has_news(&self, known: u64) -> bool {
        self.revision.load(Ordering::Acquire) != known
    }
}
