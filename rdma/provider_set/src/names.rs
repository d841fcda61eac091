//! Names of objects that only one device has say by their two highest bits whose they are; [`HandleTable`] leaves these to
//! us.
//!
//! [`HandleTable`]: softverbs::handle_table::HandleTable

/// The bits.
const MARK: u32 = 3 << 30;
/// The devices behind bridges.
#[cfg(not(feature = "connectx"))]
pub const BRIDGES: [u32; 3] = [1 << 30, 2 << 30, 3 << 30];
/// The device behind the bridge.
#[cfg(feature = "connectx")]
pub const BRIDGES: [u32; 1] = [2 << 30];
/// Cards that do RoCE themselves.
#[cfg(feature = "connectx")]
pub const CARDS: [u32; 2] = [1 << 30, 3 << 30];

/// Whose object a name is of, and its name there.
pub enum Owner {
    /// The ports' device.
    Ports,
    /// The device behind the bridge with this number.
    Bridge(usize, u32),
    /// The card with this number.
    #[cfg(feature = "connectx")]
    Card(usize, u32),
}

/// Whose object a name is of.
#[inline(always)]
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

/// What a name has of whose it is.
#[inline(always)]
pub fn mark(name: u32) -> u32 {
    name & MARK
}

/// The name that its device knows.
#[inline(always)]
pub fn own(name: u32) -> u32 {
    name & !MARK
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest name that a table gives.
    const LARGEST: u32 = u32::MAX >> 2;

    #[test]
    fn names_say_whose_they_are() {
        for name in [0, 1, 0x1234_5678 & LARGEST, LARGEST] {
            assert!(matches!(owner(name), Owner::Ports));
            for (number, bridge) in BRIDGES.into_iter().enumerate() {
                let is_it = matches!(
                    owner(name | bridge),
                    Owner::Bridge(is, own) if (is, own) == (number, name)
                );
                assert!(is_it, "{name:#x} {bridge:#x}");
                assert_eq!((mark(name | bridge), own(name | bridge)), (bridge, name));
            }
            #[cfg(feature = "connectx")]
            for (number, mark) in CARDS.into_iter().enumerate() {
                let is_it = matches!(
                    owner(name | mark),
                    Owner::Card(card, own) if (card, own) == (number, name)
                );
                assert!(is_it, "{name:#x} {mark:#x}");
            }
        }
    }
}
