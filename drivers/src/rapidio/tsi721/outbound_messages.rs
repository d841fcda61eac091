//! The outbound side of a mailbox: messages are copied to buffers of the port and sent in order. An undeliverable
//! message is dropped and reported, and the next ones are sent.
//!
//! Completions matter only to a caller that waits for room. So descriptors interrupt only if the ring is more than half
//! full, and then every sixteenth. In Linux every fourth does, always.

use super::Error;
use super::engine::{Descriptor, Engine, Layout, WANTS_INTERRUPT};
use super::registers::{Tsi721Registers, halves};
use crate::hal::{Arena, Instant, Packet, Window};
use crate::rapidio::{Fault, IdSize, Mailbox, SendError, Undelivered};
use core::cell::Cell;
use core::time::Duration;

/// Maximum length of a message in bytes.
pub const MAX: usize = 4096;
/// Maximum number of messages in a mailbox.
pub const ENTRIES: usize = 127;
/// How long a receiver may answer with RETRY, which blocks the whole mailbox. Long enough for a guest that is frozen
/// for seconds: with Linux as receiver no message is lost.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout for a receiver that has hit [`TIMEOUT`] and accepted no message since. So a hung device blocks the
/// others once, and not for each message.
const SHORT_TIMEOUT: Duration = Duration::from_millis(5);

static LAYOUT: Layout = Layout {
    descriptor: 16,
    link: 5 << 29,
    // With the retry threshold enabled, as in Linux.
    start: 5,
    pointer: [0x20, 0x24],
    fifo: [0x40, 0x44],
    fifo_size: 0x48,
    fifo_read: 0x4c,
};

const TYPE_MESSAGE: u32 = 4 << 29;
/// One of this many descriptors interrupts while the ring is more than half full. So a caller that finds the ring full
/// has some of these ahead.
const INTERRUPT_EVERY: usize = 16;
/// Segments of 256 bytes.
const SEGMENT_SIZE: u32 = 0xe << 12;

/// The outbound side of a mailbox.
pub struct OutboundMailbox {
    mailbox: Mailbox,
    /// The tag of a descriptor is the destination id.
    engine: Engine<u16>,
    buffers: Window,
    /// The next buffer. Buffers are reused in order, because descriptors complete in order.
    next: usize,
    /// The receiver that last hit [`TIMEOUT`].
    hung: Option<u16>,
    /// A caller has found too little room, and no message has completed since.
    is_short: Cell<bool>,
}

impl OutboundMailbox {
    /// Allocates and starts the channel.
    pub fn new(
        mailbox: Mailbox,
        arena: &mut Arena,
        registers: &Tsi721Registers,
    ) -> Result<Self, Error> {
        let bytes = ENTRIES * MAX;
        let buffers = arena.alloc(bytes, 4096).ok_or(Error::NoMemory { bytes })?;
        buffers.fill(0);
        let base = 0x61000 + 0x1000 * mailbox.index();
        match Engine::new(&LAYOUT, base, ENTRIES, TIMEOUT, arena, registers) {
            Ok(engine) => {
                let (next, hung, is_short) = (0, None, Cell::new(false));
                Ok(OutboundMailbox { mailbox, engine, buffers, next, hung, is_short })
            }
            Err(error) => {
                arena.free(buffers);
                Err(error)
            }
        }
    }

    /// Whether `messages` messages can be queued. If not, [`OutboundMailbox::pending`] reports when messages have
    /// completed.
    #[inline]
    pub fn has_room(&self, messages: usize) -> bool {
        let has = self.engine.room() >= messages;
        if !has {
            self.is_short.set(true);
        }
        has
    }

    /// Whether messages have completed while a caller waits for room.
    pub fn pending(&self) -> bool {
        self.is_short.get() && self.engine.pending()
    }

    /// Queues a message; its length on the wire in bytes.
    pub fn push(&mut self, size: IdSize, to: u16, message: &Packet<'_>) -> Result<u16, SendError> {
        let len = message.len();
        if len == 0 || len > MAX {
            return Err(SendError::Length);
        }
        if !self.has_room(1) {
            return Err(SendError::Full);
        }
        let buffer = self.buffers.slice(self.next * MAX, MAX).ok_or(SendError::Closed)?;
        let whole = copy(message, &buffer).ok_or(SendError::Length)?;
        let [low, high] = halves(buffer.bus_address());
        let mut descriptor: Descriptor = [0; 8];
        descriptor[0] = TYPE_MESSAGE | u32::from(to);
        if self.engine.room() <= ENTRIES / 2 && self.next % INTERRUPT_EVERY == INTERRUPT_EVERY - 1 {
            descriptor[0] |= WANTS_INTERRUPT;
        }
        // A count of 0 means 4096.
        descriptor[1] = size.code() << 26
            | u32::from(self.mailbox.number()) << 22
            | SEGMENT_SIZE
            | whole as u32 & 0xff8;
        (descriptor[2], descriptor[3]) = (low, high);
        self.engine.push(descriptor, to);
        self.next = (self.next + 1) % ENTRIES;
        Ok(whole as u16)
    }

    /// Notifies the device of new messages.
    pub fn notify(&mut self, registers: &Tsi721Registers) {
        self.engine.notify(registers);
    }

    /// Number of messages delivered since the last call.
    pub fn delivered(&mut self, registers: &Tsi721Registers) -> u64 {
        let mut count = 0;
        while let Some((_, to)) = self.engine.take(registers) {
            count += 1;
            self.hung = self.hung.filter(|hung| *hung != to);
        }
        if count > 0 {
            self.is_short.set(false);
        }
        count
    }

    /// Runs the engine's checks. Reports undelivered messages to `failed`.
    pub fn watch(
        &mut self,
        now: Instant,
        has_error: bool,
        registers: &Tsi721Registers,
        mut failed: impl FnMut(Undelivered),
    ) {
        let OutboundMailbox { mailbox, engine, hung, .. } = self;
        let (mailbox, before) = (*mailbox, *hung);
        let shorter = |to: &u16| (before == Some(*to)).then_some(SHORT_TIMEOUT);
        engine.watch(now, has_error, registers, shorter, |to, fault| {
            if fault == Fault::Stalled {
                *hung = Some(to);
            }
            failed(Undelivered { mailbox, to, fault });
        });
    }

    /// Fails all messages in flight.
    pub fn fail(&mut self, registers: &Tsi721Registers, mut failed: impl FnMut(Undelivered)) {
        let (mailbox, fault) = (self.mailbox, Fault::LinkLost);
        self.engine.fail_all(registers, |to| failed(Undelivered { mailbox, to, fault }));
    }

    /// See [`Engine::arm`].
    pub fn arm(&mut self, registers: &Tsi721Registers) -> bool {
        self.engine.arm(registers)
    }

    /// See [`Engine::start_over`].
    pub fn start_over(&mut self, registers: &Tsi721Registers) {
        self.engine.start_over(registers);
    }

    /// The channel's engine.
    pub fn engine(&self) -> &Engine<u16> {
        &self.engine
    }
}

/// Copies a message into a buffer, and pads it with zeroes to a multiple of 8 bytes, so that no earlier message shows.
/// The length with padding.
fn copy(message: &Packet<'_>, buffer: &Window) -> Option<usize> {
    let mut at = 0;
    buffer.write(at, message.header).ok()?;
    at += message.header.len();
    for window in message.payload {
        buffer.write_window(at, window).ok()?;
        at += window.len();
    }
    buffer.write(at, message.trailer).ok()?;
    at += message.trailer.len();
    let whole = at.next_multiple_of(8);
    buffer.write(at, &[0; 8][..whole - at]).ok()?;
    Some(whole)
}
