//! Headers of requests, which are in the chunk behind the user's header, and the response's new key.

use super::{Descriptor, WireError, array, fixed, put};
use core::{fmt, ops::Range};

const WRITE: u16 = 2;
const READ: u16 = 3;
const RKEY_RSP: u16 = 4;

const TYPE: Range<usize> = 0..2;
const USER_LEN: Range<usize> = 2..4;
const READ_FLAGS: Range<usize> = 4..6;
const READ_COUNT: Range<usize> = 6..8;
const READ_DESC: Range<usize> = 8..24;
const RKEY_BUFFER: Range<usize> = 2..4;
const RKEY_KEY: Range<usize> = 4..8;

const NEED_INVAL: u16 = 1;

/// RTRS header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoHeader {
    /// A write: data, if any, is at the start of the chunk.
    Write {
        /// Bytes of user header before this one.
        user_len: u16,
    },
    /// A read.
    Read {
        /// Bytes of user header before this one.
        user_len: u16,
        /// The client requests that the response invalidates its key.
        need_invalidate: bool,
        /// Destination of the data.
        into: Option<Descriptor>,
    },
}

impl IoHeader {
    /// Largest size in bytes.
    pub const MAX_SIZE: usize = 24;

    /// Parses the bytes behind the user header (24, or as many as the chunk still has).
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = fixed::<4>(bytes)?;
        let user_len = u16::from_le_bytes(array(b, USER_LEN));
        match u16::from_le_bytes(array(b, TYPE)) {
            WRITE => Ok(IoHeader::Write { user_len }),
            READ => {
                let b = fixed::<8>(bytes)?;
                let flags = u16::from_le_bytes(array(b, READ_FLAGS));
                let into = match u16::from_le_bytes(array(b, READ_COUNT)) {
                    0 => None,
                    1 => Some(Descriptor::parse(&array(fixed::<24>(bytes)?, READ_DESC))),
                    _ => return Err(WireError::Field("sg_cnt")),
                };
                Ok(IoHeader::Read { user_len, need_invalidate: flags & NEED_INVAL != 0, into })
            }
            kind => Err(WireError::Type(kind)),
        }
    }

    /// Emits the header, and its length.
    pub fn emit(&self) -> ([u8; Self::MAX_SIZE], usize) {
        let mut b = [0; Self::MAX_SIZE];
        let len = match *self {
            IoHeader::Write { user_len } => {
                put(&mut b, TYPE, &WRITE.to_le_bytes());
                put(&mut b, USER_LEN, &user_len.to_le_bytes());
                4
            }
            IoHeader::Read { user_len, need_invalidate, into } => {
                put(&mut b, TYPE, &READ.to_le_bytes());
                put(&mut b, USER_LEN, &user_len.to_le_bytes());
                put(&mut b, READ_FLAGS, &u16::from(need_invalidate).to_le_bytes());
                put(&mut b, READ_COUNT, &u16::from(into.is_some()).to_le_bytes());
                match into {
                    Some(descriptor) => {
                        put(&mut b, READ_DESC, &descriptor.emit());
                        24
                    }
                    None => 8,
                }
            }
        };
        (b, len)
    }
}

impl fmt::Display for IoHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IoHeader::Write { user_len } => write!(f, "WRITE user {user_len}"),
            IoHeader::Read { user_len, need_invalidate, into } => {
                write!(f, "READ user {user_len}")?;
                if let Some(descriptor) = into {
                    write!(f, " into {descriptor}")?;
                }
                f.write_str(if *need_invalidate { " need-inval" } else { "" })
            }
        }
    }
}

/// RKEY_RSP: the chunk's next key, in the SEND of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RkeyResponse {
    /// The chunk.
    pub buffer: u16,
    /// Its new key.
    pub rkey: u32,
}

impl RkeyResponse {
    /// Size in bytes.
    pub const SIZE: usize = 8;

    /// Parses a message.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = fixed::<{ Self::SIZE }>(bytes)?;
        match u16::from_le_bytes(array(b, TYPE)) {
            RKEY_RSP => Ok(RkeyResponse {
                buffer: u16::from_le_bytes(array(b, RKEY_BUFFER)),
                rkey: u32::from_le_bytes(array(b, RKEY_KEY)),
            }),
            kind => Err(WireError::Type(kind)),
        }
    }

    /// Emits the message.
    #[inline]
    pub fn emit(&self) -> [u8; Self::SIZE] {
        let mut b = [0; Self::SIZE];
        put(&mut b, TYPE, &RKEY_RSP.to_le_bytes());
        put(&mut b, RKEY_BUFFER, &self.buffer.to_le_bytes());
        put(&mut b, RKEY_KEY, &self.rkey.to_le_bytes());
        b
    }
}

impl fmt::Display for RkeyResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RKEY_RSP chunk {} key {:#x}", self.buffer, self.rkey)
    }
}

#[cfg(test)]
mod tests {
    use super::super::vectors::vector;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn linux_messages_round_trip() {
        let bytes = vector("io_100");
        let header = IoHeader::parse(&bytes[32..]).unwrap();
        assert_eq!(
            header,
            IoHeader::Read {
                user_len: 32,
                need_invalidate: true,
                into: Some(Descriptor { address: 0xffff_8a36_7f90_8000, key: 0x49d, length: 4096 }),
            }
        );
        assert_eq!(header.emit(), (bytes[32..].try_into().unwrap(), 24));
        let bytes = vector("io_101");
        let header = IoHeader::parse(&bytes[32..]).unwrap();
        assert_eq!(header, IoHeader::Write { user_len: 32 });
        assert_eq!(header.emit().0[..4], bytes[32..]);
        let bytes = vector("rkey_rsp");
        let rkey = RkeyResponse::parse(&bytes).unwrap();
        assert_eq!(rkey, RkeyResponse { buffer: 0, rkey: 0x34f });
        assert_eq!(rkey.emit(), bytes[..]);
    }

    #[test]
    fn invalid_fields_are_refused() {
        let mut bytes = vector("io_100").split_off(32);
        assert_eq!(IoHeader::parse(&bytes[..23]), Err(WireError::Short { need: 24, have: 23 }));
        bytes[6] = 2;
        assert_eq!(IoHeader::parse(&bytes), Err(WireError::Field("sg_cnt")));
        bytes[0] = 9;
        assert_eq!(IoHeader::parse(&bytes), Err(WireError::Type(9)));
    }

    proptest! {
        #[test]
        fn round_trip(
            user_len: u16, need_invalidate: bool,
            desc: Option<(u64, u32, u32)>, buffer: u16, rkey: u32,
        ) {
            let into = desc.map(|(address, key, length)| Descriptor { address, key, length });
            for header in [
                IoHeader::Write { user_len },
                IoHeader::Read { user_len, need_invalidate, into },
            ] {
                let (bytes, len) = header.emit();
                prop_assert_eq!(IoHeader::parse(&bytes[..len]), Ok(header));
            }
            let response = RkeyResponse { buffer, rkey };
            prop_assert_eq!(RkeyResponse::parse(&response.emit()), Ok(response));
        }

        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..32)) {
            let _ = IoHeader::parse(&bytes);
            let _ = RkeyResponse::parse(&bytes);
        }
    }
}
