//! The map of physical memory, in a table of fixed size (there is no heap yet).

/// Kind of a region, as in an E820 map, which PVH and Multiboot2 both use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Kind(pub u32);

impl Kind {
    /// Memory that the kernel may use.
    pub const RAM: Kind = Kind(1);
    /// Reserved; it may contain device registers.
    pub const RESERVED: Kind = Kind(2);
    /// Memory that the stub reserves: the arena, its page tables, and the image.
    pub const KEPT: Kind = Kind(0x1000);
    /// Unused memory, because the kernel supports a limited number of regions.
    pub const UNUSED: Kind = Kind(0x1001);

    /// Whether it is memory, and not device registers.
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
    /// Its kind.
    pub kind: Kind,
}

impl Region {
    /// An empty region.
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

/// Wanted size of the arena, and limit of its location.
#[derive(Clone, Copy, Debug)]
pub struct ArenaRequest {
    /// Bytes from the command line; `None` if the size depends on the memory.
    pub bytes: Option<u64>,
    /// End of the image. The arena must not lie below it in the same region.
    pub image_end: u64,
}

/// Alignment of the arena, because it is mapped with large pages.
pub(crate) const LARGE_PAGE: u64 = 2 << 20;
/// Memory that the kernel needs in addition to the image: page tables, stacks and heap.
const KERNEL_SHARE: u64 = 12 << 20;
/// With less memory than this, the arena has its smallest size; with more, all but the heap's share.
const SMALL_MACHINE: u64 = 48 << 20;
// Bounds of the heap's share, which is an eighth of the memory.
const SMALLEST_HEAP: u64 = 24 << 20;
const LARGEST_HEAP: u64 = 512 << 20;
const SMALLEST_ARENA: u64 = 6 << 20;
/// End of the identity mapping, which has one entry of the top page table.
const HIGHEST: u64 = 512 << 30;

/// A memory map of up to [`MemoryMap::CAPACITY`] regions. More are dropped, and their memory is not used.
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

    /// Removes `start..end` from the memory that the kernel may use.
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

    /// Reserves the arena in the largest region and returns it. Its size is the requested one, reduced if
    /// the kernel needs the memory. Without a request it is all but the heap's share, or the minimum on small machines.
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

    /// Marks RAM above 4 GiB as unused. If the arena leaves little below 4 GiB, the kernel would use that up for its
    /// heap, and then allocate frames for page tables above, where they are not mapped yet.
    fn withhold_above_4g(&mut self) {
        for region in &mut self.regions[..self.len] {
            if region.kind == Kind::RAM && region.start >= 4 << 30 {
                region.kind = Kind::UNUSED;
            }
        }
    }

    /// Reserves `pages` pages at the end of the highest RAM below 4 GiB, for page tables.
    #[cfg(feature = "stub")]
    pub(crate) fn keep_pages_below_4g(&mut self, pages: u64) -> Option<u64> {
        let size = pages * 4096;
        let region = *self.ram().filter(|r| r.end <= 1 << 32 && r.len() > size).last()?;
        let start = (region.end & !4095).checked_sub(size).filter(|&s| s > region.start)?;
        self.keep(start, start + size);
        Some(start)
    }

    /// Converts the map for the kernel: in ascending order (the kernel allocates page tables in the first
    /// region, which must be mapped already), and with at most `limit` regions of RAM, the largest ones.
    pub fn hand_over(&mut self, limit: usize) {
        let len = self.len.min(Self::CAPACITY);
        let regions = &mut self.regions[..len];
        regions.sort_unstable_by_key(|region| region.start);
        while regions.iter().filter(|r| r.kind == Kind::RAM).count() > limit {
            let smallest =
                regions.iter_mut().filter(|r| r.kind == Kind::RAM).min_by_key(|r| r.len());
            if let Some(region) = smallest {
                region.kind = Kind::UNUSED;
            }
        }
    }
}

/// Parses a size such as `64M`, `64MiB` or `67108864`.
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
    fn arena_of_a_large_machine_is_in_its_largest_region() {
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
    fn requested_arena_is_reduced_to_the_kernels_needs() {
        let arena = arena(&mut machine(64 << 20, 0), Some(1 << 40)).unwrap();
        assert_eq!(arena.len(), (64 << 20) - IMAGE_END - KERNEL_SHARE);
    }

    #[test]
    fn parse_size_accepts_units_and_rejects_others() {
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
