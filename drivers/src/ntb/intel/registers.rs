//! Registers in BAR 0 and in configuration space (Linux, `drivers/ntb/hw/intel/ntb_hw_gen3.h`).

/// Control (32 bits): what locks the secondary side, and disables the link.
pub const CONTROL: usize = 0x0000;
pub const CONTROL_LOCK: u32 = 1 << 0;
pub const CONTROL_DISABLE: u32 = 1 << 1;
/// Caches are snooped, for both windows and both ways.
pub const CONTROL_SNOOP: u32 = 0x154;

/// Where accesses through the peer's first window end (64 bits), and up to which address of our BAR 2.
pub const TRANSLATION: usize = 0x0010;
pub const LIMIT: usize = 0x0018;
/// The same of the second window.
pub const SECOND_TRANSLATION: usize = 0x0020;
pub const SECOND_LIMIT: usize = 0x0028;
/// The limits once more, as addresses of the secondary side's BARs.
pub const OUTER_LIMIT: usize = 0x4018;
/// Command register of the secondary side (16 bits), and its first window's BAR.
pub const OUTER_COMMAND: usize = 0x4504;
pub const OUTER_BAR: usize = 0x4518;
/// Memory and bus master, as in configuration space.
pub const OUTER_ENABLE: u16 = 2 | 4;

/// Bells that were rung (64 bits), cleared by writing ones; and which do not interrupt.
pub const BELLS: usize = 0x0040;
pub const BELLS_MASKED: usize = 0x0048;
/// The bell that we use, and the one that tells of the link.
pub const BELL: u64 = 1 << 0;
pub const LINK_BELL: u64 = 1 << 32;
/// All bells that can be masked.
pub const ALL_BELLS: u64 = 0xffff_ffff;

/// Our scratchpads (32 bits each), and the peer's.
pub const SCRATCHPADS: usize = 0x0080;
pub const PEER_SCRATCHPADS: usize = 0x0180;
pub const SCRATCHPAD_COUNT: usize = 16;

/// Vector of each of 33 bells (8 bits each).
pub const VECTORS: usize = 0x00d0;
pub const BELL_COUNT: usize = 33;

/// Rings the peer's first bell (32 bits).
pub const PEER_BELL: usize = 0x0100;

/// Bytes of registers that are used.
pub const SIZE: usize = 0x4600;

// Configuration space.
/// What the port is, and which of the two machines this is.
pub const PORT_DEFINITION: u16 = 0xd4;
pub const CONNECTION: u32 = 0x03;
pub const BACK_TO_BACK: u32 = 1;
pub const DOWNSTREAM: u32 = 0x10;
/// State of the link, in the upper half of a word.
pub const LINK_STATUS: u16 = 0x1a0;
pub const LINK_ACTIVE: u32 = 0x2000;
pub const LINK_SPEED: u32 = 0xf;
pub const LINK_WIDTH: u32 = 0x3f0;
