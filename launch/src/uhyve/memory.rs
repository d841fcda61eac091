//! The memory below an image with a fixed address, as uhyve 0.10 prepares it (its `src/arch/x86_64`, `src/fdt.rs`,
//! `src/vm.rs`): segments, a device tree, boot information (hermit-entry, entry version 4), page tables.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::build::uhyve::Loaded;

/// Bytes of that memory: an image cannot begin below.
pub const LOW: usize = 0x4_0000;

const TREE: usize = 0x1000;
const BOOT_INFO: usize = 0x5000;
const TOP_TABLE: usize = 0x1_0000;
const TABLES: usize = 0x1_1000;

/// A machine, as uhyve's command line describes it.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Bytes of memory.
    pub memory: u64,
    /// Processors.
    pub processors: u32,
    /// The arguments after `--`.
    pub arguments: Vec<String>,
}

impl Default for Machine {
    /// uhyve's default memory, and one processor.
    fn default() -> Self {
        Machine { memory: 64 << 20, processors: 1, arguments: Vec::new() }
    }
}

/// The memory below the image.
pub fn low(machine: &Machine, image: &Loaded) -> Vec<u8> {
    let mut memory = vec![0; LOW];
    let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
    for (n, segment) in [0u64, 0xaf_9b00_0000_ffff, 0xcf_9300_0000_ffff].into_iter().enumerate() {
        put(n * 8, &segment.to_le_bytes());
    }
    let khz = tsc_khz();
    put(TREE, &tree(machine, khz));
    put(BOOT_INFO, &boot_info(machine, image, khz));

    const PRESENT_WRITABLE: u64 = 3;
    const LARGE: u64 = 1 << 7;
    let mut entry = |table: usize, index: usize, value: u64| {
        put(table + index * 8, &value.to_le_bytes());
    };
    entry(TOP_TABLE, 511, TOP_TABLE as u64 | PRESENT_WRITABLE);
    entry(TOP_TABLE, 0, TABLES as u64 | PRESENT_WRITABLE);
    entry(TABLES, 0, (TABLES + 0x1000) as u64 | PRESENT_WRITABLE);
    // uhyve maps the whole gibibyte around an image that does not state Hermit's version.
    for index in 0..512 {
        let frame = (index as u64) << 21;
        entry(TABLES + 0x1000, index, frame | PRESENT_WRITABLE | LARGE);
    }
    memory
}

/// The frequency of this machine's time-stamp counter, which QEMU passes through under translation.
fn tsc_khz() -> u32 {
    // SAFETY: every x86-64 CPU has the instruction.
    let ticks = || unsafe { core::arch::x86_64::_rdtsc() };
    let (begin, from) = (Instant::now(), ticks());
    std::thread::sleep(Duration::from_millis(50));
    let (took, passed) = (begin.elapsed(), ticks() - from);
    (u128::from(passed) * 1_000_000 / took.as_nanos()) as u32
}

/// `RawBootInfo`, field by field.
fn boot_info(machine: &Machine, image: &Loaded, khz: u32) -> Vec<u8> {
    const UHYVE: u64 = 1;
    const UART: u64 = 0x800;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let end = image.start + image.memory.len() as u64;
    let [tls, filled, len, align] = image.tls;
    let words = [
        0,
        machine.memory,
        UART,
        TREE as u64,
        image.start,
        end,
        tls,
        filled,
        len,
        align,
        UHYVE,
        // The machine has PCI.
        1,
        machine.processors.into(),
        khz.into(),
        now as u64,
        (now >> 64) as u64,
    ];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The device tree.
fn tree(machine: &Machine, khz: u32) -> Vec<u8> {
    let mut tree = Tree::default();
    tree.node("");
    tree.property("compatible", b"hermit,uhyve\0");
    tree.property("#address-cells", &2u32.to_be_bytes());
    tree.property("#size-cells", &2u32.to_be_bytes());
    tree.node("memory@0");
    tree.property("device_type", b"memory\0");
    tree.property("reg", &[0u64.to_be_bytes(), machine.memory.to_be_bytes()].concat());
    tree.end();
    tree.node("cpus");
    tree.property("#address-cells", &1u32.to_be_bytes());
    tree.property("#size-cells", &0u32.to_be_bytes());
    for number in 0..machine.processors {
        tree.node(&format!("cpu@{number}"));
        tree.property("device_type", b"cpu\0");
        tree.end();
    }
    tree.end();
    tree.node("hermit,tsc");
    tree.property("khz", &khz.to_be_bytes());
    tree.end();
    tree.node("chosen");
    tree.property("bootargs", format!("{}\0", machine.arguments.join(" ")).as_bytes());
    tree.end();
    tree.end();
    tree.finish()
}

/// A device tree that is being written (Devicetree specification 0.4, chapter 5).
#[derive(Default)]
struct Tree {
    structure: Vec<u8>,
    strings: Vec<u8>,
}

impl Tree {
    fn word(&mut self, word: u32) {
        self.structure.extend(word.to_be_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.structure.extend(bytes);
        self.structure.resize(self.structure.len().next_multiple_of(4), 0);
    }

    fn node(&mut self, name: &str) {
        self.word(1);
        self.bytes(format!("{name}\0").as_bytes());
    }

    fn end(&mut self) {
        self.word(2);
    }

    fn property(&mut self, name: &str, value: &[u8]) {
        for word in [3, value.len() as u32, self.strings.len() as u32] {
            self.word(word);
        }
        self.strings.extend(format!("{name}\0").as_bytes());
        self.bytes(value);
    }

    fn finish(mut self) -> Vec<u8> {
        const HEADER: usize = 40 + 16;
        self.word(9);
        let (structure, strings) = (self.structure.len(), self.strings.len());
        let total = HEADER + structure + strings;
        let words =
            [0xd00d_feed, total, HEADER, HEADER + structure, 40, 17, 16, 0, strings, structure];
        let mut tree: Vec<u8> =
            words.iter().flat_map(|&word| (word as u32).to_be_bytes()).collect();
        tree.resize(HEADER, 0);
        tree.extend(self.structure);
        tree.extend(self.strings);
        tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hermit_entry::boot_info::{BootInfo, PlatformInfo, RawBootInfo};

    #[test]
    fn boot_info_is_parsed_by_hermit_entry() {
        let machine = Machine { memory: 96 << 20, processors: 3, arguments: Vec::new() };
        let tls = [0x30_0000, 8, 64, 16];
        let image =
            Loaded { memory: vec![0; 0x1000], start: 0x20_0000, entry_point: 0x20_0040, tls };
        let bytes = boot_info(&machine, &image, 2_600_000);
        assert!(bytes.len() <= size_of::<RawBootInfo>().next_multiple_of(8));
        // SAFETY: `bytes` has as many bytes as `RawBootInfo`, and every field gets a valid value.
        let raw = unsafe { bytes.as_ptr().cast::<RawBootInfo>().read_unaligned() };
        let info = BootInfo::from(raw);
        assert_eq!(info.hardware_info.phys_addr_range, 0..96 << 20);
        assert_eq!(info.hardware_info.device_tree.unwrap().get(), TREE as u64);
        assert_eq!(info.load_info.kernel_image_addr_range, 0x20_0000..0x20_1000);
        assert_eq!(info.load_info.tls_info.unwrap().memsz, 64);
        let PlatformInfo::Uhyve { has_pci, num_cpus, cpu_freq, .. } = info.platform_info else {
            panic!("{info:?}")
        };
        assert_eq!((has_pci, num_cpus.get(), cpu_freq.unwrap().get()), (true, 3, 2_600_000));
    }
}
