//! Errors of a port. Each text names the cause and the remedy.

use crate::ethernet::rings::NoMemory;
use core::fmt;

/// Why a port cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// BAR 0 is missing, too small, or cannot be mapped.
    NoRegisters,
    /// The registers read as all ones.
    Absent,
    /// A card with another MAC address is in the slot.
    Another,
    /// CTRL.RST stays 1.
    NoReset,
    /// Neither the receive address register nor the EEPROM has a valid MAC address.
    NoMac,
    /// The physical function's driver has assigned the virtual function no address.
    Unnamed,
    /// The physical function's driver does not answer.
    Silent,
    /// The physical function's driver refuses this request.
    Refused(&'static str),
    /// The DMA arena is too small.
    NoMemory {
        /// Bytes requested.
        bytes: usize,
    },
}

impl Error {
    /// Notice for a port that was in use. Does not name the port.
    pub fn notice(&self) -> &'static str {
        match self {
            Error::Absent => {
                "the network card does not answer any more: it was pulled out, or its slot lost power; it is \
                 tried again up to once a minute"
            }
            Error::Another => {
                "another network card is in the slot: put the first one back, or restart the appliance to use \
                 this one"
            }
            _ => {
                "the network card does not come out of a reset: it is tried again up to once a minute; \
                 power-cycle the machine, or replace it"
            }
        }
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
                "network card's registers (BAR 0) cannot be mapped: the firmware assigned no address",
            ),
            Error::Absent => f.write_str(
                "network card does not answer (its registers read as all ones): reseat it, or replace it",
            ),
            Error::Another => f.write_str("network card has another MAC address than before"),
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
                "virtual function gets no answer from the physical function's driver: load that driver on the \
                 host, and set its interface up",
            ),
            Error::Refused(what) => write!(
                f,
                "the physical function's driver refused {what}: see the host's log"
            ),
            Error::NoMemory { bytes } => {
                write!(f, "DMA arena has no {bytes} bytes left: give the machine more memory")
            }
        }
    }
}

impl core::error::Error for Error {}
