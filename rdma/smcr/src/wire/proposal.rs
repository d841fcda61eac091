//! CLC Proposal.

use super::clc::{Eid, HEADER, Header, MessageType, PathType, PeerId, TRAILER, seal};
use super::{WireError, byte, field};
use alloc::vec::Vec;
use core::net::{Ipv4Addr, Ipv6Addr};

/// Most EIDs in a Proposal.
pub const MAX_EIDS: usize = 8;
/// Most IPv6 prefixes in a Proposal.
pub const MAX_V6_PREFIXES: usize = 8;

const FIXED: usize = 40;
/// Length of the SMC-D area, which version 2 always has.
const SMCD_AREA: usize = 40;
/// Position of the version 2 extension's offset field.
const V2_OFFSET: usize = 50;
/// Position that the offset counts from.
const V2_BASE: usize = 52;
const PREFIX: usize = 8;
const V6_PREFIX: usize = 17;
const V2_FIXED: usize = 40;
const SMCD_V2_FIXED: usize = 48;
const SMCD_GID: usize = 10;
const MAX_SMCD_GIDS: u8 = 8;

/// The sender's networks, for version 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefixes {
    /// Its IPv4 network.
    pub v4: (Ipv4Addr, u8),
    /// Its IPv6 networks.
    pub v6: Vec<(Ipv6Addr, u8)>,
}

/// Fields added by version 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProposalV2 {
    /// The sender's EIDs.
    pub eids: Vec<Eid>,
    /// Release: 0 for version 2.0, 1 for 2.1.
    pub release: u8,
    /// RoCEv2 GID.
    pub gid: Ipv6Addr,
    /// Most connections of a link group (release 1).
    pub max_conns: u8,
    /// Most links of a link group (release 1).
    pub max_links: u8,
    /// Features (release 1).
    pub features: u16,
}

/// A Proposal. Of the SMC-D parts only the length is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Version.
    pub version: u8,
    /// Path types offered in version 1.
    pub v1_type: PathType,
    /// Path types offered in version 2.
    pub v2_type: PathType,
    /// The sender's peer ID; Linux sends zero unless it offers version 1.
    pub peer_id: PeerId,
    /// GID for version 1.
    pub gid: Ipv6Addr,
    /// MAC address for version 1.
    pub mac: [u8; 6],
    /// Networks for version 1.
    pub prefixes: Option<Prefixes>,
    /// Present if version 2 is offered.
    pub v2: Option<ProposalV2>,
}

impl Proposal {
    /// Parses a message. The length must be exactly the sum of the parts, as in Linux.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let header = Header::of_message(bytes)?;
        if header.kind != MessageType::Proposal {
            return Err(WireError::Type(header.kind as u8));
        }
        let v1_type = PathType::from_bits(header.bits);
        let v2_type =
            if header.version > 1 { PathType::from_bits(header.bits >> 2) } else { PathType::None };
        if header.version == 1 && v1_type == PathType::None {
            return Err(WireError::Field("path type"));
        }
        let area = usize::from(u16::from_be_bytes(field(bytes, 38..40)?));
        let mut length = FIXED + TRAILER;
        let prefixes_at = if header.version == 1 {
            length += area;
            Some(FIXED + area)
        } else {
            length += SMCD_AREA;
            (v1_type != PathType::None).then_some(FIXED + SMCD_AREA)
        };
        let prefixes = prefixes_at.map(|at| Prefixes::parse(bytes, at)).transpose()?;
        if let Some(prefixes) = &prefixes {
            length += PREFIX + V6_PREFIX * prefixes.v6.len();
        }
        let mut v2 = None;
        if v2_type != PathType::None {
            let offset = u16::from_be_bytes(field(bytes, V2_OFFSET..V2_OFFSET + 2)?);
            if offset == 0 {
                return Err(WireError::Field("offset of the version 2 extension"));
            }
            let at = V2_BASE + usize::from(offset);
            let extension = ProposalV2::parse(bytes, at)?;
            length += V2_FIXED + Eid::LEN * extension.eids.len();
            if v2_type.has_d() {
                let gids = byte(bytes, at + 1)?;
                if gids > MAX_SMCD_GIDS {
                    return Err(WireError::Field("number of SMC-D GIDs"));
                }
                length += SMCD_V2_FIXED + SMCD_GID * usize::from(gids);
            }
            v2 = Some(extension);
        }
        if bytes.len() != length {
            return Err(WireError::Length { have: bytes.len() });
        }
        Ok(Proposal {
            version: header.version,
            v1_type,
            v2_type,
            peer_id: PeerId(field(bytes, HEADER..16)?),
            gid: Ipv6Addr::from(field::<16>(bytes, 16..32)?),
            mac: field(bytes, 32..38)?,
            prefixes,
            v2,
        })
    }

    /// Emits the message, without SMC-D. Lists are cut to the most that a message may have.
    pub fn emit(&self) -> Vec<u8> {
        let mut b = alloc::vec![0; FIXED];
        b[8..16].copy_from_slice(&self.peer_id.0);
        b[16..32].copy_from_slice(&self.gid.octets());
        b[32..38].copy_from_slice(&self.mac);
        if self.version > 1 {
            b.resize(FIXED + SMCD_AREA, 0);
        }
        if let Some(prefixes) = &self.prefixes {
            let area = (b.len() - FIXED) as u16;
            b[38..40].copy_from_slice(&area.to_be_bytes());
            prefixes.emit(&mut b);
        }
        if let Some(v2) = self.v2.as_ref().filter(|_| self.version > 1) {
            let offset = (b.len() - V2_BASE) as u16;
            b[V2_OFFSET..V2_OFFSET + 2].copy_from_slice(&offset.to_be_bytes());
            v2.emit(&mut b);
        }
        b.resize(b.len() + TRAILER, 0);
        let v2_type = if self.version > 1 { self.v2_type as u8 } else { 0 };
        seal(&mut b, MessageType::Proposal, self.version, v2_type << 2 | self.v1_type as u8);
        b
    }
}

impl Prefixes {
    fn parse(bytes: &[u8], at: usize) -> Result<Self, WireError> {
        let v4 = Ipv4Addr::from(field::<4>(bytes, at..at + 4)?);
        let v4_length = byte(bytes, at + 4)?;
        let count = usize::from(byte(bytes, at + 7)?);
        if count > MAX_V6_PREFIXES {
            return Err(WireError::Field("number of IPv6 prefixes"));
        }
        let v6 = (0..count).map(|n| {
            let at = at + PREFIX + V6_PREFIX * n;
            Ok((Ipv6Addr::from(field::<16>(bytes, at..at + 16)?), byte(bytes, at + 16)?))
        });
        Ok(Prefixes { v4: (v4, v4_length), v6: v6.collect::<Result<_, _>>()? })
    }

    fn emit(&self, b: &mut Vec<u8>) {
        let count = self.v6.len().min(MAX_V6_PREFIXES);
        b.extend(self.v4.0.octets());
        b.extend([self.v4.1, 0, 0, count as u8]);
        for (prefix, length) in &self.v6[..count] {
            b.extend(prefix.octets());
            b.push(*length);
        }
    }
}

impl ProposalV2 {
    fn parse(bytes: &[u8], at: usize) -> Result<Self, WireError> {
        let count = usize::from(byte(bytes, at)?);
        if count > MAX_EIDS {
            return Err(WireError::Field("number of EIDs"));
        }
        let eids = (0..count).map(|n| {
            let at = at + V2_FIXED + Eid::LEN * n;
            field(bytes, at..at + Eid::LEN).map(Eid::from_wire)
        });
        Ok(ProposalV2 {
            eids: eids.collect::<Result<_, _>>()?,
            release: byte(bytes, at + 3)? >> 4,
            gid: Ipv6Addr::from(field::<16>(bytes, at + 8..at + 24)?),
            max_conns: byte(bytes, at + 24)?,
            max_links: byte(bytes, at + 25)?,
            features: u16::from_be_bytes(field(bytes, at + 26..at + 28)?),
        })
    }

    fn emit(&self, b: &mut Vec<u8>) {
        let count = self.eids.len().min(MAX_EIDS);
        b.extend([count as u8, 0, 0, self.release << 4, 0, 0, 0, 0]);
        b.extend(self.gid.octets());
        b.extend([self.max_conns, self.max_links]);
        b.extend(self.features.to_be_bytes());
        b.extend([0; 12]);
        for eid in &self.eids[..count] {
            b.extend(eid.bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::vectors::vector;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn linux_proposal_round_trips() {
        let bytes = vector("proposal");
        let proposal = Proposal::parse(&bytes).unwrap();
        assert_eq!((proposal.v1_type, proposal.v2_type), (PathType::None, PathType::R));
        assert_eq!(proposal.peer_id, PeerId::default());
        let v2 = proposal.v2.as_ref().unwrap();
        assert_eq!(v2.gid, Ipv4Addr::new(10, 77, 0, 2).to_ipv6_mapped());
        assert_eq!((v2.release, v2.max_conns, v2.max_links, v2.features), (1, 255, 2, 1));
        assert_eq!(v2.eids, [Eid::new("LAB.SMC.EID").unwrap()]);
        assert_eq!(proposal.emit(), bytes);
    }

    #[test]
    fn version_1() {
        let bytes = vector("proposal_v1");
        let proposal = Proposal::parse(&bytes).unwrap();
        assert_eq!((proposal.version, proposal.v1_type), (1, PathType::R));
        let prefixes = proposal.prefixes.as_ref().unwrap();
        assert_eq!(prefixes.v4, (Ipv4Addr::new(127, 0, 0, 0), 8));
        assert_eq!(proposal.v2, None);
        assert_eq!(proposal.emit(), bytes);
    }

    #[test]
    fn inconsistent_fields_are_refused() {
        let with = |changes: &[(usize, u8)]| {
            let mut bytes = vector("proposal");
            for &(at, value) in changes {
                bytes[at] = value;
            }
            Proposal::parse(&bytes)
        };
        assert!(with(&[]).is_ok());
        assert!(with(&[(0x33, 0)]).is_err(), "no version 2 extension");
        assert!(with(&[(0x32, 0xff)]).is_err(), "it lies behind the end");
        assert_eq!(with(&[(0x50, 9)]), Err(WireError::Field("number of EIDs")));
        assert!(with(&[(0x50, 0)]).is_err(), "longer than its parts");
        assert!(with(&[(0x50, 2)]).is_err(), "shorter than its parts");
        assert!(with(&[(7, 0x26)]).is_err(), "SMC-D is offered and not there");
        assert_eq!(with(&[(0x98, 0)]), Err(WireError::Eyecatcher));
        assert_eq!(with(&[(7, 0x12)]), Err(WireError::Field("path type")));
    }

    fn eids() -> impl Strategy<Value = Vec<Eid>> {
        prop::collection::vec(any::<[u8; 32]>().prop_map(Eid::from_wire), 0..=MAX_EIDS)
    }

    proptest! {
        #[test]
        fn round_trip(
            id: [u8; 8], gids: [[u8; 16]; 2], mac: [u8; 6], eids in eids(), release in 0u8..16,
            limits: (u8, u8, u16), v4: ([u8; 4], u8), v1: bool,
            v6 in prop::collection::vec((any::<[u8; 16]>(), any::<u8>()), 0..=MAX_V6_PREFIXES),
        ) {
            let v6 = v6.into_iter().map(|(p, l)| (Ipv6Addr::from(p), l)).collect();
            let proposal = Proposal {
                version: 2,
                v1_type: if v1 { PathType::R } else { PathType::None },
                v2_type: PathType::R,
                peer_id: PeerId(id),
                gid: gids[0].into(),
                mac,
                prefixes: v1.then(|| Prefixes { v4: (v4.0.into(), v4.1), v6 }),
                v2: Some(ProposalV2 {
                    eids,
                    release,
                    gid: gids[1].into(),
                    max_conns: limits.0,
                    max_links: limits.1,
                    features: limits.2,
                }),
            };
            prop_assert_eq!(Proposal::parse(&proposal.emit()), Ok(proposal));
        }

        #[test]
        fn parse_of_any_body_does_not_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..400), bits in 0x10u8..0x30,
        ) {
            let mut message = std::vec![0; HEADER];
            message.extend(bytes);
            message.extend([0; TRAILER]);
            seal(&mut message, MessageType::Proposal, bits >> 4, bits & 15);
            let _ = Proposal::parse(&message);
        }
    }
}
