//! Handles of objects that belong to one device: their two highest bits, which [`HandleTable`] leaves free, select the
//! device.
//!
//! [`HandleTable`]: softverbs::handle_table::HandleTable

/// Mask of these bits.
const MARK: u32 = 3 << 30;
/// The bits of the bridges' devices.
#[cfg(not(feature = "connectx"))]
pub const BRIDGES: [u32; 3] = [1 << 30, 2 << 30, 3 << 30];
/// The bits of the bridge's device.
#[cfg(feature = "connectx")]
pub const BRIDGES: [u32; 1] = [2 << 30];
/// The bits of the cards.
#[cfg(feature = "connectx")]
pub const CARDS: [u32; 2] = [1 << 30, 3 << 30];

/// The device of a handle, and the device's own handle.
pub enum Owner {
    /// The ports' device.
    Ports,
    /// The device behind the bridge with this number.
    Bridge(usize, u32),
    /// The card with this number.
    #[cfg(feature = "connectx")]
    Card(usize, u32),
}

/// The device of a handle.
#[inline]
pub fn owner(name: u32) -> Owner {
    #[cfg(feature = "connectx")]
    if name & CARDS[0] != 0 {
        return Owner::Card((name >> 31) as usize, own(name));
    }
    match name >> 30 {
        0 => Owner::Ports,
        mark => Owner::Bridge((mark - (BRIDGES[0] >> 30)) as usize, own(name)),
    }
}

/// The bits of a handle that select the device.
#[inline]
pub fn mark(name: u32) -> u32 {
    name & MARK
}

/// The device's own handle.
#[inline]
pub fn own(name: u32) -> u32 {
    name & !MARK
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest handle of a table.
    const LARGEST: u32 = u32::MAX >> 2;

    #[test]
    fn owner_is_derived_from_the_handle() {
        for name in [0, 1, 0x1234_5678 & LARGEST, LARGEST] {
            assert!(matches!(owner(name), Owner::Ports));
            for (number, bridge) in BRIDGES.into_iter().enumerate() {
                let is_found = matches!(
                    owner(name | bridge),
                    Owner::Bridge(is, own) if (is, own) == (number, name)
                );
                assert!(is_found, "{name:#x} {bridge:#x}");
                assert_eq!((mark(name | bridge), own(name | bridge)), (bridge, name));
            }
            #[cfg(feature = "connectx")]
            for (number, mark) in CARDS.into_iter().enumerate() {
                let is_found = matches!(
                    owner(name | mark),
                    Owner::Card(card, own) if (card, own) == (number, name)
                );
                assert!(is_found, "{name:#x} {mark:#x}");
            }
        }
    }
}
