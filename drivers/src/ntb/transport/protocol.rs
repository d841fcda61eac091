//! Numbers of `ntb_transport` version 4 (Linux, `drivers/ntb/ntb_transport.c`).

pub const VERSION: u32 = 4;

/// Scratchpads that each side writes at the other: version, queues that are up (a bit each), how many queues and windows
/// there are, and the bytes of each window, upper half first.
pub const PAD_VERSION: usize = 0;
pub const PAD_LINKS: usize = 1;
pub const PAD_QUEUES: usize = 2;
pub const PAD_WINDOWS: usize = 3;
pub const PAD_SIZES: usize = 4;

/// The queue that we use, as a bit.
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

/// Behind the entries of a window: the last entry that was consumed of the window the other way.
pub const CONSUMED: usize = 4;

/// Entries of a window of so many bytes; None if it is too small for two, or its words are not aligned.
pub fn entries(bytes: usize) -> Option<u32> {
    let entries = bytes.checked_sub(CONSUMED)? / ENTRY;
    (entries >= 2 && bytes.is_multiple_of(4)).then(|| u32::try_from(entries).ok())?
}
