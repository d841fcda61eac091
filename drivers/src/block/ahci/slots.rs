//! Requests of a port, one in each slot of its command list. Requests that the drive cannot take yet wait in order: it
//! takes queued commands together, and any other command by itself.

use super::memory::{Direction, SLOTS};
use alloc::collections::VecDeque;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    /// A write that is durable when it completes.
    WriteThrough,
    Flush,
    Discard,
}

impl Kind {
    pub fn direction(self) -> Option<Direction> {
        match self {
            Kind::Read => Some(Direction::FromDrive),
            Kind::Write | Kind::WriteThrough | Kind::Discard => Some(Direction::ToDrive),
            Kind::Flush => None,
        }
    }
}

/// A request in its slot.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// The caller's tag.
    pub tag: u64,
    pub kind: Kind,
    /// When the drive got the command, in milliseconds of the port's age.
    pub since: u32,
    /// Times that the command failed or was lost.
    pub tries: u8,
}

const FREE: Slot = Slot { tag: 0, kind: Kind::Read, since: 0, tries: 0 };

/// The slots of a port, as bit masks.
#[derive(Debug)]
pub struct Slots {
    slots: [Slot; SLOTS as usize],
    /// Slots without a request.
    free: u32,
    /// Commands that the drive has, or gets with the next doorbell.
    pub sent: u32,
    /// Commands of `sent` that wait for the doorbell.
    pub fresh: u32,
    /// Commands for the drive's queue; any other is sent by itself.
    pub queued: u32,
    /// Writes that a volatile cache may hold when they complete.
    pub cached: u32,
    /// Commands that are sent by themselves although they could be queued, so that a failure names its command.
    pub careful: u32,
    /// Requests that wait, in order.
    waiting: VecDeque<u8>,
}

impl Slots {
    /// Slots for `count` requests, at most [`SLOTS`].
    pub fn new(count: u8) -> Self {
        let mut slots = Slots {
            slots: [FREE; SLOTS as usize],
            free: 0,
            sent: 0,
            fresh: 0,
            queued: 0,
            cached: 0,
            careful: 0,
            waiting: VecDeque::with_capacity(SLOTS.into()),
        };
        slots.resize(count);
        slots
    }

    /// Sets the number of slots. No slot may be in use.
    pub fn resize(&mut self, count: u8) {
        self.free = u32::MAX.checked_shr(32 - u32::from(count.clamp(1, SLOTS))).unwrap_or(u32::MAX);
    }

    /// The slot for the next request.
    #[inline]
    pub fn next(&self) -> Option<u8> {
        (self.free != 0).then(|| self.free.trailing_zeros() as u8)
    }

    /// Takes a free slot for a request.
    #[inline]
    pub fn put(&mut self, slot: u8, tag: u64, kind: Kind, queued: bool) {
        let bit = 1 << slot;
        self.free &= !bit;
        self.queued = self.queued & !bit | if queued { bit } else { 0 };
        self.cached = self.cached & !bit | if kind == Kind::Write { bit } else { 0 };
        *self.slot_mut(slot) = Slot { tag, kind, since: 0, tries: 0 };
    }

    #[inline]
    pub fn slot(&self, slot: u8) -> &Slot {
        &self.slots[usize::from(slot % SLOTS)]
    }

    #[inline]
    pub fn slot_mut(&mut self, slot: u8) -> &mut Slot {
        &mut self.slots[usize::from(slot % SLOTS)]
    }

    /// Frees the slot of a request that has ended.
    #[inline]
    pub fn end(&mut self, slot: u8) -> Slot {
        let bit = 1 << slot;
        self.free |= bit;
        self.sent &= !bit;
        self.fresh &= !bit;
        self.careful &= !bit;
        *self.slot(slot)
    }

    /// Whether the drive can take a command now, and no other waits.
    #[inline]
    pub fn takes(&self, slot: u8) -> bool {
        self.waiting.is_empty() && self.fits(slot)
    }

    /// Whether the drive can take a command beside those that it has.
    #[inline]
    fn fits(&self, slot: u8) -> bool {
        let (bit, alone) = (1 << slot, !self.queued | self.careful);
        self.sent == 0 || (alone & (bit | self.sent)) == 0
    }

    /// Sends a command with the next doorbell.
    #[inline]
    pub fn send(&mut self, slot: u8, age: u32) {
        self.sent |= 1 << slot;
        self.fresh |= 1 << slot;
        self.slot_mut(slot).since = age;
    }

    /// Lets a request wait behind all others.
    pub fn wait(&mut self, slot: u8) {
        self.waiting.push_back(slot);
    }

    /// The next waiting request that the drive can take. It does not wait any more.
    pub fn next_waiting(&mut self) -> Option<u8> {
        let slot = *self.waiting.front()?;
        if !self.fits(slot) {
            return None;
        }
        self.waiting.pop_front()
    }

    /// Whether requests wait.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The requests that wait, as bits.
    pub fn waiting_mask(&self) -> u32 {
        self.waiting.iter().fold(0, |mask, slot| mask | 1 << slot)
    }

    /// Takes all commands back from the drive, which does not have them any more. They wait in front of all others.
    pub fn take_back(&mut self) {
        for slot in bits(self.sent).rev() {
            self.waiting.push_front(slot);
        }
        (self.sent, self.fresh) = (0, 0);
    }

    /// Removes a waiting request, to end it.
    pub fn stop_waiting(&mut self, slot: u8) {
        self.waiting.retain(|one| *one != slot);
    }

    /// The next waiting request, whether or not the drive can take it. It does not wait any more.
    pub fn drop_waiting(&mut self) -> Option<u8> {
        self.waiting.pop_front()
    }
}

/// The numbers of the set bits.
pub fn bits(mask: u32) -> impl DoubleEndedIterator<Item = u8> {
    (0..32u8).filter(move |n| mask >> n & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(slots: &mut Slots, queued: bool) -> u8 {
        let slot = slots.next().unwrap();
        slots.put(slot, slot.into(), Kind::Write, queued);
        slot
    }

    #[test]
    fn command_by_itself_waits_for_queued_ones_and_they_for_it() {
        let mut slots = Slots::new(32);
        let first = put(&mut slots, true);
        assert!(slots.takes(first));
        slots.send(first, 0);
        let second = put(&mut slots, true);
        assert!(slots.takes(second), "both are queued");
        slots.send(second, 0);
        let flush = put(&mut slots, false);
        assert!(!slots.takes(flush));
        slots.wait(flush);
        let third = put(&mut slots, true);
        assert!(!slots.takes(third), "not before the flush");
        slots.wait(third);
        assert_eq!(slots.next_waiting(), None);
        slots.end(first);
        assert_eq!(slots.next_waiting(), None);
        slots.end(second);
        assert_eq!(slots.next_waiting(), Some(flush));
        slots.send(flush, 0);
        assert_eq!(slots.next_waiting(), None);
        slots.end(flush);
        assert_eq!(slots.next_waiting(), Some(third));
    }

    #[test]
    fn commands_taken_back_go_first_and_careful_ones_alone() {
        let mut slots = Slots::new(4);
        let all: alloc::vec::Vec<u8> = (0..4).map(|_| put(&mut slots, true)).collect();
        assert_eq!(slots.next(), None);
        all[..3].iter().for_each(|slot| slots.send(*slot, 0));
        slots.wait(all[3]);
        slots.take_back();
        slots.careful = 0b111;
        for slot in 0..3 {
            assert_eq!(slots.next_waiting(), Some(slot));
            slots.send(slot, 0);
            assert_eq!(slots.next_waiting(), None, "{slot} is alone");
            slots.end(slot);
        }
        assert_eq!((slots.next_waiting(), slots.careful), (Some(3), 0));
    }
}
