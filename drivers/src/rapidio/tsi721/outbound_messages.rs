//! The outbound side of a mailbox: messages are copied to buffers of the port and leave in order. One that cannot be
//! delivered is dropped and told, and those behind it go on. That one has arrived is nobody's business but that of who
//! waits for room. So descriptors interrupt when the ring is more than half full, and of those every few; Linux has every
//! fourth do so always.

use super::Error;
use super::engine::{Descriptor, Engine, Layout, WANTS_INTERRUPT};
use super::registers::{Tsi721Registers, halves};
use crate::hal::{Arena, Instant, Packet, Window};
use crate::rapidio::{Fault, IdSize, Mailbox, SendError, Undelivered};
use core::cell::Cell;
use core::time::Duration;

/// Bytes of a message at most.
pub const MOST: usize = 4096;
/// Messages that a mailbox can hold.
pub const ENTRIES: usize = 127;
/// How long a receiver may say "later". Linux's lets a guest be frozen for seconds and loses nothing; this long the
/// whole mailbox stands still.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one may that did so all of that time and has taken nothing since: what else waits for it goes at once, so
/// that a device that hangs holds the others up once, and not for each message.
const SHORT: Duration = Duration::from_millis(5);

static LAYOUT: Layout = Layout {
    descriptor: 16,
    link: 5 << 29,
    // With the retry threshold on, as Linux has it.
    start: 5,
    pointer: [0x20, 0x24],
    fifo: [0x40, 0x44],
    fifo_size: 0x48,
    fifo_read: 0x4c,
};

const TYPE_MESSAGE: u32 = 4 << 29;
/// One of so many descriptors wants that, where there is little room. Whoever finds none has some of these ahead.
const EVERY: usize = 16;
/// Segments of 256 bytes.
const SEGMENT_SIZE: u32 = 0xe << 12;

/// The outbound side of a mailbox.
pub struct OutboundMailbox {
    mailbox: Mailbox,
    /// Each descriptor knows who it is for.
    engine: Engine<u16>,
    buffers: Window,
    /// Descriptors complete in order, and so do buffers.
    next: usize,
    /// The receiver that patience was lost with last.
    hung: Option<u16>,
    /// Somebody has found too little room, and nothing has left since.
    is_short: Cell<bool>,
}

impl OutboundMailbox {
    /// Sets it up.
    pub fn new(
        mailbox: Mailbox,
        arena: &mut Arena,
        registers: &Tsi721Registers,
    ) -> Result<Self, Error> {
        let bytes = ENTRIES * MOST;
        let buffers = arena.alloc(bytes, 4096).ok_or(Error::NoMemory { bytes })?;
        buffers.fill(0);
        let base = 0x61000 + 0x1000 * mailbox.index();
        match Engine::new(&LAYOUT, base, ENTRIES, PATIENCE, arena, registers) {
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

    /// Whether so many messages can be queued. If not, it is pending when some have left.
    #[inline]
    pub fn has_room(&self, messages: usize) -> bool {
        let has = self.engine.room() >= messages;
        if !has {
            self.is_short.set(true);
        }
        has
    }

    /// Messages have left, and somebody waits for that.
    pub fn pending(&self) -> bool {
        self.is_short.get() && self.engine.pending()
    }

    /// Queues a message; the bytes that go over the wire.
    pub fn push(&mut self, size: IdSize, to: u16, message: &Packet<'_>) -> Result<u16, SendError> {
        let len = message.len();
        if len == 0 || len > MOST {
            return Err(SendError::Length);
        }
        if !self.has_room(1) {
            return Err(SendError::Full);
        }
        let buffer = self.buffers.slice(self.next * MOST, MOST).ok_or(SendError::Closed)?;
        let whole = copy(message, &buffer).ok_or(SendError::Length)?;
        let [low, high] = halves(buffer.bus_address());
        let mut descriptor: Descriptor = [0; 8];
        descriptor[0] = TYPE_MESSAGE | u32::from(to);
        if self.engine.room() <= ENTRIES / 2 && self.next % EVERY == EVERY - 1 {
            descriptor[0] |= WANTS_INTERRUPT;
        }
        // A count of 0 stands for 4096.
        descriptor[1] = size.code() << 26
            | u32::from(self.mailbox.number()) << 22
            | SEGMENT_SIZE
            | whole as u32 & 0xff8;
        (descriptor[2], descriptor[3]) = (low, high);
        self.engine.push(descriptor, to);
        self.next = (self.next + 1) % ENTRIES;
        Ok(whole as u16)
    }

    /// Tells the device of new messages.
    pub fn tell(&mut self, registers: &Tsi721Registers) {
        self.engine.tell(registers);
    }

    /// How many messages have arrived since.
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

    /// Looks after it; `failed` hears of what is not delivered.
    pub fn watch(
        &mut self,
        now: Instant,
        trouble: bool,
        registers: &Tsi721Registers,
        mut failed: impl FnMut(Undelivered),
    ) {
        let OutboundMailbox { mailbox, engine, hung, .. } = self;
        let (mailbox, before) = (*mailbox, *hung);
        let shorter = |to: &u16| (before == Some(*to)).then_some(SHORT);
        engine.watch(now, trouble, registers, shorter, |to, fault| {
            if fault == Fault::Stalled {
                *hung = Some(to);
            }
            failed(Undelivered { mailbox, to, fault });
        });
    }

    /// Nothing of what is under way will be delivered.
    pub fn fail(&mut self, registers: &Tsi721Registers, mut failed: impl FnMut(Undelivered)) {
        let (mailbox, fault) = (self.mailbox, Fault::LinkLost);
        self.engine.fail_all(registers, |to| failed(Undelivered { mailbox, to, fault }));
    }

    /// See [`Engine::arm`].
    pub fn arm(&mut self, registers: &Tsi721Registers) -> bool {
        self.engine.arm(registers)
    }

    /// The engine beneath.
    pub fn engine(&self) -> &Engine<u16> {
        &self.engine
    }
}

/// Puts a message together, and zeroes up to a multiple of 8 bytes, so that nothing of an earlier one shows; the
/// bytes with them.
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
