//! CLC Accept and Confirm, which have the same format.

use super::clc::{Eid, FLAG, Header, MessageType, PeerId, TRAILER, seal};
use super::{WireError, byte, bytes24, field, field24};
use alloc::vec::Vec;
use core::net::Ipv6Addr;

const V1: usize = 68;
/// Offsets and lengths of the version 2 parts.
const EID: usize = 64;
const V2_FIXED: usize = 104;
const FIRST_CONTACT: usize = 36;
const LIMITS: usize = 16;
const HOSTNAME: usize = 32;
const MAX_GIDS: usize = 8;

/// Operating system of a peer: 1 z/OS, 2 Linux, 3 AIX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Os(pub u8);

impl Os {
    /// z/OS.
    pub const ZOS: Os = Os(1);
    /// Linux.
    pub const LINUX: Os = Os(2);
}

/// Fields added by version 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The common EID.
    pub eid: Eid,
    /// Only at first contact.
    pub first_contact: Option<FirstContact>,
    /// Confirm at first contact: GIDs of the sender (at most eight).
    pub gids: Vec<Ipv6Addr>,
}

/// The first contact extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstContact {
    /// The peers reach each other without a router.
    pub direct: bool,
    /// The sender's operating system.
    pub os: Os,
    /// Negotiated release.
    pub release: u8,
    /// Name of the host, padded with blanks.
    pub hostname: [u8; HOSTNAME],
    /// Most connections and links of the link group, and features; may be absent in release 0.
    pub limits: Option<(u8, u8, u16)>,
}

/// An Accept or a Confirm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptConfirm {
    /// Accept or Confirm.
    pub kind: MessageType,
    /// Version.
    pub version: u8,
    /// First contact: a new link group is created.
    pub first_contact: bool,
    /// The sender's peer ID.
    pub peer_id: PeerId,
    /// GID of the chosen link.
    pub gid: Ipv6Addr,
    /// MAC address of the chosen link.
    pub mac: [u8; 6],
    /// Queue pair of the chosen link.
    pub qpn: u32,
    /// Key of the receive buffer (RMB).
    pub rkey: u32,
    /// The connection's element in the RMB, counted from 1.
    pub rmbe_index: u8,
    /// Token of the connection in CDC messages to the sender.
    pub token: u32,
    /// Size of the element, see [`super::rmbe_bytes`].
    pub rmbe_size: u8,
    /// Path MTU, in the code of verbs.
    pub path_mtu: u8,
    /// Address of the RMB.
    pub address: u64,
    /// PSN of the sender's first packet.
    pub psn: u32,
    /// Fields added by version 2.
    pub v2: Option<Negotiated>,
}

impl AcceptConfirm {
    /// Parses a message.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let header = Header::of_message(bytes)?;
        let kind = header.kind;
        if !matches!(kind, MessageType::Accept | MessageType::Confirm) {
            return Err(WireError::Type(kind as u8));
        }
        if header.bits & 3 != 0 {
            return Err(WireError::Field("path type, which is not SMC-R"));
        }
        let first_contact = header.flag();
        let v2 = if header.version == 1 {
            if bytes.len() != V1 {
                return Err(WireError::Length { have: bytes.len() });
            }
            None
        } else {
            Some(Negotiated::parse(&bytes[..bytes.len() - TRAILER], kind, first_contact)?)
        };
        let sizes = byte(bytes, 50)?;
        let rmbe_index = byte(bytes, 45)?;
        if rmbe_index == 0 {
            return Err(WireError::Field("RMBE index"));
        }
        Ok(AcceptConfirm {
            kind,
            version: header.version,
            first_contact,
            peer_id: PeerId(field(bytes, 8..16)?),
            gid: Ipv6Addr::from(field::<16>(bytes, 16..32)?),
            mac: field(bytes, 32..38)?,
            qpn: field24(bytes, 38)?,
            rkey: u32::from_be_bytes(field(bytes, 41..45)?),
            rmbe_index,
            token: u32::from_be_bytes(field(bytes, 46..50)?),
            rmbe_size: sizes >> 4,
            path_mtu: sizes & 15,
            address: u64::from_be_bytes(field(bytes, 52..60)?),
            psn: field24(bytes, 61)?,
            v2,
        })
    }

    /// Emits the message.
    pub fn emit(&self) -> Vec<u8> {
        let mut b = alloc::vec![0; V1 - TRAILER];
        b[8..16].copy_from_slice(&self.peer_id.0);
        b[16..32].copy_from_slice(&self.gid.octets());
        b[32..38].copy_from_slice(&self.mac);
        b[38..41].copy_from_slice(&bytes24(self.qpn));
        b[41..45].copy_from_slice(&self.rkey.to_be_bytes());
        b[45] = self.rmbe_index;
        b[46..50].copy_from_slice(&self.token.to_be_bytes());
        b[50] = self.rmbe_size << 4 | self.path_mtu & 15;
        b[52..60].copy_from_slice(&self.address.to_be_bytes());
        b[61..64].copy_from_slice(&bytes24(self.psn));
        if let Some(v2) = &self.v2 {
            v2.emit(self.kind, &mut b);
        }
        b.resize(b.len() + TRAILER, 0);
        seal(&mut b, self.kind, self.version, if self.first_contact { FLAG } else { 0 });
        b
    }
}

impl Negotiated {
    /// Parses a message without its trailer.
    fn parse(bytes: &[u8], kind: MessageType, first_contact: bool) -> Result<Self, WireError> {
        let eid = Eid::from_wire(field(bytes, EID..EID + Eid::LEN)?);
        let rest = bytes.get(V2_FIXED..).ok_or(WireError::Length { have: bytes.len() })?;
        let mut v2 = Negotiated { eid, first_contact: None, gids: Vec::new() };
        // Linux accepts a first contact without the extension.
        if !first_contact || rest.len() < FIRST_CONTACT {
            return Ok(v2);
        }
        let (contact, rest) = FirstContact::parse(rest)?;
        v2.first_contact = Some(contact);
        if kind == MessageType::Confirm
            && let Some(&count) = rest.first()
        {
            let gids = rest.get(4..).unwrap_or_default().as_chunks::<16>().0;
            let count = usize::from(count).min(MAX_GIDS);
            v2.gids = gids.iter().take(count).map(|&gid| Ipv6Addr::from(gid)).collect();
        }
        Ok(v2)
    }

    fn emit(&self, kind: MessageType, b: &mut Vec<u8>) {
        b.extend(self.eid.bytes());
        b.extend([0; V2_FIXED - EID - Eid::LEN]);
        let Some(contact) = &self.first_contact else { return };
        contact.emit(b);
        if kind == MessageType::Confirm {
            let count = self.gids.len().min(MAX_GIDS);
            b.extend([count as u8, 0, 0, 0]);
            for gid in &self.gids[..count] {
                b.extend(gid.octets());
            }
        }
    }
}

impl FirstContact {
    fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let limits = bytes.get(FIRST_CONTACT..FIRST_CONTACT + LIMITS);
        let rest = &bytes[FIRST_CONTACT + if limits.is_some() { LIMITS } else { 0 }..];
        let limits = match limits {
            Some(limits) => Some((limits[0], limits[1], u16::from_be_bytes(field(limits, 2..4)?))),
            None => None,
        };
        let contact = FirstContact {
            direct: byte(bytes, 0)? & 0x80 != 0,
            os: Os(byte(bytes, 1)? >> 4),
            release: byte(bytes, 1)? & 15,
            hostname: field(bytes, 4..4 + HOSTNAME)?,
            limits,
        };
        Ok((contact, rest))
    }

    fn emit(&self, b: &mut Vec<u8>) {
        b.extend([u8::from(self.direct) << 7, self.os.0 << 4 | self.release & 15, 0, 0]);
        b.extend(self.hostname);
        if let Some((conns, links, features)) = self.limits {
            b.extend([conns, links]);
            b.extend(features.to_be_bytes());
            b.extend([0; LIMITS - 4]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::vectors::vector;
    use super::*;
    use core::net::Ipv4Addr;
    use proptest::prelude::*;

    #[test]
    fn linux_accept_round_trips() {
        let bytes = vector("accept");
        let accept = AcceptConfirm::parse(&bytes).unwrap();
        assert!(accept.first_contact && accept.kind == MessageType::Accept);
        assert_eq!(accept.gid, Ipv4Addr::new(10, 77, 0, 1).to_ipv6_mapped());
        assert_eq!((accept.qpn, accept.rkey, accept.token), (17, 0x31a, 1));
        assert_eq!((accept.rmbe_size, accept.path_mtu, accept.psn), (2, 3, 0xcc_6460));
        assert_eq!(accept.address, 0xff3d_e62f_8373_0000);
        let contact = accept.v2.as_ref().unwrap().first_contact.unwrap();
        assert!(contact.direct && contact.os == Os::LINUX && contact.release == 1);
        assert_eq!(contact.limits, Some((255, 2, 1)));
        assert_eq!(accept.emit(), bytes);
    }

    #[test]
    fn linux_confirm_round_trips() {
        let bytes = vector("confirm");
        let confirm = AcceptConfirm::parse(&bytes).unwrap();
        let v2 = confirm.v2.as_ref().unwrap();
        assert_eq!(v2.gids, [Ipv4Addr::new(10, 77, 0, 2).to_ipv6_mapped()]);
        assert_eq!(confirm.emit(), bytes);
        for name in ["accept_reuse", "confirm_reuse", "accept_v1"] {
            let bytes = vector(name);
            assert_eq!(AcceptConfirm::parse(&bytes).unwrap().emit(), bytes, "{name}");
        }
    }

    #[test]
    fn inconsistent_fields_are_refused() {
        let mut bytes = vector("accept_reuse");
        bytes[45] = 0;
        assert_eq!(AcceptConfirm::parse(&bytes), Err(WireError::Field("RMBE index")));
        bytes[7] |= 1;
        assert!(AcceptConfirm::parse(&bytes).is_err(), "SMC-D");
        let mut bytes = vector("accept_v1");
        bytes.extend([0; 4]);
        seal(&mut bytes, MessageType::Accept, 1, 8);
        assert!(AcceptConfirm::parse(&bytes).is_err(), "too long for version 1");
        seal(&mut bytes, MessageType::Accept, 2, 8);
        assert!(AcceptConfirm::parse(&bytes).is_err(), "too short for version 2");
        // Linux accepts a first contact without the extension.
        let mut bytes = vector("accept_reuse");
        bytes[7] |= FLAG;
        let accept = AcceptConfirm::parse(&bytes).unwrap();
        assert!(accept.first_contact && accept.v2.unwrap().first_contact.is_none());
    }

    proptest! {
        #[test]
        fn parse_of_any_body_does_not_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..300), bits in 0x10u8..0x30, accept: bool,
        ) {
            let mut message = std::vec![0; 8];
            message.extend(bytes);
            message.extend([0; TRAILER]);
            let kind = if accept { MessageType::Accept } else { MessageType::Confirm };
            seal(&mut message, kind, bits >> 4, bits & 12);
            let _ = AcceptConfirm::parse(&message);
        }
    }
}
