//! Packet sequence numbers: 24 bits that wrap around (vol. 1, 9.7.1).

const MASK: u32 = 0xff_ffff;

/// A packet sequence number (also used for message sequence numbers).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Psn(u32);

impl Psn {
    /// The lower 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Psn(value & MASK)
    }

    /// As a number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `packets` later.
    pub const fn plus(self, packets: u32) -> Self {
        Psn(self.0.wrapping_add(packets) & MASK)
    }

    /// The number before.
    pub const fn previous(self) -> Self {
        self.plus(MASK)
    }

    /// How far this is after `earlier`, 0 to 2^24 - 1.
    pub const fn since(self, earlier: Psn) -> u32 {
        self.0.wrapping_sub(earlier.0) & MASK
    }

    /// Whether this is in the half of all numbers that lies before `other`.
    pub const fn is_before(self, other: Psn) -> bool {
        self.since(other) > MASK / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
