//! The formats of Open MPI's `btl/usnic`: what it lays into UDP datagrams ([`header`]), what its connectivity
//! checker says ([`ping`]), and how an interface is described to peers ([`modex`]).
//!
//! Everything is in the byte order of x86 (little-endian), as a C compiler lays structures out there; addresses
//! of IPv4 are in network order. Nothing tells versions apart: which [`header::Layout`] a peer has must be known.

pub mod header;
pub mod modex;
pub mod ping;
pub mod rendezvous;

/// Bytes that libfabric's usNIC counts with every message, and that never leave the host.
pub const PREFIX: u16 = 64;
/// Bytes of the headers of IPv4 (without options) and UDP.
pub const IP_UDP: u16 = 28;

/// The `N` bytes from `at`, if they are there.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}
