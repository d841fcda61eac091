//! Registers in BAR 0 (Linux, `drivers/ntb/hw/amd/ntb_hw_amd.h`). Those from 0x400 on are once more, of the other side,
//! [`PEER`] bytes further.

/// Control (32 bits): both sides' windows are on.
pub const CONTROL: usize = 0x200;
pub const CONTROL_ENABLE: u32 = 1 << 20 | 1 << 21;

/// Scratchpads of both sides (32 bits each): those of the primary side, then those of the secondary.
pub const SCRATCHPADS: usize = 0x210;
pub const SCRATCHPAD_COUNT: usize = 8;

/// How far the other side's registers are from ours.
pub const PEER: usize = 0x400;

/// Which side it is, and whether its software is ready (32 bits).
pub const SIDE: usize = 0x408;
pub const SECONDARY: u32 = 1;
pub const READY: u32 = 2;

/// Bytes and translation of the window behind BAR 2 (64 bits each); those of the other side's bank lead to us.
pub const LIMIT: usize = 0x418;
pub const TRANSLATION: usize = 0x438;
/// The same behind BAR 4.
pub const SECOND_LIMIT: usize = 0x420;
pub const SECOND_TRANSLATION: usize = 0x440;

/// Rings bells of the other side (16 bits); bells that do not interrupt, and that were rung, cleared by writing ones.
pub const PEER_BELL: usize = 0x454;
pub const BELLS_MASKED: usize = 0x45c;
pub const BELLS: usize = 0x460;
/// The bell that we use, and the one by which a driver says that it goes.
pub const BELL: u16 = 1;
pub const GONE: u16 = 1 << 15;

/// Events that do not interrupt (32 bits), and that have occurred, cleared by writing ones.
pub const EVENTS_MASKED: usize = 0x470;
pub const EVENTS: usize = 0x474;
pub const ALL_EVENTS: u32 = 0x7f;
/// Events that say that nobody is reached, and that somebody is again.
pub const DOWN: u32 = 0x02 | 0x04 | 0x08 | 0x40;
pub const UP: u32 = 0x10 | 0x20;

/// Acknowledges events to the system management unit (32 bits).
pub const ACKNOWLEDGE: usize = 0x4a0;

/// Bytes of registers that are used.
pub const SIZE: usize = 0xc00;

/// Capability of PCI Express; link status is in the upper half of a word of it.
pub const EXPRESS: u8 = 0x10;
pub const LINK_STATUS: u16 = 0x10;
