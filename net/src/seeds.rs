//! Derives the seeds and keys of an interface. Each consumer gets its own. smoltcp's generator is small and reveals its
//! state to the network (DHCP transaction IDs), so its seed must not be a secret of another consumer.

use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};

/// Generator of seeds.
pub struct Seeds {
    random: ChaCha12Rng,
    /// All seeds handed out.
    #[cfg(test)]
    pub given: alloc::vec::Vec<u64>,
}

impl Seeds {
    /// A generator with this seed, which must be unpredictable.
    pub fn new(seed: [u8; 32]) -> Self {
        Seeds {
            random: ChaCha12Rng::from_seed(seed),
            #[cfg(test)]
            given: alloc::vec::Vec::new(),
        }
    }

    /// A seed for smoltcp.
    pub fn word(&mut self) -> u64 {
        let word = self.random.next_u64();
        #[cfg(test)]
        self.given.push(word);
        word
    }

    /// A key of 128 bits.
    pub fn key(&mut self) -> [u64; 2] {
        [self.word(), self.word()]
    }
}

#[cfg(test)]
mod tests {
    use crate::{Addressing, Interface};
    use drivers::hal::Instant;
    use std::collections::BTreeSet;

    /// Consumers: SYN cookies, sequence numbers, hashes of spent cookies, limits of challenge ACKs, the IP stack, and a
    /// DHCP client for each MAC address.
    #[test]
    fn consumers_of_an_interface_share_no_seed() {
        let now = Instant::ZERO;
        let mut interface = Interface::new([2, 0, 0, 0, 0, 1], 1500, [7; 32], now);
        let dhcp = Addressing { dhcp: true, ..Addressing::default() };
        interface.set_addressing(dhcp, now).unwrap();
        interface.set_mac([2, 0, 0, 0, 0, 9], now);
        let given = &interface.seeds.given;
        assert_eq!(given.len(), 4 * 2 + 1 + 2);
        // Neither the same nor its complement.
        let different: BTreeSet<u64> = given.iter().map(|&seed| seed.min(!seed)).collect();
        assert_eq!(different.len(), given.len());
        assert_eq!(interface.tcp().keys().concat(), given[..8]);
    }
}
