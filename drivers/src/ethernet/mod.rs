//! Ethernet ports ([`crate::hal::Port`]).

pub mod virtio_net;

/// What an operator asks of the port with this MAC address: its largest layer 3 packet in bytes, 1280
/// to 9216. None: what the device says, else 1500. A device that says less keeps its own.
pub type WantedMtu<'a> = &'a dyn Fn([u8; 6]) -> Option<u16>;
