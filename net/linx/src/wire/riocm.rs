//! Packets of RIOCM, one in each RapidIO message. Offsets are in bytes from the beginning of the message, all fields
//! are big-endian (LINX for Linux 2.5 `rio_proto.h`; "LINX Protocols" version 21, chapter 10):
//!
//! | field | bytes | at | in |
//! |---|---|---|---|
//! | protocol, 0x22CF | 2 | 0 | all |
//! | size: bytes after these four | 2 | 2 | all; ignored on receipt |
//! | type | 1 | 4 | all |
//! | generation | 1 | 5 | CONN |
//! | message id | 1 | 5 | UDATA |
//! | MTU | 2 | 6 | CONN_REQ (wanted), CONN_ACK (agreed) |
//! | sequence number | 2 | 6 | UDATA |
//! | destination port | 2 | 8 | all |
//! | generation of the other end | 1 | 10 | CONN_ACK |
//! | heartbeat in units of 100 ms | 1 | 11 | CONN_REQ (wanted), CONN_ACK (agreed) |
//! | destination connection id | 2 | 10 | HEARTBEAT, UDATA |
//! | sender: its device id | 2 | 12 | all |
//! | source port | 2 | 14 | all |
//! | connection id of the sender | 2 | 16 | CONN_ACK |
//! | source and destination link address | 4, 4 | 16, 20 | SINGLE, FRAG_START, PATCH_START |
//! | bytes of the whole message | 4 | 24 | SINGLE, FRAG_START, PATCH_START |
//! | FRAG packets, PATCH packets | 2, 2 | 28, 30 | PATCH_START |
//!
//! The payload follows the header. The length of a RapidIO message is a multiple of 8 bytes; bytes after the payload
//! are padding. It is unknown whether `size` includes its own four bytes in stock systems, because the code that writes
//! it was never published.

use super::u16_at;
use core::fmt;

/// Protocol number of version 2, the only supported one.
pub const PROTOCOL: u16 = 0x22cf;
/// Bytes before the type. They count in the MTU.
pub const FRAME: usize = 4;
/// Bytes of the longest header, including `FRAME`.
pub const LONGEST: usize = FRAME + PATCH_START;
/// Bytes of the longest packet: a RapidIO message.
pub const LARGEST: usize = 4096;

/// Length of a header in bytes, from the type on.
pub const CONN: usize = 12;
/// See `CONN`.
pub const CONN_ACK: usize = 14;
/// See `CONN`.
pub const START: usize = 24;
/// See `CONN`.
pub const FRAG: usize = 12;
/// See `CONN`.
pub const PATCH_START: usize = 28;

/// Bytes of a patched message overwritten by the header of PATCH_START. The first PATCH carries them.
pub const HEAD_PATCH: usize = FRAME + PATCH_START;
/// Bytes of a patched message overwritten by the header of each FRAG.
pub const FRAG_PATCH: usize = FRAME + FRAG;

const SINGLE_TYPE: u8 = 0x01;
const FRAG_START_TYPE: u8 = 0x02;
const FRAG_TYPE: u8 = 0x03;
const PATCH_START_TYPE: u8 = 0x04;
const PATCH_TYPE: u8 = 0x05;
const HEARTBEAT_TYPE: u8 = 0x06;
const CONN_REQ_TYPE: u8 = 0x81;
const CONN_ACK_TYPE: u8 = 0x82;
const CONN_RESET_TYPE: u8 = 0x83;

/// Addresses of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// RIOCM port of the receiver.
    pub to_port: u16,
    /// Device id of the sender.
    pub sender: u16,
    /// RIOCM port of the sender.
    pub from_port: u16,
}

/// Message fields in the first packet of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Link address of the sender.
    pub source: u32,
    /// Link address of the receiver.
    pub destination: u32,
    /// Bytes of the whole message.
    pub size: u32,
}

/// The part of a message in a data packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// SINGLE: a whole message.
    Single(Message),
    /// FRAG_START: the first part.
    Start(Message),
    /// FRAG: a further part.
    Fragment,
    /// PATCH_START: the first part of a message whose sender overwrites its bytes with headers.
    PatchStart {
        /// The message.
        message: Message,
        /// Number of `Fragment` packets that follow.
        fragments: u16,
        /// Number of `Patch` packets after those.
        patches: u16,
    },
    /// PATCH: bytes overwritten by headers.
    Patch,
}

/// Type of a packet, with its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// CONN_REQ.
    Request {
        /// Generation of the sender's connection.
        generation: u8,
        /// MTU that the sender wants, in bytes.
        mtu: u16,
        /// Interval of heartbeats that the sender wants, in units of 100 ms.
        heartbeat: u8,
    },
    /// CONN_ACK.
    Ack {
        /// As in `Request`.
        generation: u8,
        /// Agreed MTU.
        mtu: u16,
        /// Generation of the receiver, as known to the sender.
        acknowledged: u8,
        /// Agreed interval of heartbeats.
        heartbeat: u8,
        /// Connection id of the sender.
        cid: u16,
    },
    /// CONN_RESET.
    Reset {
        /// As in `Request`.
        generation: u8,
    },
    /// HEARTBEAT.
    Heartbeat {
        /// Connection id of the receiver.
        cid: u16,
    },
    /// UDATA.
    Data {
        /// Message id.
        id: u8,
        /// Sequence number of data packets.
        sequence: u16,
        /// Connection id of the receiver.
        cid: u16,
        /// Part of the message.
        part: Part,
    },
}

/// A packet without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Addresses.
    pub ends: Ends,
    /// Type and fields.
    pub header: Header,
}

/// Common fields of data packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Addresses.
    pub ends: Ends,
    /// As in [`Header::Data`].
    pub id: u8,
    /// As in [`Header::Data`].
    pub sequence: u16,
    /// As in [`Header::Data`].
    pub cid: u16,
}

impl Data {
    /// Parses a RapidIO message as [`Packet::parse`], if it is a SINGLE packet.
    // Inlined with the rest of the path of a message: 1,038 instructions for 64 bytes instead of 1,131 (`bench riocm`).
    #[inline(always)]
    pub fn single(bytes: &[u8]) -> Option<(Data, Message, &[u8])> {
        let (data, rest) = Data::of_type(SINGLE_TYPE, bytes)?;
        let (message, payload) = Message::parse(rest).ok()?;
        Some((data, message, payload))
    }

    /// Parses a RapidIO message as [`Packet::parse`], if it is a FRAG packet.
    // Inlined with the rest of the path of a message: 1,038 instructions for 64 bytes instead of 1,131 (`bench riocm`).
    #[inline(always)]
    pub fn fragment(bytes: &[u8]) -> Option<(Data, &[u8])> {
        Data::of_type(FRAG_TYPE, bytes)
    }

    // Inlined with the rest of the path of a message: 1,038 instructions for 64 bytes instead of 1,131 (`bench riocm`).
    #[inline(always)]
    fn of_type(kind: u8, bytes: &[u8]) -> Option<(Data, &[u8])> {
        let (head, rest) = bytes.split_first_chunk::<{ FRAME + CONN }>()?;
        let pair = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        if pair(0) != PROTOCOL || head[FRAME] != kind {
            return None;
        }
        let ends = Ends { to_port: pair(8), sender: pair(12), from_port: pair(14) };
        Some((Data { ends, id: head[5], sequence: pair(6), cid: pair(10) }, rest))
    }
}

/// Why a RapidIO message is not a RIOCM packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than its header.
    Short,
    /// Of another protocol. Version 1 of RIOCM is 0x8911.
    Protocol(u16),
    /// Of an unknown type.
    Type(u8),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Short => {
                f.write_str("the peer sent a packet that is shorter than its header")
            }
            Malformed::Protocol(0x8911) => f.write_str(
                "the peer sent a packet of RIOCM version 1: upgrade its LINX to one with RIOCM version 2",
            ),
            Malformed::Protocol(number) => write!(
                f,
                "a packet of protocol {number:#06x} arrived in the mailbox of RIOCM: another protocol uses the mailbox"
            ),
            Malformed::Type(number) => write!(f, "the peer sent a packet of unknown type {number:#04x}"),
        }
    }
}

impl core::error::Error for Malformed {}

impl Packet {
    /// Parses a RapidIO message. Also returns the bytes after the header: payload, and possibly padding.
    // Inlined with the rest of the path of a message: 1,038 instructions for 64 bytes instead of 1,131 (`bench riocm`).
    #[inline(always)]
    pub fn parse(bytes: &[u8]) -> Result<(Packet, &[u8]), Malformed> {
        let Some((head, rest)) = bytes.split_first_chunk::<{ FRAME + CONN }>() else {
            return Err(too_short(bytes));
        };
        let pair = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        if pair(0) != PROTOCOL {
            return Err(Malformed::Protocol(pair(0)));
        }
        let ends = Ends { to_port: pair(8), sender: pair(12), from_port: pair(14) };
        let data = |part| Header::Data { id: head[5], sequence: pair(6), cid: pair(10), part };
        let (header, payload) = match head[FRAME] {
            SINGLE_TYPE => {
                let (message, payload) = Message::parse(rest)?;
                (data(Part::Single(message)), payload)
            }
            FRAG_START_TYPE => {
                let (message, payload) = Message::parse(rest)?;
                (data(Part::Start(message)), payload)
            }
            FRAG_TYPE => (data(Part::Fragment), rest),
            PATCH_START_TYPE => {
                let (message, rest) = Message::parse(rest)?;
                let (counts, payload) = rest.split_first_chunk::<4>().ok_or(Malformed::Short)?;
                let fragments = u16::from_be_bytes([counts[0], counts[1]]);
                let patches = u16::from_be_bytes([counts[2], counts[3]]);
                (data(Part::PatchStart { message, fragments, patches }), payload)
            }
            PATCH_TYPE => (data(Part::Patch), rest),
            HEARTBEAT_TYPE => (Header::Heartbeat { cid: pair(10) }, rest),
            CONN_REQ_TYPE => {
                let (generation, heartbeat) = (head[5], head[11]);
                (Header::Request { generation, mtu: pair(6), heartbeat }, rest)
            }
            CONN_ACK_TYPE => {
                let (cid, rest) = rest.split_first_chunk::<2>().ok_or(Malformed::Short)?;
                let ack = Header::Ack {
                    generation: head[5],
                    mtu: pair(6),
                    acknowledged: head[10],
                    heartbeat: head[11],
                    cid: u16::from_be_bytes(*cid),
                };
                (ack, rest)
            }
            CONN_RESET_TYPE => (Header::Reset { generation: head[5] }, rest),
            other => return Err(Malformed::Type(other)),
        };
        Ok((Packet { ends, header }, payload))
    }

    /// Writes the header for `payload` bytes. Returns its length.
    // Inlined with the rest of the path of a message: 1,038 instructions for 64 bytes instead of 1,131 (`bench riocm`).
    #[inline(always)]
    pub fn emit(&self, payload: usize, into: &mut [u8; LONGEST]) -> usize {
        let Packet { ends, header } = self;
        // Type, the three bytes after it, and the two before the sender.
        let (kind, one, two, four, length) = match *header {
            Header::Request { generation, mtu, heartbeat } => {
                (CONN_REQ_TYPE, generation, mtu, u16::from(heartbeat), CONN)
            }
            Header::Ack { generation, mtu, acknowledged, heartbeat, cid } => {
                into[16..18].copy_from_slice(&cid.to_be_bytes());
                let both = u16::from_be_bytes([acknowledged, heartbeat]);
                (CONN_ACK_TYPE, generation, mtu, both, CONN_ACK)
            }
            Header::Reset { generation } => (CONN_RESET_TYPE, generation, 0, 0, CONN),
            Header::Heartbeat { cid } => (HEARTBEAT_TYPE, 0, 0, cid, CONN),
            Header::Data { id, sequence, cid, part } => {
                let (kind, length) = match part {
                    Part::Single(message) => {
                        message.emit(into);
                        (SINGLE_TYPE, START)
                    }
                    Part::Start(message) => {
                        message.emit(into);
                        (FRAG_START_TYPE, START)
                    }
                    Part::Fragment => (FRAG_TYPE, FRAG),
                    Part::PatchStart { message, fragments, patches } => {
                        message.emit(into);
                        into[28..30].copy_from_slice(&fragments.to_be_bytes());
                        into[30..32].copy_from_slice(&patches.to_be_bytes());
                        (PATCH_START_TYPE, PATCH_START)
                    }
                    Part::Patch => (PATCH_TYPE, FRAG),
                };
                (kind, id, sequence, cid, length)
            }
        };
        // Two words, each assembled in a register.
        let [size, two, four] = [(length + payload) as u16, two, four].map(u64::from);
        let first = u64::from(PROTOCOL) << 48
            | size << 32
            | u64::from(kind) << 24
            | u64::from(one) << 16
            | two;
        let second = u64::from(ends.to_port) << 48
            | four << 32
            | u64::from(ends.sender) << 16
            | u64::from(ends.from_port);
        into[0..8].copy_from_slice(&first.to_be_bytes());
        into[8..16].copy_from_slice(&second.to_be_bytes());
        FRAME + length
    }
}

/// Error for a message below the shortest header.
#[cold]
fn too_short(bytes: &[u8]) -> Malformed {
    match u16_at(bytes, 0) {
        Some(protocol) if protocol != PROTOCOL => Malformed::Protocol(protocol),
        _ => Malformed::Short,
    }
}

impl Message {
    /// Parses the fields after the first 16 bytes of a packet. Also returns the bytes after them.
    // Inlined with the rest of the path of a message: 1,038 instructions for 64 bytes instead of 1,131 (`bench riocm`).
    #[inline(always)]
    fn parse(rest: &[u8]) -> Result<(Message, &[u8]), Malformed> {
        let (fields, payload) =
            rest.split_first_chunk::<{ START - CONN }>().ok_or(Malformed::Short)?;
        let number = |at: usize| {
            u32::from_be_bytes([fields[at], fields[at + 1], fields[at + 2], fields[at + 3]])
        };
        Ok((Message { source: number(0), destination: number(4), size: number(8) }, payload))
    }

    /// Writes the fields after the first 16 bytes of a packet.
    // Inlined with the rest of the path of a message: 1,038 instructions for 64 bytes instead of 1,131 (`bench riocm`).
    #[inline(always)]
    fn emit(&self, into: &mut [u8; LONGEST]) {
        into[16..20].copy_from_slice(&self.source.to_be_bytes());
        into[20..24].copy_from_slice(&self.destination.to_be_bytes());
        into[24..28].copy_from_slice(&self.size.to_be_bytes());
    }
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ends { to_port, sender, from_port } = self.ends;
        write!(f, "{sender:#06x}:{from_port} > {to_port} ")?;
        match self.header {
            Header::Request { generation, mtu, heartbeat } => {
                write!(f, "CONN_REQ generation {generation} mtu {mtu} heartbeat {heartbeat}")
            }
            Header::Ack { generation, mtu, acknowledged, heartbeat, cid } => write!(
                f,
                "CONN_ACK generation {generation} ack {acknowledged} mtu {mtu} heartbeat {heartbeat} cid {cid}"
            ),
            Header::Reset { generation } => write!(f, "CONN_RESET generation {generation}"),
            Header::Heartbeat { cid } => write!(f, "HEARTBEAT cid {cid}"),
            Header::Data { id, sequence, cid, part } => {
                let (name, message) = match part {
                    Part::Single(message) => ("SINGLE", Some(message)),
                    Part::Start(message) => ("FRAG_START", Some(message)),
                    Part::Fragment => ("FRAG", None),
                    Part::PatchStart { message, .. } => ("PATCH_START", Some(message)),
                    Part::Patch => ("PATCH", None),
                };
                write!(f, "{name} cid {cid} seq {sequence} id {id}")?;
                if let Some(Message { source, destination, size }) = message {
                    write!(f, " {source} > {destination} size {size}")?;
                }
                match part {
                    Part::PatchStart { fragments, patches, .. } => {
                        write!(f, " fragments {fragments} patches {patches}")
                    }
                    _ => Ok(()),
                }
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

    /// From the table above, field by field. Also in `tests/linx/peer/vectors.txt`.
    const VECTORS: &[(&str, &str)] = &[
        (
            "22cf000c 81 07 0ff8 1234 00 05 0102 4321",
            "0x0102:17185 > 4660 CONN_REQ generation 7 mtu 4088 heartbeat 5",
        ),
        (
            "22cf000e 82 07 0800 1234 09 0a 0102 4321 0042",
            "0x0102:17185 > 4660 CONN_ACK generation 7 ack 9 mtu 2048 heartbeat 10 cid 66",
        ),
        ("22cf000c 83 07 0000 1234 0000 0102 4321", "0x0102:17185 > 4660 CONN_RESET generation 7"),
        ("22cf000c 06 00 0000 1234 0042 0102 4321", "0x0102:17185 > 4660 HEARTBEAT cid 66"),
        (
            "22cf001b 01 01 fffe 1234 0042 0102 4321 00000005 00000006 00000003 616263",
            "0x0102:17185 > 4660 SINGLE cid 66 seq 65534 id 1 5 > 6 size 3",
        ),
        (
            "22cf001a 02 02 0001 1234 0042 0102 4321 00000005 00000006 00010000 6162",
            "0x0102:17185 > 4660 FRAG_START cid 66 seq 1 id 2 5 > 6 size 65536",
        ),
        (
            "22cf000e 03 02 0002 1234 0042 0102 4321 6364",
            "0x0102:17185 > 4660 FRAG cid 66 seq 2 id 2",
        ),
        (
            "22cf001e 04 03 0003 1234 0042 0102 4321 00000005 00000006 00000200 0002 0001 7778",
            "0x0102:17185 > 4660 PATCH_START cid 66 seq 3 id 3 5 > 6 size 512 fragments 2 patches 1",
        ),
        (
            "22cf000e 05 03 0004 1234 0042 0102 4321 797a",
            "0x0102:17185 > 4660 PATCH cid 66 seq 4 id 3",
        ),
    ];

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| {
            u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).expect("two digits")
        };
        digits.chunks(2).map(byte).collect()
    }

    #[test]
    fn packets_of_each_type_are_parsed_and_emitted() {
        for (bytes, line) in VECTORS {
            let bytes = hex(bytes);
            let (packet, payload) = Packet::parse(&bytes).expect(line);
            assert_eq!(packet.to_string(), *line);
            let mut header = [0xff; LONGEST];
            let length = packet.emit(payload.len(), &mut header);
            assert_eq!([&header[..length], payload].concat(), bytes, "{line}");
            for short in 0..length {
                assert_eq!(Packet::parse(&bytes[..short]), Err(Malformed::Short), "{line}");
            }
            // The size field is ignored.
            let mut other = bytes.clone();
            other[2..4].copy_from_slice(&[0xff, 0xff]);
            assert_eq!(Packet::parse(&other), Packet::parse(&bytes));
        }
    }

    #[test]
    fn unknown_type_and_protocol_are_rejected() {
        let mut bytes = hex(VECTORS[0].0);
        bytes[4] = 0x07;
        assert_eq!(Packet::parse(&bytes), Err(Malformed::Type(7)));
        bytes[..2].copy_from_slice(&[0x89, 0x11]);
        assert_eq!(Packet::parse(&bytes), Err(Malformed::Protocol(0x8911)));
    }

    proptest! {
        #[test]
        fn parsers_agree_on_arbitrary_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..60), kind in 0u8..8) {
            if bytes.len() > 4 {
                bytes[..2].copy_from_slice(&[0x22, 0xcf]);
                bytes[4] = (bytes[4] & 0x80) | kind;
            }
            // The fast and the general parser agree.
            let single = Data::single(&bytes).map(|(data, it, rest)| (data, Part::Single(it), rest));
            let fragment = Data::fragment(&bytes).map(|(data, rest)| (data, Part::Fragment, rest));
            let quick = single.or(fragment).map(|(Data { ends, id, sequence, cid }, part, rest)| {
                (Packet { ends, header: Header::Data { id, sequence, cid, part } }, rest)
            });
            let is_usual = |header| {
                matches!(header, Header::Data { part: Part::Single(_) | Part::Fragment, .. })
            };
            let usual = Packet::parse(&bytes).ok().filter(|it| is_usual(it.0.header));
            prop_assert_eq!(quick, usual);
            if let Ok((packet, payload)) = Packet::parse(&bytes) {
                let mut header = [0; LONGEST];
                let length = packet.emit(payload.len(), &mut header);
                let again = [&header[..length], payload].concat();
                prop_assert_eq!(Packet::parse(&again), Ok((packet, payload)));
            }
        }
    }
}
