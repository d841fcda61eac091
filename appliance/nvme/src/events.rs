//! Asynchronous events of a controller: each kind is reported once until the host has read its log page.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use storage::volume::reservation::Notice;

/// Most Asynchronous Event Requests of a controller.
pub const MAX_REQUESTS: usize = 4;
/// Namespaces that the log of changed ones lists; with more it says only that there are many.
const MAX_CHANGED: usize = 1024;
/// Notices of reservations that a controller keeps for its host. Further ones are counted.
const MAX_NOTICES: usize = 64;

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Namespaces were added or removed, or have changed.
    Namespaces,
    /// The state of an ANA group has changed.
    Ana,
    /// The discovery log has changed.
    Discovery,
    /// A reservation or a registration of the host was ended.
    Reservation,
}

impl Event {
    /// All kinds, in the order in which they are reported.
    pub const ALL: [Event; 4] =
        [Event::Namespaces, Event::Ana, Event::Discovery, Event::Reservation];

    /// Its bit in the mask of feature 0Bh, and in OAES. Reservations have none there: feature 82h masks them.
    pub const fn bit(self) -> u32 {
        match self {
            Event::Namespaces => 1 << 8,
            Event::Ana => 1 << 11,
            Event::Discovery => 1 << 31,
            Event::Reservation => 1 << 1,
        }
    }

    /// Result of the request: type 2 (notice) or 6 (of the command set), information, and log page.
    pub const fn result(self) -> u32 {
        match self {
            Event::Namespaces => 0x0004_0002,
            Event::Ana => 0x000c_0302,
            Event::Discovery => 0x0070_f002,
            Event::Reservation => 0x0080_0006,
        }
    }

    /// The log page whose reading permits the next report.
    pub const fn log_page(self) -> u8 {
        (self.result() >> 16) as u8
    }
}

/// Events of a controller, and its requests for them.
#[derive(Debug, Default)]
pub struct Events {
    /// Kinds that the host wants, as bits.
    pub wanted: u32,
    /// Kinds that occurred and were not reported.
    pending: u32,
    /// Kinds that were reported and whose log was not read.
    masked: u32,
    /// Slots of the requests.
    pub requests: Vec<u16>,
    /// Changed namespaces, and whether there are more.
    changed: Vec<u32>,
    overflow: bool,
    /// Notices of reservations that were not read: number, notice, namespace.
    notices: VecDeque<(u64, Notice, u32)>,
    /// Number of the last notice.
    last_notice: u64,
    /// By namespace: kinds of notices that the host does not want, as bits.
    masks: BTreeMap<u32, u8>,
}

impl Events {
    /// Records an event.
    pub fn raise(&mut self, event: Event) {
        self.pending |= event.bit();
    }

    /// Records a changed namespace.
    pub fn note_changed(&mut self, nsid: u32) {
        if self.changed.contains(&nsid) {
        } else if self.changed.len() < MAX_CHANGED {
            self.changed.push(nsid);
        } else {
            self.overflow = true;
        }
    }

    /// Changed namespaces, ascending; None if there are too many to list.
    pub fn changed(&mut self) -> Option<&[u32]> {
        self.changed.sort_unstable();
        (!self.overflow).then_some(&self.changed)
    }

    /// The notices that the host does not want for a namespace: bits 1 to 3, by the notice's number.
    pub fn mask(&self, nsid: u32) -> u8 {
        self.masks.get(&nsid).copied().unwrap_or(0)
    }

    /// Sets the notices that the host does not want for a namespace.
    pub fn set_mask(&mut self, nsid: u32, mask: u8) {
        match mask {
            0 => self.masks.remove(&nsid),
            _ => self.masks.insert(nsid, mask),
        };
    }

    /// Records a notice of a reservation.
    pub fn note_reservation(&mut self, notice: Notice, nsid: u32) {
        if self.mask(nsid) & 1 << notice as u8 != 0 {
            return;
        }
        // Zero stands for no notice.
        self.last_notice = self.last_notice.wrapping_add(1).max(1);
        if self.notices.len() < MAX_NOTICES {
            self.notices.push_back((self.last_notice, notice, nsid));
        }
        self.raise(Event::Reservation);
    }

    /// The oldest notice of a reservation (number, notice, namespace), and how many there are besides.
    pub fn oldest_notice(&self) -> Option<((u64, Notice, u32), usize)> {
        self.notices.front().map(|&notice| (notice, self.notices.len() - 1))
    }

    /// The host has read a log page, and does not retain its event.
    pub fn log_read(&mut self, page: u8) {
        if page == Event::Namespaces.log_page() {
            self.changed.clear();
            self.overflow = false;
        }
        for event in Event::ALL.into_iter().filter(|event| event.log_page() == page) {
            self.masked &= !event.bit();
            // What occurred before the log was made is in it.
            self.pending &= !event.bit();
        }
        if page == Event::Reservation.log_page() {
            self.notices.pop_front();
            if !self.notices.is_empty() {
                self.raise(Event::Reservation);
            }
        }
    }

    /// An event to report, with the slot of the request for it.
    pub fn next(&mut self) -> Option<(u16, Event)> {
        let wanted = self.wanted | Event::Reservation.bit();
        let due = self.pending & wanted & !self.masked;
        let event = Event::ALL.into_iter().find(|event| due & event.bit() != 0)?;
        let slot = self.requests.pop()?;
        self.pending &= !event.bit();
        self.masked |= event.bit();
        Some((slot, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_is_reported_once_until_its_log_is_read() {
        let mut events = Events { wanted: Event::Ana.bit(), ..Events::default() };
        events.raise(Event::Ana);
        events.raise(Event::Namespaces);
        assert_eq!(events.next(), None, "there is no request");
        events.requests = alloc::vec![7, 8, 9];
        assert_eq!(events.next(), Some((9, Event::Ana)));
        assert_eq!(events.next(), None, "namespaces are not wanted");
        events.raise(Event::Ana);
        assert_eq!(events.next(), None, "the log was not read");
        events.log_read(0x0c);
        assert_eq!(events.next(), None, "the log has the second change");
        events.raise(Event::Ana);
        assert_eq!(events.next(), Some((8, Event::Ana)));
        events.wanted = u32::MAX;
        assert_eq!(events.next(), Some((7, Event::Namespaces)));
    }

    #[test]
    fn notices_are_read_one_by_one_and_those_beyond_the_most_are_counted() {
        let mut events = Events { requests: alloc::vec![1, 2, 3], ..Events::default() };
        events.set_mask(2, 1 << Notice::Released as u8);
        events.note_reservation(Notice::Released, 2);
        assert_eq!(events.next(), None, "the host does not want it");
        events.note_reservation(Notice::Released, 1);
        events.note_reservation(Notice::ReservationPreempted, 2);
        assert_eq!(events.next(), Some((3, Event::Reservation)));
        assert_eq!(events.next(), None);
        assert_eq!(events.oldest_notice(), Some(((1, Notice::Released, 1), 1)));
        events.log_read(0x80);
        assert_eq!(events.next(), Some((2, Event::Reservation)), "there is another");
        events.log_read(0x80);
        assert_eq!((events.next(), events.oldest_notice()), (None, None));
        (0..100).for_each(|_| events.note_reservation(Notice::Released, 1));
        assert_eq!(events.oldest_notice().unwrap().1, 63);
        (0..64).for_each(|_| events.log_read(0x80));
        events.note_reservation(Notice::Released, 1);
        assert_eq!(events.oldest_notice().unwrap().0.0, 103, "37 were lost");
    }

    #[test]
    fn changed_namespaces_beyond_the_log_overflow_it_until_it_is_read() {
        let mut events = Events::default();
        (1..=1024).rev().for_each(|nsid| events.note_changed(nsid));
        events.note_changed(5);
        assert!(events.changed().unwrap().iter().copied().eq(1..=1024));
        events.note_changed(1025);
        assert_eq!(events.changed(), None);
        events.log_read(4);
        assert_eq!(events.changed(), Some(&[][..]));
    }
}
