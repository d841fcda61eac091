//! The header of LINX's TCP connection manager, version 3, which precedes each message of the stream. 16 bytes,
//! big-endian ("LINX Protocols" version 21, section 7.1.1; Wireshark's `packet-linx.c`):
//!
//! | field | bytes | at |
//! |---|---|---|
//! | type: 0x43 CONN, 0x55 UDATA, 0x50 PING, 0x51 PONG | 1 | 0 |
//! | version | 1 | 1 |
//! | 0x8000 if it is out of band | 2 | 2 |
//! | source, destination link address (UDATA) | 4, 4 | 4, 8 |
//! | bytes that follow (UDATA, CONN) | 4 | 12 |

/// Bytes of the header.
pub const LEN: usize = 16;
/// The supported version.
pub const VERSION: u8 = 3;
/// The TCP port on which LINX listens.
pub const PORT: u16 = 19790;
/// Longest message in bytes that LINX for Linux sends.
pub const MOST: u32 = 65536;

/// Type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// CONN: the request for a connection, and its answer.
    Connect,
    /// UDATA: a message.
    Data,
    /// PING.
    Ping,
    /// PONG: the answer to PING.
    Pong,
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Type.
    pub kind: Kind,
    /// Version of the sender.
    pub version: u8,
    /// Whether the message is out of band.
    pub out_of_band: bool,
    /// Link address of the sender.
    pub source: u32,
    /// Link address of the receiver.
    pub destination: u32,
    /// Bytes that follow.
    pub size: u32,
}

/// An unknown type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub u8);

impl Header {
    /// A header of our version.
    pub fn new(kind: Kind, source: u32, destination: u32, size: u32) -> Header {
        Header { kind, version: VERSION, out_of_band: false, source, destination, size }
    }

    /// Parses a header.
    pub fn parse(bytes: &[u8; LEN]) -> Result<Header, Malformed> {
        let word = |at| super::u32_at(bytes, at).unwrap_or(0);
        let kind = match bytes[0] {
            0x43 => Kind::Connect,
            0x55 => Kind::Data,
            0x50 => Kind::Ping,
            0x51 => Kind::Pong,
            other => return Err(Malformed(other)),
        };
        Ok(Header {
            kind,
            version: bytes[1],
            out_of_band: bytes[2] & 0x80 != 0,
            source: word(4),
            destination: word(8),
            size: word(12),
        })
    }

    /// Writes a header.
    pub fn emit(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[0] = match self.kind {
            Kind::Connect => 0x43,
            Kind::Data => 0x55,
            Kind::Ping => 0x50,
            Kind::Pong => 0x51,
        };
        bytes[1] = self.version;
        bytes[2] = u8::from(self.out_of_band) << 7;
        bytes[4..8].copy_from_slice(&self.source.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.destination.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.size.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_parsed_and_emitted() {
        let bytes = *b"\x55\x03\x80\0\0\0\0\x01\0\0\0\x02\0\x01\0\0";
        let header = Header::parse(&bytes).unwrap();
        let same = Header { out_of_band: true, ..Header::new(Kind::Data, 1, 2, 65536) };
        assert_eq!(header, same);
        assert_eq!(header.emit(), bytes);
        for (byte, kind) in [(0x43, Kind::Connect), (0x50, Kind::Ping), (0x51, Kind::Pong)] {
            let mut bytes = [0; LEN];
            bytes[..2].copy_from_slice(&[byte, 3]);
            assert_eq!(Header::parse(&bytes), Ok(Header::new(kind, 0, 0, 0)));
            assert_eq!(Header::new(kind, 0, 0, 0).emit(), bytes);
        }
        assert_eq!(Header::parse(&[0; LEN]), Err(Malformed(0)));
    }
}
