//! Errors of a Switchtec bridge. Each message names the remedy.

use crate::ntb::Side;
use core::fmt;

/// Why a bridge cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The device is not on PCI, or its registers cannot be mapped.
    NoRegisters,
    /// The device does not answer.
    Absent,
    /// The function is for management only.
    NotBridge,
    /// The partition is joined with no other partition, or with several.
    NoPeer {
        /// This host's partition.
        partition: u8,
        /// Bitmap of the joined partitions.
        targets: u64,
    },
    /// The two partitions belong to two switches.
    Crosslink,
    /// The configuration names the other side.
    WrongSide {
        /// The actual side of this machine.
        is: Side,
    },
    /// The partition has no window, or no lookup entries.
    NoWindow {
        /// Lookup entries.
        entries: u16,
    },
    /// The partition admits too few requester IDs.
    NoRequesters,
    /// The window cannot be mapped.
    NotMapped {
        /// Bytes of the window.
        bytes: u64,
    },
    /// There is no memory to expose behind the window.
    NoMemory {
        /// Bytes requested.
        bytes: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::NoRegisters => f.write_str("the switch's registers (BAR 0) cannot be mapped"),
            Error::Absent => f.write_str("the switch does not answer: check the machine"),
            Error::NotBridge => f.write_str(
                "the switch's function is for management only: give its partition an NT endpoint in the \
                 switch's configuration file",
            ),
            Error::NoPeer { partition, targets } => write!(
                f,
                "partition {partition} of the switch is joined with no other partition, or with several \
                 (bitmap {targets:#x}): join it with one other NT partition in the switch's \
                 configuration file"
            ),
            Error::Crosslink => f.write_str(
                "the switch is joined with another by a crosslink, which is not supported: join two partitions \
                 of one switch",
            ),
            Error::WrongSide { is } => write!(
                f,
                "this host is at the partition with the {} number, but `side` in the configuration is the other: \
                 remove `side`",
                if is == Side::A { "lower" } else { "higher" }
            ),
            Error::NoWindow { entries } => write!(
                f,
                "the partition has no direct window behind BAR 2, or no lookup windows ({entries} entries): give it a \
                 64-bit BAR 2 of at least 2 MiB with a direct window and 8 or more lookup entries in the switch's \
                 configuration file"
            ),
            Error::NoRequesters => f.write_str(
                "the partition admits fewer than two requester IDs: give it more in the switch's \
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
