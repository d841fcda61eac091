//! Selects the slot that boots from the disk from which this program was started, and loads its image.
//!
//! The slots are in the partition of their type ([`release::layout`]) on that disk only. The record is written
//! before a trial begins, and when one has failed. If it cannot be written, there is no trial. The appliance that wrote
//! the slot has checked the signature; here only the digest is checked.

use efi::elf::Image;
use release::layout::{BLOCK, RECORDS, partition_type_on_disk, slot_length, slot_start};
use release::{Choice, Digest, HEADER, Header, Record, Slot, newest};
use uefi::boot::ScopedProtocol;
use uefi::println;
use uefi::proto::media::block::BlockIO;
use watchdog::Watchdog;

use crate::own_disk::{self, OwnDisk, Result, pages};
use crate::registers::Registers;

/// Seconds until an image on trial has to reload the watchdog itself.
const TRIAL: u16 = 120;

/// A slot with its image in memory.
pub struct Booted {
    pub image: Image<'static>,
    slot: Slot,
    trial: bool,
}

impl Booted {
    /// Word for the appliance's command line.
    pub fn word(&self) -> &'static str {
        match (self.slot, self.trial) {
            (Slot::A, false) => "isthmus-slot=a",
            (Slot::B, false) => "isthmus-slot=b",
            (Slot::A, true) => "isthmus-slot=a,trial",
            (Slot::B, true) => "isthmus-slot=b,trial",
        }
    }
}

/// The slot to boot; None for the appliance inside this program.
pub fn chosen(disk: &OwnDisk) -> Option<Booted> {
    let mut partition = find(disk)?;
    let Choice { slot, trial, changed } = partition.record.choose();
    if let (false, Some(failed)) = (trial, partition.record.failed.filter(|_| changed)) {
        println!(
            "isthmus: the trial of slot {} failed: starting the previous release",
            failed.name()
        );
    }
    if changed && let Err(why) = partition.write_record() {
        println!("isthmus: the boot record cannot be written: {why}");
        if trial {
            // Without the record the trial would start again and again.
            let current = partition.record.current?;
            return partition.boot(current, false);
        }
    }
    let slot = slot?;
    if let Some(booted) = partition.boot(slot, trial) {
        if trial {
            start_watchdog();
        }
        return Some(booted);
    }
    if trial {
        partition.record.fail(slot);
        // If this fails, the record on the disk ends the trial at the next start.
        let _ = partition.write_record();
        let current = partition.record.current?;
        return partition.boot(current, false);
    }
    println!("isthmus: starting the appliance of the disk image");
    None
}

/// Starts the machine's watchdog, if it has one, so that an image that hangs early is reset.
fn start_watchdog() {
    match Watchdog::find(&mut Registers) {
        Some(watchdog) => watchdog.start(&mut Registers, TRIAL),
        None => {
            println!("isthmus: the machine has no watchdog: if the trial hangs, reset the machine")
        }
    }
}

/// The partition with the slots.
struct Partition {
    /// The disk.
    device: ScopedProtocol<BlockIO>,
    /// Offset on the disk, in bytes.
    offset: u64,
    /// Length in bytes.
    length: u64,
    record: Record,
    /// Index of the copy that the next record replaces.
    older: usize,
    /// Buffer for blocks, in pages that the device can access.
    buffer: &'static mut [u8],
}

/// Finds the partition by its type, and reads its record.
fn find(disk: &OwnDisk) -> Option<Partition> {
    let (offset, length) = disk.partition(&partition_type_on_disk())?;
    let mut partition = Partition {
        device: disk.device()?,
        offset,
        length,
        record: Record::default(),
        older: 0,
        buffer: pages(BLOCK)?,
    };
    let mut copies = [[0; 64]; 2];
    for (copy, at) in copies.iter_mut().zip(RECORDS) {
        if partition.read_block(at).is_ok() {
            copy.copy_from_slice(&partition.buffer[..64]);
        }
    }
    let (record, older) = newest([&copies[0], &copies[1]])?;
    (partition.record, partition.older) = (record, older);
    Some(partition)
}

impl Partition {
    /// Reads a block of 4096 bytes into the buffer.
    fn read_block(&mut self, at: u64) -> Result<()> {
        let Partition { device, offset, length, buffer, .. } = self;
        read(device, *offset, *length, at, buffer)
    }

    fn write_record(&mut self) -> Result<()> {
        self.record.generation = self.record.generation.wrapping_add(1);
        self.buffer.copy_from_slice(&self.record.emit());
        let media = self.device.media();
        if media.is_read_only() {
            return Err("the disk is read-only");
        }
        let (id, block) = (media.media_id(), u64::from(media.block_size()));
        let place = (self.offset + RECORDS[self.older]) / block;
        self.device
            .write_blocks(id, place, self.buffer)
            .map_err(|_| "a write to the disk failed")?;
        self.device.flush_blocks().map_err(|_| "a flush of the disk failed")?;
        self.older = 1 - self.older;
        Ok(())
    }

    /// Loads the image of a slot. Prints the error if that fails.
    fn boot(&mut self, slot: Slot, trial: bool) -> Option<Booted> {
        match self.image(slot) {
            Ok(image) => Some(Booted { image, slot, trial }),
            Err(why) => {
                println!("isthmus: slot {} cannot be started: {why}", slot.name());
                None
            }
        }
    }

    fn image(&mut self, slot: Slot) -> Result<Image<'static>> {
        let (start, room) = (slot_start(self.length, slot), slot_length(self.length));
        self.read_block(start)?;
        let header = Header::parse(self.buffer).map_err(|_| "it holds no release")?;
        let length = header.length.next_multiple_of(BLOCK as u64);
        if header.length > room || length > room.saturating_sub(HEADER as u64) {
            return Err("its release is longer than the slot");
        }
        let bytes = pages(length as usize).ok_or("the firmware has no free memory for it")?;
        let mut at = start + HEADER as u64;
        // Some firmware supports only 16-bit counts of sectors.
        for part in bytes.chunks_mut(1 << 20) {
            read(&mut self.device, self.offset, self.length, at, part)?;
            at += part.len() as u64;
        }
        let bytes: &'static [u8] = &bytes[..header.length as usize];
        let mut digest = Digest::new();
        digest.update(bytes);
        if digest.finish() != header.digest {
            return Err("its image is damaged");
        }
        Image::parse(bytes)
    }
}

/// Reads from a partition of `length` bytes at `offset`. `at` and the length of `into` are multiples of 4096.
fn read(device: &mut BlockIO, offset: u64, length: u64, at: u64, into: &mut [u8]) -> Result<()> {
    if at.checked_add(into.len() as u64).is_none_or(|end| end > length) {
        return Err("it exceeds its partition");
    }
    own_disk::read(device, offset + at, into)
}
