//! The formats of Open MPI's `btl/usnic`: headers of UDP datagrams ([`header`]), messages of its connectivity
//! checker ([`ping`]), and descriptions of interfaces ([`modex`]).
//!
//! All fields are little-endian, in the layout of a C compiler for x86; IPv4 addresses
//! are in network order. Packets do not carry a version: the [`header::Layout`] of a peer has to be configured.

pub mod header;
pub mod modex;
pub mod ping;
pub mod rendezvous;

/// Bytes that libfabric's usNIC adds to the length of every message, and that are not sent.
pub const PREFIX: u16 = 64;
/// Bytes of the headers of IPv4 (without options) and UDP.
pub const IP_UDP: u16 = 28;

/// The `N` bytes from `at`; None if there are fewer.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}
