//! Freed memory that ports may still send from. It is reused after a grace period (as in RCU): when the port has sent
//! every frame that was queued at the period's begin.
//!
//! A port reads payload in place, some time after the frame was queued. That may be later than the peer's
//! acknowledgement, if the frame is a retransmission, or if the peer acknowledged data that it had not received.

use alloc::vec::Vec;

/// Transmit progress of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransmitProgress {
    /// Frames queued since the port was opened.
    pub queued: u64,
    /// Frames, counted from the first, that the device no longer reads. [`TransmitProgress::NOTHING_HELD`] has the
    /// maximum.
    pub sent: u64,
}

impl TransmitProgress {
    /// Progress of a port that copies frames, or whose device reads no memory.
    pub const NOTHING_HELD: Self = TransmitProgress { queued: 0, sent: u64::MAX };

    /// Progress of a port that still has to send `waiting` of its `queued` frames.
    pub fn with_waiting(queued: u64, waiting: u64) -> Self {
        TransmitProgress { queued, sent: queued.saturating_sub(waiting) }
    }
}

/// Ports that may send from an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// The port of this index.
    Port(usize),
    /// Any port.
    Any,
}

/// Items that wait for their grace periods.
#[derive(Debug)]
pub struct Retired<T> {
    /// One lane per port. An item of [`Through::Any`] passes all lanes in turn.
    lanes: Vec<Lane<T>>,
    count: usize,
}

#[derive(Debug)]
struct Lane<T> {
    /// Items for the next period, and whether they pass on to the next port.
    waiting: Vec<(T, bool)>,
    /// Items of the current period, likewise.
    leaving: Vec<(T, bool)>,
    /// The current period ends when the port has sent this many frames.
    mark: u64,
}

impl<T> Default for Retired<T> {
    /// For no ports: no item waits.
    fn default() -> Self {
        Retired { lanes: Vec::new(), count: 0 }
    }
}

impl<T> Retired<T> {
    /// Preallocates room for `room` items per port. More items make it allocate.
    pub fn new(ports: usize, room: usize) -> Self {
        let list = || Vec::with_capacity(room);
        let lane = || Lane { waiting: list(), leaving: list(), mark: 0 };
        Retired { lanes: core::iter::repeat_with(lane).take(ports).collect(), count: 0 }
    }

    /// Whether no item waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Keeps an item until its ports have sent all frames queued so far. Returns it at once if there is no such port.
    #[inline]
    pub fn put(&mut self, item: T, through: Through) -> Option<T> {
        let (port, all) = match through {
            Through::Port(port) => (port, false),
            Through::Any => (0, true),
        };
        let Some(lane) = self.lanes.get_mut(port) else { return Some(item) };
        lane.waiting.push((item, all));
        self.count += 1;
        None
    }

    /// Records the progress of `port`, and passes items whose grace period has ended to `free`. Call it for the ports
    /// in their order.
    pub fn note(&mut self, port: usize, progress: TransmitProgress, mut free: impl FnMut(T)) {
        let Some((lane, behind)) = self.lanes.get_mut(port..).and_then(<[_]>::split_first_mut)
        else {
            return;
        };
        let next = &mut behind.first_mut();
        loop {
            if progress.sent >= lane.mark {
                for (item, all) in lane.leaving.drain(..) {
                    match next {
                        Some(next) if all => next.waiting.push((item, true)),
                        _ => {
                            self.count -= 1;
                            free(item);
                        }
                    }
                }
            }
            if lane.waiting.is_empty() || !lane.leaving.is_empty() {
                return;
            }
            core::mem::swap(&mut lane.waiting, &mut lane.leaving);
            lane.mark = progress.queued;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn note(retired: &mut Retired<u32>, port: usize, queued: u64, sent: u64) -> Vec<u32> {
        let mut out = Vec::new();
        retired.note(port, TransmitProgress { queued, sent }, |item| out.push(item));
        out
    }

    #[test]
    fn item_is_freed_when_frames_queued_before_it_are_sent() {
        let mut retired = Retired::new(2, 4);
        assert_eq!(retired.put(1, Through::Port(0)), None);
        assert_eq!(note(&mut retired, 0, 5, 3), vec![]);
        // A second item comes while the first waits: its period begins when the first one's is over.
        assert_eq!(retired.put(2, Through::Port(0)), None);
        assert_eq!(note(&mut retired, 0, 8, 4), vec![]);
        assert_eq!(note(&mut retired, 0, 9, 5), vec![1]);
        assert_eq!(note(&mut retired, 0, 20, 8), vec![]);
        assert_eq!(note(&mut retired, 0, 20, 9), vec![2]);
        assert!(retired.is_empty());
        // An item of one port does not wait for the other.
        assert_eq!(retired.put(3, Through::Port(1)), None);
        assert_eq!(note(&mut retired, 0, 20, 20), vec![]);
        assert_eq!(note(&mut retired, 1, 7, 7), vec![3]);
    }

    #[test]
    fn item_of_any_port_waits_for_all_ports() {
        let mut retired = Retired::new(2, 4);
        assert_eq!(retired.put(1, Through::Any), None);
        assert_eq!(note(&mut retired, 1, 5, 4), vec![]);
        assert_eq!(note(&mut retired, 0, 5, 5), vec![]);
        assert_eq!(note(&mut retired, 1, 6, 5), vec![]);
        assert!(!retired.is_empty());
        assert_eq!(note(&mut retired, 1, 7, 6), vec![1]);
        assert!(retired.is_empty());
    }

    #[test]
    fn item_without_a_port_is_returned_at_once() {
        let mut retired = Retired::default();
        assert_eq!(retired.put(1, Through::Any), Some(1));
        assert_eq!(Retired::new(1, 0).put(1, Through::Port(1)), Some(1));
    }

    #[test]
    fn an_idle_port_holds_nothing_up() {
        let mut retired = Retired::new(1, 4);
        assert_eq!(retired.put(1, Through::Any), None);
        assert_eq!(note(&mut retired, 0, 9, 9), vec![1]);
    }
}
