//! RLNH's messages: the ends of a link exchange names by them, as user data from link address 0 to link address 0.
//! Big-endian words of 32 bits ("LINX Protocols" version 21, section 3.6; LINX for Linux 2.5
//! `rlnh_proto.h`):
//!
//! | type | | fields |
//! |---|---|---|
//! | 1 | QUERY_NAME | link address of the hunter, name |
//! | 2 | PUBLISH | link address, name |
//! | 3 | UNPUBLISH | link address |
//! | 4 | UNPUBLISH_ACK | link address |
//! | 5 | INIT | version |
//! | 6 | INIT_REPLY | 0 if the version is supported, 1 if not; features (version 2) |
//! | 7 | PUBLISH_PEER | link address, link address of the receiver's own (version 2) |
//!
//! The type is in the lower 8 bits of the first word; the others are reserved and 0. Names and features end with a zero
//! byte, or with the message. Names are padded to whole words. LINX for Linux does not limit the length of names, and
//! accepts an empty one.

use super::u32_at;
use core::fmt;

/// Highest supported version.
pub const VERSION: u32 = 2;
/// Maximum length of local names and of names that we hunt for, without the zero byte. A peer's names may be longer.
pub const MAX_NAME: usize = 1024;
/// Bytes of the longest message that `emit` writes.
pub const LONGEST: usize = 8 + MAX_NAME + 4;

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Requests the publication of a name, as soon as there is an endpoint of that name.
    QueryName {
        /// Link address of the hunting endpoint.
        hunter: u32,
        /// The name.
        name: &'a [u8],
    },
    /// An endpoint of the sender has this name and link address.
    Publish {
        /// The link address.
        address: u32,
        /// The name.
        name: &'a [u8],
    },
    /// The endpoint of a link address of the sender has ended.
    Unpublish {
        /// The link address.
        address: u32,
    },
    /// The sender no longer uses a link address of the receiver.
    UnpublishAck {
        /// The link address.
        address: u32,
    },
    /// The first message.
    Init {
        /// Highest version that the sender supports.
        version: u32,
    },
    /// The answer to INIT.
    InitReply {
        /// 0 if the sender supports the version.
        status: u32,
        /// Features of the sender: `name:argument`, separated by commas.
        features: &'a [u8],
    },
    /// Signals from this link address are those of an endpoint of the receiver, forwarded by the sender.
    PublishPeer {
        /// The link address.
        address: u32,
        /// The receiver's link address of that endpoint.
        peer: u32,
    },
}

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than its type needs.
    Short,
    /// An unknown type.
    Type(u8),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Short => f.write_str("the peer sent an RLNH message that is too short"),
            Malformed::Type(number) => {
                write!(f, "the peer sent an RLNH message of unknown type {number}")
            }
        }
    }
}

impl core::error::Error for Malformed {}

impl<'a> Message<'a> {
    /// Parses a message.
    pub fn parse(bytes: &'a [u8]) -> Result<Message<'a>, Malformed> {
        let word = |at| u32_at(bytes, at).ok_or(Malformed::Short);
        let text = || {
            let rest = bytes.get(8..).unwrap_or_default();
            rest.split(|&byte| byte == 0).next().unwrap_or_default()
        };
        Ok(match word(0)? as u8 {
            1 => Message::QueryName { hunter: word(4)?, name: text() },
            2 => Message::Publish { address: word(4)?, name: text() },
            3 => Message::Unpublish { address: word(4)? },
            4 => Message::UnpublishAck { address: word(4)? },
            5 => Message::Init { version: word(4)? },
            6 => Message::InitReply { status: word(4)?, features: text() },
            7 => Message::PublishPeer { address: word(4)?, peer: word(8)? },
            other => return Err(Malformed::Type(other)),
        })
    }

    /// Writes the message. Returns its length. Names are truncated to `MAX_NAME` bytes.
    pub fn emit(&self, into: &mut [u8; LONGEST]) -> usize {
        let (kind, first, text, second) = match *self {
            Message::QueryName { hunter, name } => (1u32, hunter, Some(name), None),
            Message::Publish { address, name } => (2, address, Some(name), None),
            Message::Unpublish { address } => (3, address, None, None),
            Message::UnpublishAck { address } => (4, address, None, None),
            Message::Init { version } => (5, version, None, None),
            Message::InitReply { status, features } => (6, status, Some(features), None),
            Message::PublishPeer { address, peer } => (7, address, None, Some(peer)),
        };
        into[0..4].copy_from_slice(&kind.to_be_bytes());
        into[4..8].copy_from_slice(&first.to_be_bytes());
        if let Some(second) = second {
            into[8..12].copy_from_slice(&second.to_be_bytes());
            return 12;
        }
        let Some(text) = text else { return 8 };
        let length = text.len().min(MAX_NAME);
        into[8..8 + length].copy_from_slice(&text[..length]);
        let end = (8 + length + 1).next_multiple_of(4);
        into[8 + length..end].fill(0);
        end
    }
}

impl fmt::Display for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Message::QueryName { hunter, name } => {
                write!(f, "QUERY_NAME {} for {hunter}", name.escape_ascii())
            }
            Message::Publish { address, name } => {
                write!(f, "PUBLISH {address} {}", name.escape_ascii())
            }
            Message::Unpublish { address } => write!(f, "UNPUBLISH {address}"),
            Message::UnpublishAck { address } => write!(f, "UNPUBLISH_ACK {address}"),
            Message::Init { version } => write!(f, "INIT version {version}"),
            Message::InitReply { status, features } => {
                write!(f, "INIT_REPLY status {status} features \"{}\"", features.escape_ascii())
            }
            Message::PublishPeer { address, peer } => {
                write!(f, "PUBLISH_PEER {address} for {peer}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString;

    #[test]
    fn messages_of_each_type_are_parsed_and_emitted() {
        let vectors: &[(&[u8], &str)] = &[
            (b"\0\0\0\x01\0\0\0\x03abc\0", "QUERY_NAME abc for 3"),
            (b"\0\0\0\x02\0\0\0\x03abcd\0\0\0\0", "PUBLISH 3 abcd"),
            (b"\0\0\0\x03\0\0\0\x03", "UNPUBLISH 3"),
            (b"\0\0\0\x04\0\0\0\x03", "UNPUBLISH_ACK 3"),
            (b"\0\0\0\x05\0\0\0\x02", "INIT version 2"),
            (b"\0\0\0\x06\0\0\0\x01\0\0\0\0", "INIT_REPLY status 1 features \"\""),
            (b"\0\0\0\x06\0\0\0\0a:1\0", "INIT_REPLY status 0 features \"a:1\""),
            (b"\0\0\0\x07\0\0\0\x01\0\0\0\x02", "PUBLISH_PEER 1 for 2"),
        ];
        for (bytes, line) in vectors {
            let message = Message::parse(bytes).expect(line);
            assert_eq!(message.to_string(), *line);
            let mut again = [0xff; LONGEST];
            let length = message.emit(&mut again);
            assert_eq!(&again[..length], *bytes);
        }
        // Version 1 has no features, and Linux sends 13 bytes.
        assert!(Message::parse(b"\0\0\0\x06\0\0\0\0").is_ok());
        assert!(Message::parse(b"\0\0\0\x06\0\0\0\0\0xyza").is_ok());
    }

    #[test]
    fn parse_rejects_short_messages_and_unknown_types() {
        assert_eq!(Message::parse(b"\0\0\0"), Err(Malformed::Short));
        assert_eq!(Message::parse(b"\0\0\0\x03\0\0\0"), Err(Malformed::Short));
        assert_eq!(Message::parse(b"\0\0\0\x07\0\0\0\x01"), Err(Malformed::Short));
        assert_eq!(Message::parse(b"\0\0\0\x08\0\0\0\x01"), Err(Malformed::Type(8)));
    }

    #[test]
    fn parse_accepts_names_of_any_length_and_without_an_end() {
        for (bytes, name) in [
            (&b"\0\0\0\x02\0\0\0\x03abcd"[..], &b"abcd"[..]),
            (b"\0\0\0\x02\0\0\0\x03\0\0\0\0", b""),
            (b"\0\0\0\x02\0\0\0\x03", b""),
        ] {
            assert_eq!(Message::parse(bytes), Ok(Message::Publish { address: 3, name }));
        }
        let name = std::vec![b'a'; 60_000];
        let long = [&b"\0\0\0\x01\0\0\0\x03"[..], &name, b"\0"].concat();
        assert_eq!(Message::parse(&long), Ok(Message::QueryName { hunter: 3, name: &name }));
        // The longest local name, with its zero byte.
        let longest = Message::Publish { address: 3, name: &name[..MAX_NAME] };
        let mut bytes = [0xff; LONGEST];
        let length = longest.emit(&mut bytes);
        assert_eq!((length, Message::parse(&bytes[..length])), (LONGEST, Ok(longest)));
    }

    proptest! {
        #[test]
        fn parsed_message_is_emitted_unchanged(mut bytes in proptest::collection::vec(any::<u8>(), 0..40), kind in 0u8..9) {
            if let Some(byte) = bytes.get_mut(3) {
                *byte = kind;
            }
            if let Ok(message) = Message::parse(&bytes) {
                let mut again = [0; LONGEST];
                let length = message.emit(&mut again);
                prop_assert_eq!(Message::parse(&again[..length]), Ok(message));
            }
        }
    }
}
