//! Initial sequence numbers (RFC 9293 section 3.4.1, RFC 6528), and SYN cookies in them (RFC 4987 section 3.6). With
//! cookies a handshake needs no memory until the peer has proved that it receives at its address.
//!
//! A cookie has 24 bits of a keyed hash over both ends, the peer's sequence number and the time, and 8 bits that encode
//! the options of the SYN. It is valid for 16 to 32 seconds.

use crate::seeds::Seeds;
use crate::segment::Ends;
use crate::smoltcp_gaps::smc_option;
use core::hash::{Hash, Hasher};
use core::time::Duration;
use drivers::hal::Instant;
use siphasher::sip::SipHasher24;

/// Time step of cookies. A cookie is valid in the step of its creation and in the next one.
const EPOCH: Duration = Duration::from_secs(16);
/// Classes of MSS and of window scale that a cookie encodes: the peer's values are rounded down to them.
const SIZES: [u16; 8] = [48, 536, 1220, 1360, 1440, 1460, 4016, 8940];
const SCALES: [Option<u8>; 8] =
    [None, Some(0), Some(2), Some(4), Some(6), Some(7), Some(8), Some(10)];
/// Hash input of the mask over the class: no class has this value.
const HIDDEN: u16 = 0x100;
/// MSS of a SYN without the option (RFC 9293 section 3.7.1).
const DEFAULT_MSS: u16 = 536;

/// Options of a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The peer's maximum segment size.
    pub mss: u16,
    /// The peer's window scale.
    pub scale: Option<u8>,
    /// The peer supports selective acknowledgements.
    pub sack: bool,
    /// The peer offers SMC.
    pub smc: bool,
}

impl Offer {
    /// Parses the options of a SYN. Malformed options are ignored.
    pub fn of(mut options: &[u8]) -> Self {
        let smc = smc_option::offers(options);
        let mut offer = Offer { mss: DEFAULT_MSS, scale: None, sack: false, smc };
        while let Some((&kind, rest)) = options.split_first() {
            match kind {
                0 => break,
                1 => {
                    options = rest;
                    continue;
                }
                _ => (),
            }
            let Some(option) = rest.first().and_then(|&length| options.get(..usize::from(length)))
            else {
                break;
            };
            match *option {
                [2, 4, a, b] if [a, b] != [0, 0] => offer.mss = u16::from_be_bytes([a, b]),
                [3, 3, scale] => offer.scale = Some(scale.min(14)),
                [4, 2] => offer.sack = true,
                [] | [_] => break,
                _ => (),
            }
            options = options.get(option.len()..).unwrap_or_default();
        }
        offer.mss = offer.mss.max(SIZES[0]);
        offer
    }

    fn class(self) -> u8 {
        let size = SIZES.iter().rposition(|&size| size <= self.mss).unwrap_or(0);
        let scale = SCALES.iter().rposition(|&scale| scale <= self.scale).unwrap_or(0);
        size as u8 | (scale as u8) << 3 | u8::from(self.sack) << 6 | u8::from(self.smc) << 7
    }

    fn of_class(class: u8) -> Self {
        Offer {
            mss: SIZES[usize::from(class & 7)],
            scale: SCALES[usize::from(class >> 3 & 7)],
            sack: class & 0x40 != 0,
            smc: class & 0x80 != 0,
        }
    }
}

/// The handshake of an incoming connection.
#[derive(Clone, Copy, Debug)]
pub struct Handshake {
    /// The peer's initial sequence number, and ours.
    pub theirs: u32,
    pub ours: u32,
    pub offer: Offer,
}

/// A key of SipHash.
type Key = [u64; 2];

/// The keys of an interface, one for each use.
#[derive(Clone, Copy)]
pub struct Secret {
    cookies: Key,
    numbers: Key,
    marks: Key,
    limits: Key,
}

impl Secret {
    /// Draws the keys from `seeds`.
    pub fn new(seeds: &mut Seeds) -> Self {
        let (cookies, numbers) = (seeds.key(), seeds.key());
        Secret { cookies, numbers, marks: seeds.key(), limits: seeds.key() }
    }

    /// The keys.
    #[cfg(test)]
    pub fn keys(&self) -> [Key; 4] {
        [self.cookies, self.numbers, self.marks, self.limits]
    }

    fn hash(key: Key, what: u16, ends: Ends, number: u32, time: u64) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(key[0], key[1]);
        hasher.write_u16(what);
        ends.hash(&mut hasher);
        hasher.write_u32(number);
        hasher.write_u64(time);
        hasher.finish()
    }

    /// The cookie for a SYN with this sequence number.
    pub fn cookie(&self, ends: Ends, sequence: u32, offer: Offer, now: Instant) -> u32 {
        self.cookie_of(ends, sequence, offer.class(), epoch(now))
    }

    fn cookie_of(&self, ends: Ends, sequence: u32, class: u8, epoch: u64) -> u32 {
        // The hash covers the class as well, so an acknowledgement of later bytes is not taken for a cookie.
        let hash = Self::hash(self.cookies, u16::from(class), ends, sequence, epoch);
        (hash >> 32) as u32 & 0xffff_ff00 | u32::from(class ^ self.mask(ends, sequence, epoch))
    }

    /// Mask over the class in a cookie.
    fn mask(&self, ends: Ends, sequence: u32, epoch: u64) -> u8 {
        Self::hash(self.cookies, HIDDEN, ends, sequence, epoch) as u8
    }

    /// Decodes the options of the SYN with this sequence number, if `number` is a valid cookie for it.
    pub fn offer(&self, ends: Ends, sequence: u32, number: u32, now: Instant) -> Option<Offer> {
        let epoch = epoch(now);
        [epoch, epoch.wrapping_sub(1)].into_iter().find_map(|epoch| {
            let class = self.mask(ends, sequence, epoch) ^ number as u8;
            let right = self.cookie_of(ends, sequence, class, epoch) == number;
            right.then(|| Offer::of_class(class))
        })
    }

    /// Hash of an accepted cookie, for [`crate::spent_cookies`].
    pub fn mark(&self, ends: Ends, sequence: u32, cookie: u32) -> u64 {
        Self::hash(self.marks, 0, ends, sequence, cookie.into())
    }

    /// A number in `range` that varies from second to second.
    pub fn varied(&self, range: core::ops::Range<u32>, now: Instant) -> u32 {
        let mut hasher = SipHasher24::new_with_keys(self.limits[0], self.limits[1]);
        hasher.write_u64(now.as_nanos() / 1_000_000_000);
        range.start + (hasher.finish() as u32) % (range.end - range.start)
    }

    /// Initial sequence number of an outgoing connection: a clock of four microseconds a step plus a secret offset
    /// (RFC 6528 section 3).
    pub fn number(&self, ends: Ends, now: Instant) -> u32 {
        let clock = (now.as_nanos() / 4000) as u32;
        clock.wrapping_add(Self::hash(self.numbers, 0, ends, 0, 0) as u32)
    }
}

fn epoch(now: Instant) -> u64 {
    now.as_nanos() / EPOCH.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::Limits;
    use crate::segment::SYN;
    use crate::{Addressing, Cidr, testing};
    use proptest::prelude::*;
    use std::vec::Vec;

    fn ends(port: u16) -> Ends {
        Ends {
            local_port: 80,
            remote_port: port,
            remote: [10, 0, 0, 2].into(),
            local: [10, 0, 0, 1].into(),
        }
    }

    fn secret(seed: u64) -> Secret {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        Secret::new(&mut Seeds::new(bytes))
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    proptest! {
        #[test]
        fn cookie_is_valid_for_its_connection_until_it_expires(
            sequence: u32, port in 1u16.., seconds in 0u64..1_000_000, class: u8, seed: u64,
        ) {
            let (secret, offer) = (secret(seed), Offer::of_class(class));
            let number = secret.cookie(ends(port), sequence, offer, at(seconds));
            let offer_at = |after| secret.offer(ends(port), sequence, number, at(seconds + after));
            prop_assert_eq!(offer_at(0), Some(offer));
            prop_assert_eq!(offer_at(16), Some(offer));
            prop_assert_eq!(offer_at(48), None);
            prop_assert_eq!(secret.offer(ends(port ^ 1), sequence, number, at(seconds)), None);
            let other = sequence.wrapping_add(1);
            prop_assert_eq!(secret.offer(ends(port), other, number, at(seconds)), None);
            for guess in [number ^ 0x100, number.wrapping_add(1), number.wrapping_add(77)] {
                prop_assert_eq!(secret.offer(ends(port), sequence, guess, at(seconds)), None);
            }
        }

        #[test]
        fn options_are_rounded_down(mss: u16, scale in proptest::option::of(0u8..15)) {
            let offer = Offer { mss: mss.max(48), scale, sack: true, smc: false };
            let rounded = Offer::of_class(offer.class());
            prop_assert!(rounded.mss <= offer.mss && rounded.scale <= offer.scale);
            prop_assert_eq!(rounded.scale.is_some(), offer.scale.is_some());
            prop_assert!(rounded.sack && !rounded.smc);
        }

        #[test]
        fn malformed_options_give_a_valid_mss(options in proptest::collection::vec(any::<u8>(), 0..40)) {
            prop_assert!(Offer::of(&options).mss >= 48);
        }
    }

    /// The attack on the keys of earlier versions: the DHCP client's seed, which three DHCPDISCOVERs revealed, was the
    /// complement of the seed that these keys were made from, so the next SYN-ACK was known. Here the attacker has every
    /// seed outside TCP.
    #[test]
    fn seeds_of_dhcp_and_of_the_ip_stack_reveal_no_sequence_number() {
        const MSS: [u8; 4] = [2, 4, 5, 0xb4];
        let now = Instant::ZERO;
        let mut interface = testing::with_address();
        let addresses = Vec::from([Cidr::new("10.0.0.1".parse().unwrap(), 24)]);
        let addressing = Addressing { addresses, dhcp: true, ..Addressing::default() };
        interface.set_addressing(addressing, now).unwrap();
        let limits = Limits { connections: 4, receive: 512, transmit: 512 };
        let owner = interface.connections().open_owner(limits);
        interface.connections().listen(80, owner);
        interface.handle_frame(&testing::arp_request(), now);
        testing::sent(&mut interface, now);
        interface.handle_frame(&testing::tcp(ends(4000), SYN, 100, 0, &MSS, &[]), now);
        let answer = testing::sent(&mut interface, now);
        let [(0x12, number, 101)] = answer[..] else { panic!("{answer:?}") };

        let foretold = |key: Key| {
            let secret = Secret { cookies: key, numbers: key, marks: key, limits: key };
            secret.cookie(ends(4000), 100, Offer::of(&MSS), now) == number
        };
        let (keys, known) = interface.seeds.given.split_at(8);
        assert!(foretold([keys[0], keys[1]]), "the attack works for somebody who has the key");
        assert_eq!(known.len(), 2, "the IP stack and the DHCP client");
        let words: Vec<u64> = known.iter().flat_map(|&seed| [seed, !seed]).collect();
        for &first in &words {
            // As the keys were made from a seed.
            let mut hasher = SipHasher24::new_with_keys(first, !first);
            hasher.write_u8(0);
            let half = hasher.finish();
            hasher.write_u8(1);
            assert!(!foretold([half, hasher.finish()]));
            assert!(words.iter().all(|&second| !foretold([first, second])));
        }
    }

    #[test]
    fn syn_options_are_parsed() {
        let linux = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
        let offer = Offer { mss: 1460, scale: Some(7), sack: true, smc: false };
        assert_eq!(Offer::of(&linux), offer);
        let smc = [&linux[..], &[1, 1, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9]].concat();
        assert_eq!(Offer::of(&smc), Offer { smc: true, ..offer });
        assert_eq!(Offer::of(&[]), Offer { mss: 536, scale: None, sack: false, smc: false });
        assert_eq!(Offer::of(&[3, 3, 77]).scale, Some(14));
        assert_eq!(Offer::of(&[2, 4, 0, 0]).mss, 536);
    }
}
