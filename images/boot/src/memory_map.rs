//! The memory map: what is where in physical memory, in a table of fixed size (there is no heap yet).

/// What a region is, as in an E820 map, which PVH and Multiboot2 both use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Kind(pub u32);

impl Kind {
    /// Memory that the kernel may use.
    pub const RAM: Kind = Kind(1);
    /// Not for us; there may be device registers behind it.
    pub const RESERVED: Kind = Kind(2);
    /// Memory that the stub keeps from the kernel: the arena and its page tables.
    pub const KEPT: Kind = Kind(0x1000);
    /// Memory that is not used: the kernel takes only so many regions.
    pub const UNUSED: Kind = Kind(0x1001);

    /// Whether there is memory behind it (and not device registers).
    pub fn is_memory(self) -> bool {
        self != Kind::RESERVED
    }
}

/// `start..end` in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Region {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// What it is.
    pub kind: Kind,
}

impl Region {
    /// Nothing.
    pub const NOWHERE: Region = Region { start: 0, end: 0, kind: Kind::UNUSED };

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How large the arena shall be, and where it may lie.
#[derive(Clone, Copy, Debug)]
pub struct ArenaRequest {
    /// Bytes asked for on the command line; `None` lets the size follow the memory.
    pub bytes: Option<u64>,
    /// End of the image: what lies below (in the same region) is not for the arena.
    pub image_end: u64,
}

/// The arena starts and ends at a multiple of this: it is mapped with large pages.
pub(crate) const LARGE_PAGE: u64 = 2 << 20;
/// What the kernel needs beside the image: page tables, stacks and heap.
const KERNEL_SHARE: u64 = 12 << 20;
/// Up to this much memory the arena has its smallest size; above, all but what is left for the heap.
const SMALL_MACHINE: u64 = 48 << 20;
/// What is left for the heap: an eighth of the memory, within these bounds.
const SMALLEST_HEAP: u64 = 24 << 20;
const LARGEST_HEAP: u64 = 512 << 20;
const SMALLEST_ARENA: u64 = 6 << 20;
/// Identity mapping ends where the first entry of the top page table does.
const HIGHEST: u64 = 512 << 30;

/// A memory map of up to [`MemoryMap::CAPACITY`] regions; more are dropped, which only loses memory.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct MemoryMap {
    regions: [Region; Self::CAPACITY],
    len: usize,
}

impl Default for MemoryMap {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryMap {
    /// Most regions.
    pub const CAPACITY: usize = 128;

    /// An empty map.
    pub const fn new() -> Self {
        MemoryMap { regions: [Region::NOWHERE; Self::CAPACITY], len: 0 }
    }

    /// All regions; in ascending order after [`MemoryMap::hand_over`].
    pub fn regions(&self) -> &[Region] {
        &self.regions[..self.len.min(Self::CAPACITY)]
    }

    /// The regions that the kernel may use.
    pub fn ram(&self) -> impl Iterator<Item = &Region> {
        self.regions().iter().filter(|r| r.kind == Kind::RAM)
    }

    /// Adds a region.
    pub fn push(&mut self, start: u64, end: u64, kind: Kind) {
        if start < end && self.len < Self::CAPACITY {
            self.regions[self.len] = Region { start, end, kind };
            self.len += 1;
        }
    }

    /// Takes `start..end` out of the memory that the kernel may use.
    pub fn keep(&mut self, start: u64, end: u64) {
        for i in 0..self.len {
            let region = self.regions[i];
            if region.kind != Kind::RAM || start >= region.end || end <= region.start {
                continue;
            }
            if start > region.start {
                self.regions[i].end = start;
                self.push(end, region.end, Kind::RAM);
            } else {
                self.regions[i].start = end.min(region.end);
                if self.regions[i].is_empty() {
                    self.regions[i].kind = Kind::UNUSED;
                }
            }
        }
        self.push(start, end, Kind::KEPT);
    }

    /// Bytes of RAM that the kernel may use.
    pub fn total(&self) -> u64 {
        self.ram().map(Region::len).sum()
    }

    /// Takes the arena out of the largest region and returns it. Its size is what was asked for, as far
    /// as the kernel keeps what it needs, else all but the heap's share (little on small machines).
    pub fn keep_arena(&mut self, request: &ArenaRequest) -> Option<Region> {
        let usable = |r: &Region| {
            let above = if r.start < request.image_end { request.image_end } else { r.start };
            let start = above.next_multiple_of(LARGE_PAGE);
            let end = r.end.min(HIGHEST) & !(LARGE_PAGE - 1);
            Region { start, end: end.max(start), kind: Kind::KEPT }
        };
        let best = self.ram().max_by_key(|r| usable(r).len()).copied()?;
        let room = usable(&best);
        let rest = self.total() - best.len();
        let low = best.start < 4 << 30;
        let heap = match self.total() {
            0..SMALL_MACHINE => KERNEL_SHARE,
            large => (large / 8).clamp(SMALLEST_HEAP, LARGEST_HEAP),
        };
        let for_kernel = if low || rest < KERNEL_SHARE + request.image_end {
            if request.bytes.is_some() { KERNEL_SHARE } else { heap }
        } else {
            0
        };
        let wanted = request.bytes.unwrap_or_else(|| match self.total() {
            0..SMALL_MACHINE => SMALLEST_ARENA,
            large => large - heap,
        });
        let most = room.len().saturating_sub(for_kernel);
        let size = wanted.min(most) & !(LARGE_PAGE - 1);
        if size == 0 {
            return None;
        }
        let arena = Region { start: room.end - size, ..room };
        self.keep(arena.start, arena.end);
        if low {
            self.withhold_above_4g();
        }
        Some(arena)
    }

    /// Where the arena leaves little below 4 GiB, the kernel would use that up for its heap, and then
    /// take frames for page tables from above, which it has not mapped yet.
    fn withhold_above_4g(&mut self) {
        for region in &mut self.regions[..self.len] {
            if region.kind == Kind::RAM && region.start >= 4 << 30 {
                region.kind = Kind::UNUSED;
            }
        }
    }

    /// Takes `pages` pages out of the highest RAM below 4 GiB, for page tables.
    #[cfg(feature = "stub")]
    pub(crate) fn keep_pages_below_4g(&mut self, pages: u64) -> Option<u64> {
        let size = pages * 4096;
        let region = *self.ram().filter(|r| r.end <= 1 << 32 && r.len() > size).last()?;
        let start = (region.end & !4095).checked_sub(size).filter(|&s| s > region.start)?;
        self.keep(start, start + size);
        Some(start)
    }

    /// Brings the map into the form the kernel wants: ascending (it takes page tables from the first
    /// region, which must be mapped already), and at most `limit` regions of RAM, the largest ones.
    pub fn hand_over(&mut self, limit: usize) {
        let len = self.len.min(Self::CAPACITY);
        let regions = &mut self.regions[..len];
        // Few, and mostly in order: not worth the library's sort, which is 3 KB of the image.
        for end in 1..regions.len() {
            for at in (1..=end).rev() {
                if regions[at - 1].start <= regions[at].start {
                    break;
                }
                regions.swap(at - 1, at);
            }
        }
        while regions.iter().filter(|r| r.kind == Kind::RAM).count() > limit {
            let smallest =
                regions.iter_mut().filter(|r| r.kind == Kind::RAM).min_by_key(|r| r.len());
            if let Some(region) = smallest {
                region.kind = Kind::UNUSED;
            }
        }
    }
}

/// A size such as `64M`, `64MiB` or `67108864`; `None` if it is not one.
pub fn parse_size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const IMAGE_END: u64 = 4 << 20;

    fn machine(low: u64, high: u64) -> MemoryMap {
        let mut map = MemoryMap::new();
        map.push(0, 0x9_fc00, Kind::RAM);
        map.push(0xf_0000, 0x10_0000, Kind::RESERVED);
        map.push(0x10_0000, low, Kind::RAM);
        map.push(4 << 30, (4 << 30) + high, Kind::RAM);
        map
    }

    fn arena(map: &mut MemoryMap, bytes: Option<u64>) -> Option<Region> {
        map.keep_arena(&ArenaRequest { bytes, image_end: IMAGE_END })
    }

    #[test]
    fn a_small_machine_has_a_small_arena() {
        let arena = arena(&mut machine(24 << 20, 0), None).unwrap();
        assert_eq!((arena.start, arena.end), (18 << 20, 24 << 20));
    }

    #[test]
    fn a_machine_too_small_has_no_arena() {
        assert_eq!(arena(&mut machine(16 << 20, 0), None), None);
    }

    #[test]
    fn most_of_a_large_machine_lies_in_its_largest_region() {
        let mut map = machine(2 << 30, 6 << 30);
        let arena = arena(&mut map, None).unwrap();
        assert_eq!(arena.end, 10 << 30);
        assert!(arena.len() >> 20 >= 4090, "{arena:?}");
        assert!(map.total() >= 512 << 20);
    }

    #[test]
    fn an_arena_below_4_gib_leaves_the_kernel_no_memory_above() {
        let mut map = machine(3 << 30, 1 << 30);
        map.keep(2 << 20, IMAGE_END);
        let arena = arena(&mut map, None).unwrap();
        assert_eq!(arena.end, 3 << 30);
        assert!(map.ram().all(|r| r.end <= 4 << 30), "{map:?}");
        assert!(map.total() >= 500 << 20);
    }

    #[test]
    fn what_is_asked_for_is_cut_where_the_kernel_needs_it() {
        let arena = arena(&mut machine(64 << 20, 0), Some(1 << 40)).unwrap();
        assert_eq!(arena.len(), (64 << 20) - IMAGE_END - KERNEL_SHARE);
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("64M"), Some(64 << 20));
        assert_eq!(parse_size("2GiB"), Some(2 << 30));
        assert_eq!(parse_size("4096"), Some(4096));
        for bad in ["", "M", "x", "1T", "-1", "99999999999G"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn kept_memory_is_never_handed_over(
            raw in prop::collection::vec((0u64..1 << 34, 1u64..1 << 32), 1..80),
            keeps in prop::collection::vec((0u64..1 << 34, 1u64..1 << 30), 0..8),
            bytes in prop::option::of(0u64..1 << 36),
        ) {
            let mut map = MemoryMap::new();
            let mut at = 0;
            for (gap, len) in raw {
                let start = at + gap;
                map.push(start, start + len, Kind::RAM);
                at = start + len;
            }
            let before = map.total();
            for &(start, len) in &keeps {
                map.keep(start, start + len);
            }
            let arena = arena(&mut map, bytes);
            map.hand_over(8);
            prop_assert!(map.total() <= before);
            prop_assert!(map.ram().count() <= 8);
            let ram: Vec<Region> = map.ram().copied().collect();
            prop_assert!(ram.windows(2).all(|w| w[0].end <= w[1].start));
            let kept = keeps.iter().map(|&(s, l)| (s, s + l));
            for (start, end) in kept.chain(arena.map(|a| (a.start, a.end))) {
                prop_assert!(ram.iter().all(|r| r.end <= start || r.start >= end));
            }
            if let Some(arena) = arena {
                prop_assert!(arena.start % LARGE_PAGE == 0 && arena.end % LARGE_PAGE == 0);
                prop_assert!(arena.start >= IMAGE_END);
            }
        }
    }
}
