//! Parses the Identify data of controllers and namespaces (NVMe 1.4, 5.15.2). Every value is checked or bounded.

use super::prp::MOST_TRANSFER;
use crate::hal::{Features, Geometry, Window};
use alloc::string::String;
use core::fmt;

/// Bytes of an Identify data structure.
pub const LEN: usize = 4096;

const SECTOR: u32 = 512;
/// Largest supported block: 64 KiB.
const MOST_BLOCK_SHIFT: u8 = 16;
/// Largest plausible physical block or discard granularity; larger values are ignored.
const MOST_GRANULARITY: u32 = 16 << 20;
/// Most sectors of one discard: 2 GiB, to bound its duration.
const MOST_DISCARD: u32 = 4 << 20;
/// Most blocks of a command (NLB).
const MOST_BLOCKS: u32 = 1 << 16;

// Optional commands (ONCS).
const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
const ONCS_WRITE_ZEROES: u16 = 1 << 3;

/// Identify data of a controller, as far as it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// Serial number, without blanks.
    pub serial: String,
    /// Model number.
    pub model: String,
    /// Firmware revision.
    pub firmware: String,
    /// Most bytes of a transfer: a power of two, at most [`MOST_TRANSFER`].
    pub most_transfer: u32,
    /// Largest valid NSID (NN).
    pub namespaces: u32,
    /// The controller has a volatile write cache.
    volatile_cache: bool,
    optional_commands: u16,
    /// Sizes of submission and completion queue entries (SQES, CQES): least and most bytes, as log2.
    entry_sizes: [u8; 2],
}

impl Controller {
    /// Parses the data; `page_shift` is log2 of the controller's smallest page.
    pub fn read(page: &Window, page_shift: u32) -> Option<Controller> {
        let mdts = u32::from(page.read_array::<1>(77).ok()?[0]);
        // 0 means no limit. A limit above MOST_TRANSFER is ignored.
        let limited = mdts != 0 && mdts + page_shift < 31;
        let most = if limited { 1 << (mdts + page_shift) } else { MOST_TRANSFER };
        Some(Controller {
            serial: graphic::<20>(page, 4)?.chars().filter(|c| *c != ' ').collect(),
            model: graphic::<40>(page, 24)?,
            firmware: graphic::<8>(page, 64)?,
            most_transfer: most.min(MOST_TRANSFER),
            namespaces: u32::from_le_bytes(page.read_array(516).ok()?),
            volatile_cache: page.read_array::<1>(525).ok()?[0] & 1 != 0,
            optional_commands: u16::from_le_bytes(page.read_array(520).ok()?),
            entry_sizes: page.read_array(512).ok()?,
        })
    }

    /// Whether the controller takes queue entries of 64 and 16 bytes, as the specification requires.
    pub fn takes_entries(&self) -> bool {
        let [submissions, completions] = self.entry_sizes;
        let takes = |sizes: u8, log2: u8| (sizes & 15..=sizes >> 4).contains(&log2);
        takes(submissions, 6) && takes(completions, 4)
    }
}

/// Visible characters and blanks of a field, without leading and trailing blanks.
fn graphic<const N: usize>(page: &Window, at: usize) -> Option<String> {
    let bytes = page.read_array::<N>(at).ok()?;
    let visible = bytes.iter().filter(|&&byte| byte == b' ' || byte.is_ascii_graphic());
    let text: String = visible.map(|&byte| char::from(byte)).collect();
    Some(text.trim().into())
}

/// Why a namespace cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The namespace has no blocks: it does not exist, or is not attached.
    Empty,
    /// Unsupported size of blocks, as log2 of bytes.
    Block(u8),
    /// Blocks have this many bytes of metadata.
    Metadata(u16),
    /// Impossible number of blocks.
    Size(u64),
    /// The controller's largest transfer in bytes is smaller than a block.
    Transfer(u32),
    /// The namespace is of this command set (CSI), not NVM.
    CommandSet(u8),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::Empty => {
                f.write_str("the namespace has no blocks: the drive has not attached it")
            }
            Unusable::Block(log2) => write!(
                f,
                "the namespace has blocks of 2^{log2} bytes, not of 512 to 65536: reformat it \
                 (`nvme format --block-size=4096`)"
            ),
            Unusable::Metadata(bytes) => write!(
                f,
                "the namespace has {bytes} bytes of metadata with each block: format it without \
                 (`nvme format --ms=0 --lbaf=…`)"
            ),
            Unusable::Size(blocks) => {
                write!(
                    f,
                    "the namespace reports the impossible size of {blocks} blocks: the drive is broken"
                )
            }
            Unusable::Transfer(bytes) => write!(
                f,
                "the drive reports a largest transfer of {bytes} bytes, less than one block: it is \
                 broken"
            ),
            Unusable::CommandSet(csi) => {
                let set = match csi {
                    1 => "key value",
                    2 => "zoned",
                    3 => "subsystem local memory",
                    4 => "computational programs",
                    _ => "an unknown",
                };
                write!(
                    f,
                    "the namespace is of {set} command set (CSI {csi}); only those of the NVM command set can be used: \
                     create one (`nvme create-ns --csi=0`), or use another namespace"
                )
            }
        }
    }
}

/// The command set of a namespace by its identification descriptors (NVMe 2.0, 4.1.5.2): NVM, unless one of them names
/// another.
pub fn command_set(page: &Window) -> Result<(), Unusable> {
    const CSI: u8 = 4;
    let mut at = 0;
    while let Ok([kind, length]) = page.read_array::<2>(at) {
        if kind == 0 && length == 0 {
            break;
        }
        match (kind, page.read_array::<1>(at + 4)) {
            (CSI, Ok([csi])) if csi != 0 => return Err(Unusable::CommandSet(csi)),
            _ => at += 4 + usize::from(length),
        }
    }
    Ok(())
}

/// Identify data of a namespace, as far as it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Geometry and features of the namespace.
    pub geometry: Geometry,
    /// Blocks that Write Zeroes deallocates read as zeroes (DLFEAT).
    pub deallocates_zeroes: bool,
}

impl Namespace {
    /// Parses the data.
    pub fn read(page: &Window, controller: &Controller) -> Result<Namespace, Unusable> {
        let byte = |at: usize| page.read_array::<1>(at).map_or(0, |[byte]| byte);
        let half = |at: usize| u16::from_le_bytes(page.read_array(at).unwrap_or_default());
        let blocks = u64::from_le_bytes(page.read_array(0).unwrap_or_default());
        if blocks == 0 {
            return Err(Unusable::Empty);
        }
        // FLBAS: formats beyond 16 have their upper bits in bits 5 and 6 (2.0, 4.1.5.1).
        let format = usize::from(byte(26) & 0xf | (byte(26) >> 1 & 0x30));
        let format = 128 + 4 * format;
        let (metadata, shift) = (half(format), byte(format + 2));
        if !(9..=MOST_BLOCK_SHIFT).contains(&shift) {
            return Err(Unusable::Block(shift));
        }
        if metadata != 0 {
            return Err(Unusable::Metadata(metadata));
        }
        let block = 1u32 << shift;
        let per_block = block / SECTOR;
        let sectors = blocks.checked_mul(per_block.into()).filter(|&n| n <= u64::MAX / 1024);
        let sectors = sectors.ok_or(Unusable::Size(blocks))?;
        let max_transfer = controller.most_transfer.min(MOST_BLOCKS.saturating_mul(block));
        if max_transfer < block {
            return Err(Unusable::Transfer(max_transfer));
        }
        // NSFEAT bit 4: the fields of preferred sizes are valid. They count blocks, less one.
        let preferred = byte(24) & 1 << 4 != 0;
        let size = |at: usize| {
            let bytes = (u32::from(half(at)) + 1).saturating_mul(block);
            if preferred && bytes <= MOST_GRANULARITY { bytes } else { block }
        };
        let physical = Some(size(64)).filter(|bytes| bytes.is_power_of_two()).unwrap_or(block);
        let can = |bit: u16| controller.optional_commands & bit != 0;
        let (discards, zeroes) = (can(ONCS_DATASET_MANAGEMENT), can(ONCS_WRITE_ZEROES));
        let mut features = Features::empty();
        features.set(Features::READ_ONLY, byte(99) & 1 != 0);
        features.set(Features::VOLATILE_CACHE, controller.volatile_cache);
        features.set(Features::WRITE_THROUGH, true);
        features.set(Features::DISCARD, discards);
        features.set(Features::WRITE_ZEROES, zeroes);
        let geometry = Geometry {
            sectors,
            logical_block: block,
            physical_block: physical,
            max_transfer,
            max_discard_sectors: if discards { MOST_DISCARD } else { 0 },
            discard_granularity: if discards { size(68) } else { 0 },
            // Limited to the largest transfer, as Linux does.
            max_write_zeroes_sectors: if zeroes { max_transfer / SECTOR } else { 0 },
            features,
        };
        // DLFEAT: deallocated blocks read as zeroes, and Write Zeroes may deallocate.
        let deallocates_zeroes = byte(33) & 0b1111 == 0b1001;
        Ok(Namespace { geometry, deallocates_zeroes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hal::Arena;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn page(fields: &[(usize, &[u8])]) -> Window {
        let page = Arena::on_heap(2 * LEN).alloc(LEN, 64).unwrap();
        page.fill(0);
        fields.iter().for_each(|(at, bytes)| page.write(*at, bytes).unwrap());
        page
    }

    fn controller(fields: &[(usize, &[u8])]) -> Controller {
        Controller::read(&page(fields), 12).unwrap()
    }

    #[test]
    fn names_are_stripped_of_blanks_and_invisible_characters() {
        let found = controller(&[
            (4, b"S 1\x1b[31m/X            "),
            (24, b" A drive of QEMU                        "),
            (64, b"1.0\0\xff   "),
            (512, &[0x66, 0x44]),
        ]);
        assert_eq!((found.serial.as_str(), found.firmware.as_str()), ("S1[31m/X", "1.0"));
        assert_eq!(found.model, "A drive of QEMU");
        assert!(found.takes_entries());
        assert!(!controller(&[(512, &[0x77, 0x44])]).takes_entries());
    }

    #[test]
    fn transfer_size_is_bounded_for_any_mdts() {
        for (mdts, most) in [(0, MOST_TRANSFER), (1, 8192), (5, 128 << 10), (7, 512 << 10)] {
            assert_eq!(controller(&[(77, &[mdts])]).most_transfer, most, "{mdts}");
        }
        for mdts in [9, 18, 19, 20, 31, 32, 255] {
            assert_eq!(controller(&[(77, &[mdts])]).most_transfer, MOST_TRANSFER, "{mdts}");
        }
    }

    #[test]
    fn namespace_geometry_is_parsed() {
        let controller = controller(&[(77, &[5]), (520, &[0xc]), (525, &[1])]);
        let blocks = 1000u64.to_le_bytes();
        let fields: [(usize, &[u8]); 5] =
            [(0, &blocks), (24, &[0x10]), (26, &[1]), (33, &[9]), (132, &[0, 0, 12, 0])];
        let found = Namespace::read(&page(&fields), &controller).unwrap();
        let g = found.geometry;
        assert_eq!((g.sectors, g.logical_block, g.physical_block), (8000, 4096, 4096));
        assert_eq!((g.max_transfer, g.max_write_zeroes_sectors), (128 << 10, 256));
        assert_eq!(g.max_discard_sectors, MOST_DISCARD);
        assert!(g.features.contains(Features::VOLATILE_CACHE | Features::DISCARD));
        assert!(found.deallocates_zeroes);
        let refused = |extra: (usize, &[u8])| {
            let mut fields: Vec<(usize, &[u8])> = fields.to_vec();
            fields.push(extra);
            Namespace::read(&page(&fields), &controller).unwrap_err()
        };
        assert_eq!(refused((0, &[0; 8])), Unusable::Empty);
        assert_eq!(refused((0, &[0xff; 8])), Unusable::Size(u64::MAX));
        assert_eq!(refused((132, &[8, 0, 12])), Unusable::Metadata(8));
        assert_eq!(refused((134, &[8])), Unusable::Block(8));
        assert_eq!(refused((134, &[17])), Unusable::Block(17));
    }

    #[test]
    fn command_set_is_read_from_any_descriptor_in_the_list() {
        let eui = [1, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let uuid = [&[3, 16, 0, 0][..], &[4; 16]].concat();
        let csi = |csi: u8| [4, 1, 0, 0, csi];
        for (list, expected) in [
            (std::vec![], Ok(())),
            (eui.to_vec(), Ok(())),
            (uuid.clone(), Ok(())),
            (csi(0).to_vec(), Ok(())),
            (csi(2).to_vec(), Err(Unusable::CommandSet(2))),
            ([&eui[..], &uuid, &csi(1)].concat(), Err(Unusable::CommandSet(1))),
            ([&csi(0)[..], &csi(2)].concat(), Err(Unusable::CommandSet(2))),
            // A list without an end.
            ([0xfe, 0xff, 0, 0].repeat(1024), Ok(())),
            ([9, 0, 0, 0].repeat(1024), Ok(())),
        ] {
            assert_eq!(command_set(&page(&[(0, &list)])), expected, "{:?}", list.get(..20));
        }
        assert!(std::format!("{}", Unusable::CommandSet(2)).contains("of zoned command set"));
    }

    proptest! {
        #[test]
        fn any_page_gives_a_usable_geometry_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 600),
            shift in 9u8..=16,
            of in proptest::collection::vec(any::<u8>(), 600),
        ) {
            let controller = controller(&[(0, &of)]);
            let mut bytes = bytes;
            for format in 0..64 {
                bytes[128 + 4 * format..][..3].copy_from_slice(&[0, 0, shift]);
            }
            bytes[5..8].fill(0);
            if let Ok(Namespace { geometry: g, .. }) = Namespace::read(&page(&[(0, &bytes)]), &controller) {
                prop_assert!(g.sectors > 0 && g.sectors.checked_mul(512).is_some());
                prop_assert!(g.max_transfer.is_multiple_of(g.logical_block) && g.max_transfer > 0);
                prop_assert!(g.max_transfer <= MOST_TRANSFER);
                prop_assert!(g.physical_block.is_power_of_two());
                prop_assert!(g.max_transfer / g.logical_block <= MOST_BLOCKS);
                prop_assert!((g.max_discard_sectors * 512).is_multiple_of(g.logical_block));
            }
        }
    }
}
