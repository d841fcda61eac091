//! Registers of the Tsi721 (Linux `drivers/rapidio/devices/tsi721.h`), in BAR 0: 32 bits, little-endian. Those below
//! 0x10000 are the standard registers of RapidIO devices.

use super::Error;
use crate::hal::{Platform, Registers};
use crate::pci::Bars;
use alloc::boxed::Box;

/// Bytes of BAR 0 that are used.
const LEN: usize = 0x80000;
/// Bytes of BAR 1 (outbound doorbells) that are used: ids of both widths.
const DOORBELLS_LEN: usize = 0x80000;

/// LP-Serial block of registers.
pub const SERIAL: u32 = 0x100;

/// Error management: interrupt status.
pub const EM_STATUS: usize = 0x10910;
/// Error management: interrupt enable.
pub const EM_ENABLE: usize = 0x10914;
/// Error management: device interrupt enable.
pub const EM_DEVICE_ENABLE: usize = 0x10930;
/// A port-write was received.
pub const EM_PORT_WRITE: u32 = 1 << 16;

/// Port-writes: receive control.
pub const PORT_WRITE_CONTROL: usize = 0x10a04;
/// Control: a received port-write is kept until it is read.
pub const PORT_WRITE_RELIABLE: u32 = 1 << 24;
/// Port-writes: receive status.
pub const PORT_WRITE_STATUS: usize = 0x10a10;
/// Status: a port-write was received.
pub const PORT_WRITE_VALID: u32 = 1;
/// Status: a port-write was discarded.
pub const PORT_WRITE_DISCARDED: u32 = 2;
/// The four words of the received port-write.
pub const PORT_WRITE_CAPTURE: usize = 0x10a20;

/// Inbound doorbell queue 0.
pub mod doorbells {
    /// Control: 1 starts the queue.
    pub const CONTROL: usize = 0x20000;
    /// Mask of the doorbells that the queue takes.
    pub const MASK: usize = 0x20008;
    /// Next entry that software reads.
    pub const READ: usize = 0x2000c;
    /// Address of the queue: lower half, upper half.
    pub const BASE: usize = 0x20014;
    /// Size, see [`super::queue_size`].
    pub const SIZE: usize = 0x2001c;
    /// Interrupt status.
    pub const INTERRUPT: usize = 0x20040;
    /// Interrupt enable.
    pub const ENABLE: usize = 0x20044;
    /// A doorbell was received.
    pub const RECEIVED: u32 = 0x10;
    /// An outbound doorbell timed out, got a RETRY, or failed.
    pub const OUTBOUND_ERRORS: u32 = 0x07;
    /// All bits.
    pub const ALL: u32 = 0x3f;
}

/// Control of inbound doorbell queue n.
pub const fn doorbell_control(n: usize) -> usize {
    doorbells::CONTROL + 0x1000 * n
}
/// Outbound message channel n.
pub const fn outbound_messages(n: usize) -> usize {
    0x61000 + 0x1000 * n
}
/// Channels of each kind, and doorbell queues.
pub const CHANNELS: usize = 8;

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
/// The window is enabled.
pub const WINDOW_ENABLE: u32 = 1;
/// Selects the zone and window for [`ZONE_DATA`].
pub const ZONE_SELECT: usize = 0x41300;
/// The zone is being written.
pub const ZONE_GO: u32 = 1 << 16;
/// The three words of a zone.
pub const ZONE_DATA: usize = 0x41304;
/// Zones of a window.
pub const ZONES: usize = 8;

/// Device interrupt enable.
pub const DEVICE_ENABLE: usize = 0x29840;
/// Block DMA, messages, doorbells, errors.
pub const DEVICE_ALL: u32 = 0x2000 | 0x800 | 0x200 | 0x20;
/// Errors and port-writes only.
pub const DEVICE_ERRORS: u32 = 0x20;
/// Device interrupt status.
pub const DEVICE_STATUS: usize = 0x29844;
/// Channel interrupt enable.
pub const CHANNEL_ENABLE: usize = 0x2984c;

/// Device control.
pub const DEVICE_CONTROL: usize = 0x48004;
/// The RapidIO link may come up.
pub const BOOT_COMPLETE: u32 = 4;

/// Interrupt enables of the PCI Express to RapidIO bridge, the I2C unit, both directions of the bridge, and all block
/// DMA channels.
pub const OTHER_ENABLES: [usize; 4] = [0x41310, 0x49120, 0x29800, 0x5f000];

/// Messages: timeout of a response, or of the next segment.
pub const MESSAGE_TIMEOUT: usize = 0x60010;
/// Destination id of messages that are accepted.
pub const MESSAGE_ID: usize = 0x60020;
/// Accepts messages to any id.
pub const MESSAGE_ID_ANY: u32 = 0xffff;
/// Messages: interrupt enable.
pub const MESSAGE_ENABLE: usize = 0x6a000;
/// Messages: interrupt status, with ECC errors of message memory.
pub const MESSAGE_INTERRUPT: usize = 0x6a008;
/// Corrected ECC errors, by channel.
pub const ECC_CORRECTED: u32 = 0xff;
/// Uncorrectable ECC errors, by channel.
pub const ECC_LOST: u32 = 0xff00;
/// All bits of [`MESSAGE_INTERRUPT`].
pub const MESSAGE_ALL: u32 = 0x0086_ffff;
/// Counters and logs of message errors.
pub const MESSAGE_LOGS: [usize; 3] = [0x6a014, 0x6a100, 0x6a104];

/// Inbound message channel of a mailbox.
pub const fn inbound_messages(mailbox: usize) -> usize {
    inbound_channel(mailbox + 4)
}
/// Inbound message channel n.
pub const fn inbound_channel(n: usize) -> usize {
    0x61200 + 0x1000 * n
}

/// MSI-X vectors of the causes.
pub mod vectors {
    /// Number of vectors.
    pub const COUNT: u16 = 70;
    /// Block DMA channel: done, and errors.
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
    /// Doorbells: received, and others.
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
    /// Maps both BARs.
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

    /// Writes a register.
    #[inline]
    pub fn write(&self, offset: usize, value: u32) {
        self.registers.write32(offset, value);
    }

    /// Writes an address: the lower half at `low`, the upper at `high`.
    pub fn write_address(&self, low: usize, high: usize, address: u64) {
        self.write(high, (address >> 32) as u32);
        self.write(low, address as u32);
    }

    /// Sends a doorbell: writes 16 bits, big-endian, to an offset that encodes the destination.
    #[inline]
    pub fn ring(&self, size_code: u32, to: u16, info: u16) {
        let at = (size_code << 18) as usize + (usize::from(to) << 2);
        self.doorbells.write16(at, info.swap_bytes());
    }
}

/// Value of a queue's size register: log2 of the number of entries (a power of two), minus 4.
pub const fn queue_size(entries: usize) -> u32 {
    entries.ilog2() - 4
}

/// The lower and upper half of an address.
pub const fn halves(address: u64) -> [u32; 2] {
    [address as u32, (address >> 32) as u32]
}
