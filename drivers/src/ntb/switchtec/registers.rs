//! Registers in BAR 0 (Linux, `include/linux/switchtec.h`).

/// This host's partition (8 bits).
pub const PARTITION: usize = 0x2018;

/// Number of partitions (8 bits); bitmap of the bridge's partitions (64 bits, not aligned); the host's requester ID (16
/// bits); targets of each partition: flags, lower and upper half of a bitmap, and a word.
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

/// Control blocks of the partitions, for the translation of their windows.
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
/// Flags of the partition: requester ID protection is disabled.
pub const FLAGS: usize = 0x08;
pub const UNPROTECTED: u32 = 1;
/// Number of entries of the lookup table, and of the requester table (16 bits each).
pub const ENTRY_COUNT: usize = 0x14;
pub const REQUESTER_COUNT: usize = 0x1c;
/// BAR 2: control (32 bits), size (32 bits), translation (64 bits).
pub const WINDOW: usize = 0x60;
pub const WINDOW_VALID: u32 = 0x01;
pub const WINDOW_DIRECT: u32 = 0x10;
pub const WINDOW_LOOKED_UP: u32 = 0x20;
/// Fields of the control: bits to keep; log2 of an entry's bytes; entries minus one.
pub const WINDOW_KEPT: u32 = 0xff;
pub const ENTRY_LOG2_SHIFT: u32 = 8;
pub const ENTRIES_SHIFT: u32 = 14;
pub const WINDOW_SIZE: usize = 0x64;
pub const WINDOW_TRANSLATION: usize = 0x68;
/// Table of admitted requester IDs (32 bits each).
pub const REQUESTERS: usize = 0x400;
pub const REQUESTER_ENABLE: u32 = 1;
/// The lookup table (64 bits each).
pub const TABLE: usize = 0x1000;
pub const ENTRY_ENABLE: u64 = 1;

/// Doorbells and messages of a partition.
pub const BELLS: usize = 0x7_4000;
pub const BELLS_SIZE: usize = 0x4000;
/// Doorbells (64 bits each): to ring, and their enable bits; rung by the peer, cleared by writing ones, and their
/// interrupt enable bits.
pub const OUT: usize = 0x1000;
pub const OUT_ENABLED: usize = 0x1008;
pub const IN: usize = 0x1010;
pub const IN_ENABLED: usize = 0x1018;
/// Vector of each of 64 doorbells (8 bits each).
pub const VECTORS: usize = 0x1020;
pub const BELL_COUNT: usize = 64;
/// Source of each of four incoming messages: partition and number of its outgoing message (8 bits each).
pub const MESSAGE_MAP: usize = 0x1060;
/// The first outgoing message (32 bits); the first incoming message: value (32 bits), and its pending bit (8 bits).
pub const MESSAGE_OUT: usize = 0x1068;
pub const MESSAGE_IN: usize = 0x1088;
pub const MESSAGE_ARRIVED: usize = 0x108c;
/// Shift of the doorbells of the partition with the higher number.
pub const UPPER: u32 = 32;

/// Registers of a partition's endpoint: link status of PCI Express, in the upper half of a word.
pub const FUNCTIONS: usize = 0x13_4000;
pub const FUNCTION_SIZE: usize = 0x1000;
pub const LINK_STATUS: usize = 0x74;
/// Number of the endpoint's function, for each partition.
pub const ENDPOINT: usize = 0x4014;
pub const ENDPOINT_SIZE: usize = 0x400;

/// Bytes of registers that are used, and of a lookup window.
pub const SIZE: usize = 0x13_4000 + 255 * FUNCTION_SIZE;
pub const LOOKED_UP: usize = 64 << 10;
