//! The firmware interface: the initialization segment, and commands. Commands are entries of a queue, with mailboxes
//! for longer data. Two entries are used: one for ordinary commands, and one to give pages that the firmware requests
//! meanwhile.
//!
//! An entry of 64 bytes: type 7; length of the input; first input mailbox; 16 bytes of input; 16 bytes of output; first
//! output mailbox; length of the output; token, signature, and in the last byte the status of delivery and the owner
//! bit. A mailbox: 512 bytes of data, 48 bytes of 0, address of the next one, its number, token and signatures.

use super::error::Error;
use super::fields::{get, put, put64, word};
use crate::hal::{Arena, Instant, Registers, Window};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

// Offsets in the segment.
const QUEUE_HIGH: usize = 0x10;
const QUEUE_LOW: usize = 0x14;
const DOORBELL: usize = 0x18;
const STATUS: usize = 0x1fc;
const REVISION: u16 = 5;
/// Timeout of the firmware's start (as in Linux).
pub const START_UP: Duration = Duration::from_secs(120);
/// Timeout of a command (as in Linux).
const TIMEOUT: Duration = Duration::from_secs(60);

const ENTRY: usize = 64;
const INLINE: usize = 16;
const MAILBOX: usize = 1024;
const DATA: usize = 512;
/// Mailboxes of an entry for input, and as many for output: enough for capabilities.
const MAILBOXES: usize = 9;
/// Bytes of the queue.
const QUEUE: usize = 4096;
/// Bytes of the mailboxes for input or output of an entry.
const PART: usize = MAILBOXES * MAILBOX;
pub const BYTES: usize = QUEUE + 4 * PART;
/// Maximum length of input and output.
pub const LONGEST: usize = INLINE + MAILBOXES * DATA;

/// A doorbell page.
#[derive(Clone, Copy)]
pub struct Doorbells<'a> {
    registers: &'a dyn Registers,
    start: usize,
}

impl<'a> Doorbells<'a> {
    /// Page number `page`.
    #[inline]
    pub fn new(registers: &'a dyn Registers, page: u32) -> Self {
        Doorbells { registers, start: (page as usize) << 12 }
    }

    /// Writes a register. The caller passes the big-endian value in the CPU's byte order.
    #[inline]
    pub fn write32(&self, offset: usize, value: u32) {
        self.registers.write32(self.start + offset, value);
    }

    /// Writes 64 bits, as [`Doorbells::write32`].
    #[inline]
    pub fn write64(&self, offset: usize, value: u64) {
        self.registers.write64(self.start + offset, value);
    }
}

/// An entry of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// For ordinary commands.
    Ordinary = 0,
    /// For commands that move pages.
    Pages = 1,
}

/// A command: opcode and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command(pub u16, pub &'static str);

/// The firmware interface.
pub struct Firmware {
    registers: Box<dyn Registers>,
    memory: Window,
    stride: usize,
    token: u8,
    /// Command in flight in each entry, and length of its output.
    in_flight: [Option<(Command, usize)>; 2],
}

fn exclusive_or(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}

impl Firmware {
    /// An interface with the registers of BAR 0, and memory of the arena.
    pub fn new(registers: Box<dyn Registers>, arena: &mut Arena) -> Result<Self, Error> {
        let memory = arena.alloc(BYTES, 4096).ok_or(Error::NoMemory { bytes: BYTES })?;
        Ok(Firmware { registers, memory, stride: ENTRY, token: 0, in_flight: [None; 2] })
    }

    /// Memory allocated from the arena.
    pub fn memory(&self) -> Window {
        self.memory
    }

    /// A doorbell page.
    #[inline]
    pub fn doorbells(&self, page: u32) -> Doorbells<'_> {
        Doorbells::new(&*self.registers, page)
    }

    /// Reads a register of the segment.
    pub fn read(&self, offset: usize) -> u32 {
        u32::from_be(self.registers.read32(offset))
    }

    fn write(&self, offset: usize, value: u32) {
        self.registers.write32(offset, value.to_be());
    }

    /// Whether the firmware is up. An error if the registers read as all ones.
    pub fn is_ready(&self) -> Result<bool, Error> {
        match self.read(STATUS) {
            u32::MAX => Err(Error::Absent),
            status => Ok(status >> 31 == 0),
        }
    }

    /// Sets up the command queue.
    pub fn begin(&mut self) -> Result<(), Error> {
        let revision = (self.read(4) >> 16) as u16;
        if revision != REVISION {
            return Err(Error::Revision(revision));
        }
        let low = self.read(QUEUE_LOW);
        let (entries, stride) = ((low >> 4 & 0xf) as u8, (low & 0xf) as u8);
        if !(1..=5).contains(&entries) || !(6..=8).contains(&stride) {
            return Err(Error::Queue(entries, stride));
        }
        self.stride = 1 << stride;
        self.in_flight = [None; 2];
        self.memory.fill(0);
        let address = self.memory.bus_address();
        self.write(QUEUE_HIGH, (address >> 32) as u32);
        // The lower bits are 0: a full driver.
        self.write(QUEUE_LOW, address as u32);
        Ok(())
    }

    /// Offset of the mailboxes of an entry, for input or output.
    fn mailboxes(&self, slot: Slot, output: bool) -> usize {
        QUEUE + (2 * slot as usize + usize::from(output)) * PART
    }

    /// Posts a command. `input` begins behind opcode and operation, at byte 8.
    pub fn post(
        &mut self,
        slot: Slot,
        command: Command,
        operation: u16,
        input: &[u8],
        output: usize,
    ) -> Result<(), Error> {
        let length = 8 + input.len();
        if length > LONGEST || output > LONGEST || self.in_flight[slot as usize].is_some() {
            return Err(Error::Answer(command.1));
        }
        self.token = if self.token == u8::MAX { 1 } else { self.token + 1 };
        let mut whole = Vec::with_capacity(length);
        whole.extend(command.0.to_be_bytes());
        whole.extend([0, 0, 0, 0]);
        whole.extend(operation.to_be_bytes());
        whole.extend_from_slice(input);
        let (first, rest) = whole.split_at(length.min(INLINE));
        let into = self.lay_out(self.mailboxes(slot, false), rest.len(), rest);
        let out = self.lay_out(self.mailboxes(slot, true), output.saturating_sub(INLINE), &[]);
        let mut entry = [0; ENTRY];
        entry[0] = 7;
        put(&mut entry, 4, length as u32);
        put64(&mut entry, 8, into);
        entry[0x10..0x10 + first.len()].copy_from_slice(first);
        put64(&mut entry, 0x30, out);
        put(&mut entry, 0x38, output as u32);
        entry[0x3c] = self.token;
        // The signature includes the owner bit, which is written last.
        entry[0x3f] = 1;
        entry[0x3d] = !exclusive_or(&entry);
        entry[0x3f] = 0;
        let at = slot as usize * self.stride;
        let _ = self.memory.write(at, &entry);
        let mut last = [0; 4];
        last.copy_from_slice(&entry[0x3c..]);
        last[3] = 1;
        self.memory.store32(at + 0x3c, u32::from_le_bytes(last));
        self.in_flight[slot as usize] = Some((command, output));
        self.write(DOORBELL, 1 << slot as u32);
        Ok(())
    }

    /// Fills and chains mailboxes for `bytes` bytes. The address of the first, or 0 without any.
    fn lay_out(&self, at: usize, bytes: usize, data: &[u8]) -> u64 {
        let count = bytes.div_ceil(DATA);
        for n in 0..count {
            let place = at + n * MAILBOX;
            let mut mailbox = [0; 576];
            let part = data.get(n * DATA..).unwrap_or(&[]);
            let part = &part[..part.len().min(DATA)];
            mailbox[..part.len()].copy_from_slice(part);
            let next = self.memory.bus_address() + (place + MAILBOX) as u64;
            put64(&mut mailbox, 0x230, if n + 1 < count { next } else { 0 });
            put(&mut mailbox, 0x238, n as u32);
            mailbox[0x23d] = self.token;
            let _ = self.memory.write(place, &mailbox);
        }
        if count > 0 { self.memory.bus_address() + at as u64 } else { 0 }
    }

    /// The answer to the command in an entry, from its status on, if the command is done.
    pub fn answer(&mut self, slot: Slot) -> Option<Result<Vec<u8>, Error>> {
        let (command, length) = self.in_flight[slot as usize]?;
        let at = slot as usize * self.stride;
        let status = self.memory.load32(at + 0x3c).to_le_bytes()[3];
        if status & 1 != 0 {
            return None;
        }
        self.in_flight[slot as usize] = None;
        if status >> 1 != 0 {
            return Some(Err(Error::Delivery(command.1, status >> 1)));
        }
        let mut output = alloc::vec![0; length.max(INLINE)];
        let _ = self.memory.read(at + 0x20, &mut output[..INLINE]);
        let place = self.mailboxes(slot, true);
        for (n, part) in output[INLINE..].chunks_mut(DATA).enumerate() {
            let _ = self.memory.read(place + n * MAILBOX, part);
        }
        Some(match get(&output, 0, 8) as u8 {
            0 => Ok(output),
            status => Err(Error::Status(command.1, status, word(&output, 4))),
        })
    }

    /// When a command that is posted at `now` times out.
    pub fn late_at(now: Instant) -> Instant {
        now + TIMEOUT
    }
}
