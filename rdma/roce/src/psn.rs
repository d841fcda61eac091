//! Packet sequence numbers: 24 bits that wrap around (vol. 1, 9.7.1).

/// A sequence number of `BITS` bits (1 to 31).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Serial<const BITS: u32>(u32);

/// A packet sequence number (also used for message sequence numbers).
pub type Psn = Serial<24>;

impl<const BITS: u32> Serial<BITS> {
    const MASK: u32 = (1 << BITS) - 1;

    /// The lower bits of `value`.
    pub const fn new(value: u32) -> Self {
        Serial(value & Self::MASK)
    }

    /// As a number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `packets` later.
    pub const fn plus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// The number before.
    pub const fn previous(self) -> Self {
        self.plus(Self::MASK)
    }

    /// How far this is after `earlier`: 0 to 2^24 - 1 for a PSN.
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & Self::MASK
    }

    /// Whether this is in the half of all numbers that lies before `other`.
    pub const fn is_before(self, other: Self) -> bool {
        self.since(other) > Self::MASK / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All pairs of 6-bit numbers, against plain integers.
    #[test]
    fn six_bit_serials_match_plain_integers() {
        type Small = Serial<6>;
        for start in 0..64 {
            let a = Small::new(start + 64 * 1000);
            assert_eq!(a.get(), start);
            assert_eq!(a.previous().get(), (start + 63) % 64);
            for ahead in 0..200 {
                let b = a.plus(ahead);
                let distance = ahead % 64;
                assert_eq!(b.get(), (start + ahead) % 64);
                assert_eq!(b.since(a), distance);
                assert_eq!(a.is_before(b), (1..=32).contains(&distance), "{a:?} {b:?}");
                assert_eq!(b.is_before(a), distance >= 32, "{a:?} {b:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn order_survives_the_wrap(start: u32, ahead in 1..1u32 << 23) {
            let a = Psn::new(start);
            let b = a.plus(ahead);
            prop_assert!(a.is_before(b));
            prop_assert!(!b.is_before(a));
            prop_assert!(!a.is_before(a));
            prop_assert_eq!(b.since(a), ahead);
            prop_assert_eq!(b.plus(1).previous(), b);
        }
    }
}
