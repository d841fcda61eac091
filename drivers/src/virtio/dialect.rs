//! Deviations of a device from the virtio standard.
//!
//! uhyve's network device (0.10, `src/virtio` and `src/pci.rs` of its source) is one function of class 0 without MSI-X.
//! Its registers and its configuration space are the same 256 bytes:
//!
//! * Once a driver is ready (DRIVER_OK) the device cannot be reset: uhyve ends with a panic. So a machine can set it up
//!   only once.
//! * Its threads check a queue, find it empty, and only then enable notifications, so they miss buffers offered in
//!   between. So the driver notifies the device each time, also if notifications are disabled.
//! * A queue has 256 entries. The driver does not write the queue size register, because uhyve logs that as an error.
//! * Transmitted frames raise no interrupt. Received frames raise the function's line.
//! * Its MAC address is that of the host's end of the TAP device. If the guest used it, two hosts would have one
//!   link-local address, and a bridge on the host would keep the guest's frames.
//! * A received frame is cut off after 1500 bytes, including its Ethernet header.

/// The program supports uhyve. Otherwise [`Dialect::is_uhyve`] is false at compile time.
const UHYVE: bool = cfg!(feature = "uhyve");

/// Deviations of a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dialect {
    uhyve: bool,
}

impl Dialect {
    /// Dialect of a virtio PCI function. uhyve's device is recognized by a combination that no other device has: no
    /// class, no subsystem, and the common configuration where its capabilities end.
    pub fn of(function: &crate::pci::Function<'_>) -> Self {
        const REVISION_AND_CLASS: u16 = 8;
        const SUBSYSTEM: u16 = 0x2c;
        const COMMON_AT: u32 = 0x88;
        let is_zero = |offset| function.read32(offset) == 0;
        let uhyve = UHYVE
            && is_zero(REVISION_AND_CLASS)
            && is_zero(SUBSYSTEM)
            && super::pci::common_offset(function) == Some(COMMON_AT);
        Dialect { uhyve }
    }

    /// Whether the device is uhyve's.
    #[inline]
    pub fn is_uhyve(self) -> bool {
        UHYVE && self.uhyve
    }

    /// The MAC address to use with a device that reports `address`.
    pub fn mac(self, mut address: [u8; 6]) -> [u8; 6] {
        if self.is_uhyve() {
            // Still a unicast address with the same administration, and not the next one in a range of addresses.
            address[2] ^= 0x80;
        }
        address
    }

    /// The largest usable MTU up to `agreed`.
    pub fn mtu(self, agreed: u16) -> u16 {
        const HEADER: u16 = 14;
        if self.is_uhyve() { agreed.min(1500 - HEADER) } else { agreed }
    }
}
