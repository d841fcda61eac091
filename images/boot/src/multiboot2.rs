//! Multiboot2 boot information (Multiboot2 specification 2.0, section 3.6).

use crate::{BootInfo, Kind};

const END: u32 = 0;
const COMMAND_LINE: u32 = 1;
const MEMORY_MAP: u32 = 6;
const ACPI_OLD: u32 = 14;
const ACPI_NEW: u32 = 15;

/// A copy of ACPI's root pointer (36 bytes; of an old one only the first 20 are used).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct RootPointer(pub [u8; 36]);

/// Takes over command line and memory map from the information, and returns the loader's copy of the
/// root pointer, the new one if there are two.
pub fn read(boot: &mut BootInfo, information: &[u8]) -> Option<RootPointer> {
    let mut root_pointer = None;
    let mut rest = information.get(8..).unwrap_or_default();
    while let (Some(kind), Some(size)) = (u32_at(rest, 0), u32_at(rest, 4)) {
        let size = (size as usize).max(8);
        let Some(body) = rest.get(8..size) else { break };
        match kind {
            END => break,
            COMMAND_LINE => {
                boot.set_command_line(body.split(|&byte| byte == 0).next().unwrap_or_default());
            }
            MEMORY_MAP => read_memory_map(boot, body),
            ACPI_NEW => root_pointer = Some(copy(body)),
            ACPI_OLD if root_pointer.is_none() => root_pointer = Some(copy(body)),
            _ => {}
        }
        rest = rest.get(size.next_multiple_of(8)..).unwrap_or_default();
    }
    root_pointer
}

fn read_memory_map(boot: &mut BootInfo, body: &[u8]) {
    let size = u32_at(body, 0).unwrap_or(0).max(24) as usize;
    for entry in body.get(8..).unwrap_or_default().chunks_exact(size) {
        let address = u64::from_le_bytes(core::array::from_fn(|i| entry[i]));
        let length = u64::from_le_bytes(core::array::from_fn(|i| entry[8 + i]));
        let kind = u32::from_le_bytes(core::array::from_fn(|i| entry[16 + i]));
        boot.memory.push(address, address.saturating_add(length), Kind(kind));
    }
}

fn copy(body: &[u8]) -> RootPointer {
    RootPointer(core::array::from_fn(|i| body.get(i).copied().unwrap_or(0)))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn tag(kind: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(kind.to_le_bytes());
        bytes.extend((body.len() as u32 + 8).to_le_bytes());
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    #[test]
    fn command_line_memory_and_the_newer_root_pointer() {
        let mut map = Vec::from([24, 0, 0, 0, 0, 0, 0, 0]);
        for (address, length, kind) in [(0u64, 0x9_f000u64, 1u32), (0x10_0000, 0x700_0000, 1)] {
            map.extend(address.to_le_bytes());
            map.extend(length.to_le_bytes());
            map.extend(kind.to_le_bytes());
            map.extend([0; 4]);
        }
        let tags = [
            tag(ACPI_NEW, &[b'n'; 36]),
            tag(COMMAND_LINE, b"isthmus.net.0.mtu=9000\0"),
            tag(ACPI_OLD, &[b'o'; 20]),
            tag(MEMORY_MAP, &map),
            tag(END, &[]),
            tag(COMMAND_LINE, b"after the end\0"),
        ];
        let information = [&[0; 8][..], &tags.concat()].concat();
        let mut boot = BootInfo::new();
        assert_eq!(read(&mut boot, &information), Some(RootPointer([b'n'; 36])));
        assert_eq!(boot.command_line(), "isthmus.net.0.mtu=9000");
        assert_eq!(boot.memory.total(), 0x9_f000 + 0x700_0000);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            tags in prop::collection::vec((0u32..20, 0u32..64, any::<[u8; 40]>()), 0..8),
        ) {
            let mut information = std::vec![0; 8];
            for (kind, size, bytes) in tags {
                information.extend(kind.to_le_bytes());
                information.extend(size.to_le_bytes());
                information.extend(bytes);
            }
            read(&mut BootInfo::new(), &information);
        }
    }
}
