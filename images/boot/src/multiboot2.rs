//! Parser for Multiboot2 boot information (Multiboot2 specification 2.0, section 3.6).

use crate::{BootInfo, Kind, Screen};

const END: u32 = 0;
const COMMAND_LINE: u32 = 1;
const MEMORY_MAP: u32 = 6;
const FRAMEBUFFER: u32 = 8;
const ACPI_OLD: u32 = 14;
const ACPI_NEW: u32 = 15;

/// A copy of ACPI's root pointer (36 bytes; an old one has only the first 20).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct RootPointer(pub [u8; 36]);

/// Copies command line, memory map and screen from the information, and returns the loader's copy of the
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
            FRAMEBUFFER => boot.screen = screen(body).unwrap_or(Screen::NONE),
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

/// Parses a screen of pixels with 32 bits, or of characters; None for others.
fn screen(body: &[u8]) -> Option<Screen> {
    let address = u64::from(u32_at(body, 4)?) << 32 | u64::from(u32_at(body, 0)?);
    let (pitch, width, height) = (u32_at(body, 8)?, u32_at(body, 12)?, u32_at(body, 16)?);
    let text = match body.get(20..22)? {
        [32, 1] => false,
        [_, 2] => true,
        _ => return None,
    };
    Some(Screen { address, pitch, width, height, text })
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
    fn information_has_command_line_memory_and_the_newer_root_pointer() {
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

    #[test]
    fn screens_are_taken_from_the_loader_or_the_front_end() {
        let framebuffer = |bits: u8, kind: u8| {
            let mut body = 0x40_8000_0000u64.to_le_bytes().to_vec();
            [5120u32, 1280, 800].iter().for_each(|word| body.extend(word.to_le_bytes()));
            body.extend([bits, kind, 0, 0, 16, 8, 8, 8, 0, 8]);
            let information = [&[0; 8][..], &tag(FRAMEBUFFER, &body), &tag(END, &[])].concat();
            let mut boot = BootInfo::new();
            read(&mut boot, &information);
            boot
        };
        let screen =
            Screen { address: 0x40_8000_0000, pitch: 5120, width: 1280, height: 800, text: false };
        assert_eq!(framebuffer(32, 1).screen(), Some(screen));
        assert_eq!(framebuffer(16, 2).screen(), Some(Screen { text: true, ..screen }));
        assert_eq!(framebuffer(16, 1).screen(), None);
        assert_eq!(framebuffer(8, 0).screen(), None);
        let mut boot = BootInfo::new();
        boot.set_command_line(b"a=b isthmus-screen=277025390592,5120,1280,800 c=d");
        assert_eq!(boot.screen(), Some(screen));
        boot.set_command_line(b"isthmus-screen=0,5120,1280,800");
        assert_eq!(boot.screen(), None);
        boot.set_command_line(b"isthmus-screen=4096,5120,1280");
        assert_eq!(boot.screen(), None);
    }

    proptest! {
        #[test]
        fn parser_survives_any_bytes(
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
