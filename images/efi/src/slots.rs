//! The slots on the disk that this program was started from: which of them boots, and its image.
//!
//! They lie in a partition beside the one with this program ([`release::layout`]), and are recognized by a record that is
//! whole. Nothing else of a disk is read. The record is written before a trial begins, and when one has failed; if that
//! does not work, there is no trial. Signatures were checked by the appliance that wrote the slot; here only that what was
//! written is still there.

use core::ptr::NonNull;
use core::slice;

use efi::elf::Image;
use release::layout::{BLOCK, RECORDS, slot_length, slot_start};
use release::{Choice, Digest, HEADER, Header, Record, Slot, newest};
use uefi::boot::{
    self, AllocateType, MemoryType, OpenProtocolAttributes, OpenProtocolParams, PAGE_SIZE,
    ScopedProtocol,
};
use uefi::proto::ProtocolPointer;
use uefi::proto::device_path::DevicePath;
use uefi::proto::loaded_image::LoadedImage;
use uefi::proto::media::block::BlockIO;
use uefi::{Handle, println};
use watchdog::Watchdog;

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
pub fn chosen() -> Option<Booted> {
    let mut partition = find()?;
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
    device: ScopedProtocol<BlockIO>,
    /// Its bytes.
    length: u64,
    record: Record,
    /// The copy of the record that is written over next.
    older: usize,
    /// Pages that the device reads into and writes from.
    buffer: &'static mut [u8],
}

/// Looks at the partitions beside the one that this program comes from.
fn find() -> Option<Partition> {
    let ours = open::<LoadedImage>(boot::image_handle())?.device()?;
    let path = open::<DevicePath>(ours)?;
    let disk = parent(&path)?;
    let buffer = pages(BLOCK)?;
    let mut buffer = Some(buffer);
    for handle in boot::find_handles::<BlockIO>().ok()? {
        let beside = handle != ours
            && open::<DevicePath>(handle).is_some_and(|path| parent(&path) == Some(disk));
        if !beside {
            continue;
        }
        let Some(device) = open::<BlockIO>(handle) else { continue };
        let media = device.media();
        let block = media.block_size() as usize;
        if !media.is_logical_partition()
            || !block.is_power_of_two()
            || !(512..=BLOCK).contains(&block)
        {
            continue;
        }
        let length = (media.last_block().saturating_add(1)).saturating_mul(block as u64);
        let mut partition = Partition {
            device,
            length,
            record: Record::default(),
            older: 0,
            buffer: buffer.take()?,
        };
        let mut copies = [[0; 64]; 2];
        for (copy, at) in copies.iter_mut().zip(RECORDS) {
            if partition.read_block(at).is_ok() {
                copy.copy_from_slice(&partition.buffer[..64]);
            }
        }
        match newest([&copies[0], &copies[1]]) {
            Some((record, older)) => {
                (partition.record, partition.older) = (record, older);
                return Some(partition);
            }
            None => buffer = Some(partition.buffer),
        }
    }
    None
}

/// The bytes of a device path before its last node: of a partition, those of its disk.
fn parent(path: &DevicePath) -> Option<&[u8]> {
    let last = path.node_iter().last()?;
    let all = path.as_bytes();
    // Behind the last node there are the four bytes of the end of the path.
    all.get(..all.len().checked_sub(usize::from(last.length()) + 4)?)
}

/// A protocol of a handle, which others may use as well.
fn open<P: ProtocolPointer + ?Sized>(handle: Handle) -> Option<ScopedProtocol<P>> {
    let params = OpenProtocolParams { handle, agent: boot::image_handle(), controller: None };
    // SAFETY: nobody takes devices away while this program runs: it waits for nothing, and hands nothing to the firmware
    // that would have it do so.
    unsafe { boot::open_protocol(params, OpenProtocolAttributes::GetProtocol) }.ok()
}

/// Pages of the firmware's memory, never freed.
fn pages(length: usize) -> Option<&'static mut [u8]> {
    let count = length.div_ceil(PAGE_SIZE);
    let memory: NonNull<u8> =
        boot::allocate_pages(AllocateType::AnyPages, MemoryType::LOADER_DATA, count).ok()?;
    // SAFETY: the pages are fresh, ours alone, as many as said, and never freed; zeros are bytes.
    unsafe {
        memory.write_bytes(0, count * PAGE_SIZE);
        Some(slice::from_raw_parts_mut(memory.as_ptr(), length))
    }
}

/// What went wrong, for the console.
type Result<T> = core::result::Result<T, &'static str>;

impl Partition {
    /// Reads a block of 4096 bytes into the buffer.
    fn read_block(&mut self, at: u64) -> Result<()> {
        let Partition { device, length, buffer, .. } = self;
        read(device, *length, at, buffer)
    }

    fn write_record(&mut self) -> Result<()> {
        self.record.generation = self.record.generation.wrapping_add(1);
        self.buffer.copy_from_slice(&self.record.emit());
        let media = self.device.media();
        if media.is_read_only() {
            return Err("the disk is read-only");
        }
        let (id, block) = (media.media_id(), u64::from(media.block_size()));
        let place = RECORDS[self.older] / block;
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
            read(&mut self.device, self.length, at, part)?;
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

/// Reads from a partition of `length` bytes; place and length are multiples of 4096.
fn read(device: &mut ScopedProtocol<BlockIO>, length: u64, at: u64, into: &mut [u8]) -> Result<()> {
    if at.checked_add(into.len() as u64).is_none_or(|end| end > length) {
        return Err("it lies outside of its partition");
    }
    let media = device.media();
    let (id, block) = (media.media_id(), u64::from(media.block_size()));
    device.read_blocks(id, at / block, into).map_err(|_| "the disk fails")
}
