//! RDMA IP CM service (annex A11; Linux `drivers/infiniband/core/cma.c`, `struct cma_hdr`): the mapping of IP addresses
//! and TCP ports to service IDs, and the 36 bytes at the beginning of a REQ's private data.

use super::{Error, Gid, bytes, get16};
use core::fmt;
use core::net::{IpAddr, Ipv4Addr};

/// Length in bytes.
pub const LEN: usize = 36;

/// Service id of port 0 in the TCP port space.
const TCP_PORT_SPACE: u64 = 0x0106 << 16;

/// Service id of a port in the TCP port space.
pub const fn service_id(port: u16) -> u64 {
    TCP_PORT_SPACE | port as u64
}

/// The TCP port of a service id, if it is one of the TCP port space.
pub const fn tcp_port(service_id: u64) -> Option<u16> {
    if service_id & !0xffff == TCP_PORT_SPACE { Some(service_id as u16) } else { None }
}

/// Addresses of a connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpCm {
    /// TCP port of the requesting side.
    pub source_port: u16,
    /// IP address of the requesting side.
    pub source: IpAddr,
    /// Requested IP address.
    pub destination: IpAddr,
}

impl IpCm {
    /// Reads the header at the beginning of `from`.
    pub fn parse(from: &[u8]) -> Result<Self, Error> {
        let header: [u8; LEN] = bytes(from, 0)?;
        if header[0] != 0 {
            return Err(Error::Version);
        }
        let (source, destination) = match header[1] >> 4 {
            4 => (
                IpAddr::V4(Ipv4Addr::from(bytes(&header, 16)?)),
                IpAddr::V4(Ipv4Addr::from(bytes(&header, 32)?)),
            ),
            6 => (
                Gid::from_bytes(bytes(&header, 4)?).address(),
                Gid::from_bytes(bytes(&header, 20)?).address(),
            ),
            _ => return Err(Error::Version),
        };
        Ok(IpCm { source_port: get16(&header, 2)?, source, destination })
    }

    /// Writes the header.
    pub fn emit(&self, into: &mut [u8; LEN]) {
        into.fill(0);
        into[2..4].copy_from_slice(&self.source_port.to_be_bytes());
        if let (IpAddr::V4(source), IpAddr::V4(destination)) = (self.source, self.destination) {
            into[1] = 4 << 4;
            into[16..20].copy_from_slice(&source.octets());
            into[32..36].copy_from_slice(&destination.octets());
        } else {
            into[1] = 6 << 4;
            into[4..20].copy_from_slice(&Gid::from(self.source).to_bytes());
            into[20..36].copy_from_slice(&Gid::from(self.destination).to_bytes());
        }
    }
}

impl fmt::Display for IpCm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {} > {}", self.source, self.source_port, self.destination)
    }
}
