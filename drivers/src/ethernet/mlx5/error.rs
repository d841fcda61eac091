//! Errors of a card. Each text names the cause and the remedy.

use crate::ethernet::rings::NoMemory;
use core::fmt;

/// Why a card cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// BAR 0 is missing, too small, or cannot be mapped.
    NoRegisters,
    /// The registers read as all ones.
    Absent,
    /// The card has no function-level reset, and may still do DMA for an earlier system.
    NoReset,
    /// The firmware does not come up.
    NotReady,
    /// The card does not answer after its reset.
    NoReturn,
    /// The command interface has another revision.
    Revision(u16),
    /// The command queue has an unknown layout: log2 of its entries, and of the bytes of an entry.
    Queue(u8, u8),
    /// The firmware only supports ISSI 0.
    TooOld,
    /// The port is not Ethernet.
    NotEthernet,
    /// The card lacks a capability.
    Lacks(&'static str),
    /// A command timed out.
    Late(&'static str),
    /// A command was not accepted: status of its delivery.
    Delivery(&'static str, u8),
    /// A command failed: status and syndrome.
    Status(&'static str, u8, u32),
    /// The answer to a command is invalid.
    Answer(&'static str),
    /// The firmware requests this many pages of memory, which is more than the limit.
    TooManyPages(u32),
    /// The card has no MAC address.
    NoMac,
    /// The DMA arena is too small.
    NoMemory {
        /// Bytes requested.
        bytes: usize,
    },
}

fn status(status: u8) -> &'static str {
    match status {
        1 => "internal error",
        2 => "bad operation",
        3 => "bad parameter",
        4 => "bad system state",
        5 => "bad resource",
        6 => "resource busy",
        7 => "not ready",
        8 => "limit exceeded",
        9 => "bad resource state",
        0xa => "bad index",
        0xf => "no resources",
        0x10 => "bad state of a queue pair",
        0x40 => "completion queue too large",
        0x50 => "bad input length",
        0x51 => "bad output length",
        _ => "unknown status",
    }
}

impl From<NoMemory> for Error {
    fn from(NoMemory { bytes }: NoMemory) -> Self {
        Error::NoMemory { bytes }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoRegisters => f.write_str(
                "mlx5's registers (BAR 0) cannot be mapped: the firmware assigned no address",
            ),
            Error::Absent => f.write_str("mlx5 does not answer (its registers read as all ones)"),
            Error::NoReset => f.write_str(
                "mlx5 has no function-level reset, so it may still write to memory for an earlier system; give the \
                 machine another function",
            ),
            Error::NotReady => f.write_str(
                "mlx5's firmware does not come up: power the machine off and on, or update the card's firmware",
            ),
            Error::NoReturn => f.write_str(
                "mlx5 does not answer after its reset: power the machine off and on, or replace the card",
            ),
            Error::Revision(revision) => {
                write!(f, "mlx5's commands are of revision {revision}, not 5: update the card's firmware")
            }
            Error::Queue(entries, stride) => {
                write!(f, "mlx5's command queue has 2^{entries} entries of 2^{stride} bytes: the card is of an unknown kind")
            }
            Error::TooOld => f.write_str("mlx5's firmware is too old (it has no ISSI 1): update it"),
            Error::NotEthernet => f.write_str(
                "mlx5's port is InfiniBand: make it Ethernet (mlxconfig -d DEVICE set LINK_TYPE_P1=2), and restart",
            ),
            Error::Lacks(what) => {
                write!(f, "mlx5 lacks the capability {what}: update the card's firmware, or change its configuration")
            }
            Error::Late(name) => {
                write!(f, "mlx5's firmware does not answer the command {name}: reset the card, or update its firmware")
            }
            Error::Delivery(name, status) => {
                write!(f, "mlx5's firmware did not accept the command {name} (delivery status {status:#x}): a bug")
            }
            Error::Status(name, code, syndrome) => {
                write!(f, "mlx5's firmware refused {name}: {} ({code:#x}, syndrome {syndrome:#x})", status(*code))
            }
            Error::Answer(name) => {
                write!(f, "mlx5's firmware returned an invalid answer to {name}: update it")
            }
            Error::TooManyPages(count) => {
                write!(f, "mlx5's firmware asks for {count} pages of memory, which no card needs: update it, or reset the card")
            }
            Error::NoMac => f.write_str("mlx5 has no MAC address: give the virtual function one (ip link set PF vf N mac ...)"),
            Error::NoMemory { bytes } => {
                write!(f, "DMA arena has no {bytes} bytes left: give the machine more memory (a card wants 40 to 80 MiB)")
            }
        }
    }
}

impl core::error::Error for Error {}
