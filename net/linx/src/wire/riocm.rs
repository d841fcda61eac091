//! RIOCM's packets: one in each RapidIO message. Offsets in bytes from the beginning of the message, all fields
//! big-endian (LINX for Linux 2.5 `rio_proto.h`; "LINX Protocols" version 21, chapter 10):
//!
//! | field | bytes | at | in |
//! |---|---|---|---|
//! | protocol, 0x22CF | 2 | 0 | all |
//! | size: bytes behind these four | 2 | 2 | all; not looked at |
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
//! The payload follows at once. A message of RapidIO has a multiple of 8 bytes, so what lies behind the payload is
//! padding. Who wrote the field `size` in stock systems was never published; whether it counts its own four bytes
//! there is not known.

use super::{array, u16_at, u32_at};
use core::fmt;

/// Protocol number of version 2, the only one that is known.
pub const PROTOCOL: u16 = 0x22cf;
/// Bytes in front of the type. An MTU counts them.
pub const FRAME: usize = 4;
/// Bytes of the longest header, with those.
pub const LONGEST: usize = FRAME + PATCH_START;
/// Bytes of the longest packet: a RapidIO message.
pub const LARGEST: usize = 4096;

/// Bytes of headers from the type on.
pub const CONN: usize = 12;
/// See `CONN`.
pub const CONN_ACK: usize = 14;
/// See `CONN`.
pub const START: usize = 24;
/// See `CONN`.
pub const FRAG: usize = 12;
/// See `CONN`.
pub const PATCH_START: usize = 28;

/// Bytes that the head of a patched message lost to its header: they are in the first PATCH.
pub const HEAD_PATCH: usize = FRAME + PATCH_START;
/// Bytes that each FRAG of a patched message lost.
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

/// Between whom a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Port at which it is received.
    pub to_port: u16,
    /// Device id of the sender.
    pub sender: u16,
    /// Port from which it was sent.
    pub from_port: u16,
}

/// What all first packets of messages tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Link address of the sender.
    pub source: u32,
    /// Link address of the receiver.
    pub destination: u32,
    /// Bytes of the whole message.
    pub size: u32,
}

/// Which part of a message a packet of data has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// SINGLE: all of it.
    Single(Message),
    /// FRAG_START: the beginning.
    Start(Message),
    /// FRAG: what follows.
    Fragment,
    /// PATCH_START: the beginning of one whose sender wrote headers over its bytes.
    PatchStart {
        /// The message.
        message: Message,
        /// Packets of `Fragment` that follow.
        fragments: u16,
        /// Packets of `Patch` behind those.
        patches: u16,
    },
    /// PATCH: what headers were written over.
    Patch,
}

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// CONN_REQ.
    Request {
        /// Names the sender's life of the connection.
        generation: u8,
        /// MTU that the sender wants, in bytes.
        mtu: u16,
        /// Pause between heartbeats that the sender wants, in units of 100 ms.
        heartbeat: u8,
    },
    /// CONN_ACK.
    Ack {
        /// As in `Request`.
        generation: u8,
        /// MTU that both have now.
        mtu: u16,
        /// Generation of the receiver, as the sender knows it.
        acknowledged: u8,
        /// Pause between heartbeats that both have now.
        heartbeat: u8,
        /// By which the sender wants to be called.
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
        /// Names the message.
        id: u8,
        /// Counts packets of data.
        sequence: u16,
        /// Connection id of the receiver.
        cid: u16,
        /// Which part of the message.
        part: Part,
    },
}

/// A packet without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Between whom.
    pub ends: Ends,
    /// What.
    pub header: Header,
}

/// Why a RapidIO message is no packet of RIOCM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than its header.
    Short,
    /// Of another protocol. Version 1 of RIOCM is 0x8911.
    Protocol(u16),
    /// Of a type that nobody knows.
    Type(u8),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Short => {
                f.write_str("the peer sent a packet that is shorter than its header")
            }
            Malformed::Protocol(0x8911) => f.write_str(
                "the peer sent a packet of RIOCM version 1: it needs LINX with version 2",
            ),
            Malformed::Protocol(number) => write!(
                f,
                "somebody sent a packet of protocol {number:#06x} to the mailbox of RIOCM: another protocol uses it"
            ),
            Malformed::Type(number) => write!(f, "the peer sent a packet of type {number:#04x}"),
        }
    }
}

impl core::error::Error for Malformed {}

impl Packet {
    /// Reads a RapidIO message; also what lies behind the header: payload, and perhaps padding.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Packet, &[u8]), Malformed> {
        let word = |at| u16_at(bytes, at).ok_or(Malformed::Short);
        let byte = |at: usize| bytes.get(at).copied().ok_or(Malformed::Short);
        let protocol = word(0)?;
        if protocol != PROTOCOL {
            return Err(Malformed::Protocol(protocol));
        }
        let kind = byte(FRAME)?;
        let head: [u8; FRAME + CONN] = array(bytes, 0).ok_or(Malformed::Short)?;
        let pair = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let ends = Ends { to_port: pair(8), sender: pair(12), from_port: pair(14) };
        let data = |part| Header::Data { id: head[5], sequence: pair(6), cid: pair(10), part };
        let message = || {
            let number = |at| u32_at(bytes, at).ok_or(Malformed::Short);
            Ok(Message { source: number(16)?, destination: number(20)?, size: number(24)? })
        };
        let (header, length) = match kind {
            SINGLE_TYPE => (data(Part::Single(message()?)), START),
            FRAG_START_TYPE => (data(Part::Start(message()?)), START),
            FRAG_TYPE => (data(Part::Fragment), FRAG),
            PATCH_START_TYPE => {
                let (fragments, patches) = (word(28)?, word(30)?);
                let part = Part::PatchStart { message: message()?, fragments, patches };
                (data(part), PATCH_START)
            }
            PATCH_TYPE => (data(Part::Patch), FRAG),
            HEARTBEAT_TYPE => (Header::Heartbeat { cid: pair(10) }, CONN),
            CONN_REQ_TYPE => {
                let (generation, heartbeat) = (head[5], head[11]);
                (Header::Request { generation, mtu: pair(6), heartbeat }, CONN)
            }
            CONN_ACK_TYPE => {
                let ack = Header::Ack {
                    generation: head[5],
                    mtu: pair(6),
                    acknowledged: head[10],
                    heartbeat: head[11],
                    cid: word(16)?,
                };
                (ack, CONN_ACK)
            }
            CONN_RESET_TYPE => (Header::Reset { generation: head[5] }, CONN),
            other => return Err(Malformed::Type(other)),
        };
        Ok((Packet { ends, header }, bytes.get(FRAME + length..).ok_or(Malformed::Short)?))
    }

    /// Writes the header in front of `payload` bytes, and returns its length.
    #[inline]
    pub fn emit(&self, payload: usize, into: &mut [u8; LONGEST]) -> usize {
        let Packet { ends, header } = self;
        // Type, the three bytes behind it, and the two in front of the sender.
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
                let (kind, message, length) = match part {
                    Part::Single(message) => (SINGLE_TYPE, Some(message), START),
                    Part::Start(message) => (FRAG_START_TYPE, Some(message), START),
                    Part::Fragment => (FRAG_TYPE, None, FRAG),
                    Part::PatchStart { message, fragments, patches } => {
                        into[28..30].copy_from_slice(&fragments.to_be_bytes());
                        into[30..32].copy_from_slice(&patches.to_be_bytes());
                        (PATCH_START_TYPE, Some(message), PATCH_START)
                    }
                    Part::Patch => (PATCH_TYPE, None, FRAG),
                };
                if let Some(message) = message {
                    into[16..20].copy_from_slice(&message.source.to_be_bytes());
                    into[20..24].copy_from_slice(&message.destination.to_be_bytes());
                    into[24..28].copy_from_slice(&message.size.to_be_bytes());
                }
                (kind, id, sequence, cid, length)
            }
        };
        into[0..2].copy_from_slice(&PROTOCOL.to_be_bytes());
        into[2..4].copy_from_slice(&((length + payload) as u16).to_be_bytes());
        into[4] = kind;
        into[5] = one;
        into[6..8].copy_from_slice(&two.to_be_bytes());
        into[8..10].copy_from_slice(&ends.to_port.to_be_bytes());
        into[10..12].copy_from_slice(&four.to_be_bytes());
        into[12..14].copy_from_slice(&ends.sender.to_be_bytes());
        into[14..16].copy_from_slice(&ends.from_port.to_be_bytes());
        FRAME + length
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

    /// By the tables of the sheet, field by field: also `tests/linx/peer/vectors.txt`.
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
    fn packets_of_each_kind() {
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
            // The size is not looked at.
            let mut other = bytes.clone();
            other[2..4].copy_from_slice(&[0xff, 0xff]);
            assert_eq!(Packet::parse(&other), Packet::parse(&bytes));
        }
    }

    #[test]
    fn others_are_told_apart() {
        let mut bytes = hex(VECTORS[0].0);
        bytes[4] = 0x07;
        assert_eq!(Packet::parse(&bytes), Err(Malformed::Type(7)));
        bytes[..2].copy_from_slice(&[0x89, 0x11]);
        assert_eq!(Packet::parse(&bytes), Err(Malformed::Protocol(0x8911)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(mut bytes in proptest::collection::vec(any::<u8>(), 0..60), kind in 0u8..8) {
            if bytes.len() > 4 {
                bytes[..2].copy_from_slice(&[0x22, 0xcf]);
                bytes[4] = (bytes[4] & 0x80) | kind;
            }
            if let Ok((packet, payload)) = Packet::parse(&bytes) {
                let mut header = [0; LONGEST];
                let length = packet.emit(payload.len(), &mut header);
                let again = [&header[..length], payload].concat();
                prop_assert_eq!(Packet::parse(&again), Ok((packet, payload)));
            }
        }
    }
}
