//! Formats of the PDUs. Numbers are little-endian. Each PDU begins with a common header of 8 bytes.
//!
//! | type | PDU | header | fields after the common header |
//! |---|---|---|---|
//! | 0, 1 | ICReq, ICResp | 128 | version 8, alignment 10, digests 11, MAXR2T or MAXH2CDATA 12 |
//! | 2, 3 | H2CTermReq, C2HTermReq | 24 | status 8, information 10 |
//! | 4 | CapsuleCmd | 72 | submission queue entry 8 |
//! | 5 | CapsuleResp | 24 | completion queue entry 8 |
//! | 6, 7, 9 | H2CData, C2HData, R2T | 24 | command 8, transfer tag 10, offset 12, length 16 |

/// Bytes of the common header.
pub const COMMON: usize = 8;
/// Bytes of an ICReq or ICResp.
pub const IC: usize = 128;
/// Bytes of the header of a TermReq, of a CapsuleResp, and of the PDUs of data.
pub const SHORT: usize = 24;
/// Bytes of the header of a CapsuleCmd.
pub const CAPSULE: usize = 72;
/// Bytes of a submission queue entry.
pub const SQE: usize = 64;
/// Bytes of a completion queue entry.
pub const CQE: usize = 16;
/// Bytes of a digest.
pub const DIGEST: usize = 4;
/// Longest copy of an offending header in a TermReq.
pub const TERM_DATA: usize = 128;

/// The PDU has a header digest.
pub const HDGST: u8 = 1;
/// The PDU has a data digest.
pub const DDGST: u8 = 2;
/// The last PDU of data of a transfer, or of a command.
pub const LAST: u8 = 4;
/// The command has succeeded; no CapsuleResp follows.
pub const SUCCESS: u8 = 8;

/// Type of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Begins a connection.
    IcReq = 0,
    /// Answers it.
    IcResp = 1,
    /// The host reports a fatal error of the controller.
    H2cTermReq = 2,
    /// The controller reports a fatal error of the host.
    C2hTermReq = 3,
    /// A command, with data perhaps.
    CapsuleCmd = 4,
    /// The completion of a command.
    CapsuleResp = 5,
    /// Data of a write.
    H2cData = 6,
    /// Data of a read.
    C2hData = 7,
    /// The controller is ready to receive data of a write.
    R2t = 9,
}

impl Kind {
    /// The type with this number.
    pub const fn of(number: u8) -> Option<Kind> {
        Some(match number {
            0 => Kind::IcReq,
            1 => Kind::IcResp,
            2 => Kind::H2cTermReq,
            3 => Kind::C2hTermReq,
            4 => Kind::CapsuleCmd,
            5 => Kind::CapsuleResp,
            6 => Kind::H2cData,
            7 => Kind::C2hData,
            9 => Kind::R2t,
            _ => return None,
        })
    }

    /// Bytes of its header, without digest.
    pub const fn header_len(self) -> usize {
        match self {
            Kind::IcReq | Kind::IcResp => IC,
            Kind::CapsuleCmd => CAPSULE,
            _ => SHORT,
        }
    }

    /// Whether PDUs of the type can have digests.
    pub const fn may_have_digests(self) -> bool {
        !matches!(self, Kind::IcReq | Kind::IcResp | Kind::H2cTermReq | Kind::C2hTermReq)
    }
}

/// The common header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Common {
    /// Number of the type.
    pub kind: u8,
    /// [`HDGST`], [`DDGST`], [`LAST`], [`SUCCESS`].
    pub flags: u8,
    /// Bytes of the header.
    pub hlen: u8,
    /// Offset of the data; 0 without data.
    pub pdo: u8,
    /// Bytes of the PDU.
    pub plen: u32,
}

impl Common {
    /// Parses the header.
    pub fn parse(bytes: &[u8; COMMON]) -> Common {
        let [kind, flags, hlen, pdo, plen @ ..] = *bytes;
        Common { kind, flags, hlen, pdo, plen: u32::from_le_bytes(plen) }
    }

    /// The header's bytes.
    pub fn emit(&self) -> [u8; COMMON] {
        let [a, b, c, d] = self.plen.to_le_bytes();
        [self.kind, self.flags, self.hlen, self.pdo, a, b, c, d]
    }
}

/// Status of a TermReq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Fes {
    /// A field of a header is invalid. The information is its offset.
    Field = 1,
    /// The PDU is not valid in this state of the connection.
    Sequence = 2,
    /// The header digest is wrong. The information is the digest.
    HeaderDigest = 3,
    /// Data outside of the transfer. The information is the offset of the field.
    Range = 4,
    /// More data than MAXH2CDATA, or more R2Ts than MAXR2T.
    Limit = 5,
    /// The connection parameters are not supported. The information is the offset of the field.
    Unsupported = 6,
}

/// A fatal error of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fatal {
    /// The status.
    pub status: Fes,
    /// Its information.
    pub info: u32,
}

impl Fatal {
    /// The field at `offset` is invalid.
    pub const fn field(offset: u32) -> Fatal {
        Fatal { status: Fes::Field, info: offset }
    }

    /// The PDU is not valid now.
    pub const SEQUENCE: Fatal = Fatal { status: Fes::Sequence, info: 0 };
}

/// Connection parameters: of an ICReq, or of an ICResp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Version of the format; 0 is the only one.
    pub version: u16,
    /// Alignment that the sender asks of data sent to it, in units of 4 bytes, 0's based (HPDA, CPDA).
    pub alignment: u8,
    /// Bit 0: header digests. Bit 1: data digests.
    pub digests: u8,
    /// ICReq: R2Ts a command may have at a time, 0's based (MAXR2T). ICResp: bytes an H2CData may have (MAXH2CDATA).
    pub limit: u32,
}

/// Bit of [`Parameters::digests`]: header digests.
pub const HEADER_DIGESTS: u8 = 1;
/// Bit of [`Parameters::digests`]: data digests.
pub const DATA_DIGESTS: u8 = 2;

impl Parameters {
    /// Parses an ICReq or ICResp.
    pub fn parse(pdu: &[u8; IC]) -> Parameters {
        Parameters {
            version: u16_at(pdu, 8),
            alignment: pdu[10],
            digests: pdu[11],
            limit: u32_at(pdu, 12),
        }
    }

    /// The PDU of that type.
    pub fn emit(&self, kind: Kind) -> [u8; IC] {
        let mut pdu = [0; IC];
        let (hlen, plen) = (IC as u8, IC as u32);
        let common = Common { kind: kind as u8, flags: 0, hlen, pdo: 0, plen };
        pdu[..COMMON].copy_from_slice(&common.emit());
        pdu[8..10].copy_from_slice(&self.version.to_le_bytes());
        pdu[10] = self.alignment;
        pdu[11] = self.digests;
        pdu[12..16].copy_from_slice(&self.limit.to_le_bytes());
        pdu
    }
}

/// Fields of an H2CData, C2HData or R2T.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// The command's identifier.
    pub cid: u16,
    /// The transfer's tag, which the controller chose; 0 in a C2HData.
    pub ttag: u16,
    /// Offset in the command's data.
    pub offset: u32,
    /// Number of bytes.
    pub length: u32,
}

impl Data {
    /// Parses the fields of a header.
    pub fn parse(header: &[u8]) -> Data {
        Data {
            cid: u16_at(header, 8),
            ttag: u16_at(header, 10),
            offset: u32_at(header, 12),
            length: u32_at(header, 16),
        }
    }

    /// The header with these fields.
    pub fn emit(&self, common: &Common) -> [u8; SHORT] {
        let mut header = [0; SHORT];
        header[..COMMON].copy_from_slice(&common.emit());
        header[8..10].copy_from_slice(&self.cid.to_le_bytes());
        header[10..12].copy_from_slice(&self.ttag.to_le_bytes());
        header[12..16].copy_from_slice(&self.offset.to_le_bytes());
        header[16..20].copy_from_slice(&self.length.to_le_bytes());
        header
    }
}

/// Offset of the data in a PDU: behind the header and its digest, aligned to `alignment` (in units of 4 bytes, 0's
/// based).
pub const fn data_offset(header: usize, header_digest: bool, alignment: u8) -> usize {
    let end = header + if header_digest { DIGEST } else { 0 };
    end.next_multiple_of((alignment as usize + 1) * 4)
}

/// The number at `offset`; 0 if the bytes end before it.
pub fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    bytes.get(offset..).and_then(<[u8]>::first_chunk).map_or(0, |b| u16::from_le_bytes(*b))
}

/// The number at `offset`; 0 if the bytes end before it.
pub fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..).and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_le_bytes(*b))
}
