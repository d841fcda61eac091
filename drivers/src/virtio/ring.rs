//! Driver side of a split virtqueue (virtio 1.2, 2.7): descriptor table, available ring, used ring.
//!
//! The driver keeps its state in private memory. From shared memory it reads only the used ring, each entry once, and
//! checks it against its own state. The users of the ring allocate descriptors; a chain is identified by its first
//! descriptor. No indirect tables, no packed layout.
//!
//! The queue of the `virtio-drivers` crate (0.13) is not used. `should_notify` compares ring indices without regard to
//! their wrap, and reads the device's event index without a barrier after the store of its own index. `add` and
//! `pop_used` take each buffer by reference. An entry of the used ring with an ID out of range, or with a length beyond
//! the buffer, makes it panic.

use super::Dialect;
use crate::hal::{Cell, Cells, Window};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

const DESCRIPTOR: usize = 16;
/// Offset of the entries in either ring. Flags and index come before them, the event index after them.
const ENTRIES: usize = 4;
const USED_ENTRY: usize = 8;
/// Cells before the entries: flags, then index.
const FLAGS: usize = 0;
const INDEX: usize = 1;

const FLAG_NEXT: u64 = 1 << 32;
const FLAG_WRITE: u64 = 2 << 32;

/// In the available ring: suppresses interrupts. In the used ring: suppresses notifications.
const FLAG_SUPPRESS: u16 = 1;

/// Entries after which the event index is moved, long before the ring index catches up with it.
const QUIET_SPAN: u16 = 0x4000;

/// Result of taking an entry of the used ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// There is no new entry.
    Nothing,
    /// The device has used an offered chain.
    Chain {
        /// First descriptor of the chain.
        head: u16,
        /// Bytes written, as the device reports; not checked.
        written: u32,
    },
    /// The entry is invalid. If the index is invalid, the ring is dead: it never returns an entry again.
    Nonsense,
}

/// A descriptor's content.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// Bus address of the memory.
    pub address: u64,
    /// Length of the memory in bytes.
    pub len: u32,
    /// The device writes the memory; otherwise it reads it.
    pub device_writes: bool,
    /// Descriptor with the rest of the chain.
    pub next: Option<u16>,
}

/// One of the two rings.
#[derive(Debug)]
struct Half<T> {
    /// Flags and index.
    head: Cells<AtomicU16>,
    entries: Cells<T>,
    /// Index at which the other side requests an event.
    event: Cells<AtomicU16>,
}

impl<T: Cell> Half<T> {
    fn new(memory: &Window, offset: usize, size: usize) -> Option<Self> {
        Some(Half {
            head: Cells::new(memory, offset, 2)?,
            entries: Cells::new(memory, offset + ENTRIES, size)?,
            event: Cells::new(memory, offset + ENTRIES + size * size_of::<T>(), 1)?,
        })
    }
}

/// A split virtqueue, driver side.
#[derive(Debug)]
pub struct Ring {
    size: u16,
    /// Bus addresses of descriptor table, available ring and used ring.
    addresses: [u64; 3],
    descriptors: Cells<[AtomicU64; 2]>,
    available: Half<AtomicU16>,
    used: Half<[AtomicU32; 2]>,
    event_index: bool,
    /// Index after the last chain offered.
    offered: u16,
    /// `offered` at the last [`Ring::publish`].
    published: u16,
    /// Index of the next used entry to take.
    taken: u16,
    /// Used index when it was last read.
    reported: u16,
    /// Whether an interrupt is requested.
    armed: bool,
    /// `taken` when the event index was last moved.
    event_since: u16,
    /// Whether the device has the chain, by its first descriptor.
    lent: Box<[bool]>,
    /// Number of chains that the device has.
    outstanding: u16,
    dead: bool,
    /// Used index at the last [`Ring::stands_still`].
    seen: u16,
    dialect: Dialect,
}

impl Ring {
    /// Alignment of a ring's memory: a page of the legacy interface.
    pub const ALIGN: usize = 4096;

    /// Bytes of a ring of `size` entries.
    pub fn bytes(size: u16, legacy: bool) -> usize {
        Self::used_at(size, legacy) + ENTRIES + usize::from(size) * USED_ENTRY + 2
    }

    fn used_at(size: u16, legacy: bool) -> usize {
        let available_end = usize::from(size) * (DESCRIPTOR + 2) + ENTRIES + 2;
        available_end.next_multiple_of(if legacy { Self::ALIGN } else { 64 })
    }

    /// A ring of `size` entries (a power of two) in zeroed `memory` of [`Ring::bytes`] bytes or more. Interrupts are
    /// disabled. None if the memory is too small.
    pub fn new(memory: Window, size: u16, legacy: bool, event_index: bool) -> Option<Self> {
        assert!(size.is_power_of_two(), "a ring's size is a power of two");
        let entries = usize::from(size);
        let parts = [0, entries * DESCRIPTOR, Self::used_at(size, legacy)];
        let mut ring = Ring {
            size,
            addresses: parts.map(|part| memory.bus_address() + part as u64),
            descriptors: Cells::new(&memory, parts[0], entries)?,
            available: Half::new(&memory, parts[1], entries)?,
            used: Half::new(&memory, parts[2], entries)?,
            event_index,
            offered: 0,
            published: 0,
            taken: 0,
            reported: 0,
            armed: false,
            event_since: 0,
            lent: alloc::vec![false; entries].into(),
            outstanding: 0,
            dead: false,
            seen: 0,
            dialect: Dialect::default(),
        };
        ring.set_interrupts(false);
        Some(ring)
    }

    /// Sets the device's dialect.
    pub(super) fn of(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// The device's dialect.
    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Number of descriptors, and of entries in each ring.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Whether the device has used a chain that was not taken yet.
    pub fn pending(&self) -> bool {
        !self.dead && self.used.head.load(INDEX) != self.taken
    }

    /// Whether the device has chains and used none since the last call. It may have missed a notification: QEMU before
    /// 8.0 does under TCG with one CPU, because it omits memory barriers then. The caller then notifies the device
    /// again, which is harmless.
    pub fn stands_still(&mut self) -> bool {
        let used = self.used.head.load(INDEX);
        let still = used == self.seen && used != self.published && !self.dead;
        self.seen = used;
        still
    }

    /// Chains that the device has.
    pub fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// Whether the device has the chain that starts with descriptor `head`. Panics if there is no such descriptor.
    #[inline]
    pub fn is_lent(&self, head: u16) -> bool {
        self.lent[usize::from(head)]
    }

    /// Whether the ring is dead: the device wrote an invalid index.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// Whether the device has the chain of each first descriptor.
    pub fn lent(&self) -> &[bool] {
        &self.lent
    }

    /// Bus address of the descriptor table.
    pub fn table_address(&self) -> u64 {
        self.addresses[0]
    }

    /// Bus address of the available ring.
    pub fn available_address(&self) -> u64 {
        self.addresses[1]
    }

    /// Bus address of the used ring.
    pub fn used_address(&self) -> u64 {
        self.addresses[2]
    }

    /// Writes descriptor `index`, which must not belong to a chain that the device has.
    #[inline]
    pub(crate) fn describe(&mut self, index: u16, descriptor: Descriptor) {
        let next = descriptor.next.map_or(0, |next| FLAG_NEXT | u64::from(next) << 48);
        let write = if descriptor.device_writes { FLAG_WRITE } else { 0 };
        let rest = u64::from(descriptor.len) | next | write;
        self.descriptors.store(index.into(), [descriptor.address, rest]);
    }

    /// Writes consecutive descriptors from `first` as a chain. They must not belong to a chain that the device has.
    /// Pieces of memory for the device to read: bus address and length in bytes.
    #[inline]
    pub(crate) fn describe_chain<const N: usize>(&mut self, first: u16, pieces: [(u64, usize); N]) {
        for (n, (address, len)) in pieces.into_iter().enumerate() {
            let behind = u64::from(first) + n as u64 + 1;
            let next = if n + 1 < N { FLAG_NEXT | behind << 48 } else { 0 };
            let rest = len as u64 & 0xffff_ffff | next;
            self.descriptors.store(usize::from(first) + n, [address, rest]);
        }
    }

    /// Offers the chain that starts with descriptor `head`. The device sees it after the next [`Ring::publish`].
    #[inline]
    pub(crate) fn offer(&mut self, head: u16) {
        let lent = &mut self.lent[usize::from(head)];
        assert!(!*lent, "the device has this chain already");
        *lent = true;
        self.outstanding += 1;
        self.give(head);
    }

    /// Offers a chain again that [`Ring::borrow`] has just returned.
    #[inline]
    pub(crate) fn give(&mut self, head: u16) {
        self.available.entries.store(self.offered.into(), head);
        self.offered = self.offered.wrapping_add(1);
    }

    /// Publishes the offered chains. True if the device has to be notified.
    #[inline]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        self.offered != self.published && self.publish_offered()
    }

    fn publish_offered(&mut self) -> bool {
        self.available.head.store(INDEX, self.offered);
        // Store, fence, load on both sides: the device stores its event index or flags, then loads the available index.
        // The driver stores the available index, then loads the event index or flags. So at least one side sees the
        // other's store.
        fence(Ordering::SeqCst);
        let new = self.offered.wrapping_sub(self.published);
        self.published = self.offered;
        if self.dialect.is_uhyve() {
            true
        } else if self.event_index {
            let event = self.used.event.load(0);
            self.offered.wrapping_sub(event).wrapping_sub(1) < new
        } else {
            self.used.head.load(FLAGS) & FLAG_SUPPRESS == 0
        }
    }

    /// Takes the next chain that the device has used.
    #[inline]
    pub fn take(&mut self) -> Taken {
        let taken = self.borrow();
        if let Taken::Chain { head, .. } = taken {
            self.lent[usize::from(head)] = false;
            self.outstanding -= 1;
        }
        taken
    }

    /// The next chain that the device has used, still counted as the device's. The caller must offer it again with
    /// `Ring::give` before any other call.
    #[inline]
    pub fn borrow(&mut self) -> Taken {
        if self.taken == self.reported {
            if self.dead {
                return Taken::Nothing;
            }
            let index = self.used.head.load(INDEX);
            let new = index.wrapping_sub(self.taken);
            if new == 0 {
                return Taken::Nothing;
            }
            if new > self.outstanding {
                self.dead = true;
                return Taken::Nonsense;
            }
            self.reported = index;
            if self.event_index
                && !self.armed
                && self.taken.wrapping_sub(self.event_since) >= QUIET_SPAN
            {
                self.keep_quiet();
            }
        }
        let taken = self.taken;
        let [head, written] = self.used.entries.load(taken.into());
        self.taken = taken.wrapping_add(1);
        match self.lent.get(head as usize) {
            Some(true) => Taken::Chain { head: head as u16, written },
            _ => Taken::Nonsense,
        }
    }

    /// Requests an interrupt at the next used chain, or none.
    pub fn set_interrupts(&mut self, wanted: bool) {
        self.interrupt_at(wanted.then_some(1));
    }

    /// Requests an interrupt at the n-th used chain from now, counted from 1, or none. A device without event indices
    /// interrupts at the first.
    pub fn interrupt_at(&mut self, chain: Option<u16>) {
        let wanted = chain.is_some();
        self.armed = wanted;
        if !self.event_index {
            self.available.head.store(FLAGS, if wanted { 0 } else { FLAG_SUPPRESS });
        } else if let Some(chain) = chain {
            self.event_since = self.taken.wrapping_add(chain.min(self.size).saturating_sub(1));
            self.set_event(self.event_since);
        } else if self.event_since.wrapping_sub(self.used.head.load(INDEX)) < QUIET_SPAN {
            self.keep_quiet();
        }
        // Otherwise the device is past the event, and does not reach it again before its index has wrapped.
        if wanted {
            // Store, fence, load: a chain used before the device saw the request is seen by a check after this call.
            fence(Ordering::SeqCst);
        }
    }

    /// Puts the event index behind the device's index, so that it does not interrupt.
    fn keep_quiet(&mut self) {
        self.event_since = self.taken;
        self.set_event(self.taken.wrapping_sub(1));
    }

    /// Sets the used index after which the device interrupts.
    fn set_event(&self, event: u16) {
        self.available.event.store(0, event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hal::Arena;
    use std::collections::VecDeque;

    const SIZE: u16 = 4;

    /// A ring whose indices both start at `start`, and the memory it lies in.
    fn ring(start: u16, event_index: bool) -> (Ring, Window) {
        let memory = Arena::on_heap(8192).alloc(Ring::bytes(SIZE, false), 64).unwrap();
        let mut ring = Ring::new(memory, SIZE, false, event_index).unwrap();
        (ring.offered, ring.published, ring.taken, ring.reported) = (start, start, start, start);
        ring.available.head.store(INDEX, start);
        ring.used.head.store(INDEX, start);
        ring.set_interrupts(false);
        (ring, memory)
    }

    fn give_back(ring: &Ring, memory: &Window, index: &mut u16, head: u16, written: u32) {
        let at = Ring::used_at(SIZE, false) + ENTRIES + usize::from(*index % SIZE) * USED_ENTRY;
        memory.store32(at, head.into());
        memory.store32(at + 4, written);
        *index = index.wrapping_add(1);
        ring.used.head.store(INDEX, *index);
    }

    /// All 65,536 starting points, with every number of chains offered and given back.
    #[test]
    fn every_index_wraps_at_every_fill() {
        for start in 0..=u16::MAX {
            let (mut ring, memory) = ring(start, true);
            let mut used = start;
            let mut free: VecDeque<u16> = (0..SIZE).collect();
            for batch in 1..=SIZE {
                let heads: std::vec::Vec<u16> = free.drain(..usize::from(batch)).collect();
                for &head in &heads {
                    ring.offer(head);
                }
                ring.used.event.store(0, used);
                assert!(ring.publish());
                assert!(!ring.publish(), "nothing new");
                assert_eq!(ring.available.head.load(INDEX), used.wrapping_add(batch));
                for &head in heads.iter().rev() {
                    give_back(&ring, &memory, &mut used, head, u32::from(head) + 1);
                }
                for &head in heads.iter().rev() {
                    assert_eq!(ring.take(), Taken::Chain { head, written: u32::from(head) + 1 });
                    free.push_back(head);
                }
                assert_eq!(ring.take(), Taken::Nothing);
                assert_eq!(ring.outstanding(), 0);
            }
        }
    }

    /// The device requests a notification at index `event`; the driver offers a batch from `old`. Every distance,
    /// around the wrap and far from it.
    #[test]
    fn publish_notifies_exactly_when_the_event_is_passed() {
        for old in [0u16, 1, 100, 0x7fff, 0x8000, 0xfffd, 0xffff] {
            for batch in 1..=SIZE {
                for distance in -6i16..=6 {
                    let (mut ring, _) = ring(old, true);
                    let event = old.wrapping_add_signed(distance);
                    ring.used.event.store(0, event);
                    (0..batch).for_each(|head| ring.offer(head));
                    let passed = (0..batch).any(|i| old.wrapping_add(i) == event);
                    assert_eq!(ring.publish(), passed, "{old} {batch} {distance}");
                }
            }
        }
    }

    #[test]
    fn flags_suppress_notifications_without_event_index() {
        let (mut ring, _) = ring(0, false);
        assert_eq!(ring.available.head.load(FLAGS), FLAG_SUPPRESS);
        ring.set_interrupts(true);
        assert_eq!(ring.available.head.load(FLAGS), 0);
        ring.offer(0);
        assert!(ring.publish());
        ring.used.head.store(FLAGS, FLAG_SUPPRESS);
        ring.offer(1);
        assert!(!ring.publish());
    }

    #[test]
    fn invalid_used_entries_are_detected() {
        let (mut ring, memory) = ring(0xfffe, true);
        let mut used = 0xfffe;
        ring.offer(2);
        ring.offer(3);
        give_back(&ring, &memory, &mut used, 1, 0); // never offered
        assert_eq!(ring.take(), Taken::Nonsense);
        give_back(&ring, &memory, &mut used, 2, 9);
        assert_eq!(ring.take(), Taken::Chain { head: 2, written: 9 });
        give_back(&ring, &memory, &mut used, 2, 9); // twice
        assert_eq!(ring.take(), Taken::Nonsense);
        assert!(!ring.is_dead());
        ring.used.head.store(INDEX, used.wrapping_add(2)); // more than it has
        assert_eq!(ring.take(), Taken::Nonsense);
        assert!(ring.is_dead());
        assert_eq!(ring.take(), Taken::Nothing);
    }

    #[test]
    fn parts_do_not_overlap_and_are_aligned() {
        for legacy in [false, true] {
            for size in (0..11).map(|n| 1u16 << n) {
                let memory = Arena::on_heap(64 << 10).alloc(Ring::bytes(size, legacy), Ring::ALIGN);
                let ring = Ring::new(memory.unwrap(), size, legacy, true).unwrap();
                let n = u64::from(size);
                assert!(ring.table_address() + 16 * n <= ring.available_address());
                assert!(ring.available_address() + 6 + 2 * n <= ring.used_address());
                let align = if legacy { 4096 } else { 4 };
                assert_eq!(ring.used_address() % align, 0);
                assert_eq!(ring.table_address() % 16, 0);
            }
        }
        let small = Arena::on_heap(8192).alloc(64, 64).unwrap();
        assert!(Ring::new(small, 64, false, true).is_none());
    }

    #[test]
    fn interrupt_at_sets_the_event_of_the_requested_chain() {
        for start in [0, 0xfffe, 0xffff] {
            let (mut ring, memory) = ring(start, true);
            let event = |ring: &Ring| ring.available.event.load(0);
            let mut index = start;
            for head in 0..3 {
                ring.offer(head);
            }
            ring.interrupt_at(Some(3));
            assert_eq!(event(&ring), start.wrapping_add(2));
            give_back(&ring, &memory, &mut index, 0, 1);
            assert!(ring.pending(), "an earlier chain is seen without an interrupt");
            // Disabling moves the event index away.
            ring.interrupt_at(None);
            assert_eq!(event(&ring), start.wrapping_sub(1));
            // Once the device is past the event, disabling writes nothing.
            ring.interrupt_at(Some(1));
            give_back(&ring, &memory, &mut index, 1, 1);
            give_back(&ring, &memory, &mut index, 2, 1);
            ring.interrupt_at(None);
            assert_eq!(event(&ring), start);
        }
    }
}
