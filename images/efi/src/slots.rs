//! The slots on the disk that this program was started from: which of them boots, and its image.
//!
//! They lie in the partition of their type ([`release::layout`]) on that disk, and on no other. The record is written
//! before a trial begins, and when one has failed; if that does not work, there is no trial. Signatures were checked by
//! the appliance that wrote the slot; here only that what was written is still there.

use efi::elf::Image;
use release::layout::{BLOCK, RECORDS, partition_type_on_disk, slot_length, slot_start};
use release::{Choice, Digest, HEADER, Header, Record, Slot, newest};
use uefi::boot::ScopedProtocol;
use uefi::println;
use uefi::proto::media::block::BlockIO;
use watchdog::Watchdog;

use crate::own_disk::{self, OwnDisk, Result, pages};
use crate::registers::Registers;

/// Seconds that an image on trial has until it sees to the watchdog itself.
const TRIAL: u16 = 120;

/// What a slot holds, in memory.
pub struct Booted {
    pub image: Image<'static>,
    slot: Slot,
    trial: bool,
}

impl Booted {
    /// How the appliance hears of it: a word of its command line.
    pub fn word(&self) -> &'static str {
        match (self.slot, self.trial) {
            (Slot::A, false) => "isthmus-slot=a",
            (Slot::B, false) => "isthmus-slot=b",
            (Slot::A, true) => "isthmus-slot=a,trial",
            (Slot::B, true) => "isthmus-slot=b,trial",
        }
    }
}

/// What is to boot; none if that is the appliance inside this program.
pub fn chosen(disk: &OwnDisk) -> Option<Booted> {
    let mut partition = find(disk)?;
    let Choice { slot, trial, changed } = partition.record.choose();
    if let (false, Some(failed)) = (trial, partition.record.failed.filter(|_| changed)) {
        println!("isthmus: slot {} did not come up: back to what ran before", failed.name());
    }
    if changed && let Err(why) = partition.write_record() {
        println!("isthmus: the record of the slots cannot be written: {why}");
        if trial {
            // Without it a trial would never end.
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
        // What it says now ends the trial with the next start anyway.
        let _ = partition.write_record();
        let current = partition.record.current?;
        return partition.boot(current, false);
    }
    println!("isthmus: starting the appliance that the disk was made with");
    None
}

/// An image that hangs before it can see to anything is reset by the machine's watchdog, if it has one.
fn start_watchdog() {
    match Watchdog::find(&mut Registers) {
        Some(watchdog) => watchdog.start(&mut Registers, TRIAL),
        None => println!("isthmus: no watchdog: if this hangs, reset the machine by hand"),
    }
}

/// The partition with the slots.
struct Partition {
    /// The disk.
    device: ScopedProtocol<BlockIO>,
    /// Where it begins there, in bytes.
    offset: u64,
    /// Its bytes.
    length: u64,
    record: Record,
    /// The copy of the record that is written over next.
    older: usize,
    /// Pages that the device reads into and writes from.
    buffer: &'static mut [u8],
}

/// Looks for the partition on the disk that this program comes from, by its type.
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
        self.device.write_blocks(id, place, self.buffer).map_err(|_| "the disk fails")?;
        self.device.flush_blocks().map_err(|_| "the disk does not flush its cache")?;
        self.older = 1 - self.older;
        Ok(())
    }

    /// The image of a slot. If there is none, the console is told why.
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
        let bytes = pages(length as usize).ok_or("the firmware has no memory for it")?;
        let mut at = start + HEADER as u64;
        // Firmware has been seen to take no more than 16-bit counts of sectors at a time.
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

/// Reads from a partition of `length` bytes at `offset`; place and length are multiples of 4096.
fn read(device: &mut BlockIO, offset: u64, length: u64, at: u64, into: &mut [u8]) -> Result<()> {
    if at.checked_add(into.len() as u64).is_none_or(|end| end > length) {
        return Err("it lies outside of its partition");
    }
    own_disk::read(device, offset + at, into)
}
