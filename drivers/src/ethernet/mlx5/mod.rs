//! ConnectX (4 Lx and later) as Ethernet (Linux: `drivers/net/ethernet/mellanox/mlx5`, and Snabb's `connectx.lua`): one
//! pair of queues, to which a single flow entry leads all frames, or a pair per core ([`split`]), chosen by a hash of
//! addresses; frames in one buffer each, sent in place; an event queue that is polled, and armed only before a halt. No
//! offloads.
//!
//! A verbs provider shares the function through [`Mlx5Port`]: commands, doorbells, events of queue pairs (`verbs`). Its
//! queues are in memory that the provider owns.
//!
//! Never tried on a card: the driver follows those of Linux, rdma-core and Snabb. Commands are mailboxes in memory. A
//! sequence of commands is an `async` function (`start`). The caller that opens the port polls it to its end; after a
//! reset the loop polls it a little in each round. There is no executor and no waker.

mod capability;
mod card;
mod completions;
mod error;
mod events;
pub mod fields;
mod firmware;
mod health;
mod objects;
mod pages;
mod pair;
mod port;
mod queue_port;
mod receive;
mod split;
mod start;
mod transmit;
mod verbs;

use super::{VerbsPort, WantedMtu};
use crate::driver::{Bus, Device, Id, OpenError};
use crate::hal::{Clock, Platform};
pub use completions::{Arm, Completions};
pub use error::Error;
pub use events::PairEvent;
pub use firmware::Command;
pub use port::Mlx5Port;
pub use verbs::Abilities;

use alloc::boxed::Box;

const VENDOR: u16 = 0x15b3;

/// Devices that the driver matches: ConnectX-4 Lx, -5, -5 Ex, -6, -6 Dx, -6 Lx and -7, and their virtual functions,
/// which from -6 on share an id.
pub const IDS: [Id; 11] = [
    Id::Pci(VENDOR, 0x1015),
    Id::Pci(VENDOR, 0x1016),
    Id::Pci(VENDOR, 0x1017),
    Id::Pci(VENDOR, 0x1018),
    Id::Pci(VENDOR, 0x1019),
    Id::Pci(VENDOR, 0x101a),
    Id::Pci(VENDOR, 0x101b),
    Id::Pci(VENDOR, 0x101d),
    Id::Pci(VENDOR, 0x101e),
    Id::Pci(VENDOR, 0x101f),
    Id::Pci(VENDOR, 0x1021),
];
const VIRTUAL: [u16; 4] = [0x1016, 0x1018, 0x101a, 0x101e];

/// Opens a device, and waits until it is up. The result is an Ethernet port, which a verbs provider can share.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    wanted_mtu: WantedMtu<'_>,
    clock: &dyn Clock,
) -> Result<Box<dyn VerbsPort>, OpenError> {
    let Bus::Pci(function) = device.bus() else { return Err(Error::NoRegisters.into()) };
    Ok(Box::new(Mlx5Port::open(function, platform, wanted_mtu, clock)?))
}
