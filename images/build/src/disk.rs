//! Disks for UEFI: a GPT (UEFI 2.10 chapter 5) with an EFI system partition, a partition that `save` writes to, and one
//! with two slots for releases. The appliance recognises its disks by these partitions.

use std::fmt::Debug;
use std::fs::File;
use std::io::{Cursor, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use fatfs::FatType;
use fscommon::StreamSlice;
use gpt::disk::LogicalBlockSize;
use gpt::mbr::ProtectiveMBR;
use gpt::partition_types::{OperatingSystem, Type};
use release::{Record, layout};
use uuid::Uuid;

use crate::{Run, esp};

const SECTOR: u64 = 512;
/// Start of the first partition, and alignment of partitions. The end of the disk is left for the second table.
const MARGIN: u64 = 1 << 20;

/// Name of the partition for the configuration.
const CONFIG_NAME: &str = "isthmus-config";
/// Name of the system partition.
const SYSTEM_NAME: &str = "isthmus";
/// Start of the partition on the small disk. The space before and after it is for the two tables.
const SMALL_MARGIN: u64 = 64 << 10;

/// Writes the disk as a sparse file. `config` is the contents of the partition for the
/// configuration.
pub fn raw(out: &Path, efi: &[u8], config: &[u8]) -> Result<()> {
    let partition = esp::size(efi, FatType::Fat32);
    let kept = (config.len() as u64).next_multiple_of(MARGIN);
    let size = partition + kept + layout::PARTITION + 2 * MARGIN;
    let file = File::options().read(true).write(true).create_new(true).open(out)?;
    file.set_len(size)?;
    let system = (SYSTEM_NAME, partition, gpt::partition_types::EFI);
    let keep = (CONFIG_NAME, config.len() as u64, config_type());
    let guid = Uuid::from_u128(layout::PARTITION_TYPE);
    let slots = Type { guid, os: OperatingSystem::None };
    let slots = (layout::PARTITION_NAME, layout::PARTITION, slots);
    let (mut file, places) = table(file, size, MARGIN, &[system, keep, slots])?;
    file.seek(SeekFrom::Start(places[1]))?;
    file.write_all(config)?;
    // The appliance inside the program boots until a release is written.
    for copy in layout::RECORDS {
        file.seek(SeekFrom::Start(places[2] + copy))?;
        file.write_all(&Record::default().emit())?;
    }
    let volume = StreamSlice::new(file, places[0], places[0] + partition)?;
    esp::write(volume, FatType::Fat32, efi)
}

/// A small disk with only a partition for the configuration, with the contents `config`.
pub fn config_disk(config: &[u8]) -> Result<Vec<u8>> {
    let size = config.len() as u64 + 2 * SMALL_MARGIN;
    let disk = Cursor::new(vec![0; usize::try_from(size)?]);
    let keep = (CONFIG_NAME, config.len() as u64, config_type());
    let (mut disk, places) = table(disk, size, SMALL_MARGIN, &[keep])?;
    disk.seek(SeekFrom::Start(places[0]))?;
    disk.write_all(config)?;
    Ok(disk.into_inner())
}

fn config_type() -> Type {
    Type { guid: Uuid::from_u128(layout::CONFIG_TYPE), os: OperatingSystem::None }
}

/// Makes the partitions (name, bytes, type) on a disk of `size` bytes, each on a multiple of `margin`; returns
/// their offsets.
fn table<D: Read + Write + Seek + Debug>(
    mut disk: D,
    size: u64,
    margin: u64,
    partitions: &[(&str, u64, Type)],
) -> Result<(D, Vec<u64>)> {
    let last_sector =
        u32::try_from(size / SECTOR - 1).context("the appliance is too large for a disk image")?;
    ProtectiveMBR::with_lb_size(last_sector).overwrite_lba0(&mut disk)?;
    let table = gpt::GptConfig::new().writable(true).logical_block_size(LogicalBlockSize::Lb512);
    let mut table =
        table.create_from_device(disk, None).context("could not make the partition table")?;
    let mut places = Vec::new();
    for (name, bytes, kind) in partitions {
        let alignment = Some(margin / SECTOR);
        let number = table.add_partition(name, *bytes, kind.clone(), 0, alignment)?;
        places.push(table.partitions()[&number].first_lba * SECTOR);
    }
    let disk = table.write().context("could not write the partition table")?;
    Ok((disk, places))
}

/// Writes the disk in QEMU's format.
pub fn qcow2(out: &Path, efi: &[u8], config: &[u8], work: &Path, run: Run) -> Result<()> {
    let disk = work.join("disk");
    raw(&disk, efi, config)?;
    run(Command::new("qemu-img").args(["convert", "-f", "raw", "-O", "qcow2"]).arg(&disk).arg(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_has_a_system_partition_with_the_program() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        raw(&path, b"MZ program", &[7; 65536]).unwrap();
        let disk = gpt::GptConfig::new().open(&path).unwrap();
        let partitions: Vec<_> = disk.partitions().values().collect();
        assert_eq!(partitions.len(), 3);
        let slots = partitions[2].first_lba as usize * 512;
        let records = &std::fs::read(&path).unwrap()[slots..];
        let copies = layout::RECORDS.map(|at| &records[at as usize..]);
        assert_eq!(release::newest(copies), Some((Record::default(), 1)));
        let keep = partitions[1].first_lba as usize * 512;
        assert_eq!(std::fs::read(&path).unwrap()[keep..keep + 65536], [7; 65536]);
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
