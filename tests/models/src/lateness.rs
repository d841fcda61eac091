//! Late answers, as firmware gives them: each command takes 0.1 to 100 ms, by a generator with a seed.

use crate::Nanoseconds;

/// Environment variable that makes models late. Its value is the seed.
pub const VARIABLE: &str = "ISTHMUS_LATE_MODELS";
const LEAST: Nanoseconds = 100_000;
/// Ratio of the longest to the shortest time, as log2: 0.1 to 102.4 ms.
const RANGE: u64 = 10;

/// A generator of delays. Their logarithms are uniform: most commands take some milliseconds, few take a hundred.
#[derive(Clone, Copy, Debug)]
pub struct Lateness {
    state: u64,
}

impl Lateness {
    /// A generator with a seed.
    pub fn new(seed: u64) -> Self {
        Lateness { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }
    }

    /// A generator for the value of [`VARIABLE`]: None without one, or if it is empty or `0`.
    pub fn of(value: Option<&str>) -> Option<Self> {
        let value = value.filter(|value| !matches!(*value, "" | "0"))?;
        let bytes = value.bytes().fold(0u64, |sum, byte| sum.wrapping_mul(257) + u64::from(byte));
        Some(Lateness::new(value.parse().unwrap_or(bytes)))
    }

    /// The next delay.
    pub fn next_delay(&mut self) -> Nanoseconds {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let doublings = self.state >> 32 & 0xff;
        let (whole, part) = (doublings * RANGE / 256, doublings * RANGE % 256);
        let base = LEAST << whole;
        base + base * part / 256
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_from_a_tenth_to_a_hundred_milliseconds_and_repeat() {
        let mut one = Lateness::new(7);
        let all: Vec<_> = (0..1000).map(|_| one.next_delay()).collect();
        assert!(all.iter().all(|delay| (100_000..=102_400_000).contains(delay)));
        assert!(
            all.iter().any(|delay| *delay < 200_000) && all.iter().any(|delay| *delay > 50_000_000)
        );
        let mut two = Lateness::new(7);
        assert!(all.iter().all(|delay| *delay == two.next_delay()));
    }

    #[test]
    fn variable_selects_a_seed() {
        assert!(Lateness::of(None).is_none() && Lateness::of(Some("0")).is_none());
        let first = |value| Lateness::of(Some(value)).map(|mut one| one.next_delay());
        assert_eq!(first("7"), Some(Lateness::new(7).next_delay()));
        assert!(first("seven").is_some());
    }
}
