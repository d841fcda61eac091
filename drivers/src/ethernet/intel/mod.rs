//! Intel's Ethernet: 82540EM and 82545EM (`e1000`), 82574 (`e1000e`), 82576 (`igb`), 82599 (`ixgbe`), and virtual functions of the latter two
//! (`igbvf`, `ixgbevf`). One pair of queues each, or several for as many cores; frames to 9 KiB, sent in place;
//! interrupts only before a halt. No offloads, no VLAN filters, no flow control, no time stamps. PHYs and modules keep
//! their settings; without a link, auto-negotiation is restarted.

mod chip;
mod e1000;
mod e1000e;
mod error;
mod igb;
mod igbvf;
mod ixgbe;
mod ixgbevf;
mod life;
mod mailbox;
mod port;
mod queue_port;
mod receive;
mod registers;
mod signal;
mod split;
mod transmit;

pub use e1000::E1000;
pub use e1000e::E1000e;
pub use error::Error;
pub use igb::Igb;
pub use igbvf::IgbVf;
pub use ixgbe::Ixgbe;
pub use ixgbevf::IxgbeVf;

use super::WantedMtu;
use crate::driver::{Bus, Device, Id, OpenError};
use crate::hal::{Clock, Platform, Port};
use alloc::boxed::Box;
use chip::Model;
use port::IntelPort;

const INTEL: u16 = 0x8086;

/// Devices that `e1000` matches.
pub const E1000_IDS: [Id; 2] = ids(e1000::DEVICES);
/// Devices that `e1000e` matches.
pub const E1000E: [Id; 2] = ids(e1000e::DEVICES);
/// Devices that `igb` matches.
pub const IGB: [Id; 4] = ids(igb::DEVICES);
/// Devices that `igbvf` matches.
pub const IGBVF: [Id; 2] = ids(igbvf::DEVICES);
/// Devices that `ixgbe` matches.
pub const IXGBE: [Id; 6] = ids(ixgbe::DEVICES);
/// Devices that `ixgbevf` matches.
pub const IXGBEVF: [Id; 1] = ids(ixgbevf::DEVICES);

const fn ids<const N: usize>(devices: [u16; N]) -> [Id; N] {
    let mut ids = [Id::Pci(INTEL, 0); N];
    let mut n = 0;
    while n < N {
        ids[n] = Id::Pci(INTEL, devices[n]);
        n += 1;
    }
    ids
}

/// Opens a function of one of the chips.
pub fn open<C: Model>(
    device: Device,
    platform: &mut dyn Platform,
    wanted_mtu: WantedMtu<'_>,
    clock: &dyn Clock,
) -> Result<Box<dyn Port + Send>, OpenError> {
    let Bus::Pci(function) = device.bus() else { return Err(Error::NoRegisters.into()) };
    let chip = Box::new(C::default());
    let port = IntelPort::open(function, chip, C::IS_VIRTUAL, platform, wanted_mtu, clock)?;
    Ok(Box::new(port))
}
