//! Numbers of the protocol: hashes, groups, explanations of failures, and `sc_c`.

use tls_psk::hash::Hash;

/// The hash with this number.
pub fn hash(id: u8) -> Option<Hash> {
    match id {
        1 => Some(Hash::Sha256),
        2 => Some(Hash::Sha384),
        3 => Some(Hash::Sha512),
        _ => None,
    }
}

/// The number of a hash.
pub fn hash_id(hash: Hash) -> u8 {
    match hash {
        Hash::Sha256 => 1,
        Hash::Sha384 => 2,
        Hash::Sha512 => 3,
    }
}

/// A Diffie-Hellman group (RFC 7919), or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DhGroup {
    /// No key exchange: an attacker who records an authentication can guess weak secrets offline.
    Null = 0,
    /// 2,048 bits.
    Ffdhe2048 = 1,
    /// 3,072 bits.
    Ffdhe3072 = 2,
    /// 4,096 bits.
    Ffdhe4096 = 3,
    /// 6,144 bits.
    Ffdhe6144 = 4,
    /// 8,192 bits.
    Ffdhe8192 = 5,
}

impl DhGroup {
    /// All, the weakest first.
    pub const ALL: &'static [DhGroup] = &[
        DhGroup::Null,
        DhGroup::Ffdhe2048,
        DhGroup::Ffdhe3072,
        DhGroup::Ffdhe4096,
        DhGroup::Ffdhe6144,
        DhGroup::Ffdhe8192,
    ];

    /// Groups without explicit configuration, in order of preference. The larger ones cost a responder too much.
    pub const USUAL: &'static [DhGroup] = &[DhGroup::Ffdhe3072, DhGroup::Ffdhe2048, DhGroup::Null];

    /// Its number in the protocol.
    pub const fn id(self) -> u8 {
        self as u8
    }

    pub(crate) fn of(id: u8) -> Option<DhGroup> {
        DhGroup::ALL.iter().copied().find(|group| group.id() == id)
    }

    /// Bytes of a public value; 0 for [`DhGroup::Null`].
    pub const fn len(self) -> usize {
        match self {
            DhGroup::Null => 0,
            DhGroup::Ffdhe2048 => 256,
            DhGroup::Ffdhe3072 => 384,
            DhGroup::Ffdhe4096 => 512,
            DhGroup::Ffdhe6144 => 768,
            DhGroup::Ffdhe8192 => 1024,
        }
    }

    /// Its name in configurations and in nvme-cli.
    pub const fn name(self) -> &'static str {
        match self {
            DhGroup::Null => "null",
            DhGroup::Ffdhe2048 => "ffdhe2048",
            DhGroup::Ffdhe3072 => "ffdhe3072",
            DhGroup::Ffdhe4096 => "ffdhe4096",
            DhGroup::Ffdhe6144 => "ffdhe6144",
            DhGroup::Ffdhe8192 => "ffdhe8192",
        }
    }
}

/// Reason code explanation of a failure message. Its reason code is always 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Explanation {
    /// The response is wrong.
    Failed = 1,
    /// The authentication protocol is not usable.
    ProtocolUnusable = 2,
    /// Secure concatenation does not match.
    ConcatenationMismatch = 3,
    /// No hash is usable.
    HashUnusable = 4,
    /// No group is usable.
    GroupUnusable = 5,
    /// A message has wrong contents.
    IncorrectPayload = 6,
    /// A message came in the wrong state.
    IncorrectMessage = 7,
}

impl Explanation {
    pub(crate) fn of(code: u8) -> Explanation {
        match code {
            2 => Explanation::ProtocolUnusable,
            3 => Explanation::ConcatenationMismatch,
            4 => Explanation::HashUnusable,
            5 => Explanation::GroupUnusable,
            6 => Explanation::IncorrectPayload,
            7 => Explanation::IncorrectMessage,
            _ => Explanation::Failed,
        }
    }

    /// Its number in the protocol.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// `sc_c` of a negotiation: a TLS key that the host requests in addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concatenation {
    /// Authentication only.
    None = 0,
    /// A new TLS key. The queue is in clear.
    New = 2,
    /// Another TLS key in place of that of the queue.
    Replace = 3,
}

impl Concatenation {
    pub(crate) fn of(code: u8) -> Option<Concatenation> {
        match code {
            0 => Some(Concatenation::None),
            2 => Some(Concatenation::New),
            3 => Some(Concatenation::Replace),
            _ => None,
        }
    }
}
