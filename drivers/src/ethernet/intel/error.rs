//! Why a port cannot be used: what it did, whose fault it is, and what to do.

use core::fmt;

/// Why a port cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// BAR 0 is missing, too small, or cannot be mapped.
    NoRegisters,
    /// Nothing answers where its registers are.
    Absent,
    /// CTRL.RST stays 1.
    NoReset,
    /// Neither the receive address register nor the EEPROM has a station's address.
    NoMac,
    /// The driver of the physical function has given a virtual one no address.
    Unnamed,
    /// The driver of the physical function does not answer.
    Silent,
    /// It refuses.
    Refused(&'static str),
    /// The DMA arena is too small.
    NoMemory {
        /// Bytes asked for.
        bytes: usize,
    },
}

impl Error {
    /// What is told of a port that was in use. Does not name it.
    pub fn notice(&self) -> &'static str {
        match self {
            Error::Absent => {
                "the network card does not answer any more: it was pulled out, or its slot lost power; it is \
                 not used until the appliance is restarted"
            }
            _ => {
                "the network card does not come out of a reset, and is not used any more: power-cycle the \
                 machine, or replace it"
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoRegisters => f.write_str(
                "network card has no registers that could be reached (BAR 0): the firmware gave it no address",
            ),
            Error::Absent => f.write_str(
                "network card does not answer (its registers read as all ones): reseat it, or replace it",
            ),
            Error::NoReset => f.write_str(
                "network card does not come out of reset (CTRL.RST): power-cycle the machine, or \
                 replace it",
            ),
            Error::NoMac => f.write_str(
                "network card has no MAC address (RAL, EEPROM): its EEPROM is empty or damaged, replace it",
            ),
            Error::Unnamed => f.write_str(
                "virtual function has no MAC address: give it one on the host, `ip link set dev PORT vf NUMBER mac \
                 ADDRESS`",
            ),
            Error::Silent => f.write_str(
                "virtual function is not answered by the driver of its physical function: start that on the \
                 host, and see that it is up",
            ),
            Error::Refused(what) => write!(
                f,
                "virtual function is refused {what} by the driver of its physical function: see the host's log"
            ),
            Error::NoMemory { bytes } => {
                write!(f, "DMA arena has no {bytes} bytes left: give the machine more memory")
            }
        }
    }
}

impl core::error::Error for Error {}
