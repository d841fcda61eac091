//! Management datagrams, 256 bytes (vol. 1, 13.4.2; Linux `include/rdma/ib_mad.h`), as far as the connection manager
//! uses them.

use super::{Error, bytes, get16, get64};
use core::fmt;

/// Length of a MAD in bytes.
pub const LEN: usize = 256;
/// Length of its header in bytes.
pub const HEADER_LEN: usize = 24;
/// Length of the data behind the header.
pub const DATA_LEN: usize = LEN - HEADER_LEN;

/// Queue pair of the general services interface.
pub const GSI_QPN: u32 = 1;
/// Its Q_Key.
pub const GSI_QKEY: u32 = 0x8001_0000;

const BASE_VERSION: u8 = 1;
const CLASS_CM: u8 = 0x07;
const CLASS_VERSION_CM: u8 = 2;
const METHOD_SEND: u8 = 3;

/// The data of a MAD.
pub type Data = [u8; DATA_LEN];

/// Header of a connection manager's MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mad {
    /// Transaction ID, repeated by the answer.
    pub transaction: u64,
    /// Attribute ID, which identifies the message.
    pub attribute: u16,
}

impl Mad {
    /// Reads header and data of the MAD at the beginning of `from`.
    pub fn parse(from: &[u8]) -> Result<(Self, Data), Error> {
        let mad: [u8; LEN] = bytes(from, 0)?;
        if mad[0] != BASE_VERSION || mad[2] != CLASS_VERSION_CM {
            return Err(Error::Version);
        }
        if mad[1] != CLASS_CM || mad[3] != METHOD_SEND {
            return Err(Error::Opcode);
        }
        let header = Mad { transaction: get64(&mad, 8)?, attribute: get16(&mad, 16)? };
        Ok((header, bytes(&mad, HEADER_LEN)?))
    }

    /// Writes header and data.
    pub fn emit(&self, data: &Data, into: &mut [u8; LEN]) {
        into[..HEADER_LEN].fill(0);
        into[..4].copy_from_slice(&[BASE_VERSION, CLASS_CM, CLASS_VERSION_CM, METHOD_SEND]);
        into[8..16].copy_from_slice(&self.transaction.to_be_bytes());
        into[16..18].copy_from_slice(&self.attribute.to_be_bytes());
        into[HEADER_LEN..].copy_from_slice(data);
    }
}

impl fmt::Display for Mad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CM attribute {:#x} transaction {:#x}", self.attribute, self.transaction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Base version, class, class version and method must be the connection manager's.
    #[test]
    fn parse_rejects_foreign_management_datagrams() {
        let (mad, mut bytes) = (Mad { transaction: 7, attribute: 0x10 }, [0; LEN]);
        mad.emit(&[9; DATA_LEN], &mut bytes);
        assert_eq!(Mad::parse(&bytes), Ok((mad, [9; DATA_LEN])));
        let wrong = [Error::Version, Error::Opcode, Error::Version, Error::Opcode];
        for (at, expected) in wrong.into_iter().enumerate() {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(Mad::parse(&other), Err(expected), "byte {at}");
        }
        assert_eq!(Mad::parse(&bytes[1..]), Err(Error::Truncated));
    }
}
