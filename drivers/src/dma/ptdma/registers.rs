//! Registers in BAR 2, and layout of descriptors (Linux, `drivers/dma/ptdma/ptdma.h`). All registers have 32 bits.

/// Priority of the queue, IDs of requests, and timeout (0 for none).
pub const PRIORITY: usize = 0x0000;
pub const PRIORITY_LOWEST: u32 = 6;
pub const REQUEST_IDS: usize = 0x0004;
pub const TIMEOUT: usize = 0x0008;
/// Enabled queues, and clock gating.
pub const CONFIG: usize = 0x1120;
pub const CONFIG_ENABLE: u32 = 1;
pub const CLOCKS: usize = 0x6004;
pub const CLOCKS_REST: u32 = 0x1001;

/// The queue: control, with the upper half of the ring's address in its upper half.
pub const CONTROL: usize = 0x1000;
pub const RUN: u32 = 1;
/// log2 of the descriptors of a ring, minus 1, in bits 7 to 3.
pub const SIZE_SHIFT: u32 = 3;
/// Lower half of the address of the slot after the last descriptor (tail), and of the next descriptor to execute
/// (head).
pub const TAIL: usize = 0x1004;
pub const HEAD: usize = 0x1008;
/// Enabled interrupts.
pub const INTERRUPTS: usize = 0x100c;
/// Events, cleared by writing ones.
pub const EVENTS: usize = 0x1010;
pub const ERROR: u32 = 2;
pub const ALL_EVENTS: u32 = 0xf;

/// Bytes of registers that are used.
pub const SIZE: usize = 0x6008;

/// Bytes of a descriptor: control word, length, source (64 bits), target (64 bits), 8 unused bytes.
pub const DESCRIPTOR: usize = 32;
/// Control word of a copy: the "pass-through" engine, and end of message.
pub const COPY: u32 = 5 << 20 | 1 << 4;
