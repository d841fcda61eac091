//! Why a bridge cannot be used, and what to do about it.

use crate::ntb::Side;
use core::fmt;

/// Why a bridge cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// It is not on PCI, or its registers cannot be mapped.
    NoRegisters,
    /// It answers nothing.
    Absent,
    /// The function is for management alone.
    NotBridge,
    /// The partition has no other one at the bridge, or several.
    NoPeer {
        /// The own partition.
        partition: u8,
        /// Its targets, a bit each.
        targets: u64,
    },
    /// The two partitions are of two switches.
    Crosslink,
    /// The configuration says that this machine is on the other side.
    WrongSide {
        /// The side that it is on.
        is: Side,
    },
    /// The partition has no window, or no entries for lookups.
    NoWindow {
        /// Entries.
        entries: u16,
    },
    /// Too few requester ids are let through.
    NoRequesters,
    /// The window cannot be mapped.
    NotMapped {
        /// Its bytes.
        bytes: u64,
    },
    /// There is no memory to expose behind the window.
    NoMemory {
        /// Bytes of it.
        bytes: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::NoRegisters => f.write_str("the switch's registers (BAR 0) cannot be mapped"),
            Error::Absent => f.write_str("the switch does not answer: look after the machine"),
            Error::NotBridge => f.write_str(
                "the switch's function is for management alone: give its partition an NT endpoint in the \
                 switch's configuration file",
            ),
            Error::NoPeer { partition, targets } => write!(
                f,
                "partition {partition} of the switch has no other partition that it is joined with, or several \
                 (a map of them: {targets:#x}): join it with one other NT partition in the switch's \
                 configuration file"
            ),
            Error::Crosslink => f.write_str(
                "the switch is joined with another by a crosslink, which is not supported: join two partitions \
                 of one switch",
            ),
            Error::WrongSide { is } => write!(
                f,
                "this host is at the partition with the {} number, and the configuration says the other: leave \
                 `side` out",
                if is == Side::A { "lower" } else { "higher" }
            ),
            Error::NoWindow { entries } => write!(
                f,
                "the partition has no window behind BAR 2, or none by lookup ({entries} entries): give it a \
                 64-bit BAR 2 of at least 2 MiB with a direct window and 8 or more lookup entries in the switch's \
                 configuration file"
            ),
            Error::NoRequesters => f.write_str(
                "the partition lets fewer than two requester ids through: give it more in the switch's \
                 configuration file",
            ),
            Error::NotMapped { bytes } => write!(
                f,
                "the bridge's window (BAR 2, {bytes} bytes) cannot be mapped: make it smaller in the switch's \
                 configuration file"
            ),
            Error::NoMemory { bytes } => write!(
                f,
                "there are no {bytes} bytes of memory to expose behind the bridge's window: make BAR 2 smaller in \
                 the switch's configuration file, or give the machine more memory"
            ),
        }
    }
}

impl core::error::Error for Error {}
