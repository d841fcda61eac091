//! Catalog of volumes and exports, which the first loop publishes for loops of other cores.

use super::{OnDisk, OpenCounts, RamMemory};
use crate::rnbd::server::Export;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use drivers::hal::Geometry;
use rtrs::Name;
use spin::Mutex;

/// A volume in the catalog.
#[derive(Debug)]
pub struct Listed {
    /// Its name.
    pub name: Name,
    /// Its geometry.
    pub geometry: Geometry,
    /// Its memory, if every loop can access it directly.
    pub memory: Option<Arc<RamMemory>>,
    /// Its location on a disk, if a loop with a queue of its own to that disk can access it directly. Without memory
    /// and location, requests go to the owner over a channel.
    pub on_disk: Option<OnDisk>,
    /// Counts of its opens.
    pub counts: Arc<OpenCounts>,
}

/// Contents of the catalog.
#[derive(Debug, Default)]
pub struct Listing {
    /// By id; None if the volume does not exist (any more).
    pub volumes: Vec<Option<Listed>>,
    /// The exports.
    pub exports: Vec<Export>,
}

/// The catalog. Checking for a new revision loads a word; the lock is held only while a pointer is copied.
#[derive(Debug, Default)]
pub struct Catalog {
    revision: AtomicU64,
    listing: Mutex<Arc<Listing>>,
}

impl Catalog {
    /// Publishes a new listing.
    pub fn publish(&self, listing: Arc<Listing>) {
        let mut place = self.listing.lock();
        *place = listing;
        self.revision.fetch_add(1, Ordering::Release);
    }

    /// The current listing and its revision, if the revision is not `known`.
    pub fn newer_than(&self, known: u64) -> Option<(u64, Arc<Listing>)> {
        if self.revision.load(Ordering::Acquire) == known {
            return None;
        }
        let place = self.listing.lock();
        Some((self.revision.load(Ordering::Acquire), place.clone()))
    }

    /// Whether the revision is not `known`.
    pub fn has_news(&self, known: u64) -> bool {
        self.revision.load(Ordering::Acquire) != known
    }
}
