//! Counts the opens of a volume on all cores, so that writers exclude each other and a volume in use is not deleted.

use super::reservation::{Access, Kind, Reservations};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};

/// An open that excludes writers counts as this many.
const EXCLUSIVE: u32 = 1 << 16;

/// Counts of a volume's opens. Loops of all cores update them.
#[derive(Debug, Default)]
pub struct OpenCounts {
    open: AtomicU32,
    writers: AtomicU32,
    /// Loops of other cores that have requests for the volume in flight on queues of their own. The device of such a
    /// request may be closed already.
    working: AtomicU32,
    /// The volume is about to be removed and cannot be opened.
    retired: AtomicBool,
    /// Type of the reservation in the low byte, 0 without one; number of registrants in the high byte.
    reservation: AtomicU16,
}

/// Why a volume cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The volume has the most writers that the mode allows.
    InUse,
    /// The volume is about to be removed.
    Retired,
}

/// Why a volume cannot be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StillUsed {
    /// A device is open on it.
    Open,
    /// A loop of another core has requests for it in flight.
    Busy,
}

/// An open of a volume; it is counted until this is dropped.
#[derive(Debug)]
pub struct Hold {
    counts: Arc<OpenCounts>,
    /// As how many writers it counts.
    writes: u32,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.counts.writers.fetch_sub(self.writes, Ordering::SeqCst);
        self.counts.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Hold {
    /// Whether the volume has a reservation.
    #[inline]
    pub fn is_reserved(&self) -> bool {
        self.counts.is_reserved()
    }

    /// Whether a reservation forbids an access to hosts that cannot be registered.
    #[inline]
    pub fn excludes(&self, access: Access) -> bool {
        self.counts.excludes(access)
    }

    /// See [`OpenCounts::reservation`].
    pub fn reservation(&self) -> (Option<Kind>, usize) {
        self.counts.reservation()
    }
}

impl OpenCounts {
    /// Publishes the reservations of the volume to all cores.
    pub(super) fn reserve(&self, now: &Reservations) {
        let kind = now.kind().map_or(0, |kind| kind as u16);
        let word = kind | (now.registrants().len() as u16) << 8;
        self.reservation.store(word, Ordering::Release);
    }

    /// Type of the volume's reservation, and the number of its registrants.
    pub fn reservation(&self) -> (Option<Kind>, usize) {
        let word = self.reservation.load(Ordering::Acquire);
        (Kind::of(word as u8), usize::from(word >> 8))
    }

    #[inline]
    fn is_reserved(&self) -> bool {
        self.reservation.load(Ordering::Acquire) & 0xff != 0
    }

    /// Whether a reservation forbids an access to hosts that cannot be registered.
    #[inline]
    pub fn excludes(&self, access: Access) -> bool {
        self.is_reserved() && self.excludes_strangers(access)
    }

    #[cold]
    fn excludes_strangers(&self, access: Access) -> bool {
        let (kind, _) = self.reservation();
        kind.is_some_and(|kind| access == Access::Write || kind.excludes_readers())
    }

    /// Counts an open. `other_writers` is None for a reader; a writer is refused if more other writers than that have
    /// the volume open.
    pub fn open(self: &Arc<Self>, other_writers: Option<u32>) -> Result<Hold, OpenError> {
        self.open_as(other_writers, 1)
    }

    /// Counts an open that excludes all writers until it is dropped. An error if there is one.
    pub fn exclude(self: &Arc<Self>) -> Result<Hold, OpenError> {
        self.open_as(Some(0), EXCLUSIVE)
    }

    fn open_as(
        self: &Arc<Self>,
        other_writers: Option<u32>,
        as_many: u32,
    ) -> Result<Hold, OpenError> {
        self.open.fetch_add(1, Ordering::SeqCst);
        let mut hold = Hold { counts: self.clone(), writes: 0 };
        // The increment comes before this load, and `retire` stores before it loads `open` (all SeqCst): either this
        // sees `retired`, or `retire` sees the open.
        if self.retired.load(Ordering::SeqCst) {
            return Err(OpenError::Retired);
        }
        if let Some(most) = other_writers {
            let one_more = |writers| (writers <= most).then_some(writers + as_many);
            let taken = self.writers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
            hold.writes = if taken.is_ok() { as_many } else { 0 };
            taken.map_err(|_| OpenError::InUse)?;
        }
        Ok(hold)
    }

    /// Number of opens.
    pub fn count(&self) -> u32 {
        self.open.load(Ordering::SeqCst)
    }

    /// Counts a loop that has requests in flight.
    pub fn begin_work(&self) {
        self.working.fetch_add(1, Ordering::SeqCst);
    }

    /// The loop has no requests in flight any more.
    pub fn end_work(&self) {
        self.working.fetch_sub(1, Ordering::SeqCst);
    }

    /// Refuses opens from now on. Fails if a device is open on the volume, or a loop has requests for it in flight.
    pub fn retire(&self) -> Result<(), StillUsed> {
        self.retired.store(true, Ordering::SeqCst);
        // `open` is loaded before `working`, because a loop increments `working` before it closes the device.
        if self.count() > 0 {
            return Err(StillUsed::Open);
        }
        match self.working.load(Ordering::SeqCst) {
            0 => Ok(()),
            _ => Err(StillUsed::Busy),
        }
    }

    /// Reverts `retire`: the volume can be opened again.
    pub fn keep(&self) {
        self.retired.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_admit_one_writer_two_for_migration_and_any_readers() {
        let counts = Arc::new(OpenCounts::default());
        let first = counts.open(Some(0)).unwrap();
        assert_eq!(counts.open(Some(0)).unwrap_err(), OpenError::InUse);
        let second = counts.open(Some(1)).unwrap();
        assert_eq!(counts.open(Some(1)).unwrap_err(), OpenError::InUse);
        let reader = counts.open(None).unwrap();
        assert_eq!(counts.count(), 3);
        assert_eq!(counts.retire(), Err(StillUsed::Open));
        counts.keep();
        assert_eq!(counts.exclude().unwrap_err(), OpenError::InUse);
        drop((first, second));
        let alone = counts.exclude().unwrap();
        for other_writers in [0, 1] {
            assert_eq!(counts.open(Some(other_writers)).unwrap_err(), OpenError::InUse);
        }
        assert!(counts.open(None).is_ok() && counts.exclude().is_err());
        drop(alone);
        assert_eq!(counts.retire(), Err(StillUsed::Open));
        counts.keep();
        drop(counts.open(Some(0)).expect("it was not retired"));
        drop(reader);
        counts.begin_work();
        assert_eq!(counts.retire(), Err(StillUsed::Busy));
        counts.end_work();
        assert_eq!(counts.retire(), Ok(()));
        assert_eq!(counts.open(None).unwrap_err(), OpenError::Retired);
        counts.keep();
        assert!(counts.open(None).is_ok());
    }
}
