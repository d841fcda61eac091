//! Constants of `ntb_transport` version 4 (Linux, `drivers/ntb/ntb_transport.c`).

pub const VERSION: u32 = 4;

/// Scratchpads, which each side writes at the other: version; bitmap of queues that are up; number of queues; number of
/// windows; bytes of each window, upper half first.
pub const PAD_VERSION: usize = 0;
pub const PAD_LINKS: usize = 1;
pub const PAD_QUEUES: usize = 2;
pub const PAD_WINDOWS: usize = 3;
pub const PAD_SIZES: usize = 4;

/// Bit of the queue that is used.
pub const QUEUE: u32 = 1;

/// Bytes of an entry (Linux: the parameter `transport_mtu`), the header at its end included.
pub const ENTRY: usize = 0x1_0000;
/// Header: number of the packet, bytes, flags, of 32 bits each.
pub const HEADER: usize = 12;
pub const NUMBER: usize = ENTRY - HEADER;
pub const LENGTH: usize = ENTRY - HEADER + 4;
pub const FLAGS: usize = ENTRY - HEADER + 8;
pub const DONE: u32 = 1;
pub const LINK_DOWN: u32 = 2;

/// Bytes after the entries of a window: the index of the last consumed entry of the other direction's window.
pub const CONSUMED: usize = 4;

/// Number of entries of a window of `bytes` bytes. None if it is too small for two, or not a multiple of 4.
pub fn entries(bytes: usize) -> Option<u32> {
    let entries = bytes.checked_sub(CONSUMED)? / ENTRY;
    (entries >= 2 && bytes.is_multiple_of(4)).then(|| u32::try_from(entries).ok())?
}
