//! Registers in BAR 0 (Linux, `drivers/ntb/hw/amd/ntb_hw_amd.h`). The registers from 0x400 are this side's bank; the
//! other side's bank follows at [`PEER`] bytes further.

/// Control (32 bits): enables both sides' windows.
pub const CONTROL: usize = 0x200;
pub const CONTROL_ENABLE: u32 = 1 << 20 | 1 << 21;

/// Scratchpads (32 bits each): those of the primary side, then those of the secondary side.
pub const SCRATCHPADS: usize = 0x210;
pub const SCRATCHPAD_COUNT: usize = 8;

/// Offset of the other side's bank from this side's.
pub const PEER: usize = 0x400;

/// Side of a bank, and the ready bit of its software (32 bits).
pub const SIDE: usize = 0x408;
pub const SECONDARY: u32 = 1;
pub const READY: u32 = 2;

/// Limit in bytes and translation of the window behind BAR 2 (64 bits each). Those in the other side's bank lead to
/// this side's memory.
pub const LIMIT: usize = 0x418;
pub const TRANSLATION: usize = 0x438;
/// Limit and translation of the window behind BAR 4.
pub const SECOND_LIMIT: usize = 0x420;
pub const SECOND_TRANSLATION: usize = 0x440;

/// Doorbells (16 bits each): rings the other side's; masks this side's; this side's that were rung, cleared by writing
/// ones.
pub const PEER_BELL: usize = 0x454;
pub const BELLS_MASKED: usize = 0x45c;
pub const BELLS: usize = 0x460;
/// The doorbell for data, and the doorbell that announces the end of a driver.
pub const BELL: u16 = 1;
pub const GONE: u16 = 1 << 15;

/// Events (32 bits each): mask; events that have occurred, cleared by writing ones.
pub const EVENTS_MASKED: usize = 0x470;
pub const EVENTS: usize = 0x474;
pub const ALL_EVENTS: u32 = 0x7f;
/// Events of a link that goes down, and of a link that comes up.
pub const DOWN: u32 = 0x02 | 0x04 | 0x08 | 0x40;
pub const UP: u32 = 0x10 | 0x20;

/// Acknowledges events to the system management unit (32 bits).
pub const ACKNOWLEDGE: usize = 0x4a0;

/// Bytes of registers that are used.
pub const SIZE: usize = 0xc00;

/// PCI Express capability; link status is in the upper half of its word at this offset.
pub const EXPRESS: u8 = 0x10;
pub const LINK_STATUS: u16 = 0x10;
