//! Ethernet ports ([`crate::hal::Port`]). Drivers of cards with descriptors and completions share `receive_ring` and
//! `transmit_ring`.
//!
//! The methods that pass a call on to the rings are alike in several drivers. A default in `Port` could not replace
//! them without a second indirect call per packet, because a port is called through a vtable.

mod copies;
pub mod enic;
pub mod intel;
mod keeper;
#[cfg(feature = "mlx5")]
pub mod mlx5;
mod owners;
mod receive_ring;
mod rings;
mod transmit_ring;
pub mod virtio_net;
pub mod vmxnet3;

use crate::hal::Port;
use alloc::boxed::Box;
use core::any::Any;

/// A port whose device supports RoCE as well. A verbs provider knows the driver's type.
pub trait VerbsPort: Port + Any + Send {}

impl dyn VerbsPort {
    /// The port as its driver's type `T`; itself if it is of another driver.
    pub fn downcast<T: VerbsPort>(self: Box<Self>) -> Result<Box<T>, Box<Self>> {
        match (&*self as &dyn Any).is::<T>() {
            true => Ok((self as Box<dyn Any>).downcast().expect("the type was compared")),
            false => Err(self),
        }
    }
}

/// The MTU that the operator has configured for the port with this MAC address: largest layer 3 packet in bytes, 1280
/// to
/// 9216. None selects the device's MTU, or 1500. A device with a smaller limit keeps its own.
pub type WantedMtu<'a> = &'a dyn Fn([u8; 6]) -> Option<u16>;

/// Ethernet header.
const ETHERNET: usize = 14;
/// Ethernet header and one VLAN tag.
const OVERHEAD: usize = ETHERNET + 4;
/// Shortest frame, without FCS (IEEE 802.3, 3.2.8).
const SHORTEST: usize = 60;
const PLAIN_MTU: u16 = 1500;
/// Minimum MTU of IPv6.
const LEAST_MTU: u16 = 1280;
/// Maximum MTU: 9000 and room for headers below IP; frames stay below 9.25 KiB.
const MOST_MTU: u16 = 9216;

/// Whether the MAC address is valid for an interface.
fn is_station(mac: [u8; 6]) -> bool {
    mac != [0; 6] && mac[0] & 1 == 0
}
