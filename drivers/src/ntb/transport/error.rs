//! Errors of a port's setup, and mismatches between its two sides.

use super::protocol::VERSION;
use core::fmt;

/// Why a port cannot be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The bridge has too few scratchpads.
    Scratchpads {
        /// Scratchpads of the bridge.
        there: usize,
        /// Scratchpads required.
        wanted: usize,
    },
    /// The window is too small for two entries.
    Window {
        /// Bytes of the window.
        bytes: usize,
    },
    /// The MTU is larger than an entry.
    Mtu {
        /// Bytes of the largest packet.
        most: usize,
    },
    /// There is no memory for the transmit buffers.
    NoMemory {
        /// Bytes requested.
        bytes: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::Scratchpads { there, wanted } => write!(
                f,
                "the bridge has {there} scratchpads, and ntb_transport needs {wanted}: use another protocol on it"
            ),
            Error::Window { bytes } => write!(
                f,
                "the bridge's window has {bytes} bytes, and ntb_transport needs 256 KiB: set a larger size of the \
                 NTB's BARs in the BIOS of both machines"
            ),
            Error::Mtu { most } => {
                write!(f, "packets over ntb_transport have at most {most} bytes: set a smaller MTU")
            }
            Error::NoMemory { bytes } => write!(
                f,
                "there are no {bytes} bytes of memory for ntb_transport: set a smaller MTU, or give the machine \
                 more memory"
            ),
        }
    }
}

impl core::error::Error for Error {}

/// Mismatch of the two sides: the peer's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The peer's version.
    Version(u32),
    /// The peer's number of queues.
    Queues(u32),
    /// The peer's number of windows.
    Windows(u32),
    /// Bytes of the peer's first window: more than the exposed memory, or fewer than two entries.
    Size(u64),
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Mismatch::Version(is) => {
                write!(f, "the peer speaks version {is} of ntb_transport, not {VERSION}")
            }
            Mismatch::Queues(is) => write!(
                f,
                "the peer has {is} queues: set its ntb_transport's parameter max_num_clients to 0"
            ),
            Mismatch::Windows(is) => {
                write!(
                    f,
                    "the peer has {is} windows: set the same BARs in the BIOS of both machines"
                )
            }
            Mismatch::Size(is) => write!(
                f,
                "the peer's window has {is} bytes: set the same size of the NTB's BARs, 256 KiB to 32 MiB, in the \
                 BIOS of both machines, or its ntb_transport's parameter max_mw_size"
            ),
        }
    }
}
