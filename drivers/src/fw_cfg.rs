//! QEMU's firmware configuration device (QEMU docs/specs/fw_cfg.rst): named files from QEMU's command line
//! (`-fw_cfg name=opt/…,file=…`). Read over I/O ports, a byte at a time; no DMA, no writing.

use crate::hal::IoPorts;
use alloc::vec::Vec;
use core::fmt;

const SELECTOR: u16 = 0x510;
const DATA: u16 = 0x511;

const ITEM_SIGNATURE: u16 = 0x00;
const ITEM_DIRECTORY: u16 = 0x19;
const SIGNATURE: [u8; 4] = *b"QEMU";

/// A directory entry: size, selector, reserved, name; numbers big endian.
const ENTRY: usize = 64;
const NAME: usize = 8;
/// Most files of a directory. QEMU's own limit is far below, so a larger count is not QEMU's.
const MOST_FILES: u32 = 1024;
/// Largest file that is read, in bytes.
pub const MOST_BYTES: usize = 64 << 10;

/// Why a file was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FwCfgError {
    /// The file is larger than [`MOST_BYTES`]: its size in bytes.
    TooLarge(u32),
    /// The directory is invalid; the host is to blame.
    Directory,
}

impl fmt::Display for FwCfgError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FwCfgError::TooLarge(bytes) => {
                write!(f, "fw_cfg file has {bytes} bytes; at most {MOST_BYTES} are read")
            }
            FwCfgError::Directory => write!(f, "fw_cfg directory is invalid: the host is to blame"),
        }
    }
}

impl core::error::Error for FwCfgError {}

/// The contents of the file `name`, or None if there is no such file, or no such device.
pub fn read_file(ports: &mut dyn IoPorts, name: &str) -> Result<Option<Vec<u8>>, FwCfgError> {
    if select(ports, ITEM_SIGNATURE) != SIGNATURE {
        return Ok(None);
    }
    let files = u32::from_be_bytes(select(ports, ITEM_DIRECTORY));
    if files > MOST_FILES {
        return Err(FwCfgError::Directory);
    }
    for _ in 0..files {
        let entry: [u8; ENTRY] = next(ports);
        let text = entry[NAME..].split(|&b| b == 0).next().unwrap_or_default();
        if text != name.as_bytes() {
            continue;
        }
        let size = u32::from_be_bytes([entry[0], entry[1], entry[2], entry[3]]);
        let len = size as usize;
        if len > MOST_BYTES {
            return Err(FwCfgError::TooLarge(size));
        }
        ports.write16(SELECTOR, u16::from_be_bytes([entry[4], entry[5]]));
        return Ok(Some((0..len).map(|_| ports.read8(DATA)).collect()));
    }
    Ok(None)
}

/// Selects an item, and reads its first bytes.
fn select<const N: usize>(ports: &mut dyn IoPorts, item: u16) -> [u8; N] {
    ports.write16(SELECTOR, item);
    next(ports)
}

/// Reads the next bytes of the selected item.
fn next<const N: usize>(ports: &mut dyn IoPorts) -> [u8; N] {
    core::array::from_fn(|_| ports.read8(DATA))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Model of the device: items by selector, and the read position in the selected item.
    #[derive(Default)]
    struct Device {
        items: BTreeMap<u16, Vec<u8>>,
        selected: u16,
        at: usize,
    }

    impl IoPorts for Device {
        fn read8(&mut self, port: u16) -> u8 {
            assert_eq!(port, DATA);
            self.at += 1;
            let item = self.items.get(&self.selected);
            item.and_then(|item| item.get(self.at - 1)).copied().unwrap_or(0)
        }
        fn write16(&mut self, port: u16, value: u16) {
            assert_eq!(port, SELECTOR);
            (self.selected, self.at) = (value, 0);
        }
    }

    fn device(files: &[(&str, u32, &[u8])]) -> Device {
        let mut device = Device::default();
        device.items.insert(ITEM_SIGNATURE, SIGNATURE.to_vec());
        let mut directory = (files.len() as u32).to_be_bytes().to_vec();
        for (i, (name, size, content)) in files.iter().enumerate() {
            let selector = 0x20 + i as u16;
            directory.extend_from_slice(&size.to_be_bytes());
            directory.extend_from_slice(&selector.to_be_bytes());
            directory.extend_from_slice(&[0; 2]);
            let mut text = [0; ENTRY - NAME];
            text[..name.len()].copy_from_slice(name.as_bytes());
            directory.extend_from_slice(&text);
            device.items.insert(selector, content.to_vec());
        }
        device.items.insert(ITEM_DIRECTORY, directory);
        device
    }

    #[test]
    fn file_is_found_by_its_whole_name() {
        let long = "opt/0123456789012345678901234567890123456789012345678901"; // no room for a NUL
        let mut ports = device(&[
            ("etc/e820", 4, b"e820"),
            ("opt/isthmus/config.old", 3, b"old"),
            ("opt/isthmus/config", 6, b"[net]\n"),
            (long, 1, b"x"),
            ("opt/empty", 0, b""),
        ]);
        let mut read = |name: &str| read_file(&mut ports, name);
        assert_eq!(read("opt/isthmus/config"), Ok(Some(b"[net]\n".to_vec())));
        assert_eq!(read(long), Ok(Some(b"x".to_vec())));
        assert_eq!(read("opt/empty"), Ok(Some(Vec::new())));
        assert_eq!(read("opt/isthmus"), Ok(None));
    }

    #[test]
    fn absent_device_has_no_file() {
        struct Nothing;
        impl IoPorts for Nothing {
            fn read8(&mut self, _: u16) -> u8 {
                0xff
            }
            fn write16(&mut self, _: u16, _: u16) {}
        }
        assert_eq!(read_file(&mut Nothing, "opt/isthmus/config"), Ok(None));
    }

    #[test]
    fn files_that_are_too_large_and_directories_that_are_too_long_are_errors() {
        let most = std::vec![7; MOST_BYTES];
        let mut ports = device(&[
            ("fits", MOST_BYTES as u32, &most),
            ("large", MOST_BYTES as u32 + 1, &most),
            ("huge", u32::MAX, &most),
        ]);
        assert_eq!(read_file(&mut ports, "fits").unwrap().unwrap(), most);
        let large = FwCfgError::TooLarge(MOST_BYTES as u32 + 1);
        assert_eq!(read_file(&mut ports, "large"), Err(large));
        assert_eq!(read_file(&mut ports, "huge"), Err(FwCfgError::TooLarge(u32::MAX)));
        ports.items.insert(ITEM_DIRECTORY, std::vec![0xff; 64]);
        assert_eq!(read_file(&mut ports, "fits"), Err(FwCfgError::Directory));
    }

    proptest! {
        #[test]
        fn any_directory_is_read_without_panic(directory in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut ports = device(&[]);
            ports.items.insert(ITEM_DIRECTORY, [&[0, 0, 0, 4], &directory[..]].concat());
            let _ = read_file(&mut ports, "opt/isthmus/config");
        }
    }
}
