//! The EFI system partition: a FAT file system with the program that the firmware starts by
//! default (UEFI 2.10 sections 3.5.1.1 and 13.3).

use std::io::{Read, Seek, Write};

use anyhow::{Context, Result};
use fatfs::{FatType, FileSystem, FormatVolumeOptions, FsOptions};

const MIB: u64 = 1 << 20;

/// Size of a volume for `efi`, in bytes. FAT32, which firmware expects on a disk, needs at least
/// 65,525 clusters; a CD may be smaller.
pub fn size(efi: &[u8], fat: FatType) -> u64 {
    let content = (efi.len() as u64 + MIB / 2).next_multiple_of(MIB);
    match fat {
        FatType::Fat32 => content.max(34 * MIB),
        FatType::Fat12 | FatType::Fat16 => content.max(4 * MIB),
    }
}

/// Formats `volume`, which has the [`size`] for the program, and writes the program to it.
pub fn write<V: Read + Write + Seek>(mut volume: V, fat: FatType, efi: &[u8]) -> Result<()> {
    let format = FormatVolumeOptions::new()
        .fat_type(fat)
        .bytes_per_cluster(512)
        .volume_label(*b"ISTHMUS    ");
    // FAT16 has 4,085 to 65,524 clusters; 512-byte clusters suit both kinds at the sizes above.
    fatfs::format_volume(&mut volume, format)
        .context("could not format the EFI system partition")?;
    let system = FileSystem::new(volume, FsOptions::new())?;
    let directory = system.root_dir().create_dir("EFI")?.create_dir("BOOT")?;
    let mut file = directory.create_file("BOOTX64.EFI")?;
    file.write_all(efi)?;
    file.flush()?;
    drop((file, directory));
    system.unmount().context("could not write the EFI system partition")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn written_program_is_read_back() {
        for (fat, length) in
            [(FatType::Fat16, 0), (FatType::Fat16, 5_000_001), (FatType::Fat32, 700_000)]
        {
            let efi: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            let mut volume = vec![0; size(&efi, fat) as usize];
            write(Cursor::new(&mut volume), fat, &efi).unwrap();
            let system = FileSystem::new(Cursor::new(&mut volume), FsOptions::new()).unwrap();
            assert_eq!(system.fat_type(), fat);
            let mut back = Vec::new();
            system
                .root_dir()
                .open_file("EFI/BOOT/BOOTX64.EFI")
                .unwrap()
                .read_to_end(&mut back)
                .unwrap();
            assert!(back == efi, "{fat:?}, {length} bytes");
        }
    }
}
