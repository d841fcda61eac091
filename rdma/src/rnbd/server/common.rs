//! What the servers of a gateway share, where its loops have one each.

use crate::rtrs::server::Directory;
use crate::volume::VolumeId;
use alloc::sync::Arc;
use alloc::vec::Vec;
use spin::Mutex;

/// What the servers of a gateway share: which of them has which session, and who writes to which
/// volume. Volumes have the same ids at all of them. Behind locks that requests never take.
#[derive(Clone, Debug, Default)]
pub struct Common {
    pub(super) directory: Directory,
    writers: Arc<Mutex<Vec<u32>>>,
}

impl Common {
    /// Counts a writer of a volume, unless there are `most` already.
    pub(super) fn open(&self, volume: VolumeId, most: u32) -> bool {
        let mut writers = self.writers.lock();
        if volume.index() >= writers.len() {
            writers.resize(volume.index() + 1, 0);
        }
        let there_is_room = writers[volume.index()] < most;
        writers[volume.index()] += u32::from(there_is_room);
        there_is_room
    }

    /// A writer that was counted is gone.
    pub(super) fn close(&self, volume: VolumeId) {
        if let Some(writers) = self.writers.lock().get_mut(volume.index()) {
            *writers = writers.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_are_counted_over_all_servers() {
        let one = Common::default();
        let other = one.clone();
        let volume = VolumeId(3);
        assert!(one.open(volume, 1));
        assert!(!other.open(volume, 1), "the first holds it");
        assert!(other.open(volume, 2), "a migration");
        assert!(!one.open(volume, 2));
        one.close(volume);
        other.close(volume);
        assert!(other.open(volume, 1));
    }
}
