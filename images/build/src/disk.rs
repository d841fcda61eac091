//! Disks for UEFI: a GPT (UEFI 2.10 chapter 5) with one EFI system partition.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use fatfs::FatType;
use fscommon::StreamSlice;
use gpt::disk::LogicalBlockSize;
use gpt::mbr::ProtectiveMBR;

use crate::{Run, esp};

const SECTOR: u64 = 512;
/// Where the partition begins, and what stays free behind it for the second table.
const MARGIN: u64 = 1 << 20;

/// Writes the disk, sparse: blocks that hold nothing take no space.
pub fn raw(out: &Path, efi: &[u8]) -> Result<()> {
    let partition = esp::size(efi, FatType::Fat32);
    let size = partition + 2 * MARGIN;
    let mut file = File::options().read(true).write(true).create_new(true).open(out)?;
    file.set_len(size)?;
    let last_sector =
        u32::try_from(size / SECTOR - 1).context("the appliance is too large for a disk image")?;
    ProtectiveMBR::with_lb_size(last_sector).overwrite_lba0(&mut file)?;
    let table = gpt::GptConfig::new().writable(true).logical_block_size(LogicalBlockSize::Lb512);
    let mut table =
        table.create_from_device(file, None).context("could not make the partition table")?;
    let alignment = Some(MARGIN / SECTOR);
    let number =
        table.add_partition("isthmus", partition, gpt::partition_types::EFI, 0, alignment)?;
    let first = table.partitions()[&number].first_lba * SECTOR;
    let file = table.write().context("could not write the partition table")?;
    let volume = StreamSlice::new(file, first, first + partition)?;
    esp::write(volume, FatType::Fat32, efi)
}

/// Writes the disk in QEMU's format.
pub fn qcow2(out: &Path, efi: &[u8], work: &Path, run: Run) -> Result<()> {
    let disk = work.join("disk");
    raw(&disk, efi)?;
    run(Command::new("qemu-img").args(["convert", "-f", "raw", "-O", "qcow2"]).arg(&disk).arg(out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn the_disk_has_a_system_partition_with_the_program() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        raw(&path, b"MZ program").unwrap();
        let disk = gpt::GptConfig::new().open(&path).unwrap();
        let partitions: Vec<_> = disk.partitions().values().collect();
        assert_eq!(partitions.len(), 1);
        assert_eq!(partitions[0].part_type_guid, gpt::partition_types::EFI);
        let start = partitions[0].first_lba * SECTOR;
        let end = (partitions[0].last_lba + 1) * SECTOR;
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let volume = StreamSlice::new(file, start, end).unwrap();
        let system = fatfs::FileSystem::new(volume, fatfs::FsOptions::new()).unwrap();
        let mut program = Vec::new();
        system
            .root_dir()
            .open_file("EFI/BOOT/BOOTX64.EFI")
            .unwrap()
            .read_to_end(&mut program)
            .unwrap();
        assert_eq!(program, b"MZ program");
    }
}
