//! Registers in BAR 0 and in configuration space (Linux, `drivers/ntb/hw/intel/ntb_hw_gen{3,4}.h`).

/// A generation of the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// Skylake.
    Third,
    /// The fourth, in Ice Lake.
    IceLake,
    /// The fourth, in Sapphire Rapids and Granite Rapids.
    SapphireRapids,
    /// The fourth, in Diamond Rapids: the port's control is elsewhere.
    DiamondRapids,
}

impl Generation {
    /// Bytes of registers that are used.
    pub fn registers(self) -> usize {
        match self {
            Generation::Third => 0x4600,
            Generation::DiamondRapids => 0xf500,
            _ => 0xb500,
        }
    }

    /// Control of the port (PPD0) in the fourth generation.
    pub fn port_control(self) -> usize {
        if self == Generation::DiamondRapids { 0xf0d4 } else { 0xb0d4 }
    }

    /// Vector of each of 33 doorbells (8 bits each).
    pub fn vectors(self) -> usize {
        match self {
            Generation::Third => 0x00d0,
            _ => 0x0050,
        }
    }

    /// The peer's scratchpads.
    pub fn peer_scratchpads(self) -> usize {
        match self {
            Generation::Third => 0x0180,
            _ => 0x8080,
        }
    }
}

/// Control (32 bits): locks the secondary side, disables the link.
pub const CONTROL: usize = 0x0000;
pub const CONTROL_LOCK: u32 = 1 << 0;
pub const CONTROL_DISABLE: u32 = 1 << 1;
/// Snoops caches for both windows in both directions.
pub const CONTROL_SNOOP: u32 = 0x154;

/// Target of accesses through the peer's first window, and their limit as an address of this side's BAR 2 (64 bits
/// each).
pub const TRANSLATION: usize = 0x0010;
pub const LIMIT: usize = 0x0018;
/// Target and limit of the second window.
pub const SECOND_TRANSLATION: usize = 0x0020;
pub const SECOND_LIMIT: usize = 0x0028;
/// Limit of the first window as an address of the secondary side's BAR.
pub const OUTER_LIMIT: usize = 0x4018;
/// Command register of the secondary side (16 bits), and its first window's BAR.
pub const OUTER_COMMAND: usize = 0x4504;
pub const OUTER_BAR: usize = 0x4518;
/// Memory and bus master, as in configuration space.
pub const OUTER_ENABLE: u16 = 2 | 4;

/// Doorbells (64 bits each): those that were rung, cleared by writing ones; mask.
pub const BELLS: usize = 0x0040;
pub const BELLS_MASKED: usize = 0x0048;
/// The doorbell for data, and the doorbell of link changes.
pub const BELL: u64 = 1 << 0;
pub const LINK_BELL: u64 = 1 << 32;
/// All doorbells that can be masked.
pub const ALL_BELLS: u64 = 0xffff_ffff;

/// This side's scratchpads (32 bits each).
pub const SCRATCHPADS: usize = 0x0080;
pub const SCRATCHPAD_COUNT: usize = 16;

/// Number of doorbells that have a vector.
pub const BELL_COUNT: usize = 33;

/// Rings the peer's first doorbell (32 bits).
pub const PEER_BELL: usize = 0x0100;

// Configuration space.
/// Use of the port, and its side.
pub const PORT_DEFINITION: u16 = 0xd4;
pub const CONNECTION: u32 = 0x03;
pub const BACK_TO_BACK: u32 = 1;
pub const DOWNSTREAM: u32 = 0x10;
/// Link status, in the upper half of a word.
pub const LINK_STATUS: u16 = 0x1a0;
pub const LINK_ACTIVE: u32 = 0x2000;
pub const LINK_SPEED: u32 = 0xf;
pub const LINK_WIDTH: u32 = 0x3f0;

// The fourth generation.
/// Revision, in the lower byte of a word of configuration space.
pub const REVISION: u16 = 0x08;
/// log2 of the bytes of a translation (16 bits), in Ice Lake.
pub const TRANSLATION_INDEX: usize = 0x0074;
/// Latency tolerance reporting (LTR) for snooped and other accesses: selector of the reported value (8 bits), value
/// while active, value while idle. Values of Linux (`NTB_LTR_*`).
pub const LATENCY_SELECT: usize = 0x30ec;
pub const LATENCY_IS_ACTIVE: u8 = 0;
pub const LATENCY_ACTIVE: usize = 0x30f0;
pub const LATENCY_ACTIVE_VALUE: u32 = 0x8800_8800;
pub const LATENCY_IDLE: usize = 0x30f4;
pub const LATENCY_IDLE_VALUE: u32 = 0x8a58_8a58;
/// Link control, link status, and slot status, cleared by writing ones (16 bits each).
pub const LINK_CONTROL: usize = 0xb050;
pub const LINK_DISABLE: u16 = 0x10;
pub const LINK_STATUS_4: usize = 0xb052;
pub const SLOT_STATUS: usize = 0xb05a;
pub const LINK_CHANGED: u16 = 0x100;
/// Bit of the port's control (PPD0), and the port's definition (PPD1).
pub const START_TRAINING: u32 = 8;
pub const PORT_DEFINITION_4: usize = 0xb4c0;
pub const CONNECTION_4: u32 = 0x700;
pub const BACK_TO_BACK_4: u32 = 0x200;
pub const DOWNSTREAM_ICE_LAKE: u32 = 0x1000;
pub const DOWNSTREAM_4: u32 = 0x4000;
