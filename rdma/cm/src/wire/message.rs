//! Messages of the connection manager (vol. 1, 12.6; Linux `include/rdma/ibta_vol1_c12.h`): the 232 bytes of data of a
//! MAD. Alternate paths, path migration (LAP, APR) and service ID resolution (SIDR) are not supported. Times are codes:
//! 4.096 us << code.

use super::mad::Data;
use super::{Error, be24, bytes, get16, get24, get32, get64};
use core::fmt;

/// Attribute IDs, which identify the message in a MAD.
pub mod attribute {
    #![allow(missing_docs)]
    pub const REQ: u16 = 0x10;
    pub const MRA: u16 = 0x11;
    pub const REJ: u16 = 0x12;
    pub const REP: u16 = 0x13;
    pub const RTU: u16 = 0x14;
    pub const DREQ: u16 = 0x15;
    pub const DREP: u16 = 0x16;
}

/// Bytes of private data in a REQ (including the IP CM header).
pub const REQ_PRIVATE_DATA: usize = 92;
/// Bytes of private data in a REP.
pub const REP_PRIVATE_DATA: usize = 196;
/// Bytes of private data in a REJ.
pub const REJ_PRIVATE_DATA: usize = 148;

/// The message that an MRA or REJ refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum About {
    /// REQ.
    Req = 0,
    /// REP.
    Rep = 1,
    /// Any other.
    Other = 2,
}

/// Request for communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req {
    /// The sender's communication ID.
    pub local_id: u32,
    /// Requested service.
    pub service_id: u64,
    /// EUI-64 of the sender's adapter.
    pub ca_guid: u64,
    /// The sender's queue pair.
    pub qpn: u32,
    /// READs and atomics that the sender serves.
    pub responder_resources: u8,
    /// READs and atomics that the sender may have outstanding.
    pub initiator_depth: u8,
    /// Time in which the receiver has to answer.
    pub remote_response_timeout: u8,
    /// Transport service; 0 is RC, the only one supported.
    pub transport: u8,
    /// First PSN that the receiver sends.
    pub starting_psn: u32,
    /// Time in which the sender answers.
    pub local_response_timeout: u8,
    /// Retries of the queue pair.
    pub retry_count: u8,
    /// Partition.
    pub pkey: u16,
    /// Code of the path MTU.
    pub path_mtu: u8,
    /// Retries after RNR NAKs.
    pub rnr_retry_count: u8,
    /// Retries of connection manager messages.
    pub max_cm_retries: u8,
    /// GID of the sender.
    pub local_gid: [u8; 16],
    /// GID of the receiver.
    pub remote_gid: [u8; 16],
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// ACK timeout for the path.
    pub ack_timeout: u8,
    /// Private data, beginning with the IP CM header.
    pub private_data: [u8; REQ_PRIVATE_DATA],
}

impl Req {
    /// Reads the message.
    pub fn parse(d: &Data) -> Result<Self, Error> {
        Ok(Req {
            local_id: get32(d, 0)?,
            service_id: get64(d, 8)?,
            ca_guid: get64(d, 16)?,
            qpn: get24(d, 32)?,
            responder_resources: d[35],
            initiator_depth: d[39],
            remote_response_timeout: d[43] >> 3,
            transport: d[43] >> 1 & 3,
            starting_psn: get24(d, 44)?,
            local_response_timeout: d[47] >> 3,
            retry_count: d[47] & 7,
            pkey: get16(d, 48)?,
            path_mtu: d[50] >> 4,
            rnr_retry_count: d[50] & 7,
            max_cm_retries: d[51] >> 4,
            local_gid: bytes(d, 56)?,
            remote_gid: bytes(d, 72)?,
            flow_label: get32(d, 88)? >> 12,
            traffic_class: d[92],
            hop_limit: d[93],
            ack_timeout: d[95] >> 3,
            private_data: bytes(d, 140)?,
        })
    }

    /// Writes the message.
    pub fn emit(&self, d: &mut Data) {
        d.fill(0);
        d[0..4].copy_from_slice(&self.local_id.to_be_bytes());
        d[8..16].copy_from_slice(&self.service_id.to_be_bytes());
        d[16..24].copy_from_slice(&self.ca_guid.to_be_bytes());
        d[32..35].copy_from_slice(&be24(self.qpn));
        d[35] = self.responder_resources;
        d[39] = self.initiator_depth;
        d[43] = self.remote_response_timeout << 3 | (self.transport & 3) << 1;
        d[44..47].copy_from_slice(&be24(self.starting_psn));
        d[47] = self.local_response_timeout << 3 | self.retry_count & 7;
        d[48..50].copy_from_slice(&self.pkey.to_be_bytes());
        d[50] = self.path_mtu << 4 | self.rnr_retry_count & 7;
        d[51] = self.max_cm_retries << 4;
        // Permissive LIDs, because Ethernet has none.
        d[52..56].fill(0xff);
        d[56..72].copy_from_slice(&self.local_gid);
        d[72..88].copy_from_slice(&self.remote_gid);
        d[88..92].copy_from_slice(&(self.flow_label << 12).to_be_bytes());
        d[92] = self.traffic_class;
        d[93] = self.hop_limit;
        d[94] = if self.hop_limit <= 1 { 8 } else { 0 };
        d[95] = self.ack_timeout << 3;
        d[140..232].copy_from_slice(&self.private_data);
    }
}

impl fmt::Display for Req {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM REQ id {:#x} service {:#x} qp {:#x} psn {} mtu {}",
            self.local_id, self.service_id, self.qpn, self.starting_psn, self.path_mtu
        )
    }
}

/// Reply to a REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep {
    /// The sender's communication ID.
    pub local_id: u32,
    /// The receiver's communication ID.
    pub remote_id: u32,
    /// The sender's queue pair.
    pub qpn: u32,
    /// First PSN that the receiver sends.
    pub starting_psn: u32,
    /// READs and atomics that the sender serves.
    pub responder_resources: u8,
    /// READs and atomics that the sender may have outstanding.
    pub initiator_depth: u8,
    /// Longest time in which the sender sends an ACK.
    pub target_ack_delay: u8,
    /// Retries after RNR NAKs.
    pub rnr_retry_count: u8,
    /// EUI-64 of the sender's adapter.
    pub ca_guid: u64,
    /// Private data.
    pub private_data: [u8; REP_PRIVATE_DATA],
}

impl Rep {
    /// Reads the message.
    pub fn parse(d: &Data) -> Result<Self, Error> {
        Ok(Rep {
            local_id: get32(d, 0)?,
            remote_id: get32(d, 4)?,
            qpn: get24(d, 12)?,
            starting_psn: get24(d, 20)?,
            responder_resources: d[24],
            initiator_depth: d[25],
            target_ack_delay: d[26] >> 3,
            rnr_retry_count: d[27] >> 5,
            ca_guid: get64(d, 28)?,
            private_data: bytes(d, 36)?,
        })
    }

    /// Writes the message.
    pub fn emit(&self, d: &mut Data) {
        d.fill(0);
        d[0..4].copy_from_slice(&self.local_id.to_be_bytes());
        d[4..8].copy_from_slice(&self.remote_id.to_be_bytes());
        d[12..15].copy_from_slice(&be24(self.qpn));
        d[20..23].copy_from_slice(&be24(self.starting_psn));
        d[24] = self.responder_resources;
        d[25] = self.initiator_depth;
        d[26] = self.target_ack_delay << 3;
        d[27] = self.rnr_retry_count << 5;
        d[28..36].copy_from_slice(&self.ca_guid.to_be_bytes());
        d[36..232].copy_from_slice(&self.private_data);
    }
}

impl fmt::Display for Rep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM REP id {:#x} for {:#x} qp {:#x} psn {}",
            self.local_id, self.remote_id, self.qpn, self.starting_psn
        )
    }
}

/// Rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rej {
    /// The sender's communication ID; 0 if it has none.
    pub local_id: u32,
    /// The receiver's communication ID; 0 if the sender does not know it.
    pub remote_id: u32,
    /// The rejected message.
    pub about: About,
    /// Reason.
    pub reason: u16,
    /// Private data.
    pub private_data: [u8; REJ_PRIVATE_DATA],
}

impl Rej {
    /// Reads the message.
    pub fn parse(d: &Data) -> Result<Self, Error> {
        Ok(Rej {
            local_id: get32(d, 0)?,
            remote_id: get32(d, 4)?,
            about: About::from_bits(d[8] >> 6),
            reason: get16(d, 10)?,
            private_data: bytes(d, 84)?,
        })
    }

    /// Writes the message.
    pub fn emit(&self, d: &mut Data) {
        d.fill(0);
        d[0..4].copy_from_slice(&self.local_id.to_be_bytes());
        d[4..8].copy_from_slice(&self.remote_id.to_be_bytes());
        d[8] = (self.about as u8) << 6;
        d[10..12].copy_from_slice(&self.reason.to_be_bytes());
        d[84..232].copy_from_slice(&self.private_data);
    }
}

impl fmt::Display for Rej {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM REJ of {:?} id {:#x} for {:#x} reason {}",
            self.about, self.local_id, self.remote_id, self.reason
        )
    }
}

/// The messages with hardly more than the IDs of the connection: MRA (wait longer), RTU (ready to use), DREQ (request
/// to disconnect), DREP (reply to it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brief {
    /// The sender's communication ID.
    pub local_id: u32,
    /// The receiver's communication ID.
    pub remote_id: u32,
    /// Kind and remaining fields.
    pub kind: BriefKind,
}

/// Kind of a brief message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BriefKind {
    /// Message receipt acknowledged: the answer takes longer.
    Mra {
        /// The message that will be answered.
        about: About,
        /// Longest time to the answer.
        service_timeout: u8,
    },
    /// Ready to use.
    Rtu,
    /// Request to disconnect.
    Dreq {
        /// The receiver's queue pair.
        remote_qpn: u32,
    },
    /// Reply to a DREQ.
    Drep,
}

impl Brief {
    /// Reads the message of `attribute`.
    pub fn parse(attribute: u16, d: &Data) -> Result<Self, Error> {
        let kind = match attribute {
            attribute::MRA => {
                BriefKind::Mra { about: About::from_bits(d[8] >> 6), service_timeout: d[9] >> 3 }
            }
            attribute::RTU => BriefKind::Rtu,
            attribute::DREQ => BriefKind::Dreq { remote_qpn: get24(d, 8)? },
            attribute::DREP => BriefKind::Drep,
            _ => return Err(Error::Opcode),
        };
        Ok(Brief { local_id: get32(d, 0)?, remote_id: get32(d, 4)?, kind })
    }

    /// Writes the message.
    pub fn emit(&self, d: &mut Data) {
        d.fill(0);
        d[0..4].copy_from_slice(&self.local_id.to_be_bytes());
        d[4..8].copy_from_slice(&self.remote_id.to_be_bytes());
        match self.kind {
            BriefKind::Mra { about, service_timeout } => {
                d[8] = (about as u8) << 6;
                d[9] = service_timeout << 3;
            }
            BriefKind::Dreq { remote_qpn } => d[8..11].copy_from_slice(&be24(remote_qpn)),
            BriefKind::Rtu | BriefKind::Drep => (),
        }
    }
}

impl fmt::Display for Brief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CM {:?} id {:#x} for {:#x}", self.kind, self.local_id, self.remote_id)
    }
}

impl About {
    fn from_bits(bits: u8) -> Self {
        match bits {
            0 => About::Req,
            1 => About::Rep,
            _ => About::Other,
        }
    }
}

/// Any message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)]
pub enum Message {
    /// Request for communication.
    Req(Req),
    /// Reply.
    Rep(Rep),
    /// Rejection.
    Rej(Rej),
    /// MRA, RTU, DREQ or DREP.
    Brief(Brief),
}

impl Message {
    /// Reads the message of `attribute`.
    pub fn parse(attribute: u16, d: &Data) -> Result<Self, Error> {
        Ok(match attribute {
            attribute::REQ => Message::Req(Req::parse(d)?),
            attribute::REP => Message::Rep(Rep::parse(d)?),
            attribute::REJ => Message::Rej(Rej::parse(d)?),
            other => Message::Brief(Brief::parse(other, d)?),
        })
    }

    /// Writes the message and returns its attribute id.
    pub fn emit(&self, d: &mut Data) -> u16 {
        match self {
            Message::Req(m) => m.emit(d),
            Message::Rep(m) => m.emit(d),
            Message::Rej(m) => m.emit(d),
            Message::Brief(m) => m.emit(d),
        }
        match self {
            Message::Req(_) => attribute::REQ,
            Message::Rep(_) => attribute::REP,
            Message::Rej(_) => attribute::REJ,
            Message::Brief(Brief { kind: BriefKind::Mra { .. }, .. }) => attribute::MRA,
            Message::Brief(Brief { kind: BriefKind::Rtu, .. }) => attribute::RTU,
            Message::Brief(Brief { kind: BriefKind::Dreq { .. }, .. }) => attribute::DREQ,
            Message::Brief(Brief { kind: BriefKind::Drep, .. }) => attribute::DREP,
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Message::Req(m) => m.fmt(f),
            Message::Rep(m) => m.fmt(f),
            Message::Rej(m) => m.fmt(f),
            Message::Brief(m) => m.fmt(f),
        }
    }
}
