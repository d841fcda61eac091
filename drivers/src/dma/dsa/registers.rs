//! Registers of the engine (BAR 0), and layout of descriptors and completion records (Linux,
//! `drivers/dma/idxd/registers.h`, `include/uapi/linux/idxd.h`).

/// Version, major in bits 15:8 (32 bits).
pub const VERSION: usize = 0x00;
/// Capabilities (64 bits each): general, queues, groups, engines, operations.
pub const GENERAL: usize = 0x10;
pub const QUEUES: usize = 0x20;
pub const GROUPS: usize = 0x30;
pub const ENGINES: usize = 0x38;
pub const OPERATIONS: usize = 0x40;
/// Offsets of the tables of groups and queues, in units of [`TABLE_UNIT`] (16 bits each).
pub const TABLES: usize = 0x60;
pub const TABLE_UNIT: usize = 0x100;
/// Interrupt control (32 bits).
pub const CONTROL: usize = 0x88;
/// State (32 bits).
pub const STATE: usize = 0x90;
/// Command (32 bits): the command in bits 24:20, its operand in 19:0. Status of the last command (32 bits).
pub const COMMAND: usize = 0xa0;
pub const COMMAND_STATUS: usize = 0xa8;

// GENERAL.
pub const LONGEST_SHIFT: u32 = 16;
pub const BATCH_SHIFT: u32 = 21;
/// The tables can be written.
pub const CONFIGURABLE: u64 = 1 << 31;
// QUEUES.
pub const QUEUE_COUNT_SHIFT: u32 = 16;
/// log2 of the bytes of a queue's entry in its table, less 5.
pub const QUEUE_ENTRY_SHIFT: u32 = 24;
pub const DEDICATED: u64 = 1 << 49;
pub const TRANSLATES: u64 = 1 << 50;
pub const LIMITS_OPERATIONS: u64 = 1 << 54;

// STATE.
pub const STATE_BITS: u32 = 3;
pub const HALTED: u32 = 3;
/// The reset that a halted device asks for: by command, of the function, of the machine (2 and 3).
pub const RESET_SHIFT: u32 = 2;
pub const RESET_BITS: u32 = 3;
pub const RESET_BY_COMMAND: u32 = 0;
pub const RESET_OF_FUNCTION: u32 = 1;

// COMMAND and COMMAND_STATUS.
pub const COMMAND_SHIFT: u32 = 20;
pub const ENABLE_DEVICE: u32 = 1;
pub const RESET_DEVICE: u32 = 5;
pub const ENABLE_QUEUE: u32 = 6;
pub const ABORT_QUEUE: u32 = 9;
pub const ACTIVE: u32 = 1 << 31;
pub const COMMAND_ERROR: u32 = 0xff;

/// Bytes of a group's entry: its queues (4 words of 64 bits), engines, and flags.
pub const GROUP_ENTRY: usize = 64;
pub const GROUP_ENGINES: usize = 32;
pub const GROUP_FLAGS: usize = 40;
/// Read buffers that a group may use.
pub const READ_BUFFERS_SHIFT: u32 = 20;

/// Words (32 bits) of a queue's entry: size, mode, limits, supported operations.
pub const QUEUE_SIZE: usize = 0;
pub const QUEUE_MODE: usize = 8;
pub const QUEUE_LIMITS: usize = 12;
pub const QUEUE_OPERATIONS: usize = 32;
pub const MODE_DEDICATED: u32 = 1;
pub const MODE_NO_TRANSLATION: u32 = 4;
pub const PRIORITY_SHIFT: u32 = 4;
pub const QUEUE_BATCH_SHIFT: u32 = 5;

/// Bytes of a queue's portals in BAR 2, and offset of the portal that Linux's kernel uses.
pub const PORTALS: u64 = 4 * PORTAL;
pub const PORTAL: u64 = 4096;

/// Bytes of a descriptor, and of a record.
pub const DESCRIPTOR: usize = 64;
pub const RECORD: usize = 32;

pub const BATCH: u64 = 1;
pub const COPY: u64 = 3;

/// Flags: earlier descriptors of the batch complete before this one begins; a record is written on success and failure;
/// writes are seen in order.
pub const FENCE: u64 = 1;
pub const RECORDED: u64 = 4 | 8;
pub const ORDERED: u64 = 0x2000;

/// Status: the first byte of a record.
pub const STATUS: u32 = 0x7f;
pub const SUCCESS: u32 = 1;

/// The first word of a descriptor.
pub const fn operation(operation: u64, flags: u64) -> u64 {
    (flags | operation << 24) << 32
}
