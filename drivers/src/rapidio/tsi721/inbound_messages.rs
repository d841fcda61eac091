//! The inbound side of a mailbox: the device takes buffers from one queue and writes message descriptors into another.
//! Descriptors are checked: a buffer is passed to the user once, and only if the device owns it.

use super::Error;
use super::engine::{RUN, SUSPEND};
use super::registers::{Tsi721Registers, inbound_messages, queue_size};
use crate::hal::{Arena, Cells, Instant, Window};
use crate::rapidio::{Mailbox, Message};
use core::sync::atomic::AtomicU64;
use core::time::Duration;

/// Entries of both queues of a mailbox.
const ENTRIES: usize = 128;
/// Buffers: one less, because a full queue would look like an empty one.
const BUFFERS: usize = ENTRIES - 1;
const BUFFER: usize = 4096;
const DESCRIPTOR: usize = 64;
const WORDS: usize = DESCRIPTOR / 8;
/// Messages taken, or buffers returned, before the device is notified: it has many more buffers.
const BATCH: usize = 16;

// Registers, from the channel's base.
const FREE_BASE: [usize; 2] = [0x00, 0x04];
const FREE_SIZE: usize = 0x08;
const FREE_WRITE: usize = 0x10;
pub const CONTROL: usize = 0x40;
pub const STATUS: usize = 0x44;
const INTERRUPT: usize = 0x48;
const ENABLE: usize = 0x50;
const DONE_BASE: [usize; 2] = [0x100, 0x104];
const DONE_READ: usize = 0x108;
const DONE_SIZE: usize = 0x114;

/// Interrupt: a message was received.
const RECEIVED: u32 = 1;
/// A write to memory failed.
const MEMORY_ERROR: u32 = 4;
/// A segment of a message is missing.
const SEGMENT_TIMEOUT: u32 = 0x1000;
const SUSPENDED: u32 = 8;
const FREE_LOW: u32 = 2;
const ALL: u32 = SEGMENT_TIMEOUT | SUSPENDED | MEMORY_ERROR | FREE_LOW | RECEIVED;
/// Enabled interrupts.
const WANTED: u32 = ALL & !FREE_LOW;

/// Descriptor: type of a message, in the first word.
const TYPE_MESSAGE: u32 = 6;
/// Second word of a descriptor, the upper half of its first eight bytes: written by the device, and not read yet.
const VALID: u64 = 1 << 63;

const INITIALIZING: Duration = Duration::from_micros(10);
const SUSPENDING: Duration = Duration::from_millis(100);

/// The inbound side of a mailbox.
pub struct InboundMailbox {
    mailbox: Mailbox,
    base: usize,
    free: Window,
    descriptors: Window,
    /// The words of `descriptors`.
    words: Cells<AtomicU64>,
    buffers: Window,
    /// Buffers that the device owns.
    owned: [bool; BUFFERS],
    /// The next descriptor.
    read: usize,
    /// The next entry of the queue of free buffers.
    write: usize,
    /// Messages taken since the device was last notified.
    unreported: usize,
    /// Buffers returned since the device was last notified.
    returned: usize,
    /// Buffers that the device does not own.
    lent: usize,
    /// The status bit of a received message may be set.
    is_raised: bool,
    /// Some while the channel is initialized; the time is None until the next poll.
    started: Option<Option<Instant>>,
    /// The channel is being suspended before its initialization, which a running channel ignores.
    is_suspending: bool,
    /// Messages with errors, and invalid descriptors.
    pub errors: u64,
    /// Restarts of the channel.
    pub restarts: u64,
}

impl InboundMailbox {
    /// Allocates and starts the channel.
    pub fn new(
        mailbox: Mailbox,
        arena: &mut Arena,
        registers: &Tsi721Registers,
    ) -> Result<Self, Error> {
        let bytes = ENTRIES * (BUFFER + DESCRIPTOR + 8);
        let all = arena.alloc(bytes, 4096).ok_or(Error::NoMemory { bytes })?;
        let part = |at, len| all.slice(at, len).ok_or(Error::NoMemory { bytes });
        let descriptors = part(ENTRIES * BUFFER, ENTRIES * DESCRIPTOR)?;
        let words = Cells::new(&descriptors, 0, ENTRIES * WORDS);
        let mut inbound = InboundMailbox {
            mailbox,
            base: inbound_messages(mailbox.index()),
            buffers: part(0, ENTRIES * BUFFER)?,
            descriptors,
            words: words.ok_or(Error::NoMemory { bytes })?,
            free: part(ENTRIES * (BUFFER + DESCRIPTOR), ENTRIES * 8)?,
            owned: [true; BUFFERS],
            read: 0,
            write: 0,
            unreported: 0,
            returned: 0,
            lent: 0,
            is_raised: false,
            started: None,
            is_suspending: false,
            errors: 0,
            restarts: 0,
        };
        // Padding of messages must not show earlier contents of the memory.
        inbound.buffers.fill(0);
        inbound.start(registers);
        Ok(inbound)
    }

    /// Starts the channel with the buffers that the device owns.
    fn start(&mut self, registers: &Tsi721Registers) {
        let at = |offset: usize| self.base + offset;
        let [free, done] = [&self.free, &self.descriptors].map(Window::bus_address);
        registers.write_address(at(FREE_BASE[0]), at(FREE_BASE[1]), free);
        registers.write(at(FREE_SIZE), queue_size(ENTRIES));
        registers.write_address(at(DONE_BASE[0]), at(DONE_BASE[1]), done);
        registers.write(at(DONE_SIZE), queue_size(ENTRIES));
        registers.write(at(INTERRUPT), ALL);
        registers.write(at(ENABLE), WANTED);
        registers.write(at(CONTROL), 1);
        // Read back: the channel has stopped, and its earlier writes have arrived.
        registers.read(at(CONTROL));
        self.descriptors.fill(0);
        let mut count = 0;
        for (number, owned) in self.owned.iter().enumerate() {
            if *owned {
                let buffer = self.buffers.bus_address() + (number * BUFFER) as u64;
                self.free.store64(8 * count, buffer);
                count += 1;
            }
        }
        (self.read, self.write) = (0, count);
        (self.unreported, self.returned, self.is_raised) = (0, 0, false);
        self.started = Some(None);
    }

    /// Passes buffers to the device once the channel is initialized.
    pub fn watch(&mut self, now: Instant, registers: &Tsi721Registers) {
        match self.started {
            Some(None) => self.started = Some(Some(now)),
            Some(Some(since)) if self.is_suspending => {
                let status = registers.read(self.base + STATUS);
                let runs = status != u32::MAX && status & RUN != 0;
                if !runs || now.since(since) >= SUSPENDING {
                    self.is_suspending = false;
                    self.start(registers);
                }
            }
            Some(Some(since)) if now.since(since) >= INITIALIZING => {
                self.started = None;
                self.notify(registers);
            }
            _ => {}
        }
    }

    /// Whether the channel is being initialized and needs [`InboundMailbox::watch`].
    pub fn is_starting(&self) -> bool {
        self.started.is_some()
    }

    /// Checks for errors. Call it periodically.
    pub fn check(&mut self, registers: &Tsi721Registers) {
        let status = registers.read(self.base + INTERRUPT);
        if status == u32::MAX {
            return;
        }
        // Clears the receive bit with the next arming, in case it is set without a message.
        self.is_raised = true;
        if status & !RECEIVED != 0 {
            registers.write(self.base + INTERRUPT, status & !RECEIVED);
        }
        if status & SEGMENT_TIMEOUT != 0 {
            self.errors += 1;
        }
        if status & (MEMORY_ERROR | SUSPENDED) != 0 {
            self.restart(registers);
        }
    }

    /// Restarts the channel. Received messages that were not taken are lost.
    pub fn restart(&mut self, registers: &Tsi721Registers) {
        self.restarts += 1;
        let status = registers.read(self.base + STATUS);
        if status == u32::MAX || status & RUN == 0 {
            return self.start(registers);
        }
        registers.write(self.base + CONTROL, SUSPEND);
        (self.is_suspending, self.started) = (true, Some(None));
    }

    /// Whether a message waits.
    #[inline]
    pub fn pending(&self) -> bool {
        self.words.load(self.read * WORDS) & VALID != 0
    }

    /// The next message.
    pub fn receive(&mut self, registers: &Tsi721Registers) -> Option<Message> {
        loop {
            let at = self.read * WORDS;
            let word = self.words.load(at);
            if word & VALID == 0 {
                return None;
            }
            let (first, second) = (word as u32, (word >> 32) as u32);
            let address = self.words.load(at + 1);
            self.words.store(at, 0);
            self.read = (self.read + 1) % ENTRIES;
            self.unreported += 1;
            self.is_raised = true;
            self.flush(registers);
            let Some(buffer) = self.claim(address) else {
                self.errors += 1;
                continue;
            };
            let len = match second & 0xff8 {
                0 => 4096,
                len => len as u16,
            };
            let message = Message {
                mailbox: self.mailbox,
                from: first as u16,
                letter: (second >> 16 & 3) as u8,
                len,
                buffer,
            };
            let status = second >> 27 & 0xf;
            let is_ours = second >> 22 & 3 == u32::from(self.mailbox.number());
            if first >> 29 != TYPE_MESSAGE || status != 0 || !is_ours {
                self.errors += 1;
                self.recycle(message.buffer);
                continue;
            }
            return Some(message);
        }
    }

    /// Takes over the buffer at `address`; its number. None if the device does not own it.
    fn claim(&mut self, address: u64) -> Option<u16> {
        let offset = address.wrapping_sub(self.buffers.bus_address());
        let number = (offset / BUFFER as u64) as usize;
        let owned = self.owned.get_mut(number).filter(|owned| **owned)?;
        if !offset.is_multiple_of(BUFFER as u64) {
            return None;
        }
        *owned = false;
        self.lent += 1;
        Some(number as u16)
    }

    /// Bytes of a message.
    pub fn payload(&self, message: &Message) -> Window {
        let start = usize::from(message.buffer) * BUFFER;
        self.buffers.slice(start, message.len.into()).unwrap_or(Window::empty())
    }

    /// Returns a buffer to the device.
    pub fn recycle(&mut self, buffer: u16) {
        let Some(owned) = self.owned.get_mut(usize::from(buffer)).filter(|owned| !**owned) else {
            return;
        };
        *owned = true;
        self.lent -= 1;
        self.returned += 1;
        let address = self.buffers.bus_address() + u64::from(buffer) * BUFFER as u64;
        self.free.store64(8 * self.write, address);
        self.write = (self.write + 1) % ENTRIES;
    }

    /// Notifies the device of messages taken and buffers returned.
    fn notify(&mut self, registers: &Tsi721Registers) {
        (self.unreported, self.returned) = (0, 0);
        registers.write(self.base + DONE_READ, self.read as u32);
        registers.write(self.base + FREE_WRITE, self.write as u32);
    }

    /// Notifies the device once a batch is complete, or if the device may run short of buffers.
    #[inline]
    pub fn flush(&mut self, registers: &Tsi721Registers) {
        let is_short = self.lent > BUFFERS / 2 && self.unreported + self.returned > 0;
        let is_batch = self.unreported >= BATCH || self.returned >= BATCH;
        if (is_batch || is_short) && !self.is_starting() {
            self.notify(registers);
        }
    }

    /// Enables the interrupt for the next message; true if that took a register write. Check
    /// [`InboundMailbox::pending`] after the write has arrived.
    pub fn arm(&mut self, registers: &Tsi721Registers) -> bool {
        let was_raised = core::mem::take(&mut self.is_raised);
        if was_raised {
            registers.write(self.base + INTERRUPT, RECEIVED);
        }
        was_raised
    }
}
