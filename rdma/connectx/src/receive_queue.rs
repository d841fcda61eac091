//! A receive queue: an entry of segments for each receive, and a counter in the doorbell record. The card reads only
//! that counter: receives have no doorbell register.

use alloc::boxed::Box;
use alloc::vec;
use core::sync::atomic::AtomicU64;
use drivers::hal::{Cells, Window};
use softverbs::sges::{MAX_SGE, Sges};
use verbs::{RecvRequest, VerbsError};

/// The key that terminates a list of segments.
const TERMINATE: u64 = 0x100;
/// Bytes of a segment.
const SEGMENT: usize = 16;

/// Size of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Log2 of the number of receives, and of the bytes of each.
    pub log: u32,
    pub log_bytes: u32,
}

impl Shape {
    /// For `receives` receives of up to `windows` windows. At least 64 bytes, because the send queue follows it.
    pub fn new(receives: u32, windows: usize) -> Shape {
        let log_bytes = (windows.max(1) * SEGMENT).next_power_of_two().ilog2();
        let log = receives.max(1).next_power_of_two().ilog2();
        Shape { log: log.max(6u32.saturating_sub(log_bytes)), log_bytes }
    }

    /// Total bytes.
    pub fn bytes(self) -> usize {
        1 << (self.log + self.log_bytes)
    }
}

/// The queue.
pub struct ReceiveQueue {
    words: Cells<AtomicU64>,
    record: Window,
    shape: Shape,
    windows: usize,
    limit: u32,
    posted: u32,
    done: u32,
    /// Whether each entry of the ring was written at least once.
    has_wrapped: bool,
    ids: Box<[u64]>,
    /// Destinations of datagrams, whose headers are read from there.
    places: Box<[Sges]>,
}

impl ReceiveQueue {
    /// A queue at the beginning of the memory, for up to `limit` receives of up to `windows` windows.
    pub fn new(
        memory: &Window,
        record: Window,
        shape: Shape,
        limit: u32,
        windows: usize,
        datagrams: bool,
    ) -> Result<ReceiveQueue, VerbsError> {
        let words = Cells::new(memory, 0, shape.bytes() / 8).ok_or(VerbsError::NoRoom)?;
        let count = 1usize << shape.log;
        let places = if datagrams { vec![Sges::empty(); count] } else { vec![] };
        Ok(ReceiveQueue {
            words,
            record,
            shape,
            windows: windows.min(MAX_SGE),
            limit,
            posted: 0,
            done: 0,
            has_wrapped: false,
            ids: vec![0; count].into(),
            places: places.into(),
        })
    }

    /// Whether there is room for `count` more receives.
    fn check_room(&self, count: u32) -> Result<(), VerbsError> {
        match self.posted.wrapping_sub(self.done).checked_add(count) {
            Some(all) if all <= self.limit => Ok(()),
            _ => Err(VerbsError::QueueFull),
        }
    }

    /// Posts a receive; `key` is the domain's key for all memory.
    pub fn post(&mut self, request: &RecvRequest<'_>, key: u32) -> Result<(), VerbsError> {
        self.check_room(1)?;
        if request.into.len() > self.windows {
            return Err(VerbsError::Invalid);
        }
        let (index, mut at, end) = self.next();
        // A length of 0 means 2 GiB.
        for window in request.into.iter().filter(|window| !window.is_empty()) {
            let first = (window.len() as u64) << 32 | u64::from(key);
            self.words.store(at, first.swap_bytes());
            self.words.store(at + 1, window.bus_address().swap_bytes());
            at += 2;
        }
        if at < end {
            self.terminate(at);
        }
        if let Some(place) = self.places.get_mut(index) {
            *place = Sges::new(request.into)?;
        }
        self.count(index, request.id);
        self.update_record();
        Ok(())
    }

    /// Posts a receive with this id again, into the same memory, if the next entry of the ring is its last one and so
    /// still has its segments. That is the case if the queue is full except for it.
    #[inline]
    pub fn repost(&mut self, id: u64) -> bool {
        let index = self.posted as usize & (self.ids.len() - 1);
        if !self.has_wrapped
            || !self.places.is_empty()
            || self.ids.get(index) != Some(&id)
            || self.check_room(1).is_err()
        {
            return false;
        }
        self.posted = self.posted.wrapping_add(1);
        self.update_record();
        true
    }

    /// Posts `count` receives without memory, with an id that no other receive has.
    pub fn post_empty(&mut self, id: u64, count: u32) -> Result<(), VerbsError> {
        self.check_room(count)?;
        for _ in 0..count {
            let (index, at, _) = self.next();
            if self.has_wrapped && self.ids.get(index) == Some(&id) {
                self.posted = self.posted.wrapping_add(1);
                continue;
            }
            self.terminate(at);
            if let Some(place) = self.places.get_mut(index) {
                *place = Sges::empty();
            }
            self.count(index, id);
        }
        self.update_record();
        Ok(())
    }

    /// The index of the next receive, and the range of its words.
    #[inline]
    fn next(&self) -> (usize, usize, usize) {
        let index = self.posted as usize & (self.ids.len() - 1);
        let log_words = self.shape.log_bytes - 3;
        (index, index << log_words, (index + 1) << log_words)
    }

    /// Terminates the list of segments of a receive.
    #[inline]
    fn terminate(&self, at: usize) {
        self.words.store(at, TERMINATE.swap_bytes());
        self.words.store(at + 1, 0);
    }

    #[inline]
    fn count(&mut self, index: usize, id: u64) {
        if let Some(place) = self.ids.get_mut(index) {
            *place = id;
        }
        self.posted = self.posted.wrapping_add(1);
        self.has_wrapped |= index + 1 == self.ids.len();
    }

    /// Writes the number of posted receives to the doorbell record.
    #[inline]
    fn update_record(&self) {
        self.record.store32(0, (self.posted & 0xffff).swap_bytes());
    }

    /// Destination of the receive with this counter, if it is for a datagram.
    pub fn place(&self, counter: u16) -> Option<&Sges> {
        self.places.get(usize::from(counter) & (self.ids.len() - 1))
    }

    /// Takes out the next receive, given a completion with this counter; returns its id. Receives complete in order;
    /// None if this is not the next one.
    #[inline]
    pub fn retire(&mut self, counter: u16) -> Option<u64> {
        if self.posted == self.done || counter != self.done as u16 {
            return None;
        }
        let index = self.done as usize & (self.ids.len() - 1);
        self.done = self.done.wrapping_add(1);
        self.ids.get(index).copied()
    }

    /// Takes out the oldest receive, which will never complete.
    pub fn drop_oldest(&mut self) -> Option<u64> {
        self.retire(self.done as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use drivers::hal::Arena;

    #[test]
    fn receive_queue_keeps_the_send_queue_aligned() {
        assert_eq!(Shape::new(0, 0), Shape { log: 2, log_bytes: 4 });
        assert_eq!(Shape::new(64, 4), Shape { log: 6, log_bytes: 6 });
        assert_eq!(Shape::new(65, 3).bytes(), 128 * 64);
    }

    /// A reposted entry has the memory of its id, even if the entry was used for another receive meanwhile.
    #[test]
    fn reposted_receive_keeps_its_memory() {
        let mut arena = Arena::on_heap(1 << 16);
        let shape = Shape::new(4, 1);
        let memory = arena.alloc(shape.bytes(), 64).unwrap();
        let record = arena.alloc(8, 64).unwrap();
        let mut queue = ReceiveQueue::new(&memory, record, shape, 4, 1, false).unwrap();
        let into: Vec<Window> = (0..4).map(|_| arena.alloc(100, 64).unwrap()).collect();
        let request = |n: usize| RecvRequest { id: n as u64, into: &into[n..n + 1] };
        for n in 0..4 {
            // The entries were never written, and the first id equals that of an empty entry.
            assert!(!queue.repost(n as u64));
            queue.post(&request(n), 7).unwrap();
        }
        assert!(!queue.repost(0), "no room");
        let mut posted = 4u16;
        let mut expected = [0usize, 1, 2, 3];
        for order in [[0, 1, 2, 3], [1, 0, 3, 2], [1, 0, 3, 2], [0, 1, 2, 3]] {
            for _ in 0..4 {
                queue.drop_oldest().unwrap();
            }
            for n in order {
                let place = usize::from(posted) % 4;
                let was_there = queue.repost(n as u64);
                assert_eq!(was_there, expected[place] == n);
                if !was_there {
                    queue.post(&request(n), 7).unwrap();
                }
                expected[place] = n;
                posted += 1;
                assert_eq!(record.load32(0).swap_bytes(), posted.into());
            }
            for (place, n) in expected.into_iter().enumerate() {
                assert_eq!(memory.load64(16 * place + 8).swap_bytes(), into[n].bus_address());
            }
        }
    }

    #[test]
    fn receives_are_done_in_order() {
        let mut arena = Arena::on_heap(1 << 16);
        let shape = Shape::new(3, 2);
        let memory = arena.alloc(shape.bytes(), 64).unwrap();
        let record = arena.alloc(8, 64).unwrap();
        let mut queue = ReceiveQueue::new(&memory, record, shape, 3, 2, false).unwrap();
        let into = arena.alloc(100, 64).unwrap();
        let empty = into.slice(0, 0).unwrap();
        let post = |queue: &mut ReceiveQueue, id, into: &[Window]| {
            queue.post(&RecvRequest { id, into }, 0x4500)
        };
        for round in 0..30_000u64 {
            post(&mut queue, 3 * round, &[into]).unwrap();
            post(&mut queue, 3 * round + 1, &[empty, into]).unwrap();
            assert_eq!(queue.post_empty(9, 2), Err(VerbsError::QueueFull));
            assert_eq!(queue.post_empty(9, u32::MAX), Err(VerbsError::QueueFull));
            match round % 2 {
                0 => post(&mut queue, 3 * round + 2, &[]).unwrap(),
                _ => queue.post_empty(3 * round + 2, 1).unwrap(),
            }
            assert_eq!(post(&mut queue, 9, &[]), Err(VerbsError::QueueFull));
            if round == 0 {
                // The first entry has one segment and a terminator.
                assert_eq!(memory.load64(0).swap_bytes(), 100 << 32 | 0x4500);
                assert_eq!(memory.load64(8).swap_bytes(), into.bus_address());
                assert_eq!(memory.load64(16).swap_bytes(), TERMINATE);
            }
            let next = (3 * round) as u16;
            assert!(queue.retire(next.wrapping_add(1)).is_none());
            assert_eq!(record.load32(0).swap_bytes(), u32::from(next.wrapping_add(3)));
            for n in 0..3 {
                let id = queue.retire(next.wrapping_add(n)).unwrap();
                assert_eq!(id, 3 * round + u64::from(n));
            }
            assert!(queue.retire(next.wrapping_add(3)).is_none());
        }
        assert_eq!(post(&mut queue, 9, &[into; 3]), Err(VerbsError::Invalid));
    }
}
