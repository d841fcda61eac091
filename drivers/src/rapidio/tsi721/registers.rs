//! Registers of the Tsi721 (Linux `drivers/rapidio/devices/tsi721.h`), in BAR 0: 32 bits, little-endian. Below
//! 0x10000 lie those that every RapidIO device has.

use super::Error;
use crate::hal::{Platform, Registers};
use crate::pci::Bars;
use alloc::boxed::Box;

/// Bytes of BAR 0 that are used.
const LEN: usize = 0x80000;
/// Bytes of BAR 1, the outbound doorbells, that are used: ids of both widths.
const DOORBELLS_LEN: usize = 0x80000;

/// LP-Serial block of registers, which every port has.
pub const SERIAL: u32 = 0x100;

/// Error management: what interrupts, and which of it may.
pub const EM_STATUS: usize = 0x10910;
/// See [`EM_STATUS`].
pub const EM_ENABLE: usize = 0x10914;
/// See [`EM_STATUS`].
pub const EM_DEVICE_ENABLE: usize = 0x10930;
/// A port-write was received.
pub const EM_PORT_WRITE: u32 = 1 << 16;

/// Port-writes: how they are received.
pub const PORT_WRITE_CONTROL: usize = 0x10a04;
/// The first is kept until it was read.
pub const PORT_WRITE_RELIABLE: u32 = 1 << 24;
/// Whether one was received, or thrown away.
pub const PORT_WRITE_STATUS: usize = 0x10a10;
/// One was received.
pub const PORT_WRITE_VALID: u32 = 1;
/// One was thrown away.
pub const PORT_WRITE_DISCARDED: u32 = 2;
/// Its four words.
pub const PORT_WRITE_CAPTURE: usize = 0x10a20;

/// Inbound doorbell queue 0.
pub mod doorbells {
    /// Control: 1 starts it.
    pub const CONTROL: usize = 0x20000;
    /// Which doorbells it takes.
    pub const MASK: usize = 0x20008;
    /// Next entry that software reads.
    pub const READ: usize = 0x2000c;
    /// Where the queue lies, lower half, and upper.
    pub const BASE: usize = 0x20014;
    /// Entries, as log2 less 4.
    pub const SIZE: usize = 0x2001c;
    /// What happened.
    pub const INTERRUPT: usize = 0x20040;
    /// Which of it interrupts.
    pub const ENABLE: usize = 0x20044;
    /// A doorbell was received.
    pub const RECEIVED: u32 = 0x10;
    /// An outbound one timed out, was to be tried again, failed.
    pub const OUTBOUND_ERRORS: u32 = 0x07;
    /// All bits.
    pub const ALL: u32 = 0x3f;
}

/// Inbound window: offset of window n.
pub const fn inbound_window(n: usize) -> usize {
    0x29000 + 0x20 * n
}
/// Windows of each kind.
pub const WINDOWS: usize = 8;
/// Outbound window n.
pub const fn outbound_window(n: usize) -> usize {
    0x40000 + 0x20 * n
}
/// A window is used.
pub const WINDOW_ENABLE: u32 = 1;
/// Which zone of which window the next three words are for.
pub const ZONE_SELECT: usize = 0x41300;
/// It is being written.
pub const ZONE_GO: u32 = 1 << 16;
/// The three words.
pub const ZONE_DATA: usize = 0x41304;
/// Zones of a window.
pub const ZONES: usize = 8;

/// What of the device interrupts.
pub const DEVICE_ENABLE: usize = 0x29840;
/// Block DMA, messages, doorbells, errors.
pub const DEVICE_ALL: u32 = 0x2000 | 0x800 | 0x200 | 0x20;
/// Errors and port-writes alone.
pub const DEVICE_ERRORS: u32 = 0x20;
/// What of it does so now.
pub const DEVICE_STATUS: usize = 0x29844;
/// Which channels interrupt.
pub const CHANNEL_ENABLE: usize = 0x2984c;

/// Device control.
pub const DEVICE_CONTROL: usize = 0x48004;
/// The RapidIO link may come up.
pub const BOOT_COMPLETE: u32 = 4;

/// Interrupts of the PCI Express to RapidIO bridge, the I2C unit, both ways of the bridge, all block DMA channels.
pub const OTHER_ENABLES: [usize; 4] = [0x41310, 0x49120, 0x29800, 0x5f000];

/// Messages: how long a response, or the next segment, may take.
pub const MESSAGE_TIMEOUT: usize = 0x60010;
/// Messages for which id are taken.
pub const MESSAGE_ID: usize = 0x60020;
/// For any id.
pub const MESSAGE_ID_ANY: u32 = 0xffff;
/// Interrupts of all messages.
pub const MESSAGE_ENABLE: usize = 0x6a000;
/// What happened to message memory.
pub const MESSAGE_INTERRUPT: usize = 0x6a008;
/// Errors that were corrected, by channel.
pub const ECC_CORRECTED: u32 = 0xff;
/// Errors that were not, by channel.
pub const ECC_LOST: u32 = 0xff00;
/// All bits of [`MESSAGE_INTERRUPT`].
pub const MESSAGE_ALL: u32 = 0x0086_ffff;
/// Counts and logs of errors in messages.
pub const MESSAGE_LOGS: [usize; 3] = [0x6a014, 0x6a100, 0x6a104];

/// Inbound message channel of a mailbox.
pub const fn inbound_messages(mailbox: usize) -> usize {
    0x61200 + 0x1000 * (mailbox + 4)
}

/// Vectors of MSI-X: where each cause is.
pub mod vectors {
    /// How many there are.
    pub const COUNT: u16 = 70;
    /// Block DMA channel: done, and errors 8 further.
    pub const fn block_dma(channel: u16) -> [u16; 2] {
        [channel, 8 + channel]
    }
    /// Outbound messages: done, and errors.
    pub const fn outbound(mailbox: u16) -> [u16; 2] {
        [17 + mailbox, 25 + mailbox]
    }
    /// Inbound messages: received, and errors.
    pub const fn inbound(mailbox: u16) -> [u16; 2] {
        [37 + mailbox, 45 + mailbox]
    }
    /// Doorbells: received, and the rest.
    pub const DOORBELLS: [u16; 2] = [50, 58];
    /// Port-writes and errors of the link.
    pub const PORT: u16 = 68;
}

/// Both BARs, mapped.
pub struct Tsi721Registers {
    registers: Box<dyn Registers>,
    doorbells: Box<dyn Registers>,
}

impl Tsi721Registers {
    /// Maps them.
    pub fn map(bars: &Bars, platform: &mut dyn Platform) -> Result<Self, Error> {
        let mut map = |bar: u8, len: usize| {
            let address = bars.get(bar).and_then(|bar| bar.range(0, len as u64));
            let mapped = address.and_then(|address| platform.map_registers(address, len));
            mapped.ok_or(Error::NoRegisters { bar })
        };
        Ok(Tsi721Registers { registers: map(0, LEN)?, doorbells: map(1, DOORBELLS_LEN)? })
    }

    /// Reads a register.
    #[inline]
    pub fn read(&self, offset: usize) -> u32 {
        self.registers.read32(offset)
    }

    /// Writes one.
    #[inline]
    pub fn write(&self, offset: usize, value: u32) {
        self.registers.write32(offset, value);
    }

    /// Writes an address: the lower half at `low`, the upper at `high`.
    pub fn write_address(&self, low: usize, high: usize, address: u64) {
        self.write(high, (address >> 32) as u32);
        self.write(low, address as u32);
    }

    /// Rings an outbound doorbell: 16 bits, big-endian, at a place that says who for.
    #[inline]
    pub fn ring(&self, size_code: u32, to: u16, info: u16) {
        let at = (size_code << 18) as usize + (usize::from(to) << 2);
        self.doorbells.write16(at, info.swap_bytes());
    }
}

/// Size registers of queues: log2 of the entries, a power of two, less 4.
pub const fn queue_size(entries: usize) -> u32 {
    entries.ilog2() - 4
}

/// The lower and upper half of an address.
pub const fn halves(address: u64) -> [u32; 2] {
    [address as u32, (address >> 32) as u32]
}
