//! What master ports are told, and tell.

use crate::hal::Window;
use core::fmt;

/// How wide destination ids are; the same on the whole network (RapidIO part 3, 2.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdSize {
    /// 8 bits.
    #[default]
    Small,
    /// 16 bits.
    Large,
}

impl IdSize {
    /// The id that stands for whoever is at the other end, and that no device has.
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

/// Who a packet is for: a destination id, as wide as the network's.
pub type Destination = u16;
/// Who a packet says that it is from. Nobody checks that on the way.
pub type Source = u16;
/// Switches that a maintenance request passes before one takes it for itself; 255 for end points.
pub type HopCount = u8;

/// One of the four mailboxes for messages of up to 4096 bytes (RapidIO part 2, 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mailbox(u8);

impl Mailbox {
    /// How many there are.
    pub const COUNT: usize = 4;
    /// All of them.
    pub const ALL: [Mailbox; Mailbox::COUNT] = [Mailbox(0), Mailbox(1), Mailbox(2), Mailbox(3)];

    /// Number `number`, below 4.
    pub const fn new(number: u8) -> Option<Mailbox> {
        if number < 4 { Some(Mailbox(number)) } else { None }
    }

    /// Its number, below 4.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The same, to index with.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Whether data is read from a device or written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// NREAD.
    Read,
    /// NWRITE: nothing says whether it arrived.
    Write,
    /// NWRITE_R: the last packet is answered, so that what was written has arrived when it is done.
    WriteWithResponse,
}

/// A read or write of a register of a device, switch or end point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maintenance {
    /// Where to.
    pub to: Destination,
    /// How many switches to pass.
    pub hops: HopCount,
    /// Offset in bytes, a multiple of 4 below 2^24.
    pub offset: u32,
    /// What to write; None reads.
    pub write: Option<u32>,
}

/// Why a register could not be read or written. An end that is not there and one that refuses look the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaintenanceError {
    /// An error came back, or nothing: no such device, no way there, or no way back.
    NoAnswer,
    /// The port was reset, or its link is down.
    PortDown,
}

/// How a maintenance request ended: the value that was read, or 0 for a write.
pub type Maintained = Result<u32, MaintenanceError>;

/// No room now: poll, then try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// A doorbell (RapidIO part 2, 2.2): 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbell {
    /// Who says that he rang.
    pub from: Source,
    /// The id that it was sent to.
    pub to: Destination,
    /// What was said.
    pub info: u16,
}

/// A message that has arrived and lies in the port's buffer. Give it back with
/// [`MasterPort::recycle`](super::MasterPort::recycle).
#[derive(Debug)]
pub struct Message {
    /// Where it arrived.
    pub mailbox: Mailbox,
    /// Who says that he sent it.
    pub from: Source,
    /// Letter, 0 to 3.
    pub letter: u8,
    /// Bytes, a multiple of 8, 8 to 4096. What the sender meant to send may be less.
    pub len: u16,
    /// The driver's name for the buffer.
    pub buffer: u16,
}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// No room now: poll, then try again.
    Full,
    /// Empty, or more than 4096 bytes: our mistake.
    Length,
    /// The mailbox is not open, or the port is lost.
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

/// A message that did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undelivered {
    /// From which mailbox.
    pub mailbox: Mailbox,
    /// To whom.
    pub to: Destination,
    /// Why.
    pub fault: Fault,
}

/// What went wrong with a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The other end answered with an error, or not at all, and the port gave up.
    Refused,
    /// The other end kept saying "later", for as long as is waited.
    Stalled,
    /// The link went down, or the port was reset.
    LinkLost,
}

/// Data that a port carries between its machine's memory and a device's address space.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Comes back in [`Transferred`].
    pub tag: u64,
    /// Which way, and how.
    pub direction: Direction,
    /// Which device.
    pub device: Destination,
    /// First byte in its address space.
    pub address: u64,
    /// Our memory, 1 byte to 64 MiB; belongs to the port until the transfer has ended.
    pub memory: Window,
}

/// A transfer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transferred {
    /// Of the [`Transfer`].
    pub tag: u64,
    /// Without success, parts of the data may have been carried all the same.
    pub result: Result<(), Fault>,
}

/// What a device tells its host unasked (RapidIO part 8, 1.3): a link came or went, an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortWrite {
    /// Component tag of the device that tells.
    pub component_tag: u32,
    /// Port error detect register.
    pub port_errors: u32,
    /// Implementation-specific bits, and the port in the lower 8 bits.
    pub port: u32,
    /// Logical and transport layer error detect register.
    pub logical_errors: u32,
}

/// Addresses of this machine that are a device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboundMap {
    /// Names the map.
    pub number: u8,
    /// Bytes.
    pub size: u64,
}

/// Why memory could not be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowError {
    /// All windows, or all addresses for them, are in use.
    NoneLeft,
    /// The size is no power of two, too small or too large, or an address is no multiple of it.
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
