//! Changes of memory keys as work requests (UMR; Linux: `drivers/infiniband/hw/mlx5/{umr,wr}.c`): a control segment, what is
//! changed (48 bytes), the context of the key (64), and the pages that it stands for (64 bytes in the request).

use super::send_queue::{Control, WORDS};
use alloc::vec::Vec;
use drivers::ethernet::mlx5::fields::set;
use drivers::hal::Window;
use verbs::Access;

const UMR: u8 = 0x25;
/// What follows lies in the request.
const INLINE: u64 = 0x80 << 56;
/// Fields that are changed.
const LENGTH: u64 = 1 << 0;
const PAGE_SIZE: u64 = 1 << 1;
const START: u64 = 1 << 6;
const DOMAIN: u64 = 1 << 7;
const INVALIDATION: u64 = 1 << 8;
const VARIANT: u64 = 1 << 13;
const RIGHTS: u64 = 0x1f << 17;
const FREE: u64 = 1 << 29;

/// Blocks of a request: what is changed, behind the control segment; the context; pages.
type Blocks<const COUNT: usize> = [[u64; WORDS]; COUNT];
/// Bytes of pages, counted in 16: the list is padded to so many.
const LIST: u64 = 4;
/// Blocks that a key is given with, and taken back with.
pub const GIVE_BLOCKS: u32 = GIVE as u32 / 4;
pub const TAKE_BLOCKS: u32 = TAKE as u32 / 4;
/// Segments of both.
const GIVE: usize = 12;
const TAKE: usize = 8;

const PAGE_SHIFT: u32 = 12;

/// Log2 of pages of which at most two hold so many bytes, wherever they begin.
pub fn shift(bytes: usize) -> u32 {
    bytes.max(1).next_power_of_two().ilog2().max(PAGE_SHIFT)
}

/// What a key is given for.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// The key; the card's number of its domain, if that is told.
    pub key: u32,
    pub domain: Option<u32>,
    pub memory: Window,
    /// Address of the first byte for peers, the same as that of the memory in a page.
    pub address: u64,
    /// Log2 of the bytes of a page, and what [`rights`] says.
    pub shift: u32,
    pub rights: u64,
}

/// What a key is good for, in the context's first word.
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

/// Gives a key.
#[inline(always)]
pub fn give(grant: &Grant, fence: u8) -> (Blocks<3>, Control) {
    let domain_mask = if grant.domain.is_some() { DOMAIN } else { 0 };
    let what = LENGTH | PAGE_SIZE | START | INVALIDATION | VARIANT | RIGHTS | FREE | domain_mask;
    let page = 1u64 << grant.shift;
    let first = grant.memory.bus_address() & !(page - 1);
    let blocks = [
        [0, 0, INLINE | LIST << 16, what, 0, 0, 0, 0],
        [
            grant.rights << 32 | 0xff_ffff << 8 | u64::from(grant.key & 0xff),
            // Peers may take it back.
            1 << 24 | u64::from(grant.domain.unwrap_or(0)),
            grant.address,
            grant.memory.len() as u64,
            0,
            0,
            0,
            u64::from(grant.shift) << 32,
        ],
        [first, first.wrapping_add(page), 0, 0, 0, 0, 0, 0],
    ];
    (blocks, request(GIVE, grant.key, fence))
}

/// Takes a key back.
#[inline(always)]
pub fn take(key: u32, fence: u8) -> (Blocks<2>, Control) {
    let blocks = [[0, 0, INLINE, FREE, 0, 0, 0, 0], [1 << 62, 0, 0, 0, 0, 0, 0, 0]];
    (blocks, request(TAKE, key, fence))
}

/// Has a key that is not given belong to a domain.
pub fn move_to(key: u32, domain: u32) -> (Blocks<2>, Control) {
    let blocks = [[0, 0, INLINE, DOMAIN, 0, 0, 0, 0], [0, domain.into(), 0, 0, 0, 0, 0, 0]];
    (blocks, request(TAKE, key, 0))
}

fn request(segments: usize, key: u32, fence: u8) -> Control {
    Control { opcode: UMR, segments, immediate: key, fence, ..Control::default() }
}

/// What makes a key that is not given, with room for the pages of one.
pub fn create_spare(domain: u32) -> Vec<u8> {
    let mut input = alloc::vec![0; 0x110 - 8];
    let context = &mut input[0x10 - 8..];
    set(context, 1, 1, 1); // free
    set(context, 0x10, 1, 1); // may be changed so
    set(context, 0x16, 2, 1); // stands for pages
    set(context, 0x20, 24, 0xff_ffff);
    set(context, 0x68, 24, domain);
    set(context, 0x1a0, 32, LIST as u32);
    set(context, 0x1da, 6, PAGE_SHIFT);
    input
}

/// What makes a key for all memory in a domain, for its own queue pairs.
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
    fn two_pages_hold_any_stretch() {
        for (bytes, log) in [(0, 12), (1, 12), (4096, 12), (4097, 13), (1 << 20, 20), (3 << 20, 22)]
        {
            assert_eq!(shift(bytes), log);
            assert!(bytes <= 1 << log);
        }
    }
}
