//! The messages (Base Specification section 8.3.4.5.1 to 8.3.4.5.6; `include/linux/nvme.h`). Numbers are little-endian.
//!
//! All begin with type, id, two reserved bytes and the transaction id. A message may be longer than its contents.

use crate::ids::{self, Concatenation, DhGroup, Explanation};
use alloc::vec::Vec;
use tls_psk::hash::Hash;

/// Type and id of each message.
pub const NEGOTIATE: [u8; 2] = [0, 0];
pub const CHALLENGE: [u8; 2] = [1, 1];
pub const REPLY: [u8; 2] = [1, 2];
pub const SUCCESS1: [u8; 2] = [1, 3];
pub const SUCCESS2: [u8; 2] = [1, 4];
pub const FAILURE1: [u8; 2] = [0, 0xf1];
pub const FAILURE2: [u8; 2] = [0, 0xf0];

/// Bytes of the fixed part of Challenge, Reply, Success1 and Success2.
const FIXED: usize = 16;
/// Bytes of a failure message.
const FAILURE: usize = 8;
/// Bytes of a protocol descriptor of Negotiate, and the room for each of its two lists.
const DESCRIPTOR: usize = 64;
const LIST: usize = 30;
/// Authentication protocol DH-HMAC-CHAP.
const DH_HMAC_CHAP: u8 = 1;

/// Reads fields at fixed places. Every method returns None past the end.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn byte(self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.bytes(at, N)?.try_into().ok()
    }

    fn word(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    fn bytes(self, at: usize, len: usize) -> Option<&'a [u8]> {
        self.0.get(at..at.checked_add(len)?)
    }
}

/// Type, id and transaction id of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub kind: [u8; 2],
    pub transaction: u16,
}

impl Head {
    pub fn parse(message: &[u8]) -> Option<Head> {
        let fields = Fields(message);
        Some(Head { kind: fields.array(0)?, transaction: fields.word(4)? })
    }
}

/// AUTH_Negotiate: the offer of the host.
#[derive(Debug)]
pub struct Negotiate<'a> {
    pub concatenation: Option<Concatenation>,
    hashes: &'a [u8],
    groups: &'a [u8],
}

impl<'a> Negotiate<'a> {
    /// None if lengths are wrong. Without a descriptor of DH-HMAC-CHAP the lists are empty, and `usable` false.
    pub fn parse(message: &'a [u8]) -> Option<(Negotiate<'a>, bool)> {
        let fields = Fields(message);
        let concatenation = Concatenation::of(fields.byte(6)?);
        let count = usize::from(fields.byte(7)?);
        let descriptors = fields.bytes(8, count * DESCRIPTOR)?;
        let mut found = Negotiate { concatenation, hashes: &[], groups: &[] };
        for descriptor in descriptors.chunks_exact(DESCRIPTOR).map(Fields) {
            if descriptor.byte(0)? != DH_HMAC_CHAP {
                continue;
            }
            let (hashes, groups) = (descriptor.byte(2)?.into(), descriptor.byte(3)?.into());
            if hashes > LIST || groups > LIST {
                return None;
            }
            found.hashes = descriptor.bytes(4, hashes)?;
            found.groups = descriptor.bytes(4 + LIST, groups)?;
            return Some((found, true));
        }
        Some((found, false))
    }

    pub fn has_hash(&self, hash: Hash) -> bool {
        self.hashes.contains(&ids::hash_id(hash))
    }

    pub fn has_group(&self, group: DhGroup) -> bool {
        self.groups.contains(&group.id())
    }

    pub fn encode(
        transaction: u16,
        concatenation: Concatenation,
        hashes: &[Hash],
        groups: &[DhGroup],
    ) -> Vec<u8> {
        let mut into = head(NEGOTIATE, transaction, 8 + DESCRIPTOR);
        into.extend([concatenation as u8, 1, DH_HMAC_CHAP, 0]);
        let (hashes, groups) = (hashes.iter().take(LIST), groups.iter().take(LIST));
        into.extend([hashes.len() as u8, groups.len() as u8]);
        into.extend(hashes.map(|hash| ids::hash_id(*hash)));
        into.resize(8 + 4 + LIST, 0);
        into.extend(groups.map(|group| group.id()));
        into.resize(8 + DESCRIPTOR, 0);
        into
    }
}

/// Challenge: the controller's choice, challenge and public value.
#[derive(Debug)]
pub struct Challenge<'a> {
    /// None for a number that is unknown, or a length that is not that of the hash.
    pub hash: Option<Hash>,
    /// None for a number that is unknown, or a length that is not that of the group.
    pub group: Option<DhGroup>,
    pub sequence: u32,
    pub value: &'a [u8],
    pub public: &'a [u8],
}

impl<'a> Challenge<'a> {
    pub fn parse(message: &'a [u8]) -> Option<Challenge<'a>> {
        let fields = Fields(message);
        let hash_len = usize::from(fields.byte(6)?);
        let public_len = usize::from(fields.word(10)?);
        Some(Challenge {
            hash: ids::hash(fields.byte(8)?).filter(|hash| hash.len() == hash_len),
            group: DhGroup::of(fields.byte(9)?).filter(|group| group.len() == public_len),
            sequence: fields.array(12).map(u32::from_le_bytes)?,
            value: fields.bytes(FIXED, hash_len)?,
            public: fields.bytes(FIXED + hash_len, public_len)?,
        })
    }

    pub fn encode(
        transaction: u16,
        hash: Hash,
        group: DhGroup,
        sequence: u32,
        value: &[u8],
        public: &[u8],
    ) -> Vec<u8> {
        let mut into = head(CHALLENGE, transaction, FIXED + value.len() + public.len());
        into.extend([hash.len() as u8, 0, ids::hash_id(hash), group.id()]);
        into.extend((public.len() as u16).to_le_bytes());
        into.extend(sequence.to_le_bytes());
        into.extend(value);
        into.extend(public);
        into
    }
}

/// Reply: the host's response, and its own challenge.
#[derive(Debug)]
pub struct Reply<'a> {
    pub hash_len: usize,
    pub response: &'a [u8],
    pub sequence: u32,
    /// C2, if the host sent one.
    pub challenge: Option<&'a [u8]>,
    pub public: &'a [u8],
}

impl<'a> Reply<'a> {
    pub fn parse(message: &'a [u8]) -> Option<Reply<'a>> {
        let fields = Fields(message);
        let len = usize::from(fields.byte(6)?);
        // The place of C2 is there also without one.
        let challenge = fields.bytes(FIXED + len, len)?;
        Some(Reply {
            hash_len: len,
            response: fields.bytes(FIXED, len)?,
            sequence: fields.array(12).map(u32::from_le_bytes)?,
            challenge: (fields.byte(8)? & 1 == 1).then_some(challenge),
            public: fields.bytes(FIXED + 2 * len, fields.word(10)?.into())?,
        })
    }

    pub fn encode(&self, transaction: u16) -> Vec<u8> {
        let len = FIXED + 2 * self.hash_len + self.public.len();
        let mut into = head(REPLY, transaction, len);
        into.extend([self.hash_len as u8, 0, self.challenge.is_some().into(), 0]);
        into.extend((self.public.len() as u16).to_le_bytes());
        into.extend(self.sequence.to_le_bytes());
        into.extend(self.response);
        into.extend(self.challenge.unwrap_or_default());
        into.resize(FIXED + 2 * self.hash_len, 0);
        into.extend(self.public);
        into
    }
}

/// Success1: the controller's response, if it was challenged.
#[derive(Debug)]
pub struct Success1<'a> {
    pub hash_len: usize,
    pub response: Option<&'a [u8]>,
}

impl<'a> Success1<'a> {
    pub fn parse(message: &'a [u8]) -> Option<Success1<'a>> {
        let fields = Fields(message);
        let hash_len = usize::from(fields.byte(6)?);
        let response = match fields.byte(8)? & 1 {
            1 => Some(fields.bytes(FIXED, hash_len)?),
            _ => None,
        };
        Some(Success1 { hash_len, response })
    }

    pub fn encode(transaction: u16, hash: Hash, response: Option<&[u8]>) -> Vec<u8> {
        let mut into = head(SUCCESS1, transaction, FIXED + hash.len());
        into.extend([hash.len() as u8, 0, response.is_some().into()]);
        into.resize(FIXED, 0);
        into.extend(response.unwrap_or_default());
        into
    }
}

pub fn success2(transaction: u16) -> Vec<u8> {
    let mut into = head(SUCCESS2, transaction, FIXED);
    into.resize(FIXED, 0);
    into
}

/// Failure1 or Failure2.
pub fn failure(kind: [u8; 2], transaction: u16, explanation: Explanation) -> Vec<u8> {
    /// Authentication failed: the only reason there is.
    const REASON: u8 = 1;
    let mut into = head(kind, transaction, FAILURE);
    into.extend([REASON, explanation.code()]);
    into
}

/// The explanation in a failure message. A message without one counts as failed.
pub fn explanation(message: &[u8]) -> Explanation {
    Explanation::of(Fields(message).byte(7).unwrap_or(0))
}

fn head(kind: [u8; 2], transaction: u16, capacity: usize) -> Vec<u8> {
    let mut into = Vec::with_capacity(capacity);
    into.extend(kind);
    into.extend([0, 0]);
    into.extend(transaction.to_le_bytes());
    into
}
