//! The header in front of every payload. Offsets in bytes, all fields little-endian:
//!
//! | field | bytes | 4.x | 5.x |
//! |---|---|---|---|
//! | sender: job << 32 + rank | 8 | 0 | 0 |
//! | sequence number | 2 | 8 | 8 |
//! | acknowledged sequence number, if the flag is set | 2 | 10 | 10 |
//! | length of the payload | 2 | 12 | 12 |
//! | address of a PUT at the receiver, or 0 | 8 | 16 | 16 |
//! | type: 1 ACK, 2 FRAG (whole), 3 CHUNK (part) | 1 | 24 | 14 |
//! | 1 if the packet acknowledges | 1 | 25 | 15 |
//! | tag | 1 | 26 | 24 |
//! | CHUNK: name of the fragment | 4 | 32 | 28 |
//! | CHUNK: size of the fragment | 4 | 36 | 32 |
//! | CHUNK: offset of the payload in the fragment | 4 | 40 | 36 |
//! | length of ACK and FRAG / of CHUNK | | 32 / 48 | 25 / 40 |
//!
//! Bytes between the fields are padding: sent as zero, ignored by the receiver.

use super::array;

/// Longest header in bytes.
pub const MAX_HEADER: usize = 48;
/// Tag of a PUT; receivers ignore it.
pub const PUT_TAG: u8 = 255;

/// Layout of a peer's headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Open MPI 1.8 to 4.x.
    #[default]
    V4,
    /// Open MPI 5.
    V5,
}

impl Layout {
    /// Length in bytes of the header of an ACK or FRAG.
    pub const fn header(self) -> usize {
        match self {
            Layout::V4 => 32,
            Layout::V5 => 25,
        }
    }

    /// Length in bytes of the header of a CHUNK.
    pub const fn chunk_header(self) -> usize {
        match self {
            Layout::V4 => 48,
            Layout::V5 => 40,
        }
    }

    /// Offsets of type, ACK flag, tag, and the fields of a CHUNK.
    const fn offsets(self) -> (usize, usize, usize, usize) {
        match self {
            Layout::V4 => (24, 25, 26, 32),
            Layout::V5 => (14, 15, 24, 28),
        }
    }
}

/// Type of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An acknowledgement, without sequence number and payload.
    Ack,
    /// A whole fragment.
    Fragment,
    /// A part of a fragment.
    Chunk {
        /// Name of the fragment; an honest sender does not use 0.
        fragment: u32,
        /// Bytes of the fragment.
        size: u32,
        /// Offset of the payload in the fragment.
        offset: u32,
    },
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Name of the sender: job << 32 + rank.
    pub sender: u64,
    /// Sequence number; 0 in an ACK.
    pub sequence: u16,
    /// The sender of the packet has received all packets up to this number.
    pub acknowledged: Option<u16>,
    /// Address of a PUT at the receiver; 0 for a message.
    pub put_address: u64,
    /// Tag of the handler for the message.
    pub tag: u8,
    /// Type.
    pub kind: Kind,
}

/// Why a datagram is not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than its header, or than the header and the payload length in it.
    Short,
    /// An unknown type.
    Type(u8),
}

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Malformed::Short => {
                f.write_str("the peer sent a packet that is shorter than its header says")
            }
            Malformed::Type(number) => write!(f, "the peer sent a packet of unknown type {number}"),
        }
    }
}

impl core::error::Error for Malformed {}

impl Header {
    /// Writes the header in front of `payload` bytes, and returns its length.
    #[inline]
    pub fn emit(&self, layout: Layout, payload: u16, into: &mut [u8; MAX_HEADER]) -> usize {
        // One call for each layout, so that offsets are constants.
        match layout {
            Layout::V4 => self.emit_in(Layout::V4, payload, into),
            Layout::V5 => self.emit_in(Layout::V5, payload, into),
        }
    }

    #[inline]
    fn emit_in(&self, layout: Layout, payload: u16, into: &mut [u8; MAX_HEADER]) -> usize {
        let (at_type, at_flag, at_tag, at_chunk) = layout.offsets();
        *into = [0; MAX_HEADER];
        into[0..8].copy_from_slice(&self.sender.to_le_bytes());
        into[8..10].copy_from_slice(&self.sequence.to_le_bytes());
        into[10..12].copy_from_slice(&self.acknowledged.unwrap_or(0).to_le_bytes());
        into[12..14].copy_from_slice(&payload.to_le_bytes());
        into[16..24].copy_from_slice(&self.put_address.to_le_bytes());
        into[at_flag] = self.acknowledged.is_some().into();
        into[at_tag] = self.tag;
        let (number, length) = match self.kind {
            Kind::Ack => (1, layout.header()),
            Kind::Fragment => (2, layout.header()),
            Kind::Chunk { fragment, size, offset } => {
                into[at_chunk..at_chunk + 4].copy_from_slice(&fragment.to_le_bytes());
                into[at_chunk + 4..at_chunk + 8].copy_from_slice(&size.to_le_bytes());
                into[at_chunk + 8..at_chunk + 12].copy_from_slice(&offset.to_le_bytes());
                (3, layout.chunk_header())
            }
        };
        into[at_type] = number;
        length
    }

    /// Turns the header of a CHUNK without an acknowledgement into that of the next CHUNK of the same fragment.
    #[inline]
    pub fn advance(
        layout: Layout,
        header: &mut [u8; MAX_HEADER],
        sequence: u16,
        payload: u16,
        offset: u32,
    ) {
        header[8..10].copy_from_slice(&sequence.to_le_bytes());
        header[12..14].copy_from_slice(&payload.to_le_bytes());
        let (.., at_chunk) = layout.offsets();
        header[at_chunk + 8..at_chunk + 12].copy_from_slice(&offset.to_le_bytes());
    }

    /// Parses a datagram like [`Header::parse`]; None if it is not a valid CHUNK.
    #[inline]
    pub fn parse_chunk(layout: Layout, datagram: &[u8]) -> Option<(Header, &[u8])> {
        let (at_type, ..) = layout.offsets();
        if datagram.len() < layout.chunk_header() || datagram.get(at_type) != Some(&3) {
            return None;
        }
        Self::parse_in(layout, datagram).ok()
    }

    /// Parses a datagram into header and payload. Bytes after the payload are ignored.
    #[inline]
    pub fn parse(layout: Layout, datagram: &[u8]) -> Result<(Header, &[u8]), Malformed> {
        match layout {
            Layout::V4 => Self::parse_in(Layout::V4, datagram),
            Layout::V5 => Self::parse_in(Layout::V5, datagram),
        }
    }

    #[inline]
    fn parse_in(layout: Layout, datagram: &[u8]) -> Result<(Header, &[u8]), Malformed> {
        let (at_type, at_flag, at_tag, at_chunk) = layout.offsets();
        if datagram.len() < layout.header() {
            return Err(Malformed::Short);
        }
        let word = |at| array(datagram, at).map_or(0, u16::from_le_bytes);
        let long = |at| array(datagram, at).map_or(0, u64::from_le_bytes);
        let [number, flag, tag] =
            [at_type, at_flag, at_tag].map(|at| datagram.get(at).copied().unwrap_or(0));
        let (sender, put_address) = (long(0), long(16));
        let [sequence, acknowledged, length] = [word(8), word(10), word(12)];
        let (kind, at) = match number {
            1 => (Kind::Ack, layout.header()),
            2 => (Kind::Fragment, layout.header()),
            3 => {
                if datagram.len() < layout.chunk_header() {
                    return Err(Malformed::Short);
                }
                let field =
                    |n: usize| array(datagram, at_chunk + 4 * n).map_or(0, u32::from_le_bytes);
                let kind = Kind::Chunk { fragment: field(0), size: field(1), offset: field(2) };
                (kind, layout.chunk_header())
            }
            _ => return Err(Malformed::Type(number)),
        };
        let payload = datagram.get(at..).and_then(|rest| rest.get(..length.into()));
        let payload = payload.ok_or(Malformed::Short)?;
        let acknowledged = (flag != 0 || number == 1).then_some(acknowledged);
        Ok((Header { sender, sequence, acknowledged, put_address, tag, kind }, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
        digits
            .chunks(2)
            .map(|pair| {
                u8::from_str_radix(&pair.iter().collect::<std::string::String>(), 16).unwrap()
            })
            .collect()
    }

    /// Packets captured from Open MPI 4.1.4: a message that acknowledges, an ACK, a part of a PUT.
    #[test]
    fn packets_of_open_mpi_4() {
        let message =
            hex("000000000100c7d7 39e1 ce4d 1600 0000 0000000000000000 02 01 41 0000000000
             41000000000000000700000002003d18fb00615939e2");
        let (header, payload) = Header::parse(Layout::V4, &message).unwrap();
        let expected = Header {
            sender: 0xd7c7_0001_0000_0000,
            sequence: 0xe139,
            acknowledged: Some(0x4dce),
            put_address: 0,
            tag: 0x41,
            kind: Kind::Fragment,
        };
        assert_eq!((header, payload), (expected, &message[32..]));
        let mut bytes = [0xff; MAX_HEADER];
        assert_eq!(header.emit(Layout::V4, 22, &mut bytes), 32);
        assert_eq!(bytes[..32], message[..32]);

        let ack = hex("010000000100c7d7 0000 38e1 0000 0000 0000000000000000 01 01 00 0000000000");
        let (header, payload) = Header::parse(Layout::V4, &ack).unwrap();
        assert_eq!((header.kind, header.acknowledged), (Kind::Ack, Some(0xe138)));
        assert!(payload.is_empty());
        assert_eq!(header.emit(Layout::V4, 0, &mut bytes), 32);
        assert_eq!(bytes[..32], ack);

        let mut put =
            hex("0000000001000000 5cdd 0000 4000 0000 30be352448560000 03 00 ff 0000000000
             01000000 204e0000 e04d0000 00000000");
        put.resize(112, 7);
        let (header, payload) = Header::parse(Layout::V4, &put).unwrap();
        let kind = Kind::Chunk { fragment: 1, size: 20_000, offset: 19_936 };
        assert_eq!((header.kind, header.tag, header.acknowledged), (kind, PUT_TAG, None));
        assert_eq!((header.put_address, payload.len()), (0x5648_2435_be30, 64));
        assert_eq!(header.emit(Layout::V4, 64, &mut bytes), 48);
        assert_eq!(bytes, put[..48]);
    }

    /// Packets in the layout of Open MPI 5.0.8.
    #[test]
    fn packets_of_open_mpi_5() {
        let chunk = Header {
            sender: 0x0000_0001_0000_0002,
            sequence: 0x1234,
            acknowledged: Some(0x0010),
            put_address: 0x1122_3344_5566_7788,
            tag: 0x41,
            kind: Kind::Chunk { fragment: 5, size: 0x0102_0304, offset: 0x0a0b_0c0d },
        };
        let bytes = hex("0200000001000000 3412 1000 0300 03 01 8877665544332211 41 000000
             05000000 04030201 0d0c0b0a");
        let mut emitted = [0; MAX_HEADER];
        assert_eq!(chunk.emit(Layout::V5, 3, &mut emitted), 40);
        assert_eq!(emitted[..40], bytes);
        let packet = [&bytes[..], b"abc"].concat();
        assert_eq!(Header::parse(Layout::V5, &packet), Ok((chunk, &b"abc"[..])));

        let whole = Header { kind: Kind::Fragment, acknowledged: None, put_address: 0, ..chunk };
        let bytes = hex("0200000001000000 3412 0000 0200 02 00 0000000000000000 41");
        assert_eq!(whole.emit(Layout::V5, 2, &mut emitted), 25);
        assert_eq!(emitted[..25], bytes);
        let packet = [&bytes[..], b"ab"].concat();
        assert_eq!(Header::parse(Layout::V5, &packet), Ok((whole, &b"ab"[..])));
    }

    #[test]
    fn parse_rejects_short_packets_and_unknown_types() {
        let mut bytes = [0; MAX_HEADER];
        let header = Header {
            sender: 1,
            sequence: 2,
            acknowledged: None,
            put_address: 0,
            tag: 1,
            kind: Kind::Chunk { fragment: 1, size: 10, offset: 0 },
        };
        for layout in [Layout::V4, Layout::V5] {
            let length = header.emit(layout, 1, &mut bytes);
            assert_eq!(Header::parse(layout, &bytes[..length]), Err(Malformed::Short));
            let mut packet = [&bytes[..length], &[9]].concat();
            assert!(Header::parse(layout, &packet).is_ok());
            packet[layout.offsets().0] = 7;
            assert_eq!(Header::parse(layout, &packet), Err(Malformed::Type(7)));
            assert_eq!(
                Header::parse(layout, &packet[..layout.header() - 1]),
                Err(Malformed::Short)
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_rejected_or_round_trip(bytes in proptest::collection::vec(any::<u8>(), 0..80), five: bool) {
            let layout = if five { Layout::V5 } else { Layout::V4 };
            if let Ok((header, payload)) = Header::parse(layout, &bytes) {
                let mut emitted = [0; MAX_HEADER];
                let length = header.emit(layout, payload.len() as u16, &mut emitted);
                let packet = [&emitted[..length], payload].concat();
                prop_assert_eq!(Header::parse(layout, &packet), Ok((header, payload)));
            }
        }
    }
}
