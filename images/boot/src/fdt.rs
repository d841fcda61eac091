//! Writer of the device tree that describes the machine to the kernel (Devicetree specification 0.4, chapter 5),
//! with the few nodes that Hermit reads.

use crate::BootInfo;
use core::fmt::{self, Write};

const STRINGS: &[u8] = b"compatible\0#address-cells\0#size-cells\0device_type\0reg\0khz\0";
const COMPATIBLE: u32 = 0;
const ADDRESS_CELLS: u32 = 11;
const SIZE_CELLS: u32 = 26;
const DEVICE_TYPE: u32 = 38;
const REG: u32 = 50;
const KHZ: u32 = 54;

const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROP: u32 = 3;
const END: u32 = 9;

/// Header (10 words) and an empty list of reservations (2 double words).
const STRUCTURE: usize = 40 + 16;

/// Buffer for the tree: eight regions take about 700 bytes.
pub type Buffer = [u8; 2048];

/// Writes the tree. `hermit,multiboot` makes the kernel use all regions and its own page tables.
pub fn write(buffer: &mut Buffer, boot: &BootInfo) {
    let mut tree = Writer { buffer, at: STRUCTURE };
    tree.node(format_args!(""));
    tree.property(COMPATIBLE, b"hermit,multiboot\0");
    tree.property(ADDRESS_CELLS, &2u32.to_be_bytes());
    tree.property(SIZE_CELLS, &2u32.to_be_bytes());
    for region in boot.memory.ram() {
        tree.node(format_args!("memory@{:x}", region.start));
        tree.property(DEVICE_TYPE, b"memory\0");
        tree.reg(region.start, region.len());
        tree.word(END_NODE);
    }
    if boot.rsdp != 0 {
        tree.node(format_args!("hermit,rsdp@{:x}", boot.rsdp));
        tree.reg(boot.rsdp, 1);
        tree.word(END_NODE);
    }
    tree.node(format_args!("hermit,tsc"));
    tree.property(KHZ, &(boot.tsc_khz as u32).to_be_bytes());
    tree.word(END_NODE);
    tree.node(format_args!("chosen"));
    tree.word(END_NODE);
    tree.word(END_NODE);
    tree.word(END);

    let (strings, structure_len) = (tree.at, tree.at - STRUCTURE);
    tree.bytes(STRINGS);
    let total = tree.at;
    tree.at = 0;
    let sizes = [total, STRUCTURE, strings, 40, 17, 16, 0, STRINGS.len(), structure_len];
    tree.word(0xd00d_feed);
    for size in sizes {
        tree.word(size as u32);
    }
}

struct Writer<'a> {
    buffer: &'a mut Buffer,
    at: usize,
}

impl Writer<'_> {
    fn word(&mut self, word: u32) {
        self.raw(&word.to_be_bytes());
    }

    /// Bytes, padded to a whole word.
    fn bytes(&mut self, bytes: &[u8]) {
        self.raw(bytes);
        self.at = self.at.next_multiple_of(4);
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.buffer[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn node(&mut self, name: fmt::Arguments) {
        self.word(BEGIN_NODE);
        // Writing into the buffer cannot fail.
        let _ = self.write_fmt(name);
        self.bytes(&[0]);
    }

    fn property(&mut self, name: u32, value: &[u8]) {
        self.word(PROP);
        self.word(value.len() as u32);
        self.word(name);
        self.bytes(value);
    }

    fn reg(&mut self, address: u64, size: u64) {
        let mut value = [0; 16];
        value[..8].copy_from_slice(&address.to_be_bytes());
        value[8..].copy_from_slice(&size.to_be_bytes());
        self.property(REG, &value);
    }
}

impl Write for Writer<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.raw(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use std::vec::Vec;

    /// Parses the tree with the crate that the kernel uses.
    #[test]
    fn kernels_parser_reads_the_written_tree() {
        let mut boot = BootInfo::new();
        boot.rsdp = 0xf_5a30;
        boot.tsc_khz = 2_596_151;
        for i in 0..8u64 {
            boot.memory.push(i << 44 | 0x1000, i << 44 | 0xffff_f000_0000, Kind::RAM);
        }
        boot.memory.push(0xf_0000, 0x10_0000, Kind::RESERVED);
        let mut buffer: Buffer = [0; 2048];
        write(&mut buffer, &boot);

        let tree = ::fdt::Fdt::new(&buffer).unwrap();
        assert_eq!(tree.root().compatible().first(), "hermit,multiboot");
        let memory: Vec<_> = tree
            .find_all_nodes("/memory")
            .map(|node| node.reg().unwrap().next().unwrap())
            .map(|reg| (reg.starting_address as u64, reg.size.unwrap() as u64))
            .collect();
        let ram: Vec<_> = boot.memory.ram().map(|r| (r.start, r.len())).collect();
        assert_eq!(memory, ram);
        let rsdp = tree.find_node("/hermit,rsdp").unwrap().reg().unwrap().next().unwrap();
        assert_eq!(rsdp.starting_address as u64, boot.rsdp);
        let khz = tree.find_node("/hermit,tsc").unwrap().property("khz").unwrap();
        assert_eq!(khz.as_usize(), Some(2_596_151));
        assert_eq!(tree.chosen().bootargs(), None);
    }
}
