//! The arena: allocates windows of the machine's DMA memory.
//!
//! The free list lies outside the arena, so that a device cannot corrupt it. Every loop has a handle of its own. The
//! handles share the free list behind a lock that is held for one allocation.

use super::{Retired, Through, TransmitProgress, Window, poison, unpoison};
use alloc::sync::Arc;
use alloc::vec::Vec;
use spin::Mutex;

/// Every allocation is a multiple of this, so that neighbours share no cache line.
const GRAIN: usize = 64;

/// An allocator of windows over one contiguous stretch of DMA memory: first fit, with a sorted and merged free list.
/// Not for the data path: pools allocate at set-up.
#[derive(Debug)]
pub struct Arena {
    all: Window,
    free: Arc<Mutex<FreeList>>,
    /// Windows that were freed through this handle while ports of its loop may still send from them.
    retired: Retired<Window>,
}

/// Free stretches: (offset, length), sorted by offset, no two adjacent.
#[derive(Debug)]
struct FreeList(Vec<(usize, usize)>);

impl Arena {
    /// An arena over all of `memory`.
    pub fn new(memory: Window) -> Self {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        super::detect_avx();
        poison(&memory);
        let free = FreeList(alloc::vec![(0, memory.len())]);
        Arena { all: memory, free: Arc::new(Mutex::new(free)), retired: Retired::default() }
    }

    /// An arena on the host's heap, which is leaked. Bus addresses are the host's addresses, as device models use them.
    pub fn on_heap(len: usize) -> Self {
        let memory = alloc::vec![0u128; len.div_ceil(16)].leak();
        let start = core::ptr::NonNull::from(memory).cast::<u8>();
        // SAFETY: leaked, so mapped for ever, and the only reference was just given up.
        Arena::new(unsafe { Window::from_raw(start, start.as_ptr() as u64, len) })
    }

    /// Another handle of the same arena, for another loop.
    pub fn share(&self) -> Self {
        Arena { all: self.all, free: self.free.clone(), retired: Retired::default() }
    }

    /// Allocates `len` bytes, whose bus address is aligned to `align` (a power of two). None if no free stretch is
    /// large enough. The memory keeps its old contents, because zeroing gigabytes would delay the boot.
    pub fn alloc(&mut self, len: usize, align: usize) -> Option<Window> {
        assert!(align.is_power_of_two(), "alignment must be a power of two");
        let whole = len.max(1).checked_next_multiple_of(GRAIN)?;
        let align = align.max(GRAIN) as u64;
        let start = self.free.lock().take(self.all.bus_address(), whole, align)?;
        self.window(start, len)
    }

    /// Whether [`Arena::alloc`] would succeed. A trial allocation could not tell: freeing it would wait for ports.
    pub fn has_room(&self, len: usize, align: usize) -> bool {
        let whole = len.max(1).checked_next_multiple_of(GRAIN);
        let align = align.max(GRAIN) as u64;
        let find = |whole| self.free.lock().find(self.all.bus_address(), whole, align);
        whole.and_then(find).is_some()
    }

    /// As [`Arena::alloc`], from the other end. For allocations of many sizes that an operator makes and frees, so that
    /// they do not fragment the end from which sessions, all of one size, are allocated.
    pub fn alloc_from_end(&mut self, len: usize, align: usize) -> Option<Window> {
        assert!(align.is_power_of_two(), "alignment must be a power of two");
        let whole = len.max(1).checked_next_multiple_of(GRAIN)?;
        let align = align.max(GRAIN) as u64;
        let start = self.free.lock().take_last(self.all.bus_address(), whole, align)?;
        self.window(start, len)
    }

    fn window(&self, start: usize, len: usize) -> Option<Window> {
        // Not a byte more: peers may access all of a registered window.
        let window = self.all.slice(start, len)?;
        unpoison(&window);
        Some(window)
    }

    /// From now on a window that is freed through this handle stays allocated until `ports` ports have sent all frames
    /// that may refer to it ([`Arena::note_progress`]).
    pub fn wait_for_ports(&mut self, ports: usize) {
        self.retired = Retired::new(ports, 0);
    }

    /// Whether a freed window waits for a port.
    #[inline]
    pub fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Frees windows that `port` no longer sends from. Call it for the ports in their order.
    pub fn note_progress(&mut self, port: usize, progress: TransmitProgress) {
        let mut retired = core::mem::take(&mut self.retired);
        retired.note(port, progress, |window| self.release(window));
        self.retired = retired;
    }

    /// Frees a window that `alloc` returned (the whole window, once).
    pub fn free(&mut self, window: Window) {
        if let Some(window) = self.retired.put(window, Through::Any) {
            self.release(window);
        }
    }

    fn release(&mut self, window: Window) {
        let start = (window.bus_address() - self.all.bus_address()) as usize;
        let whole = window.len().max(1).next_multiple_of(GRAIN);
        assert!(start + whole <= self.all.len(), "window is not of this arena");
        poison(&window);
        self.free.lock().release(start, whole);
    }

    /// Size in bytes.
    pub fn capacity(&self) -> usize {
        self.all.len()
    }

    /// Free bytes (perhaps in several stretches).
    pub fn available(&self) -> usize {
        self.free.lock().0.iter().map(|&(_, l)| l).sum()
    }
}

impl FreeList {
    /// The first stretch that has room for `len` bytes: its index, and how many of its bytes remain before and behind
    /// them.
    fn find(&self, base: u64, len: usize, align: u64) -> Option<(usize, usize, usize)> {
        self.0.iter().enumerate().find_map(|(at, &(start, size))| {
            let bus = base + start as u64;
            let skip = (bus.next_multiple_of(align) - bus) as usize;
            Some((at, skip, size.checked_sub(skip)?.checked_sub(len)?))
        })
    }

    /// Allocates `len` bytes and returns their offset; `base` is the bus address of offset 0.
    fn take(&mut self, base: u64, len: usize, align: u64) -> Option<usize> {
        let (at, skip, rest) = self.find(base, len, align)?;
        let free = &mut self.0;
        let (start, _) = free.remove(at);
        if rest > 0 {
            free.insert(at, (start + skip + len, rest));
        }
        if skip > 0 {
            free.insert(at, (start, skip));
        }
        Some(start + skip)
    }

    /// As [`FreeList::take`], as near to the end as possible.
    fn take_last(&mut self, base: u64, len: usize, align: u64) -> Option<usize> {
        let free = &mut self.0;
        for i in (0..free.len()).rev() {
            let (start, size) = free[i];
            let Some(last) = size.checked_sub(len) else { continue };
            let bus = base + (start + last) as u64;
            let Some(before) = last.checked_sub((bus % align) as usize) else { continue };
            free.remove(i);
            let rest = last - before;
            if rest > 0 {
                free.insert(i, (start + before + len, rest));
            }
            if before > 0 {
                free.insert(i, (start, before));
            }
            return Some(start + before);
        }
        None
    }

    fn release(&mut self, start: usize, len: usize) {
        let (free, end) = (&mut self.0, start + len);
        let at = free.partition_point(|&(s, _)| s < start);
        let joins_next = free.get(at).is_some_and(|&(s, _)| s == end);
        assert!(free.get(at).is_none_or(|&(s, _)| s >= end), "window was free already");
        let joins_last = at > 0 && {
            let (s, l) = free[at - 1];
            assert!(s + l <= start, "window was free already");
            s + l == start
        };
        match (joins_last, joins_next) {
            (true, true) => {
                free[at - 1].1 += len + free[at].1;
                free.remove(at);
            }
            (true, false) => free[at - 1].1 += len,
            (false, true) => {
                free[at].0 = start;
                free[at].1 += len;
            }
            (false, false) => free.insert(at, (start, len)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freeing_every_window_merges_the_free_list() {
        let mut arena = Arena::on_heap(1 << 16);
        let before = arena.free.lock().0.clone();
        let mut taken: Vec<Window> =
            (1..40).filter_map(|n| arena.alloc(n * 37, 64 << (n % 4))).collect();
        assert!(taken.len() > 20);
        let mut order = 7usize;
        while !taken.is_empty() {
            order = order.wrapping_mul(31) + 11;
            arena.free(taken.swap_remove(order % taken.len()));
        }
        assert_eq!(arena.free.lock().0, before);
    }

    #[test]
    fn alloc_from_end_leaves_the_places_of_sessions_free() {
        let mut arena = Arena::on_heap(72 << 10);
        let before = arena.free.lock().0.clone();
        let session = |arena: &mut Arena| arena.alloc(3 << 12, 4096);
        let mut sessions: Vec<Window> = (0..2).filter_map(|_| session(&mut arena)).collect();
        let small = arena.alloc_from_end(100, 4096).unwrap();
        let large = arena.alloc_from_end(5 << 12, 4096).unwrap();
        assert!(
            small.bus_address().is_multiple_of(4096) && large.bus_address().is_multiple_of(4096)
        );
        assert!(large.bus_address() < small.bus_address());
        arena.free(small);
        arena.free(sessions.remove(0));
        let other = arena.alloc_from_end(2 << 12, 64).unwrap();
        // There is room for two more sessions: one between the others, one behind them.
        sessions.extend((0..2).filter_map(|_| session(&mut arena)));
        assert_eq!(sessions.len(), 3);
        assert!(arena.alloc_from_end(1 << 17, 64).is_none());
        for window in sessions.into_iter().chain([large, other]) {
            arena.free(window);
        }
        assert_eq!(arena.free.lock().0, before);
    }

    #[test]
    fn freed_window_waits_for_ports_that_may_send_it() {
        let mut arena = Arena::on_heap(1 << 13);
        arena.wait_for_ports(1);
        let other = arena.share();
        let window = arena.alloc(1 << 12, 64).unwrap();
        let left = other.available();
        // `has_room` allocates nothing.
        assert!(arena.has_room(1 << 11, 64) && !arena.has_room(left + 1, 64));
        assert!(!arena.has_retired() && other.available() == left);
        arena.free(window);
        assert!(arena.has_retired() && other.available() == left);
        arena.note_progress(0, TransmitProgress { queued: 2, sent: 1 });
        assert!(arena.has_retired() && other.available() == left);
        arena.note_progress(0, TransmitProgress { queued: 3, sent: 2 });
        assert!(!arena.has_retired() && other.available() == left + (1 << 12));
    }

    #[test]
    fn windows_do_not_overlap_and_are_aligned() {
        let mut arena = Arena::on_heap(1 << 16);
        let a = arena.alloc(100, 4096).unwrap();
        let b = arena.alloc(100, 4096).unwrap();
        assert_eq!(a.bus_address() % 4096, 0);
        assert_eq!(b.bus_address() % 4096, 0);
        a.fill(1);
        b.fill(2);
        let mut byte = [0];
        a.read(99, &mut byte).unwrap();
        assert_eq!(byte, [1]);
        assert!(arena.alloc(1 << 17, 64).is_none());
    }
}
