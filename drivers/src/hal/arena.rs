//! The arena: all DMA memory of the machine, handed out in windows. Its books are kept outside
//! of it, so that nothing a device writes can confuse them.

use super::Window;
use alloc::vec::Vec;

/// Every allocation is a multiple of this, so that neighbours share no cache line.
const GRAIN: usize = 64;

/// An allocator of windows over one contiguous stretch of DMA memory: first fit, free stretches
/// kept sorted and merged. Not for the data path; pools take what they need at set-up.
#[derive(Debug)]
pub struct Arena {
    all: Window,
    /// (offset, length), sorted by offset, no two adjacent.
    free: Vec<(usize, usize)>,
}

impl Arena {
    /// An arena over all of `memory`.
    pub fn new(memory: Window) -> Self {
        Arena { all: memory, free: alloc::vec![(0, memory.len())] }
    }

    /// An arena on the host's heap, never given back; devices of a model use its own addresses.
    pub fn on_heap(len: usize) -> Self {
        let memory = alloc::vec![0u128; len.div_ceil(16)].leak();
        let start = core::ptr::NonNull::from(memory).cast::<u8>();
        // SAFETY: leaked, so mapped for ever, and the only reference was just given up.
        Arena::new(unsafe { Window::from_raw(start, start.as_ptr() as u64, len) })
    }

    /// `len` bytes, aligned to `align` (a power of two) for devices, or None if there is no stretch
    /// that large. They hold whatever was there before: zeroing gigabytes would hold a boot up.
    pub fn alloc(&mut self, len: usize, align: usize) -> Option<Window> {
        assert!(align.is_power_of_two(), "alignment must be a power of two");
        let len = len.max(1).checked_next_multiple_of(GRAIN)?;
        let align = align.max(GRAIN) as u64;
        for i in 0..self.free.len() {
            let (start, size) = self.free[i];
            let bus = self.all.bus_address() + start as u64;
            let skip = (bus.next_multiple_of(align) - bus) as usize;
            let Some(rest) = size.checked_sub(skip).and_then(|s| s.checked_sub(len)) else {
                continue;
            };
            self.free.remove(i);
            if rest > 0 {
                self.free.insert(i, (start + skip + len, rest));
            }
            if skip > 0 {
                self.free.insert(i, (start, skip));
            }
            return self.all.slice(start + skip, len);
        }
        None
    }

    /// Gives back what `alloc` handed out (the whole window, once).
    pub fn free(&mut self, window: Window) {
        let start = (window.bus_address() - self.all.bus_address()) as usize;
        let end = start + window.len();
        assert!(end <= self.all.len(), "window is not of this arena");
        let at = self.free.partition_point(|&(s, _)| s < start);
        let joins_next = self.free.get(at).is_some_and(|&(s, _)| s == end);
        assert!(self.free.get(at).is_none_or(|&(s, _)| s >= end), "window was free already");
        let joins_last = at > 0 && {
            let (s, l) = self.free[at - 1];
            assert!(s + l <= start, "window was free already");
            s + l == start
        };
        match (joins_last, joins_next) {
            (true, true) => {
                self.free[at - 1].1 += window.len() + self.free[at].1;
                self.free.remove(at);
            }
            (true, false) => self.free[at - 1].1 += window.len(),
            (false, true) => {
                self.free[at].0 = start;
                self.free[at].1 += window.len();
            }
            (false, false) => self.free.insert(at, (start, window.len())),
        }
    }

    /// Bytes in all.
    pub fn capacity(&self) -> usize {
        self.all.len()
    }

    /// Bytes that are free (perhaps in several stretches).
    pub fn available(&self) -> usize {
        self.free.iter().map(|&(_, l)| l).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_given_back_is_one_stretch_again() {
        let mut arena = Arena::on_heap(1 << 16);
        let before = arena.free.clone();
        let mut taken: Vec<Window> =
            (1..40).filter_map(|n| arena.alloc(n * 37, 64 << (n % 4))).collect();
        assert!(taken.len() > 20);
        let mut order = 7usize;
        while !taken.is_empty() {
            order = order.wrapping_mul(31) + 11;
            arena.free(taken.swap_remove(order % taken.len()));
        }
        assert_eq!(arena.free, before);
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
