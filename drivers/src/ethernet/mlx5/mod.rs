//! ConnectX (4 Lx and later) as Ethernet (Linux: `drivers/net/ethernet/mellanox/mlx5`, and Snabb's `connectx.lua`): one
//! pair of queues, which a single flow entry leads everything to, or several, for a core each ([`split`]), among which a hash
//! of addresses chooses; frames in one buffer each, sent from where they lie; an event queue that is polled, and armed only
//! before a halt. No offloads.
//!
//! What a verbs provider does with the same function goes through [`Mlx5Port`] as well: commands, doorbells, events of
//! queue pairs (`verbs`). All else of it is in memory, and in the provider's hands.
//!
//! Never seen on a card: what is known is what the drivers of Linux, rdma-core and Snabb do. Commands are mailboxes in
//! memory; a sequence of them is an `async` function (`start`) that whoever opens the port polls until it has ended,
//! and the loop, after a reset, a little in each round. There is no executor, and nothing is woken.

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

use super::WantedMtu;
use crate::device::{Bus, Device};
use crate::hal::{Clock, Platform};
use crate::registry::{Id, OpenError};
pub use completions::{Arm, Completions};
pub use error::Error;
pub use events::PairEvent;
pub use firmware::Command;
pub use port::Mlx5Port;
pub use verbs::Abilities;

const VENDOR: u16 = 0x15b3;

/// What the driver matches: ConnectX-4 Lx, -5, -5 Ex, -6, -6 Dx, -6 Lx and -7, and their virtual functions, which from
/// -6 on share an id.
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

/// Sets a device up, and waits for it. What comes of it is an Ethernet port, which a verbs provider can share.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    wanted_mtu: WantedMtu<'_>,
    clock: &dyn Clock,
) -> Result<Mlx5Port, OpenError> {
    let Bus::Pci(function) = device.bus() else { return Err(Error::NoRegisters.into()) };
    Ok(Mlx5Port::open(function, platform, wanted_mtu, clock)?)
}
