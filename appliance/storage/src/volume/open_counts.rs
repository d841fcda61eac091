//! Who has a volume open, on all cores.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Devices that are open on a volume. Loops of all cores count in it.
#[derive(Debug, Default)]
pub struct OpenCounts {
    open: AtomicU32,
    writers: AtomicU32,
    /// Loops of other cores than the owner's that have requests of the volume under way on queues of their own: be it
    /// that who asked for them has closed the device.
    working: AtomicU32,
    /// It is about to be no more: nobody opens it again.
    retired: AtomicBool,
}

/// Why a volume cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOpened {
    /// As many have it open for writing as may.
    InUse,
    /// It is about to be no more.
    Retired,
}

/// Why a volume cannot be no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StillUsed {
    /// A device is open on it.
    Open,
    /// A loop of another core works on it.
    Busy,
}

/// A device that has a volume open, for as long as this is there.
#[derive(Debug)]
pub struct Hold {
    counts: Arc<OpenCounts>,
    writes: bool,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.counts.writers.fetch_sub(u32::from(self.writes), Ordering::SeqCst);
        self.counts.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl OpenCounts {
    /// Counts a device that is opened; one that writes only beside at most so many others that do.
    pub fn open(self: &Arc<Self>, beside: Option<u32>) -> Result<Hold, NotOpened> {
        self.open.fetch_add(1, Ordering::SeqCst);
        let mut hold = Hold { counts: self.clone(), writes: false };
        // Either this sees that it is retired, or who retires it sees that it is open.
        if self.retired.load(Ordering::SeqCst) {
            return Err(NotOpened::Retired);
        }
        if let Some(most) = beside {
            let one_more = |writers| (writers <= most).then_some(writers + 1);
            let taken = self.writers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
            hold.writes = taken.is_ok();
            taken.map_err(|_| NotOpened::InUse)?;
        }
        Ok(hold)
    }

    /// Devices that have it open.
    pub fn count(&self) -> u32 {
        self.open.load(Ordering::SeqCst)
    }

    /// A loop has requests under way.
    pub fn begin_work(&self) {
        self.working.fetch_add(1, Ordering::SeqCst);
    }

    /// It has none any more.
    pub fn end_work(&self) {
        self.working.fetch_sub(1, Ordering::SeqCst);
    }

    /// Lets nobody open it any more; an error if somebody has it open, or works on it.
    pub fn retire(&self) -> Result<(), StillUsed> {
        self.retired.store(true, Ordering::SeqCst);
        // In this order: who has closed it has told before that it still works.
        if self.count() > 0 {
            return Err(StillUsed::Open);
        }
        match self.working.load(Ordering::SeqCst) {
            0 => Ok(()),
            _ => Err(StillUsed::Busy),
        }
    }

    /// It stays after all.
    pub fn keep(&self) {
        self.retired.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_writer_two_for_migration_and_readers_beside() {
        let counts = Arc::new(OpenCounts::default());
        let first = counts.open(Some(0)).unwrap();
        assert_eq!(counts.open(Some(0)).unwrap_err(), NotOpened::InUse);
        let second = counts.open(Some(1)).unwrap();
        assert_eq!(counts.open(Some(1)).unwrap_err(), NotOpened::InUse);
        let reader = counts.open(None).unwrap();
        assert_eq!(counts.count(), 3);
        assert_eq!(counts.retire(), Err(StillUsed::Open));
        counts.keep();
        drop((first, second));
        assert_eq!(counts.retire(), Err(StillUsed::Open));
        counts.keep();
        drop(counts.open(Some(0)).expect("it was not retired"));
        drop(reader);
        counts.begin_work();
        assert_eq!(counts.retire(), Err(StillUsed::Busy));
        counts.end_work();
        assert_eq!(counts.retire(), Ok(()));
        assert_eq!(counts.open(None).unwrap_err(), NotOpened::Retired);
        counts.keep();
        assert!(counts.open(None).is_ok());
    }
}
