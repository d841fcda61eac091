//! Changes of memory keys by work requests (UMR; Linux: `drivers/infiniband/hw/mlx5/{umr,wr}.c`): a control segment,
//! the UMR control segment (48 bytes), the context of the key (64), and its pages (64 bytes in the request).

use super::send_queue::{Control, WORDS};
use alloc::vec::Vec;
use drivers::ethernet::mlx5::fields::set;
use drivers::hal::Window;
use verbs::Access;

const UMR: u8 = 0x25;
/// The list of pages is in the request.
const INLINE: u64 = 0x80 << 56;
/// Mask of the fields to change.
const LENGTH: u64 = 1 << 0;
const PAGE_SIZE: u64 = 1 << 1;
const START: u64 = 1 << 6;
const DOMAIN: u64 = 1 << 7;
const INVALIDATION: u64 = 1 << 8;
const VARIANT: u64 = 1 << 13;
const RIGHTS: u64 = 0xf << 17;
const ATOMIC_RIGHT: u64 = 1 << 21;
const FREE: u64 = 1 << 29;

/// Blocks of a request: control and UMR control segments; the context; pages.
type Blocks<const COUNT: usize> = [[u64; WORDS]; COUNT];
/// Size of the padded list of pages, in units of 16 bytes.
const LIST: u64 = 4;
/// Blocks of the requests that grant and revoke a key.
pub const GRANT_BLOCKS: u32 = GRANT as u32 / 4;
pub const REVOKE_BLOCKS: u32 = REVOKE as u32 / 4;
/// Segments of the same requests.
const GRANT: usize = 12;
const REVOKE: usize = 8;

const PAGE_SHIFT: u32 = 12;
/// Enable bits of a page's entry: reads and writes. An entry without is not present. Only entries of CREATE_MKEY go
/// without (Linux: `MLX5_EN_RD | MLX5_EN_WR` in `mr.c`, `umr.c`).
const ENABLE: u64 = 3;

/// Log2 of the page size with which two pages hold `bytes` bytes at any offset.
pub fn shift(bytes: usize) -> u32 {
    bytes.max(1).next_power_of_two().ilog2().max(PAGE_SHIFT)
}

/// The memory that a key grants.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// The key, and the card's number of its domain, if that is to be set.
    pub key: u32,
    pub domain: Option<u32>,
    pub memory: Window,
    /// Remote address of the first byte, with the same offset in a page as the memory.
    pub address: u64,
    /// Log2 of the bytes of a page, and access rights from [`rights`].
    pub shift: u32,
    pub rights: u64,
    /// The right to atomic operations can be changed (not `umr_modify_atomic_disabled`).
    pub changes_atomics: bool,
}

/// Access rights of a key, in the context's first word.
pub fn rights(access: Access) -> u64 {
    const ATOMIC: u64 = 1 << 14;
    const REMOTE_WRITE: u64 = 1 << 13;
    const REMOTE_READ: u64 = 1 << 12;
    const LOCAL_WRITE: u64 = 1 << 11;
    const LOCAL_READ: u64 = 1 << 10;
    let mut rights = LOCAL_READ;
    if access.contains(Access::REMOTE_READ) {
        rights |= REMOTE_READ;
    }
    if access.contains(Access::REMOTE_WRITE) {
        rights |= REMOTE_WRITE | LOCAL_WRITE;
    }
    if access.contains(Access::REMOTE_ATOMIC) {
        rights |= ATOMIC | LOCAL_WRITE;
    }
    rights
}

/// The request that grants a key.
// Constants of the caller's request decide at compile time what is written (`bench mlx5`).
#[inline(always)]
pub fn grant(grant: &Grant, fence: u8) -> (Blocks<3>, Control) {
    let domain_mask = if grant.domain.is_some() { DOMAIN } else { 0 };
    let atomic_mask = if grant.changes_atomics { ATOMIC_RIGHT } else { 0 };
    let what = LENGTH | PAGE_SIZE | START | INVALIDATION | VARIANT | RIGHTS | FREE;
    let what = what | domain_mask | atomic_mask;
    let page = 1u64 << grant.shift;
    let first = grant.memory.bus_address() & !(page - 1);
    let blocks = [
        [0, 0, INLINE | LIST << 16, what, 0, 0, 0, 0],
        [
            grant.rights << 32 | 0xff_ffff << 8 | u64::from(grant.key & 0xff),
            // Peers may invalidate it.
            1 << 24 | u64::from(grant.domain.unwrap_or(0)),
            grant.address,
            grant.memory.len() as u64,
            0,
            0,
            0,
            u64::from(grant.shift) << 32,
        ],
        [first | ENABLE, first.wrapping_add(page) | ENABLE, 0, 0, 0, 0, 0, 0],
    ];
    (blocks, request(GRANT, grant.key, fence))
}

/// The request that revokes a key.
#[inline]
pub fn revoke(key: u32, fence: u8) -> (Blocks<2>, Control) {
    let blocks = [[0, 0, INLINE, FREE, 0, 0, 0, 0], [1 << 62, 0, 0, 0, 0, 0, 0, 0]];
    (blocks, request(REVOKE, key, fence))
}

/// The request that moves a spare key to a domain.
pub fn move_to(key: u32, domain: u32) -> (Blocks<2>, Control) {
    let blocks = [[0, 0, INLINE, DOMAIN, 0, 0, 0, 0], [0, domain.into(), 0, 0, 0, 0, 0, 0]];
    (blocks, request(REVOKE, key, 0))
}

fn request(segments: usize, key: u32, fence: u8) -> Control {
    Control { opcode: UMR, segments, immediate: key, fence, ..Control::default() }
}

/// The input that makes a spare key, with room for its pages.
pub fn create_spare(domain: u32) -> Vec<u8> {
    let mut input = alloc::vec![0; 0x110 - 8];
    let context = &mut input[0x10 - 8..];
    set(context, 1, 1, 1); // free (not granted)
    set(context, 0x10, 1, 1); // changes by UMR allowed
    set(context, 0x16, 2, 1); // translates by pages
    set(context, 0x20, 24, 0xff_ffff);
    set(context, 0x68, 24, domain);
    set(context, 0x1a0, 32, LIST as u32);
    set(context, 0x1da, 6, PAGE_SHIFT);
    input
}

/// The input that makes a key for all memory in a domain, for its own queue pairs.
pub fn create_whole(domain: u32) -> Vec<u8> {
    let mut input = alloc::vec![0; 0x110 - 8];
    let context = &mut input[0x10 - 8..];
    // Local write and read; of any length.
    [0x14, 0x15, 0x60].into_iter().for_each(|bit| set(context, bit, 1, 1));
    set(context, 0x20, 24, 0xff_ffff);
    set(context, 0x68, 24, domain);
    input
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_pages_cover_any_offset() {
        for (bytes, log) in [(0, 12), (1, 12), (4096, 12), (4097, 13), (1 << 20, 20), (3 << 20, 22)]
        {
            assert_eq!(shift(bytes), log);
            assert!(bytes <= 1 << log);
        }
    }
}
