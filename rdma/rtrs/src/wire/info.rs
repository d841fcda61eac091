//! INFO_REQ and INFO_RSP: SENDs on the service connection, after all connections of a path are established.

use super::{WireError, array, fixed, put};
use crate::Name;
use core::{fmt, ops::Range};

const INFO_REQ: u16 = 0;
const INFO_RSP: u16 = 1;

const TYPE: Range<usize> = 0..2;
const REQ_NAME: Range<usize> = 2..257;
const RSP_COUNT: Range<usize> = 2..4;
const DESC_ADDRESS: Range<usize> = 0..8;
const DESC_KEY: Range<usize> = 8..12;
const DESC_LENGTH: Range<usize> = 12..16;

/// INFO_REQ: the session's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoRequest {
    /// Name of the session; not empty, neither `/` nor `.` in it.
    pub name: Name,
}

impl InfoRequest {
    /// Size in bytes.
    pub const SIZE: usize = 272;

    /// Parses a message.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = fixed::<{ Self::SIZE }>(bytes)?;
        expect_type(array(b, TYPE), INFO_REQ)?;
        let name = Name::parse(&array(b, REQ_NAME)).map_err(|_| WireError::Field("name"))?;
        if name.as_str().is_empty() || name.as_str().contains(['/', '.']) {
            return Err(WireError::Field("name"));
        }
        Ok(InfoRequest { name })
    }

    /// Emits the message.
    pub fn emit(&self) -> [u8; Self::SIZE] {
        let mut b = [0; Self::SIZE];
        put(&mut b, TYPE, &INFO_REQ.to_le_bytes());
        put(&mut b, REQ_NAME, self.name.field());
        b
    }
}

impl fmt::Display for InfoRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "INFO_REQ {:?}", self.name)
    }
}

/// Memory that the receiver of the descriptor may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Address in the owner's address space.
    pub address: u64,
    /// The owner's key.
    pub key: u32,
    /// Length in bytes.
    pub length: u32,
}

impl Descriptor {
    /// Size in bytes.
    pub const SIZE: usize = 16;

    /// Parses a descriptor.
    #[inline]
    pub fn parse(b: &[u8; Self::SIZE]) -> Self {
        Descriptor {
            address: u64::from_le_bytes(array(b, DESC_ADDRESS)),
            key: u32::from_le_bytes(array(b, DESC_KEY)),
            length: u32::from_le_bytes(array(b, DESC_LENGTH)),
        }
    }

    /// Emits the descriptor.
    #[inline]
    pub fn emit(&self) -> [u8; Self::SIZE] {
        let mut b = [0; Self::SIZE];
        put(&mut b, DESC_ADDRESS, &self.address.to_le_bytes());
        put(&mut b, DESC_KEY, &self.key.to_le_bytes());
        put(&mut b, DESC_LENGTH, &self.length.to_le_bytes());
        b
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{} key {:#x}", self.address, self.length, self.key)
    }
}

/// INFO_RSP: the head of the message, with the number of descriptors behind it. The descriptors cover the session's
/// chunks in order, each a whole number of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoResponse {
    /// Number of descriptors.
    pub count: u16,
}

impl InfoResponse {
    /// Size of the head in bytes.
    pub const SIZE: usize = 8;

    /// Size of the message with `count` descriptors.
    pub const fn message_size(count: u16) -> usize {
        Self::SIZE + count as usize * Descriptor::SIZE
    }

    /// Parses a message.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = fixed::<{ Self::SIZE }>(bytes)?;
        expect_type(array(b, TYPE), INFO_RSP)?;
        let count = u16::from_le_bytes(array(b, RSP_COUNT));
        let need = Self::message_size(count);
        if bytes.len() < need {
            return Err(WireError::Short { need, have: bytes.len() });
        }
        Ok(InfoResponse { count })
    }

    /// Emits the head of the message.
    pub fn emit(&self) -> [u8; Self::SIZE] {
        let mut b = [0; Self::SIZE];
        put(&mut b, TYPE, &INFO_RSP.to_le_bytes());
        put(&mut b, RSP_COUNT, &self.count.to_le_bytes());
        b
    }

    /// The descriptors of a parsed message.
    pub fn descriptors(message: &[u8]) -> impl Iterator<Item = Descriptor> {
        let rest = message.get(Self::SIZE..).unwrap_or_default();
        rest.as_chunks::<{ Descriptor::SIZE }>().0.iter().map(Descriptor::parse)
    }
}

impl fmt::Display for InfoResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "INFO_RSP {} descriptors", self.count)
    }
}

fn expect_type(bytes: [u8; 2], expected: u16) -> Result<(), WireError> {
    match u16::from_le_bytes(bytes) {
        kind if kind == expected => Ok(()),
        kind => Err(WireError::Type(kind)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::vectors::vector;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn linux_messages_round_trip() {
        let bytes = vector("info_req");
        let request = InfoRequest::parse(&bytes).unwrap();
        assert_eq!(request.name.as_str(), "s1");
        assert_eq!(request.emit(), bytes[..]);
        let bytes = vector("n_info_rsp");
        let response = InfoResponse::parse(&bytes).unwrap();
        assert_eq!(response.emit(), bytes[..8]);
        let all: Vec<Descriptor> = InfoResponse::descriptors(&bytes).collect();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].length, 64 << 20);
        assert_eq!(all[0].emit(), bytes[8..]);
    }

    #[test]
    fn invalid_fields_are_refused() {
        let mut bytes = vector("info_req");
        bytes[3] = b'/';
        assert_eq!(InfoRequest::parse(&bytes), Err(WireError::Field("name")));
        bytes[2] = 0;
        assert_eq!(InfoRequest::parse(&bytes), Err(WireError::Field("name")), "empty");
        bytes[0] = 1;
        assert_eq!(InfoRequest::parse(&bytes), Err(WireError::Type(1)));
        let bytes = vector("n_info_rsp");
        assert_eq!(InfoResponse::parse(&bytes[..23]), Err(WireError::Short { need: 24, have: 23 }));
    }

    proptest! {
        #[test]
        fn round_trip(name in "[a-zA-Z0-9_-]{1,254}", address: u64, key: u32, length: u32) {
            let request = InfoRequest { name: Name::new(&name).unwrap() };
            prop_assert_eq!(InfoRequest::parse(&request.emit()), Ok(request));
            let descriptor = Descriptor { address, key, length };
            prop_assert_eq!(Descriptor::parse(&descriptor.emit()), descriptor);
        }

        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = InfoRequest::parse(&bytes);
            let _ = InfoResponse::parse(&bytes);
        }
    }
}
