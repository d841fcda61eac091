//! Exchange of modexes between an appliance and a peer over TCP: one record in each direction. The connection stays
//! open for the lifetime of the peer. docs/usnic.md documents the format for other implementations.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `USNICRV` and the version, 1 |
//! | 8 | 1 | 1: a request, 2: a response |
//! | 9 | 1 | in a response: 0 if the peer is accepted, else the reason of the refusal ([`Refused`]) |
//! | 10 | 1 | layout of packets: 4 or 5 |
//! | 11 | 1 | 0 |
//! | 12 | 2 | bytes of text after the record: in a refusal, an explanation |
//! | 14 | 2 | 0 |
//! | 16 | 8 | name of the record's sender: job << 32 + rank |
//! | 24 | 8 | name of the receiver; all ones in a request if the receiver chooses its name |
//! | 32 | 32 | modex of the sender |
//!
//! Numbers are little-endian, as in the modex.

use super::array;
use super::modex::{self, BadModex, Modex};
use crate::wire::header::Layout;
use core::fmt;

/// Bytes of a record.
pub const LENGTH: usize = 64;
/// Most bytes of text after a record.
pub const MOST_TEXT: usize = 512;
/// Receiver's name in a request that leaves the choice to the receiver.
pub const ANY_NAME: u64 = u64::MAX;

const MAGIC: [u8; 8] = *b"USNICRV\x01";
const REQUEST: u8 = 1;
const ANSWER: u8 = 2;

/// Why a peer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The request cannot be parsed.
    Malformed = 1,
    /// The configuration does not admit the peer.
    NotAdmitted = 2,
    /// The two interfaces are incompatible, such as by another MTU.
    Unfit = 3,
    /// There is no room now. The peer may try again later.
    Full = 4,
}

/// Type of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request to become a peer.
    Request,
    /// The request is accepted.
    Taken,
    /// The request is refused: a code of [`Refused`], and bytes of text after the record.
    Refused(u8, u16),
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Type.
    pub kind: Kind,
    /// Layout of the sender's packets.
    pub layout: Layout,
    /// Name of the sender: job << 32 + rank.
    pub sender: u64,
    /// Name of the receiver, or [`ANY_NAME`].
    pub receiver: u64,
    /// The sender's interface; optional in a refusal.
    pub modex: Option<Modex>,
}

/// Why a record cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRecord {
    /// It does not begin with the magic bytes.
    Magic,
    /// Unknown version.
    Version(u8),
    /// It is neither a request nor a response.
    Kind(u8),
    /// The layout is neither 4 nor 5.
    Layout(u8),
    /// A reserved field is not 0.
    Reserved,
    /// It has too much text, or text without a refusal.
    Text(u16),
    /// The modex is invalid.
    Modex(BadModex),
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadRecord::Magic => f.write_str("not a record of usNIC's rendezvous"),
            BadRecord::Version(version) => {
                write!(f, "unknown version {version} of usNIC's rendezvous; supported is 1")
            }
            BadRecord::Kind(kind) => write!(f, "byte 8 of a record must be 1 or 2, not {kind}"),
            BadRecord::Layout(layout) => {
                write!(f, "unknown layout {layout}; supported are 4 and 5")
            }
            BadRecord::Reserved => f.write_str("bytes 11, 14 and 15 of a record must be 0"),
            BadRecord::Text(bytes) => {
                write!(f, "{bytes} bytes of text are too many for this record")
            }
            BadRecord::Modex(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for BadRecord {}

impl Record {
    /// Parses a record.
    pub fn parse(bytes: &[u8; LENGTH]) -> Result<Self, BadRecord> {
        let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let [magic @ .., version] = MAGIC;
        if !bytes.starts_with(&magic) {
            return Err(BadRecord::Magic);
        }
        if byte(7) != version {
            return Err(BadRecord::Version(byte(7)));
        }
        let text = array(bytes, 12).map_or(0, u16::from_le_bytes);
        let kind = match (byte(8), byte(9)) {
            (REQUEST, _) => Kind::Request,
            (ANSWER, 0) => Kind::Taken,
            (ANSWER, why) => Kind::Refused(why, text),
            (other, _) => return Err(BadRecord::Kind(other)),
        };
        let layout = match byte(10) {
            4 => Layout::V4,
            5 => Layout::V5,
            other => return Err(BadRecord::Layout(other)),
        };
        if byte(11) != 0 || byte(14) != 0 || byte(15) != 0 {
            return Err(BadRecord::Reserved);
        }
        let refused = matches!(kind, Kind::Refused(..));
        if usize::from(text) > if refused { MOST_TEXT } else { 0 } {
            return Err(BadRecord::Text(text));
        }
        let name = |at| array(bytes, at).map_or(0, u64::from_le_bytes);
        let modex = array::<{ modex::LENGTH }>(bytes, 32).unwrap_or([0; modex::LENGTH]);
        let modex = match Modex::parse(&modex) {
            Ok(modex) => Some(modex),
            Err(_) if refused => None,
            Err(why) => return Err(BadRecord::Modex(why)),
        };
        Ok(Record { kind, layout, sender: name(16), receiver: name(24), modex })
    }

    /// Encodes the record.
    pub fn emit(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..8].copy_from_slice(&MAGIC);
        let (kind, why, text) = match self.kind {
            Kind::Request => (REQUEST, 0, 0),
            Kind::Taken => (ANSWER, 0, 0),
            Kind::Refused(why, text) => (ANSWER, why, text),
        };
        bytes[8..10].copy_from_slice(&[kind, why]);
        bytes[10] = match self.layout {
            Layout::V4 => 4,
            Layout::V5 => 5,
        };
        bytes[12..14].copy_from_slice(&text.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sender.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.receiver.to_le_bytes());
        if let Some(modex) = &self.modex {
            bytes[32..].copy_from_slice(&modex.emit());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsim::Rng;

    fn record(kind: Kind) -> Record {
        let text = "0a4d00026d960000b1cf0000ffffff0094c50000102700000006881305000000";
        let modex = text.parse().ok();
        Record { kind, layout: Layout::V4, sender: 1 << 32 | 3, receiver: ANY_NAME, modex }
    }

    #[test]
    fn request_has_the_documented_bytes() {
        let bytes = record(Kind::Request).emit();
        assert_eq!(&bytes[..16], b"USNICRV\x01\x01\x00\x04\x00\x00\x00\x00\x00");
        assert_eq!(&bytes[16..24], [3, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(bytes[24..32], [0xff; 8]);
        assert_eq!(&bytes[32..40], [10, 77, 0, 2, 0x6d, 0x96, 0, 0]);
    }

    #[test]
    fn records_round_trip() {
        for kind in [Kind::Request, Kind::Taken, Kind::Refused(Refused::Full as u8, 512)] {
            for layout in [Layout::V4, Layout::V5] {
                netsim::label!(kind, layout);
                let record = Record { layout, ..record(kind) };
                assert_eq!(Record::parse(&record.emit()), Ok(record));
            }
        }
        let none = Record { modex: None, ..record(Kind::Refused(1, 3)) };
        assert_eq!(Record::parse(&none.emit()), Ok(none));
    }

    #[test]
    fn parse_rejects_impossible_records() {
        let with = |at: usize, byte: u8| {
            let mut bytes = record(Kind::Request).emit();
            bytes[at] = byte;
            Record::parse(&bytes)
        };
        assert_eq!(with(0, b'u'), Err(BadRecord::Magic));
        assert_eq!(with(7, 2), Err(BadRecord::Version(2)));
        assert_eq!(with(8, 3), Err(BadRecord::Kind(3)));
        assert_eq!(with(10, 6), Err(BadRecord::Layout(6)));
        assert_eq!(with(11, 1), Err(BadRecord::Reserved));
        assert_eq!(with(15, 1), Err(BadRecord::Reserved));
        assert_eq!(with(12, 1), Err(BadRecord::Text(1)));
        assert_eq!(with(60, 6), Err(BadRecord::Modex(BadModex::Protocol(6))));
        let long = record(Kind::Refused(1, 513)).emit();
        assert_eq!(Record::parse(&long), Err(BadRecord::Text(513)));
    }

    #[test]
    fn any_bytes_are_rejected_or_round_trip() {
        for seed in 0..20_000 {
            let mut rng = Rng::new(seed);
            let mut bytes = record(rng.pick(&[Kind::Request, Kind::Taken])).emit();
            for _ in 0..rng.within(0..4) {
                bytes[rng.within(0..64) as usize] = rng.within(0..256) as u8;
            }
            if let Ok(read) = Record::parse(&bytes) {
                assert_eq!(Record::parse(&read.emit()), Ok(read));
            }
        }
    }
}
