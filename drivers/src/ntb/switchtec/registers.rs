//! Registers in BAR 0 (Linux, `include/linux/switchtec.h`).

/// The partition that this host is at (8 bits).
pub const PARTITION: usize = 0x2018;

/// Partitions there are (8 bits), which of them are the bridge's (64 bits, not aligned), the host's requester id (16 bits),
/// and for each partition its targets: flags, lower and upper half of a map, and a word.
pub const PARTITION_COUNT: usize = 0x1_0000;
pub const BRIDGE_PARTITIONS: usize = 0x1_0004;
pub const REQUESTER: usize = 0x1_000c;
pub const TARGETS: usize = 0x1_0020;
pub const TARGETS_SIZE: usize = 16;
pub const TARGETS_LOW: usize = 4;
pub const TARGETS_HIGH: usize = 8;
pub const CROSSLINK: u8 = 1;
/// Most partitions.
pub const MOST_PARTITIONS: usize = 48;

/// Control of where a partition's windows lead, one block for each.
pub const CONTROL: usize = 0x1_4000;
pub const CONTROL_SIZE: usize = 0x2000;
/// Status and operation (32 bits each).
pub const STATUS: usize = 0x00;
pub const OPERATION: usize = 0x04;
pub const LOCK: u32 = 1;
pub const CONFIGURE: u32 = 2;
pub const NORMAL: u32 = 1;
pub const LOCKED: u32 = 2;
pub const LOCKING: u32 = 3;
pub const CONFIGURING: u32 = 4;
/// Flags of the partition: requesters are not told apart.
pub const FLAGS: usize = 0x08;
pub const UNPROTECTED: u32 = 1;
/// Entries of the table for lookups (16 bits), and places for requester ids (16 bits).
pub const ENTRY_COUNT: usize = 0x14;
pub const REQUESTER_COUNT: usize = 0x1c;
/// Of BAR 2: control, size, translation (64 bits).
pub const WINDOW: usize = 0x60;
pub const WINDOW_VALID: u32 = 0x01;
pub const WINDOW_DIRECT: u32 = 0x10;
pub const WINDOW_LOOKED_UP: u32 = 0x20;
/// What of the control is kept; log2 of an entry's bytes; entries minus one.
pub const WINDOW_KEPT: u32 = 0xff;
pub const ENTRY_LOG2_SHIFT: u32 = 8;
pub const ENTRIES_SHIFT: u32 = 14;
pub const WINDOW_SIZE: usize = 0x64;
pub const WINDOW_TRANSLATION: usize = 0x68;
/// Requester ids that are let through (32 bits each).
pub const REQUESTERS: usize = 0x400;
pub const REQUESTER_ENABLE: u32 = 1;
/// The table for lookups (64 bits each).
pub const TABLE: usize = 0x1000;
pub const ENTRY_ENABLE: u64 = 1;

/// Bells and messages of a partition.
pub const BELLS: usize = 0x7_4000;
pub const BELLS_SIZE: usize = 0x4000;
/// Bells to ring, and which of them leave (64 bits); bells that were rung, cleared by writing ones, and which interrupt.
pub const OUT: usize = 0x1000;
pub const OUT_ENABLED: usize = 0x1008;
pub const IN: usize = 0x1010;
pub const IN_ENABLED: usize = 0x1018;
/// Vector of each of 64 bells (8 bits each).
pub const VECTORS: usize = 0x1020;
pub const BELL_COUNT: usize = 64;
/// Which message of which partition arrives at each of four places (8 bits each).
pub const MESSAGE_MAP: usize = 0x1060;
/// The first message that is sent (32 bits), and that has arrived: value, and whether it was not taken (8 bits).
pub const MESSAGE_OUT: usize = 0x1068;
pub const MESSAGE_IN: usize = 0x1088;
pub const MESSAGE_ARRIVED: usize = 0x108c;
/// Bells of the partition with the higher number are the upper ones.
pub const UPPER: u32 = 32;

/// Registers of a partition's endpoint: link status of PCI Express, in the upper half of a word.
pub const FUNCTIONS: usize = 0x13_4000;
pub const FUNCTION_SIZE: usize = 0x1000;
pub const LINK_STATUS: usize = 0x74;
/// Which function that is: one for each partition.
pub const ENDPOINT: usize = 0x4014;
pub const ENDPOINT_SIZE: usize = 0x400;

/// Bytes of registers that are used, and of a window by lookup.
pub const SIZE: usize = 0x13_4000 + 255 * FUNCTION_SIZE;
pub const LOOKED_UP: usize = 64 << 10;
