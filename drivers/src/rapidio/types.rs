//! Requests to master ports, and their results.

use crate::hal::Window;
use core::fmt;

/// Width of destination ids, the same on the whole network (RapidIO part 3, 2.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdSize {
    /// 8 bits.
    #[default]
    Small,
    /// 16 bits.
    Large,
}

impl IdSize {
    /// The id that addresses the link partner, whatever its id is. No device has this id.
    pub const fn any(self) -> u16 {
        match self {
            IdSize::Small => 0xff,
            IdSize::Large => 0xffff,
        }
    }

    /// The field `tt` of packets.
    pub const fn code(self) -> u32 {
        match self {
            IdSize::Small => 0,
            IdSize::Large => 1,
        }
    }

    /// Whether a device may have this id.
    pub const fn is_valid(self, id: u16) -> bool {
        id < self.any()
    }
}

/// Destination id of a packet, in the network's width.
pub type Destination = u16;
/// Source id as claimed by a packet. No device on the way checks it.
pub type Source = u16;
/// Number of switches that a maintenance request passes before one consumes it; 255 for end points.
pub type HopCount = u8;

/// One of the four mailboxes for messages of up to 4096 bytes (RapidIO part 2, 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mailbox(u8);

impl Mailbox {
    /// Number of mailboxes.
    pub const COUNT: usize = 4;
    /// All mailboxes.
    pub const ALL: [Mailbox; Mailbox::COUNT] = [Mailbox(0), Mailbox(1), Mailbox(2), Mailbox(3)];

    /// Mailbox `number`, below 4.
    pub const fn new(number: u8) -> Option<Mailbox> {
        if number < 4 { Some(Mailbox(number)) } else { None }
    }

    /// Its number, below 4.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Its number as an array index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Whether data is read from a device or written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// NREAD.
    Read,
    /// NWRITE: delivery is not confirmed.
    Write,
    /// NWRITE_R: the last packet is answered, so that all data has arrived when the transfer completes.
    WriteWithResponse,
}

/// A read or write of a register of a device, switch or end point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maintenance {
    /// Destination id.
    pub to: Destination,
    /// Number of switches to pass.
    pub hops: HopCount,
    /// Offset in bytes, a multiple of 4 below 2^24.
    pub offset: u32,
    /// Value to write; None reads.
    pub write: Option<u32>,
}

/// Why a register could not be read or written. An absent device cannot be told from one that refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaintenanceError {
    /// An error response or none: no such device, no route to it, or no route back.
    NoAnswer,
    /// The port was reset, or its link is down.
    PortDown,
}

/// Result of a maintenance request: the value that was read, or 0 for a write.
pub type Maintained = Result<u32, MaintenanceError>;

/// No room now: poll, then try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// A doorbell (RapidIO part 2, 2.2): 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbell {
    /// Claimed source id.
    pub from: Source,
    /// Destination id.
    pub to: Destination,
    /// The 16 bits.
    pub info: u16,
}

/// A received message, still in the port's buffer. Give it back with
/// [`MasterPort::recycle`](super::MasterPort::recycle).
#[derive(Debug)]
pub struct Message {
    /// Receiving mailbox.
    pub mailbox: Mailbox,
    /// Claimed source id.
    pub from: Source,
    /// Letter, 0 to 3.
    pub letter: u8,
    /// Length in bytes with padding: a multiple of 8, 8 to 4096.
    pub len: u16,
    /// The driver's number of the buffer.
    pub buffer: u16,
}

/// Why a message was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// No room now: poll, then try again.
    Full,
    /// Empty, or more than 4096 bytes: a mistake of the caller.
    Length,
    /// The mailbox is not open, the link is down, or the device is gone.
    Closed,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendError::Full => "the outbound mailbox is full",
            SendError::Length => "a RapidIO message has 1 to 4096 bytes",
            SendError::Closed => "the outbound mailbox is not open",
        })
    }
}

impl core::error::Error for SendError {}

/// A message that was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undelivered {
    /// Mailbox that sent it.
    pub mailbox: Mailbox,
    /// Destination id.
    pub to: Destination,
    /// Reason.
    pub fault: Fault,
}

/// Why a transaction failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The receiver answered with an error, or did not answer before the port's timeout.
    Refused,
    /// The receiver answered with RETRY until the timeout.
    Stalled,
    /// The link went down, or the port was reset.
    LinkLost,
}

/// A DMA transfer between this machine's memory and a device's address space.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The caller's cookie, returned in [`Transferred`].
    pub tag: u64,
    /// Direction and kind of request.
    pub direction: Direction,
    /// Destination id of the device.
    pub device: Destination,
    /// First byte in the device's address space.
    pub address: u64,
    /// Memory of this machine, 1 byte to 64 MiB. The port owns it until the transfer has ended.
    pub memory: Window,
}

/// Completion of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transferred {
    /// Tag of the [`Transfer`].
    pub tag: u64,
    /// Result. A failed transfer may have moved part of the data.
    pub result: Result<(), Fault>,
}

/// An unsolicited report of a device to its host (RapidIO part 8, 1.3): a link went up or down, or an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortWrite {
    /// Component tag of the reporting device.
    pub component_tag: u32,
    /// Port error detect register.
    pub port_errors: u32,
    /// Implementation-specific bits, and the port in the lower 8 bits.
    pub port: u32,
    /// Logical and transport layer error detect register.
    pub logical_errors: u32,
}

/// Addresses of this machine that are mapped to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboundMap {
    /// Number of the map.
    pub number: u8,
    /// Size in bytes.
    pub size: u64,
}

/// Why memory could not be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowError {
    /// All windows, or all addresses for them, are in use.
    NoneLeft,
    /// The size is not a power of two, too small or too large, or an address is not a multiple of it.
    Alignment,
    /// The port has no such windows.
    Unsupported,
}

impl fmt::Display for WindowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WindowError::NoneLeft => "all windows of the RapidIO port are in use",
            WindowError::Alignment => {
                "a RapidIO window's size is a power of two, and its addresses are multiples of it"
            }
            WindowError::Unsupported => "the RapidIO port has no windows of this kind",
        })
    }
}

impl core::error::Error for WindowError {}
