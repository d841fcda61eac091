//! Registers of the engine and of its channels, and layout of descriptors (Linux,
//! `drivers/dma/ioat/{registers,hw}.h`).

/// Channels (8 bits).
pub const CHANNEL_COUNT: usize = 0x00;
/// log2 of the most bytes of a descriptor (8 bits).
pub const TRANSFER_CAP: usize = 0x01;
/// Interrupt control (8 bits).
pub const INTERRUPT_CONTROL: usize = 0x03;
/// Version, major and minor of 4 bits each (8 bits).
pub const VERSION: usize = 0x08;

/// Bytes of registers of a channel; those of the engine come before the first.
pub const CHANNEL: usize = 0x80;

// Registers of a channel, from the channel's first.
/// Control (16 bits).
pub const CONTROL: usize = 0x00;
/// Commands (8 bits).
pub const COMMAND: usize = 0x04;
/// Descriptors submitted since the chain's address was written, modulo 2^16 (16 bits).
pub const COUNT: usize = 0x06;
/// Address of the last completed descriptor, and the state (64 bits).
pub const STATUS: usize = 0x08;
/// Address of the first descriptor (64 bits).
pub const CHAIN: usize = 0x10;
/// Address in memory for completions (64 bits).
pub const COMPLETION: usize = 0x18;
/// Errors (32 bits), cleared by writing ones.
pub const ERRORS: usize = 0x28;

/// Latency Tolerance Reporting of version 3.4: selection (8 bits; 0: active), and the values of an active and of an idle
/// channel (32 bits each). They lie behind the channel's other registers, so the engine's mapping reaches them.
pub const LTR_SELECT: usize = 0xbc;
pub const LTR_ACTIVE: usize = 0xc0;
pub const LTR_IDLE: usize = 0xc4;
/// Values of Linux (`ioat_alloc_chan_resources`): 0 us while active, 600 us while idle.
pub const LTR_ACTIVE_VALUE: u32 = 0x8800;
pub const LTR_IDLE_VALUE: u32 = 0x8a58;

/// CONTROL: a completion is written at an error, and any error ends the chain. No interrupts.
pub const RUN: u16 = 4 | 8;

pub const SUSPEND: u8 = 0x04;
pub const RESET: u8 = 0x20;

// STATUS, and the completion in memory.
pub const STATE: u64 = 7;
pub const ACTIVE: u64 = 0;
pub const DONE: u64 = 1;
pub const HALTED: u64 = 3;
/// Bits of the address.
pub const ADDRESS: u64 = !0x3f;

/// Bytes of a descriptor: size and control, source, target, the next one's address.
pub const DESCRIPTOR: usize = 64;
/// Control of a descriptor, in the upper half of its first word.
pub const WRITE_COMPLETION: u64 = 1 << (32 + 3);
pub const FENCE: u64 = 1 << (32 + 4);
pub const NULL: u64 = 1 << (32 + 5);

/// Description of the lowest bit in [`ERRORS`].
pub fn error_name(errors: u32) -> &'static str {
    match errors.trailing_zeros() {
        0 => "source address",
        1 => "target address",
        2 => "address of the next descriptor",
        3 => "alignment of a descriptor",
        4 => "address of the chain",
        5 => "command",
        8 => "reading data",
        9 => "writing data",
        10 => "control word of a descriptor",
        11 => "length of a copy",
        12 => "address of the completion",
        32 => "no error named",
        _ => "hardware",
    }
}
