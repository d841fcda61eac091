//! Ethernet ports ([`crate::hal::Port`]).

mod copies;
pub mod enic;
pub mod intel;
mod keeper;
#[cfg(feature = "mlx5")]
pub mod mlx5;
mod owners;
pub mod virtio_net;
pub mod vmxnet3;

/// What an operator asks of the port with this MAC address: its largest layer 3 packet in bytes, 1280
/// to 9216. None: what the device says, else 1500. A device that says less keeps its own.
pub type WantedMtu<'a> = &'a dyn Fn([u8; 6]) -> Option<u16>;

/// Ethernet header.
const ETHERNET: usize = 14;
/// Ethernet header and one VLAN tag.
const OVERHEAD: usize = ETHERNET + 4;
/// Shortest frame, without FCS (IEEE 802.3, 3.2.8).
const SHORTEST: usize = 60;
const PLAIN_MTU: u16 = 1500;
/// Least MTU that IPv6 works with.
const LEAST_MTU: u16 = 1280;
/// 9000 and room for headers below IP; frames stay below 9.25 KiB.
const MOST_MTU: u16 = 9216;

/// Whether an interface may have this MAC address.
fn is_station(mac: [u8; 6]) -> bool {
    mac != [0; 6] && mac[0] & 1 == 0
}
