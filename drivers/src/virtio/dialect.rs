//! How a device departs from the standard.
//!
//! uhyve's network device (0.10, `src/virtio` and `src/pci.rs` of its source) is one function of the class 0, without
//! MSI-X, whose registers and configuration space are the same 256 bytes:
//!
//! * Once a driver is ready (DRIVER_OK) the device cannot be reset: uhyve ends with a panic. It is driven once in the
//!   life of a machine.
//! * Its threads look at a queue, find nothing, and only then ask to be notified: what was offered in between is never
//!   looked at. So they are notified each time, whatever they ask for.
//! * A queue has 256 entries, and the register that says so is not written: that is an error in uhyve's log.
//! * Frames that were sent raise no interrupt. Frames that arrived raise the function's line.
//! * Its MAC address is that of the host's own end of the TAP device. With the same one, there are two hosts with one
//!   link-local address, and a bridge on the host keeps what is for the machine.
//! * A frame that arrives is cut off after 1500 bytes, its Ethernet header among them.

/// What is known of a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dialect {
    #[cfg(feature = "uhyve")]
    uhyve: bool,
}

impl Dialect {
    /// The one of a PCI function of virtio's. uhyve's is told by what nobody else has: no class, no subsystem, and the
    /// common configuration where its capabilities end.
    #[cfg(feature = "uhyve")]
    pub fn of(function: &crate::pci::Function<'_>) -> Self {
        const REVISION_AND_CLASS: u16 = 8;
        const SUBSYSTEM: u16 = 0x2c;
        const COMMON_AT: u32 = 0x88;
        let is_nothing = |offset| function.read32(offset) == 0;
        let uhyve = is_nothing(REVISION_AND_CLASS)
            && is_nothing(SUBSYSTEM)
            && super::pci::place_of_common(function) == Some(COMMON_AT);
        Dialect { uhyve }
    }

    /// The one of a PCI function of virtio's.
    #[cfg(not(feature = "uhyve"))]
    pub fn of(_: &crate::pci::Function<'_>) -> Self {
        Dialect {}
    }

    /// Whether it is uhyve's.
    #[inline(always)]
    pub fn is_uhyve(self) -> bool {
        #[cfg(feature = "uhyve")]
        return self.uhyve;
        #[cfg(not(feature = "uhyve"))]
        false
    }

    /// The MAC address of a device that says this one.
    pub fn mac(self, mut told: [u8; 6]) -> [u8; 6] {
        if self.is_uhyve() {
            // Still one of a station, administered as it was, and not that of a neighbour in a row of addresses.
            told[2] ^= 0x80;
        }
        told
    }

    /// The largest MTU that works, of those up to `agreed`.
    pub fn mtu(self, agreed: u16) -> u16 {
        const HEADER: u16 = 14;
        if self.is_uhyve() { agreed.min(1500 - HEADER) } else { agreed }
    }
}
