//! The reservations of a loop's volumes, and the way of a change to the disk.
//!
//! A change that is kept through a power loss takes effect when it is on the disk. The owner of the disk's table takes
//! it ([`Volumes::next_unpersisted`]) and says how it ended ([`Volumes::reservations_persisted`]).

use super::super::{VolumeId, Volumes};
use super::Reservations;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The reservations of a volume.
#[derive(Debug, Default)]
pub struct Place {
    current: Reservations,
    /// There is a table for them on the volume's disk.
    persists: bool,
    /// A change that is being written.
    next: Option<Reservations>,
}

/// Result of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It is in effect.
    Done,
    /// It is being written; [`Volumes::poll_persisted`] has the result.
    Pending,
    /// The volume does not exist, cannot keep it, or another change is being written.
    Refused,
}

impl Volumes {
    /// The reservations of a volume.
    pub fn reservations(&self, id: VolumeId) -> &Reservations {
        self.place(id).map_or(Reservations::NONE, |place| &place.current)
    }

    /// Whether a volume can keep reservations through a power loss.
    pub fn persists_reservations(&self, id: VolumeId) -> bool {
        self.place(id).is_some_and(|place| place.persists)
    }

    /// Whether a change of a volume's reservations is being written.
    pub fn is_persisting(&self, id: VolumeId) -> bool {
        self.place(id).is_some_and(|place| place.next.is_some())
    }

    /// Restores the reservations of a volume whose disk keeps them, from its record. False if the record is invalid:
    /// nothing is changed.
    pub fn restore_reservations(&mut self, id: VolumeId, record: &[u8]) -> bool {
        let Some(current) = Reservations::decode(record) else { return false };
        let Some((place, counts)) = self.place_mut(id) else { return false };
        counts.reserve(&current);
        *place = Some(Box::new(Place { current, persists: true, next: None }));
        true
    }

    /// Changes the reservations of a volume.
    pub fn change_reservations(&mut self, id: VolumeId, next: Reservations) -> Stored {
        let Some((place, counts)) = self.place_mut(id) else { return Stored::Refused };
        let place = place.get_or_insert_default();
        let is_kept = next.persist() || place.current.persist();
        if place.next.is_some() || (is_kept && !place.persists) {
            return Stored::Refused;
        }
        if !is_kept {
            counts.reserve(&next);
            place.current = next;
            return Stored::Done;
        }
        place.next = Some(next);
        self.unpersisted.push_back(id);
        Stored::Pending
    }

    /// The next change to write: the volume and its record.
    pub fn next_unpersisted(&mut self) -> Option<(VolumeId, Vec<u8>)> {
        loop {
            let id = self.unpersisted.pop_front()?;
            if let Some(next) = self.place(id).and_then(|place| place.next.as_ref()) {
                return Some((id, next.encode()));
            }
        }
    }

    /// A change was written, durably, or could not be written. It takes effect only if it was.
    pub fn reservations_persisted(&mut self, id: VolumeId, is_written: bool) {
        let Some((Some(place), counts)) = self.place_mut(id) else { return };
        let Some(next) = place.next.take() else { return };
        if is_written {
            counts.reserve(&next);
            place.current = next;
        }
        self.persisted.push_back((id, is_written));
    }

    /// The next change that was written, or could not be written.
    pub fn poll_persisted(&mut self) -> Option<(VolumeId, bool)> {
        self.persisted.pop_front()
    }
}
