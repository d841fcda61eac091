//! Cisco's Virtual Interface Card (VIC) as Ethernet (Linux: `drivers/net/ethernet/cisco/enic`): one pair of queues, and a
//! second receive queue for UDP flows that are steered there by filters; frames to 9 KB, each in one buffer, sent from
//! where they lie; interrupts only before a halt. No offloads.
//!
//! There is no public manual: what is known of it is what the drivers of Linux and DPDK do. Virtual functions of usNIC
//! (1137:00cf) have no way to the firmware of their own, and are left alone: on the wire a datagram of an ordinary vNIC
//! is the same. Nor are dynamic vNICs (1137:0044), which a hypervisor has to give a port profile first.

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
use crate::device::{Bus, Device};
use crate::hal::{Clock, Platform, Port};
use crate::registry::{Id, OpenError};
use alloc::boxed::Box;
use error::Error;
use port::EnicPort;

const VENDOR: u16 = 0x1137;
const PHYSICAL: u16 = 0x0043;
/// Older, and newer ones.
const VIRTUAL: [u16; 2] = [0x0071, 0x02b7];

/// What the driver matches.
pub const IDS: [Id; 3] =
    [Id::Pci(VENDOR, PHYSICAL), Id::Pci(VENDOR, VIRTUAL[0]), Id::Pci(VENDOR, VIRTUAL[1])];

/// Whose function it is. A virtual one has its address already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Physical,
    Virtual,
}

/// Sets a device up, and waits for it.
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
