//! Wire formats of LINX: packets of RIOCM ([`riocm`]), messages of RLNH ([`rlnh`]), and the header of the TCP
//! connection manager ([`tcp`]). All fields are big-endian.

pub mod riocm;
pub mod rlnh;
pub mod tcp;

/// The `N` bytes from `at`; None if there are fewer.
#[inline]
fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_be_bytes)
}
