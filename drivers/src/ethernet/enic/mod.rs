//! Cisco's Virtual Interface Card (VIC) as Ethernet (Linux: `drivers/net/ethernet/cisco/enic`): one pair of queues, and
//! a second receive queue for UDP flows that are steered there by filters; frames to 9 KB, each in one buffer, sent in
//! place; interrupts only before a halt. No offloads.
//!
//! There is no public manual: the driver follows those of Linux and DPDK. Virtual functions of usNIC (1137:00cf) are
//! not supported, because they have no command interface; on the wire a datagram of an ordinary vNIC is the same.
//! Dynamic vNICs (1137:0044) are not supported either: a hypervisor has to assign them a port profile first.

mod command;
mod error;
mod life;
mod notices;
mod port;
mod receive;
mod registers;
mod resources;
mod steer;
mod transmit;

use super::WantedMtu;
use crate::driver::{Bus, Device, Id, OpenError};
use crate::hal::{Clock, Platform, Port};
use alloc::boxed::Box;
use error::Error;
use port::EnicPort;

const VENDOR: u16 = 0x1137;
const PHYSICAL: u16 = 0x0043;
const VIRTUAL: u16 = 0x0071;

/// Devices that the driver matches. Newer virtual functions (1137:02b7) are registered with the physical function by an
/// admin channel (Linux 7.3: `enic_admin.c`), which this driver does not have.
pub const IDS: [Id; 2] = [Id::Pci(VENDOR, PHYSICAL), Id::Pci(VENDOR, VIRTUAL)];

/// Kind of a function. The address filter of a virtual one already has its MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Physical,
    Virtual,
}

/// Opens a device, and waits until it is up.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    wanted_mtu: WantedMtu<'_>,
    clock: &dyn Clock,
) -> Result<Box<dyn Port + Send>, OpenError> {
    let Bus::Pci(function) = device.bus() else { return Err(Error::NoRegisters.into()) };
    let kind = if function.device() == PHYSICAL { Kind::Physical } else { Kind::Virtual };
    Ok(Box::new(EnicPort::open(function, kind, platform, wanted_mtu, clock)?))
}
