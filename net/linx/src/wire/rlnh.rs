//! RLNH's messages: what the two ends of a link tell each other of names, as user data from link address 0 to link
//! address 0. Big-endian words of 32 bits ("LINX Protocols" version 21, section 3.6; LINX for Linux 2.5
//! `rlnh_proto.h`):
//!
//! | type | | behind the type |
//! |---|---|---|
//! | 1 | QUERY_NAME | link address of the hunter, name |
//! | 2 | PUBLISH | link address, name |
//! | 3 | UNPUBLISH | link address |
//! | 4 | UNPUBLISH_ACK | link address |
//! | 5 | INIT | version |
//! | 6 | INIT_REPLY | 0 if the version is supported, 1 if not; features (version 2) |
//! | 7 | PUBLISH_PEER | link address, link address of the receiver's own (version 2) |
//!
//! The type is in the lower 8 bits of the first word; the others are reserved and 0. Names and features end with a
//! zero byte; names are filled up to whole words.

use super::u32_at;
use core::fmt;

/// Highest version that is spoken here.
pub const VERSION: u32 = 2;
/// Most bytes of a name, without the zero behind it.
pub const MAX_NAME: usize = 255;
/// Bytes of the longest message that is written here.
pub const LONGEST: usize = 8 + MAX_NAME + 1;
/// Most bytes of a message that is read here: features may be longer than a name.
pub const MOST: usize = 1024;

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Publish this name when there is one.
    QueryName {
        /// Link address of who hunts for it.
        hunter: u32,
        /// The name.
        name: &'a [u8],
    },
    /// A name of the sender has this link address.
    Publish {
        /// The link address.
        address: u32,
        /// The name.
        name: &'a [u8],
    },
    /// A link address of the sender stands for nobody any more.
    Unpublish {
        /// The link address.
        address: u32,
    },
    /// The sender uses a link address of the receiver no more.
    UnpublishAck {
        /// The link address.
        address: u32,
    },
    /// The first message.
    Init {
        /// Highest version that the sender speaks.
        version: u32,
    },
    /// The answer to it.
    InitReply {
        /// 0: the sender speaks the version; else it does not.
        status: u32,
        /// Features of the sender: `name:argument` with commas between.
        features: &'a [u8],
    },
    /// From this link address comes what somebody of the receiver's sends by way of the sender.
    PublishPeer {
        /// The link address.
        address: u32,
        /// Link address that the receiver has given to him.
        peer: u32,
    },
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than its type needs.
    Short,
    /// A type that nobody knows.
    Type(u8),
    /// A name that is empty, too long, or does not end.
    Name,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Short => f.write_str("the peer sent an RLNH message that is too short"),
            Malformed::Type(number) => write!(f, "the peer sent an RLNH message of type {number}"),
            Malformed::Name => write!(
                f,
                "the peer sent a name that is empty, has no end, or has more than {MAX_NAME} bytes"
            ),
        }
    }
}

impl core::error::Error for Malformed {}

impl<'a> Message<'a> {
    /// Reads a message.
    pub fn parse(bytes: &'a [u8]) -> Result<Message<'a>, Malformed> {
        let word = |at| u32_at(bytes, at).ok_or(Malformed::Short);
        let name = || {
            let rest = bytes.get(8..).unwrap_or_default();
            let name = rest.split(|&byte| byte == 0).next().unwrap_or_default();
            let fits = !name.is_empty() && name.len() <= MAX_NAME && name.len() < rest.len();
            fits.then_some(name).ok_or(Malformed::Name)
        };
        Ok(match word(0)? as u8 {
            1 => Message::QueryName { hunter: word(4)?, name: name()? },
            2 => Message::Publish { address: word(4)?, name: name()? },
            3 => Message::Unpublish { address: word(4)? },
            4 => Message::UnpublishAck { address: word(4)? },
            5 => Message::Init { version: word(4)? },
            6 => {
                let features = bytes.get(8..).unwrap_or_default();
                let features = features.split(|&byte| byte == 0).next().unwrap_or_default();
                Message::InitReply { status: word(4)?, features }
            }
            7 => Message::PublishPeer { address: word(4)?, peer: word(8)? },
            other => return Err(Malformed::Type(other)),
        })
    }

    /// Writes the message, and returns its length. Names are `MAX_NAME` bytes at most: what is longer is cut off.
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
        into.fill(0);
        into[0..4].copy_from_slice(&kind.to_be_bytes());
        into[4..8].copy_from_slice(&first.to_be_bytes());
        if let Some(second) = second {
            into[8..12].copy_from_slice(&second.to_be_bytes());
            return 12;
        }
        let Some(text) = text else { return 8 };
        let length = text.len().min(MAX_NAME);
        into[8..8 + length].copy_from_slice(&text[..length]);
        (8 + length + 1).next_multiple_of(4)
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
    use std::vec::Vec;

    #[test]
    fn messages_of_each_type() {
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
    fn what_is_wrong_is_refused() {
        assert_eq!(Message::parse(b"\0\0\0"), Err(Malformed::Short));
        assert_eq!(Message::parse(b"\0\0\0\x03\0\0\0"), Err(Malformed::Short));
        assert_eq!(Message::parse(b"\0\0\0\x07\0\0\0\x01"), Err(Malformed::Short));
        assert_eq!(Message::parse(b"\0\0\0\x08\0\0\0\x01"), Err(Malformed::Type(8)));
        assert_eq!(Message::parse(b"\0\0\0\x02\0\0\0\x03abcd"), Err(Malformed::Name));
        assert_eq!(Message::parse(b"\0\0\0\x02\0\0\0\x03\0\0\0\0"), Err(Malformed::Name));
        assert_eq!(Message::parse(b"\0\0\0\x01\0\0\0\x03"), Err(Malformed::Name));
        let mut long = Vec::from(b"\0\0\0\x02\0\0\0\x03");
        long.extend([b'a'; MAX_NAME + 1]);
        long.push(0);
        assert_eq!(Message::parse(&long), Err(Malformed::Name));
        long.remove(8);
        assert!(Message::parse(&long).is_ok());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(mut bytes in proptest::collection::vec(any::<u8>(), 0..40), kind in 0u8..9) {
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
