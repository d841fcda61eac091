//! Diffie-Hellman in the groups of RFC 7919, in slices of bounded work.
//!
//! An exponentiation goes through its exponent in windows of four bits, from the top: four squarings, then one
//! multiplication by a power from a table, which is selected in constant time. The multiplications are
//! `crypto-bigint`'s Montgomery ones, also in constant time. Its own exponentiation is not used, because it cannot be
//! interrupted.

use crate::Random;
use crate::ids::DhGroup;
use crate::primes;
use alloc::boxed::Box;
use alloc::vec::Vec;
use crypto_bigint::modular::{ConstMontyForm, ConstMontyParams};
use crypto_bigint::{CtAssign, CtEq, U2048, U3072, U4096, U6144, U8192, Uint, const_monty_params};
use tls_psk::hash::{Hash, Secret};
use zeroize::{Zeroize, Zeroizing};

const_monty_params!(Ffdhe2048, U2048, primes::FFDHE2048, "ffdhe2048");
const_monty_params!(Ffdhe3072, U3072, primes::FFDHE3072, "ffdhe3072");
const_monty_params!(Ffdhe4096, U4096, primes::FFDHE4096, "ffdhe4096");
const_monty_params!(Ffdhe6144, U6144, primes::FFDHE6144, "ffdhe6144");
const_monty_params!(Ffdhe8192, U8192, primes::FFDHE8192, "ffdhe8192");

/// Entries of the table: powers for all values of a window.
const POWERS: usize = 16;
/// Multiplications of a window.
const WINDOW: u32 = 5;

/// Bytes of an exponent: as RFC 7919 appendix A recommends (225 to 400 bits), rounded up.
const fn exponent_len(group: DhGroup) -> usize {
    match group {
        DhGroup::Null => 0,
        DhGroup::Ffdhe2048 => 32,
        DhGroup::Ffdhe3072 => 40,
        DhGroup::Ffdhe4096 => 48,
        DhGroup::Ffdhe6144 => 48,
        DhGroup::Ffdhe8192 => 56,
    }
}

/// A secret exponent.
pub struct Exponent {
    group: DhGroup,
    bytes: Zeroizing<[u8; 56]>,
}

impl Exponent {
    pub fn new(group: DhGroup, random: Random<'_>) -> Exponent {
        let mut bytes = Zeroizing::new([0; 56]);
        let used = bytes.get_mut(..exponent_len(group)).unwrap_or_default();
        random(used);
        // Never short, and never 0.
        if let Some(first) = used.first_mut() {
            *first |= 0x80;
        }
        Exponent { group, bytes }
    }

    fn digits(&self) -> &[u8] {
        self.bytes.get(..exponent_len(self.group)).unwrap_or_default()
    }

    /// Begins the own public value.
    pub fn public(&self) -> Option<Power> {
        Power::of(self, None)
    }

    /// Begins the shared secret. None if the peer's public value is not one: of a wrong length, 0, 1, p - 1, or p and
    /// more (RFC 7919 section 5.1).
    pub fn shared(&self, peer: &[u8]) -> Option<Power> {
        Power::of(self, Some(peer))
    }
}

/// An exponentiation in progress.
pub struct Power(Box<dyn Steps>);

impl Power {
    /// `base` is the generator if None.
    fn of(exponent: &Exponent, base: Option<&[u8]>) -> Option<Power> {
        let digits = exponent.digits();
        let len = exponent.group.len();
        Some(Power(match exponent.group {
            DhGroup::Null => return None,
            DhGroup::Ffdhe2048 => State::<Ffdhe2048, { U2048::LIMBS }>::begin(digits, base, len)?,
            DhGroup::Ffdhe3072 => State::<Ffdhe3072, { U3072::LIMBS }>::begin(digits, base, len)?,
            DhGroup::Ffdhe4096 => State::<Ffdhe4096, { U4096::LIMBS }>::begin(digits, base, len)?,
            DhGroup::Ffdhe6144 => State::<Ffdhe6144, { U6144::LIMBS }>::begin(digits, base, len)?,
            DhGroup::Ffdhe8192 => State::<Ffdhe8192, { U8192::LIMBS }>::begin(digits, base, len)?,
        }))
    }

    /// Performs about `multiplications`, at least one step. Returns whether the result is there.
    pub fn work(&mut self, multiplications: u32) -> bool {
        self.0.work(multiplications)
    }

    /// The result in big-endian order, as long as the modulus.
    pub fn result(&self) -> Zeroizing<Vec<u8>> {
        self.0.result()
    }

    /// The session key: the hash of the result.
    pub fn session_key(&self, hash: Hash) -> Secret {
        hash.digest(&[&self.result()])
    }
}

/// A size of numbers.
trait Steps: Send {
    fn work(&mut self, multiplications: u32) -> bool;
    fn result(&self) -> Zeroizing<Vec<u8>>;
}

struct State<M: ConstMontyParams<LIMBS>, const LIMBS: usize> {
    /// Powers 0 to 15 of the base, as far as they are computed.
    powers: Vec<ConstMontyForm<M, LIMBS>>,
    product: ConstMontyForm<M, LIMBS>,
    digits: Zeroizing<[u8; 56]>,
    /// Windows that remain.
    windows: usize,
    /// Windows in all.
    count: usize,
}

impl<M: ConstMontyParams<LIMBS>, const LIMBS: usize> State<M, LIMBS>
where
    Self: Steps + 'static,
{
    fn begin(digits: &[u8], base: Option<&[u8]>, len: usize) -> Option<Box<dyn Steps>> {
        let base = match base {
            Some(bytes) if bytes.len() == len => Uint::<LIMBS>::from_be_slice(bytes),
            Some(_) => return None,
            None => Uint::from_u8(2),
        };
        let last = ConstMontyForm::<M, LIMBS>::MODULUS.as_ref().wrapping_sub(&Uint::ONE);
        if base <= Uint::ONE || base >= last {
            return None;
        }
        let mut powers = Vec::with_capacity(POWERS);
        powers.push(ConstMontyForm::ONE);
        powers.push(ConstMontyForm::new(&base));
        let mut copy = Zeroizing::new([0; 56]);
        copy.iter_mut().zip(digits).for_each(|(to, from)| *to = *from);
        let count = digits.len() * 2;
        let product = ConstMontyForm::ONE;
        Some(Box::new(State { powers, product, digits: copy, windows: count, count }))
    }
}

impl<M: ConstMontyParams<LIMBS>, const LIMBS: usize> State<M, LIMBS> {
    /// The next window of the exponent.
    fn window(&self) -> u8 {
        let at = self.count - self.windows;
        let byte = self.digits.get(at / 2).copied().unwrap_or(0);
        if at.is_multiple_of(2) { byte >> 4 } else { byte & 15 }
    }
}

impl<M: ConstMontyParams<LIMBS> + Send, const LIMBS: usize> Steps for State<M, LIMBS> {
    fn work(&mut self, multiplications: u32) -> bool {
        let mut left = multiplications.max(1);
        while self.powers.len() < POWERS {
            let (Some(base), Some(last)) = (self.powers.get(1), self.powers.last()) else { break };
            let next = last.mul(base);
            self.powers.push(next);
            left -= 1;
            if left == 0 {
                return false;
            }
        }
        while self.windows > 0 && left > 0 {
            let window = self.window();
            self.product = self.product.square().square().square().square();
            // All entries are read, whatever the window.
            let mut power = ConstMontyForm::ONE;
            for (entry, number) in self.powers.iter().zip(0u8..) {
                power.ct_assign(entry, number.ct_eq(&window));
            }
            self.product = self.product.mul(&power);
            power.zeroize();
            self.windows -= 1;
            left = left.saturating_sub(WINDOW);
        }
        self.windows == 0
    }

    fn result(&self) -> Zeroizing<Vec<u8>> {
        let mut value = self.product.retrieve();
        let bytes = Zeroizing::new(Vec::from(value.to_be_bytes().as_ref()));
        value.zeroize();
        bytes
    }
}

impl<M: ConstMontyParams<LIMBS>, const LIMBS: usize> Drop for State<M, LIMBS> {
    fn drop(&mut self) {
        self.powers.iter_mut().for_each(|power| *power.as_montgomery_mut() = Uint::ZERO);
        self.product.as_montgomery_mut().zeroize();
    }
}
