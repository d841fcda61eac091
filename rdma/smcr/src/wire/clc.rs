//! Common parts of CLC messages: header, trailer, identifiers (RFC 7609, appendix A.2).

use super::{WireError, byte, field};
use core::fmt;

/// Length of the header.
pub(super) const HEADER: usize = 8;
/// Length of the trailer, which repeats the eyecatcher.
pub(super) const TRAILER: usize = 4;
/// "SMCR" in EBCDIC: begins and ends every message.
pub(super) const EYECATCHER: [u8; 4] = [0xe2, 0xd4, 0xc3, 0xd9];
/// "SMCD", of SMC-D.
const EYECATCHER_D: [u8; 4] = [0xe2, 0xd4, 0xc3, 0xc4];
/// Longest message: a Proposal with eight of every list.
pub const MAX_MESSAGE: usize = 1024;

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MessageType {
    /// The client's offer.
    Proposal = 1,
    /// The server's answer.
    Accept = 2,
    /// The client's answer to an Accept.
    Confirm = 3,
    /// Either side falls back to TCP.
    Decline = 4,
}

/// Path types that a sender offers in one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PathType {
    /// SMC-R.
    R = 0,
    /// SMC-D.
    D = 1,
    /// Neither.
    None = 2,
    /// SMC-R and SMC-D.
    Both = 3,
}

impl PathType {
    /// From two bits.
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => PathType::R,
            1 => PathType::D,
            2 => PathType::None,
            _ => PathType::Both,
        }
    }

    /// Whether SMC-R is offered.
    pub const fn has_r(self) -> bool {
        matches!(self, PathType::R | PathType::Both)
    }

    /// Whether SMC-D is offered.
    pub const fn has_d(self) -> bool {
        matches!(self, PathType::D | PathType::Both)
    }
}

/// A header that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind.
    pub kind: MessageType,
    /// Length in bytes, header and trailer included.
    pub length: u16,
    /// Version, 1 or more.
    pub version: u8,
    /// The four bits beside the version: two path types in a Proposal, else flags.
    pub bits: u8,
}

/// In an Accept or Confirm: first contact. In a Decline: out of sync, the sender does not know the link group.
pub(super) const FLAG: u8 = 0x08;

impl Header {
    /// Parses the header at the beginning of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let eyecatcher: [u8; 4] = field(bytes, 0..4)?;
        if eyecatcher != EYECATCHER && eyecatcher != EYECATCHER_D {
            return Err(WireError::Eyecatcher);
        }
        let kind = match byte(bytes, 4)? {
            1 => MessageType::Proposal,
            2 => MessageType::Accept,
            3 => MessageType::Confirm,
            4 => MessageType::Decline,
            other => return Err(WireError::Type(other)),
        };
        let length = u16::from_be_bytes(field(bytes, 5..7)?);
        let last = byte(bytes, 7)?;
        if usize::from(length) < HEADER + TRAILER || usize::from(length) > MAX_MESSAGE {
            return Err(WireError::Length { have: length.into() });
        }
        if last >> 4 == 0 {
            return Err(WireError::Field("version"));
        }
        Ok(Header { kind, length, version: last >> 4, bits: last & 15 })
    }

    /// Parses the header of the complete message `bytes`, and checks the trailer (except of a Decline, as in Linux).
    pub(super) fn of_message(bytes: &[u8]) -> Result<Self, WireError> {
        let header = Header::parse(bytes)?;
        if bytes.len() != usize::from(header.length) {
            return Err(WireError::Length { have: bytes.len() });
        }
        let trailer: [u8; 4] = field(bytes, bytes.len() - TRAILER..bytes.len())?;
        let known = trailer == EYECATCHER || trailer == EYECATCHER_D;
        if !known && header.kind != MessageType::Decline {
            return Err(WireError::Eyecatcher);
        }
        Ok(header)
    }

    /// Whether the bit [`FLAG`] is set.
    pub(super) const fn flag(&self) -> bool {
        self.bits & FLAG != 0
    }
}

/// Length of the message at the beginning of `bytes`; None while its header is incomplete.
pub fn frame_length(bytes: &[u8]) -> Result<Option<usize>, WireError> {
    // Rejects bytes of another protocol as early as possible.
    let seen = bytes.len().min(3);
    if bytes[..seen] != EYECATCHER[..seen] {
        return Err(WireError::Eyecatcher);
    }
    if bytes.len() < HEADER {
        return Ok(None);
    }
    Header::parse(bytes).map(|header| Some(header.length.into()))
}

/// Peer ID: identifies a host to its peers; unique, and new at every boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PeerId(pub [u8; 8]);

impl PeerId {
    /// Creates an ID from a random instance and a MAC address.
    pub const fn new(instance: u16, mac: [u8; 6]) -> Self {
        let [a, b, c, d, e, f] = mac;
        let [i, j] = instance.to_be_bytes();
        PeerId([i, j, a, b, c, d, e, f])
    }

    /// The same instance with another MAC address.
    pub const fn with_mac(self, mac: [u8; 6]) -> Self {
        let [i, j, ..] = self.0;
        PeerId::new(u16::from_be_bytes([i, j]), mac)
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [i, j, a, b, c, d, e, g] = self.0;
        write!(f, "{i:02x}{j:02x}@{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// An enterprise ID: hosts that share one may use SMC-Rv2 with each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Eid([u8; Eid::LEN]);

impl Eid {
    /// Length, padded with blanks.
    pub const LEN: usize = 32;
    /// The blank EID.
    pub const BLANK: Eid = Eid([b' '; Eid::LEN]);

    /// Creates an EID from a name of 1 to 32 characters A-Z, 0-9, `.` and `-`; the first is a letter or digit, and two
    /// dots do not follow each other.
    pub fn new(name: &str) -> Option<Self> {
        let bytes = name.as_bytes();
        let good = |&b: &u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'.' || b == b'-';
        let first = bytes.first()?.is_ascii_alphanumeric();
        if bytes.len() > Self::LEN || !first || !bytes.iter().all(good) || name.contains("..") {
            return None;
        }
        let mut eid = [b' '; Self::LEN];
        eid[..bytes.len()].copy_from_slice(bytes);
        Some(Eid(eid))
    }

    /// An EID of a peer, unchecked.
    pub const fn from_wire(bytes: [u8; Self::LEN]) -> Self {
        Eid(bytes)
    }

    /// The bytes on the wire.
    pub const fn bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// The name; `?` if it is not UTF-8.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.0).map_or("?", |text| text.trim_end())
    }
}

impl fmt::Debug for Eid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// Fills in header and trailer of the message in `bytes`.
pub(super) fn seal(bytes: &mut [u8], kind: MessageType, version: u8, bits: u8) {
    let len = bytes.len();
    bytes[..4].copy_from_slice(&EYECATCHER);
    bytes[4] = kind as u8;
    bytes[5..7].copy_from_slice(&(len as u16).to_be_bytes());
    bytes[7] = version << 4 | bits;
    bytes[len - TRAILER..].copy_from_slice(&EYECATCHER);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eid_accepts_only_valid_names() {
        assert_eq!(Eid::new("LAB.SMC.EID").unwrap().as_str(), "LAB.SMC.EID");
        for bad in ["", "lab", ".A", "-A", "A..B", "A B", "A_B", &"A".repeat(33)] {
            assert_eq!(Eid::new(bad), None, "{bad:?}");
        }
        assert!(Eid::new(&"9".repeat(32)).is_some());
    }

    #[test]
    fn frame_length_needs_eight_bytes_and_rejects_other_protocols_at_once() {
        let good = [0xe2, 0xd4, 0xc3, 0xd9, 4, 0, 28, 0x10];
        assert_eq!(frame_length(&good), Ok(Some(28)));
        assert_eq!(frame_length(&good[..7]), Ok(None));
        assert_eq!(frame_length(&[]), Ok(None));
        assert_eq!(frame_length(b"G"), Err(WireError::Eyecatcher));
        assert_eq!(frame_length(b"GET / HTTP/1.1"), Err(WireError::Eyecatcher));
        let with = |at: usize, value| {
            let mut bytes = good;
            bytes[at] = value;
            frame_length(&bytes)
        };
        assert_eq!(with(4, 5), Err(WireError::Type(5)));
        assert_eq!(with(6, 11), Err(WireError::Length { have: 11 }));
        assert_eq!(with(5, 8), Err(WireError::Length { have: 0x81c }));
        assert_eq!(with(7, 0), Err(WireError::Field("version")));
        assert_eq!(with(3, 0), Err(WireError::Eyecatcher));
    }
}
