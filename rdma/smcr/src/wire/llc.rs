//! LLC messages, which maintain link groups (RFC 7609, appendix A.3; version 2 adds 0x20 to the type, and messages
//! longer than 44 bytes).

use super::{WireError, byte, bytes24, field, field24};
use alloc::vec::Vec;
use core::net::Ipv6Addr;

/// Shortest and most common length of a message.
pub const LEN: usize = 44;
/// Longest message.
pub const MAX_LEN: usize = 8192;
/// Most keys in one message of version 1.
pub const V1_KEYS: usize = 8;

const CONFIRM_LINK: u8 = 1;
const ADD_LINK: u8 = 2;
const ADD_LINK_CONT: u8 = 3;
const DELETE_LINK: u8 = 4;
const REQUEST_ADD_LINK: u8 = 5;
const CONFIRM_RKEY: u8 = 6;
const TEST_LINK: u8 = 7;
const DELETE_RKEY: u8 = 9;

const VERSION_2: u8 = 0x20;
const RESPONSE: u8 = 0x80;
const REJECT: u8 = 0x40;
const ALL: u8 = 0x40;
const ORDERLY: u8 = 0x20;
const NEGATIVE: u8 = 0x20;
const RETRY: u8 = 0x10;
const NO_EYECATCHER: u8 = 0x03;
/// Offset of the keys in a version 2 ADD_LINK.
const ADD_LINK_V2: usize = 72;
const KEY_MOVE: usize = 16;

/// Byte order of two version 2 fields (length, and number of keys in ADD_LINK): meant to be big-endian, but in CPU
/// order with Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// As in all other fields.
    #[default]
    Big,
    /// A little-endian Linux.
    Little,
}

impl Order {
    fn bytes(self, value: u16) -> [u8; 2] {
        match self {
            Order::Big => value.to_be_bytes(),
            Order::Little => value.to_le_bytes(),
        }
    }

    fn value(self, bytes: [u8; 2]) -> u16 {
        match self {
            Order::Big => u16::from_be_bytes(bytes),
            Order::Little => u16::from_le_bytes(bytes),
        }
    }

    /// The order in which `bytes` are the length `len`. If the length is wrong in both orders, the one in which it is a
    /// possible length.
    fn of_length(bytes: [u8; 2], len: usize) -> Self {
        let is = |order: Self| usize::from(order.value(bytes)) == len;
        let possible = (LEN..=MAX_LEN).contains(&usize::from(u16::from_be_bytes(bytes)));
        if is(Order::Little) && !is(Order::Big) || !is(Order::Big) && !possible {
            Order::Little
        } else {
            Order::Big
        }
    }
}

/// Key and address of a buffer on one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// Key.
    pub rkey: u32,
    /// Address.
    pub address: u64,
}

/// The key of a buffer on one link, and key and address on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyMove {
    /// Key on the link that carries the message.
    pub known: u32,
    /// Key and address on the other link.
    pub token: Token,
}

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkEnd {
    /// MAC address.
    pub mac: [u8; 6],
    /// GID.
    pub gid: Ipv6Addr,
    /// Queue pair.
    pub qpn: u32,
}

/// Fields added by version 2 to ADD_LINK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddLinkV2 {
    /// The peers reach each other without a router.
    pub direct: bool,
    /// Target GID of the receiver.
    pub target: Ipv6Addr,
    /// The sender's buffers.
    pub keys: Vec<KeyMove>,
}

/// ADD_LINK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddLink {
    /// The sender's end.
    pub end: LinkEnd,
    /// Number of the link.
    pub link: u8,
    /// Path MTU, in the code of verbs.
    pub path_mtu: u8,
    /// PSN of the sender's first packet.
    pub psn: u32,
    /// In a response: rejected, with this reason (four bits).
    pub rejected: Option<u8>,
    /// Version 2; Linux omits it in rejections.
    pub v2: Option<AddLinkV2>,
}

/// Content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// CONFIRM_LINK: the queue pairs of a link reach each other.
    ConfirmLink {
        /// The sender's end.
        end: LinkEnd,
        /// Number of the link, given by the server.
        link: u8,
        /// The sender's ID of the link.
        uid: u32,
        /// Most links.
        max_links: u8,
        /// Most connections.
        max_conns: u8,
        /// The sender's buffers have no eyecatchers.
        no_eyecatcher: bool,
    },
    /// An additional link.
    AddLink(AddLink),
    /// ADD_LINK_CONT, version 1: keys of the sender's buffers on the new link.
    AddLinkContinue {
        /// Number of the link.
        link: u8,
        /// Remaining keys, including those in this message.
        left: u8,
        /// Up to two keys.
        keys: Vec<KeyMove>,
    },
    /// DELETE_LINK: a link, or all links, end.
    DeleteLink {
        /// Number of the link.
        link: u8,
        /// All links.
        all: bool,
        /// No data is lost.
        orderly: bool,
        /// Reason code.
        reason: DeleteReason,
    },
    /// REQUEST_ADD_LINK, version 2: the client requests an additional link from the server.
    RequestAddLink {
        /// GIDs of the client.
        gids: Vec<Ipv6Addr>,
    },
    /// CONFIRM_RKEY: a new buffer of the sender.
    ConfirmKey {
        /// Key and address on the link that carries the message.
        token: Token,
        /// Keys and addresses on other links, by link number; at most two.
        others: Vec<(u8, Token)>,
        /// In a response: rejected.
        negative: bool,
        /// In a response: rejected for now.
        retry: bool,
    },
    /// DELETE_RKEY: released buffers of the sender, by their keys on the link that carries the message.
    DeleteKey {
        /// The keys; at most eight in version 1.
        keys: Vec<u32>,
        /// In a response: number of unknown keys (version 1: a mask of them).
        unknown: u8,
        /// In a response: some keys were unknown.
        negative: bool,
    },
    /// TEST_LINK.
    TestLink {
        /// Data that the response returns.
        data: [u8; 16],
    },
}

/// Reason code of DELETE_LINK, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeleteReason(pub u32);

impl DeleteReason {
    /// The path is lost.
    pub const LOST_PATH: Self = DeleteReason(0x0001_0000);
    /// On behalf of an operator.
    pub const OPERATOR: Self = DeleteReason(0x0002_0000);
    /// On behalf of the program.
    pub const PROGRAM: Self = DeleteReason(0x0003_0000);
    /// The peer violated the protocol.
    pub const VIOLATION: Self = DeleteReason(0x0004_0000);
    /// The asymmetric link is not needed any more.
    pub const ASYMMETRIC: Self = DeleteReason(0x0005_0000);
    /// In a response: there is no such link.
    pub const NO_SUCH_LINK: Self = DeleteReason(0x0010_0000);
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Llc {
    /// Version 1 or 2.
    pub version: u8,
    /// The message is a response.
    pub response: bool,
    /// Version 2: byte order of the sender.
    pub order: Order,
    /// Content.
    pub body: Body,
}

impl Llc {
    /// Parses a message. The length of the SEND counts; the length field only determines the byte order.
    pub fn parse(b: &[u8]) -> Result<Self, WireError> {
        let flags = byte(b, 3)?;
        if b.len() < LEN || b.len() > MAX_LEN {
            return Err(WireError::Length { have: b.len() });
        }
        let version = match b[0] >> 4 {
            0 => 1,
            2 => 2,
            _ => return Err(WireError::Type(b[0])),
        };
        if version == 1 && usize::from(b[1]) != LEN {
            return Err(WireError::Length { have: b[1].into() });
        }
        let order = Order::of_length([b[1], b[2]], b.len());
        let kind = b[0] & 15;
        let body = match kind {
            CONFIRM_LINK => Body::ConfirmLink {
                end: LinkEnd::parse(b, 4, 10, 26)?,
                link: b[29],
                uid: u32::from_be_bytes(field(b, 30..34)?),
                max_links: b[34],
                max_conns: b[35],
                no_eyecatcher: flags & NO_EYECATCHER != 0,
            },
            ADD_LINK => Body::AddLink(AddLink::parse(b, flags, version, order)?),
            ADD_LINK_CONT if version == 1 => Body::AddLinkContinue {
                link: b[4],
                left: b[5],
                keys: (0..usize::from(b[5]).min(2))
                    .map(|n| KeyMove::parse(b, 8 + KEY_MOVE * n))
                    .collect::<Result<_, _>>()?,
            },
            DELETE_LINK => Body::DeleteLink {
                link: b[4],
                all: flags & ALL != 0,
                orderly: flags & ORDERLY != 0,
                reason: DeleteReason(u32::from_be_bytes(field(b, 5..9)?)),
            },
            REQUEST_ADD_LINK if version == 2 => {
                let gids = b[28..].as_chunks::<16>().0.iter().take(b[24].into());
                Body::RequestAddLink { gids: gids.map(|&gid| gid.into()).collect() }
            }
            CONFIRM_RKEY => {
                if b[4] > 2 {
                    return Err(WireError::Field("number of keys"));
                }
                let others = (0..usize::from(b[4])).map(|n| {
                    let at = 17 + 13 * n;
                    Ok((byte(b, at)?, Token::parse(b, at + 1)?))
                });
                Body::ConfirmKey {
                    token: Token::parse(b, 5)?,
                    others: others.collect::<Result<_, _>>()?,
                    negative: flags & NEGATIVE != 0,
                    retry: flags & RETRY != 0,
                }
            }
            TEST_LINK => Body::TestLink { data: field(b, 4..20)? },
            DELETE_RKEY => {
                let count = usize::from(b[4]);
                let keys = b[8..].as_chunks::<4>().0;
                let most = if version == 1 { V1_KEYS } else { keys.len() };
                if count > most {
                    return Err(WireError::Field("number of keys"));
                }
                Body::DeleteKey {
                    keys: keys[..count].iter().map(|&key| u32::from_be_bytes(key)).collect(),
                    unknown: b[5],
                    negative: flags & NEGATIVE != 0,
                }
            }
            _ => return Err(WireError::Type(b[0])),
        };
        Ok(Llc { version, response: flags & RESPONSE != 0, order, body })
    }

    /// Emits the message: 44 bytes, or more if version 2 needs them.
    pub fn emit(&self) -> Vec<u8> {
        let mut b = alloc::vec![0; LEN];
        let (kind, mut flags) = match &self.body {
            Body::ConfirmLink { end, link, uid, max_links, max_conns, no_eyecatcher } => {
                end.emit(&mut b, 4, 10, 26);
                b[29] = *link;
                b[30..34].copy_from_slice(&uid.to_be_bytes());
                b[34] = *max_links;
                b[35] = *max_conns;
                (CONFIRM_LINK, if *no_eyecatcher { NO_EYECATCHER } else { 0 })
            }
            Body::AddLink(add) => {
                add.emit(&mut b, self.version, self.order);
                let reason = add.rejected.filter(|_| self.version == 1).unwrap_or(0);
                b[2] = reason & 15;
                (ADD_LINK, if add.rejected.is_some() { REJECT } else { 0 })
            }
            Body::AddLinkContinue { link, left, keys } => {
                b[4] = *link;
                b[5] = *left;
                for (n, key) in keys.iter().take(2).enumerate() {
                    key.emit(&mut b[8 + KEY_MOVE * n..][..KEY_MOVE]);
                }
                (ADD_LINK_CONT, 0)
            }
            Body::DeleteLink { link, all, orderly, reason } => {
                b[4] = *link;
                b[5..9].copy_from_slice(&reason.0.to_be_bytes());
                let all = if *all { ALL } else { 0 };
                (DELETE_LINK, all | if *orderly { ORDERLY } else { 0 })
            }
            Body::RequestAddLink { gids } => {
                let gids = &gids[..gids.len().min(255)];
                b[24] = gids.len() as u8;
                b.resize(LEN.max(28 + 16 * gids.len()), 0);
                for (gid, at) in gids.iter().zip(b[28..].as_chunks_mut::<16>().0) {
                    *at = gid.octets();
                }
                (REQUEST_ADD_LINK, 0)
            }
            Body::ConfirmKey { token, others, negative, retry } => {
                let others = &others[..others.len().min(2)];
                b[4] = others.len() as u8;
                token.emit(&mut b[5..17]);
                for (n, (link, token)) in others.iter().enumerate() {
                    b[17 + 13 * n] = *link;
                    token.emit(&mut b[18 + 13 * n..][..12]);
                }
                let negative = if *negative { NEGATIVE } else { 0 };
                (CONFIRM_RKEY, negative | if *retry { RETRY } else { 0 })
            }
            Body::DeleteKey { keys, unknown, negative } => {
                let most = if self.version == 1 { V1_KEYS } else { 255 };
                let keys = &keys[..keys.len().min(most)];
                b[4] = keys.len() as u8;
                b[5] = *unknown;
                b.resize(LEN.max(8 + 4 * keys.len()), 0);
                for (key, at) in keys.iter().zip(b[8..].as_chunks_mut::<4>().0) {
                    *at = key.to_be_bytes();
                }
                (DELETE_RKEY, if *negative { NEGATIVE } else { 0 })
            }
            Body::TestLink { data } => {
                b[4..20].copy_from_slice(data);
                (TEST_LINK, 0)
            }
        };
        if self.response {
            flags |= RESPONSE;
        }
        b[3] = flags;
        if self.version == 1 {
            b[0] = kind;
            b[1] = LEN as u8;
        } else {
            b[0] = kind | VERSION_2;
            let length = self.order.bytes(b.len() as u16);
            b[1..3].copy_from_slice(&length);
        }
        b
    }
}

impl Token {
    fn parse(b: &[u8], at: usize) -> Result<Self, WireError> {
        Ok(Token {
            rkey: u32::from_be_bytes(field(b, at..at + 4)?),
            address: u64::from_be_bytes(field(b, at + 4..at + 12)?),
        })
    }

    fn emit(&self, b: &mut [u8]) {
        b[..4].copy_from_slice(&self.rkey.to_be_bytes());
        b[4..12].copy_from_slice(&self.address.to_be_bytes());
    }
}

impl KeyMove {
    fn parse(b: &[u8], at: usize) -> Result<Self, WireError> {
        let known = u32::from_be_bytes(field(b, at..at + 4)?);
        Ok(KeyMove { known, token: Token::parse(b, at + 4)? })
    }

    fn emit(&self, b: &mut [u8]) {
        b[..4].copy_from_slice(&self.known.to_be_bytes());
        self.token.emit(&mut b[4..]);
    }
}

impl LinkEnd {
    fn parse(b: &[u8], mac: usize, gid: usize, qpn: usize) -> Result<Self, WireError> {
        Ok(LinkEnd {
            mac: field(b, mac..mac + 6)?,
            gid: field::<16>(b, gid..gid + 16)?.into(),
            qpn: field24(b, qpn)?,
        })
    }

    fn emit(&self, b: &mut [u8], mac: usize, gid: usize, qpn: usize) {
        b[mac..mac + 6].copy_from_slice(&self.mac);
        b[gid..gid + 16].copy_from_slice(&self.gid.octets());
        b[qpn..qpn + 3].copy_from_slice(&bytes24(self.qpn));
    }
}

impl AddLink {
    fn parse(b: &[u8], flags: u8, version: u8, order: Order) -> Result<Self, WireError> {
        let v2 = if version == 2 && b.len() >= ADD_LINK_V2 {
            // Linux uses only the low byte of the number of keys.
            let count = usize::from(order.value(field(b, 70..72)?));
            if count > (b.len() - ADD_LINK_V2) / KEY_MOVE {
                return Err(WireError::Field("number of keys"));
            }
            Some(AddLinkV2 {
                direct: b[44] & 0x80 != 0,
                target: field::<16>(b, 46..62)?.into(),
                keys: (0..count)
                    .map(|n| KeyMove::parse(b, ADD_LINK_V2 + KEY_MOVE * n))
                    .collect::<Result<_, _>>()?,
            })
        } else {
            None
        };
        let reason = if version == 1 { b[2] & 15 } else { 0 };
        Ok(AddLink {
            end: LinkEnd::parse(b, 4, 12, 28)?,
            link: b[31],
            path_mtu: b[32] & 15,
            psn: field24(b, 33)?,
            rejected: (flags & REJECT != 0).then_some(reason),
            v2,
        })
    }

    fn emit(&self, b: &mut Vec<u8>, version: u8, order: Order) {
        self.end.emit(b, 4, 12, 28);
        b[31] = self.link;
        b[32] = self.path_mtu & 15;
        b[33..36].copy_from_slice(&bytes24(self.psn));
        let Some(v2) = self.v2.as_ref().filter(|_| version == 2) else { return };
        let keys = &v2.keys[..v2.keys.len().min(255)];
        b.resize(ADD_LINK_V2 + KEY_MOVE * keys.len(), 0);
        b[44] = u8::from(v2.direct) << 7;
        b[46..62].copy_from_slice(&v2.target.octets());
        b[70..72].copy_from_slice(&order.bytes(keys.len() as u16));
        for (key, at) in keys.iter().zip(b[ADD_LINK_V2..].as_chunks_mut::<KEY_MOVE>().0) {
            key.emit(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::vectors::{vector, vectors};
    use super::*;
    use core::net::Ipv4Addr;
    use proptest::prelude::*;

    const NAMES: [&str; 8] = [
        "confirm_link",
        "confirm_link_response",
        "add_link",
        "add_link_response",
        "delete_rkey",
        "delete_rkey_response",
        "confirm_rkey",
        "confirm_rkey_response",
    ];

    #[test]
    fn linux_messages_round_trip() {
        for name in NAMES {
            for bytes in vectors(name) {
                let message = Llc::parse(&bytes).unwrap();
                assert_eq!((message.version, message.order), (2, Order::Little), "{name}");
                assert_eq!(message.response, name.ends_with("response"));
                assert_eq!(message.emit(), bytes, "{name}");
            }
        }
        let Body::AddLink(add) = Llc::parse(&vector("add_link")).unwrap().body else { panic!() };
        let v2 = add.v2.unwrap();
        let token = Token { rkey: 0x5fe, address: 0xff3d_e62f_8373_0000 };
        assert_eq!(v2.keys, [KeyMove { known: 0x31a, token }]);
        assert_eq!(v2.target, Ipv4Addr::new(10, 77, 0, 1).to_ipv6_mapped());
        assert_eq!((add.link, add.end.qpn, add.psn, add.rejected), (2, 18, 0x22_6bc5, None));
        let Body::AddLink(add) = Llc::parse(&vector("add_link_response")).unwrap().body else {
            panic!()
        };
        assert_eq!(add.rejected, Some(0));
    }

    /// Layouts of the structures in Linux's smc_llc.h and smc_llc.c.
    #[test]
    fn version_1() {
        let mac = [0x52, 0x54, 0, 0x77, 0, 1];
        let gid = "fe80::5054:ff:fe77:1".parse().unwrap();
        let end = LinkEnd { mac, gid, qpn: 0x107 };
        let key = |n: u32| {
            let token = Token { rkey: n + 1, address: u64::from(n) << 32 };
            KeyMove { known: n, token }
        };
        let add = |rejected| {
            Body::AddLink(AddLink { end, link: 2, path_mtu: 3, psn: 0x72_f5fe, rejected, v2: None })
        };
        let keys = std::vec![0x155d, 6];
        let cases = [
            (
                false,
                Body::ConfirmLink {
                    end,
                    link: 1,
                    uid: 0x101,
                    max_links: 2,
                    max_conns: 0,
                    no_eyecatcher: true,
                },
                "012c0003 525400770001 fe80000000000000505400fffe770001 000107 01 00000101 02 00",
            ),
            (
                false,
                add(None),
                "022c0000 525400770001 0000 fe80000000000000505400fffe770001 000107 02 03 72f5fe",
            ),
            (
                true,
                add(Some(1)),
                "022c01c0 525400770001 0000 fe80000000000000505400fffe770001 000107 02 03 72f5fe",
            ),
            (
                true,
                Body::AddLinkContinue { link: 2, left: 3, keys: std::vec![key(7), key(9)] },
                "032c0080 02 03 0000 00000007 00000008 0000000700000000 \
                 00000009 0000000a 0000000900000000",
            ),
            (
                true,
                Body::DeleteKey { keys, unknown: 0x40, negative: true },
                "092c00a0 02 40 0000 0000155d 00000006",
            ),
        ];
        for (response, body, text) in cases {
            let message = Llc { version: 1, response, order: Order::Big, body };
            let mut bytes = netsim::hex(&text.replace(' ', ""));
            bytes.resize(LEN, 0);
            assert_eq!(message.emit(), bytes, "{message:?}");
            let parsed = Llc::parse(&bytes).unwrap();
            assert_eq!((parsed.version, parsed.response, parsed.body), (1, response, message.body));
            bytes[1] = 43;
            assert_eq!(Llc::parse(&bytes), Err(WireError::Length { have: 43 }));
        }
    }

    #[test]
    fn both_orders_of_bytes_are_understood() {
        let mut message = Llc::parse(&vector("add_link")).unwrap();
        message.order = Order::Big;
        let bytes = message.emit();
        assert_eq!(bytes[1..3], [0, 88]);
        assert_eq!(bytes[70..72], [0, 1]);
        assert_eq!(Llc::parse(&bytes), Ok(message));
    }

    #[test]
    fn inconsistent_fields_are_refused() {
        let with = |name, at: usize, value| {
            let mut bytes = vector(name);
            bytes[at] = value;
            Llc::parse(&bytes)
        };
        assert_eq!(with("add_link", 70, 2), Err(WireError::Field("number of keys")));
        assert_eq!(with("confirm_rkey", 4, 3), Err(WireError::Field("number of keys")));
        assert_eq!(with("delete_rkey", 4, 10), Err(WireError::Field("number of keys")));
        assert_eq!(with("delete_rkey", 0, 0x2f), Err(WireError::Type(0x2f)));
        assert_eq!(with("delete_rkey", 0, 0x12), Err(WireError::Type(0x12)));
        let bytes = vector("delete_rkey");
        assert_eq!(Llc::parse(&bytes[..43]), Err(WireError::Length { have: 43 }));
    }

    fn tokens() -> impl Strategy<Value = Token> {
        (any::<u32>(), any::<u64>()).prop_map(|(rkey, address)| Token { rkey, address })
    }

    fn bodies() -> impl Strategy<Value = Body> {
        prop_oneof![
            prop::collection::vec(any::<[u8; 16]>(), 0..30).prop_map(|gids| {
                Body::RequestAddLink { gids: gids.into_iter().map(Ipv6Addr::from).collect() }
            }),
            (tokens(), prop::collection::vec((any::<u8>(), tokens()), 0..=2), any::<bool>())
                .prop_map(|(token, others, flag)| Body::ConfirmKey {
                    token,
                    others,
                    negative: flag,
                    retry: flag
                }),
            (prop::collection::vec(any::<u32>(), 0..=100), any::<u8>(), any::<bool>())
                .prop_map(|(keys, unknown, negative)| Body::DeleteKey { keys, unknown, negative }),
            (any::<u8>(), any::<bool>(), any::<bool>(), any::<u32>()).prop_map(
                |(link, all, orderly, reason)| Body::DeleteLink {
                    link,
                    all,
                    orderly,
                    reason: DeleteReason(reason)
                }
            ),
            any::<[u8; 16]>().prop_map(|data| Body::TestLink { data }),
        ]
    }

    proptest! {
        #[test]
        fn round_trip(body in bodies(), response: bool, little: bool) {
            let order = if little { Order::Little } else { Order::Big };
            let message = Llc { version: 2, response, order, body };
            prop_assert_eq!(Llc::parse(&message.emit()), Ok(message));
        }

        #[test]
        fn any_bytes(kind in 0u8..16, v2: bool, b in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = std::vec![kind | if v2 { VERSION_2 } else { 0 }, LEN as u8];
            bytes.extend(b);
            let _ = Llc::parse(&bytes);
        }
    }
}
