//! Memory that was given back while ports may still send from it. A port reads payload where it lies, some time after
//! the frame was queued: later than the peer's acknowledgement, if the frame is a repetition, or the peer acknowledged
//! what it had not received. What was given back is free after a grace period (as in RCU): when the port has sent every
//! frame that was queued at its begin.

use alloc::vec::Vec;

/// How far a port has come with the frames that it was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransmitProgress {
    /// Frames that were ever queued.
    pub queued: u64,
    /// Of those, the first that the device reads no more; never more than that are.
    pub sent: u64,
}

impl TransmitProgress {
    /// Of a port that copies what it is given, or whose device reads no memory.
    pub const NOTHING_HELD: Self = TransmitProgress { queued: 0, sent: u64::MAX };

    /// Of a port that has `waiting` frames left of all that were ever queued.
    pub fn with_waiting(queued: u64, waiting: u64) -> Self {
        TransmitProgress { queued, sent: queued.saturating_sub(waiting) }
    }
}

/// Through which ports something may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// The port at this place.
    Port(usize),
    /// Any of them.
    Any,
}

/// Things that wait for their grace periods.
#[derive(Debug)]
pub struct Retired<T> {
    /// By port. What any port may send passes them one after the other.
    lanes: Vec<Lane<T>>,
    count: usize,
}

#[derive(Debug)]
struct Lane<T> {
    /// For the next period, and for that which has begun: and whether it goes on to the next port.
    waiting: Vec<(T, bool)>,
    leaving: Vec<(T, bool)>,
    /// The period is over when so many frames are sent.
    mark: u64,
}

impl<T> Default for Retired<T> {
    /// For no ports: nothing waits.
    fn default() -> Self {
        Retired { lanes: Vec::new(), count: 0 }
    }
}

impl<T> Retired<T> {
    /// With room for `room` things for each of `ports` ports; if there are more, it allocates.
    pub fn new(ports: usize, room: usize) -> Self {
        let list = || Vec::with_capacity(room);
        let lane = || Lane { waiting: list(), leaving: list(), mark: 0 };
        Retired { lanes: core::iter::repeat_with(lane).take(ports).collect(), count: 0 }
    }

    /// Whether anything waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes a thing until its ports have sent what they have; back at once if there is no such port.
    #[inline]
    pub fn put(&mut self, thing: T, through: Through) -> Option<T> {
        let (port, all) = match through {
            Through::Port(port) => (port, false),
            Through::Any => (0, true),
        };
        let Some(lane) = self.lanes.get_mut(port) else { return Some(thing) };
        lane.waiting.push((thing, all));
        self.count += 1;
        None
    }

    /// What a port has sent so far: hands out what is free now. To be called for the ports in their order.
    pub fn note(&mut self, port: usize, progress: TransmitProgress, mut free: impl FnMut(T)) {
        let Some((lane, behind)) = self.lanes.get_mut(port..).and_then(<[_]>::split_first_mut)
        else {
            return;
        };
        let next = &mut behind.first_mut();
        loop {
            if progress.sent >= lane.mark {
                for (thing, all) in lane.leaving.drain(..) {
                    match next {
                        Some(next) if all => next.waiting.push((thing, true)),
                        _ => {
                            self.count -= 1;
                            free(thing);
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
        retired.note(port, TransmitProgress { queued, sent }, |thing| out.push(thing));
        out
    }

    #[test]
    fn a_thing_is_free_when_what_was_queued_before_is_sent() {
        let mut retired = Retired::new(2, 4);
        assert_eq!(retired.put(1, Through::Port(0)), None);
        assert_eq!(note(&mut retired, 0, 5, 3), vec![]);
        // Others come while it waits: their period begins when its is over.
        assert_eq!(retired.put(2, Through::Port(0)), None);
        assert_eq!(note(&mut retired, 0, 8, 4), vec![]);
        assert_eq!(note(&mut retired, 0, 9, 5), vec![1]);
        assert_eq!(note(&mut retired, 0, 20, 8), vec![]);
        assert_eq!(note(&mut retired, 0, 20, 9), vec![2]);
        assert!(retired.is_empty());
        // The other port has nothing to do with it.
        assert_eq!(retired.put(3, Through::Port(1)), None);
        assert_eq!(note(&mut retired, 0, 20, 20), vec![]);
        assert_eq!(note(&mut retired, 1, 7, 7), vec![3]);
    }

    #[test]
    fn what_any_port_may_send_waits_for_all() {
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
    fn without_ports_nothing_waits() {
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
