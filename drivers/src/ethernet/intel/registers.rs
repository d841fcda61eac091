//! Common registers of the 82574 and the 82576, as byte offsets in BAR 0: little-endian, 32 bits (Intel 82574
//! datasheet, chapter 10; Intel 82576 datasheet, chapter 8). Those of queue 0 have the same offsets in a virtual
//! function (82576, 9.7).

use crate::hal::Registers;

/// Device control.
pub const CTRL: usize = 0x0000;
pub const CTRL_SET_LINK_UP: u32 = 1 << 6;
pub const CTRL_MASTER_DISABLE: u32 = 1 << 2;
pub const CTRL_RESET: u32 = 1 << 26;
/// Not used: forced speed and duplex, flow control, stripping of VLAN tags.
pub const CTRL_NEVER: u32 = 1 << 11 | 1 << 12 | 1 << 27 | 1 << 28 | 1 << 30;
/// Device status.
pub const STATUS: usize = 0x0008;
pub const STATUS_LINK_UP: u32 = 1 << 1;
pub const STATUS_MASTER_ENABLED: u32 = 1 << 19;
/// EEPROM control.
pub const EECD: usize = 0x0010;
pub const EECD_AUTO_READ: u32 = 1 << 9;
/// EEPROM read.
pub const EERD: usize = 0x0014;
pub const EERD_START: u32 = 1;
pub const EERD_DONE: u32 = 1 << 1;
/// Extended device control.
pub const CTRL_EXT: usize = 0x0018;
/// A driver controls the card, not the management firmware.
pub const CTRL_EXT_DRIVER_LOADED: u32 = 1 << 28;
/// Access to registers of the PHY.
pub const MDIC: usize = 0x0020;
/// Write, to PHY 1.
pub const MDIC_WRITE: u32 = 1 << 26 | 1 << 21;
pub const MDIC_READY: u32 = 1 << 28;
/// Interrupt causes.
pub const ICR: usize = 0x00c0;
/// Interrupt mask: set.
pub const IMS: usize = 0x00d0;
/// Interrupt mask: clear.
pub const IMC: usize = 0x00d8;
pub const CAUSE_TRANSMITTED: u32 = 1;
pub const CAUSE_RECEIVED: u32 = 1 << 7;
/// Receive control.
pub const RCTL: usize = 0x0100;
pub const RCTL_ENABLE: u32 = 1 << 1;
pub const RCTL_ALL_MULTICAST: u32 = 1 << 4;
pub const RCTL_LONG_PACKETS: u32 = 1 << 5;
pub const RCTL_BROADCAST: u32 = 1 << 15;
pub const RCTL_STRIP_CRC: u32 = 1 << 26;
/// Transmit control.
pub const TCTL: usize = 0x0400;
pub const TCTL_ENABLE: u32 = 1 << 1;
pub const TCTL_PAD: u32 = 1 << 3;
/// Collision threshold and distance, as the datasheets advise.
pub const TCTL_COLLISIONS: u32 = 15 << 4 | 63 << 12;
/// Receive queue 0: see [`give_ring`].
pub const RDBAL: usize = 0x2800;
pub const RDT: usize = RDBAL + TAIL;
pub const RXDCTL: usize = RDBAL + CONTROL;
/// Transmit queue 0.
pub const TDBAL: usize = 0x3800;
pub const TDT: usize = TDBAL + TAIL;
pub const TXDCTL: usize = TDBAL + CONTROL;
/// Registers of a queue, from its base.
pub const TAIL: usize = 0x18;
pub const CONTROL: usize = 0x28;
/// Counters of frames with a wrong CRC, and with other errors; cleared by reading.
pub const DAMAGED: [usize; 2] = [0x4000, 0x400c];
/// Counter of frames without a buffer; cleared by reading.
pub const MPC: usize = 0x4010;
/// Descriptor error bits: CRC, symbol, sequence, carrier extension, any error of the MAC.
pub const DAMAGE: u32 = 1 << 24 | 1 << 25 | 1 << 26 | 1 << 28 | 1 << 31;
/// Receive checksum control.
pub const RXCSUM: usize = 0x5000;
pub const RXCSUM_NO_PACKET_CHECKSUM: u32 = 1 << 13;
/// Hash that chooses a receive queue: redirection table, key, and control register.
pub const HASH: [usize; 3] = [0x5c00, 0x5c80, 0x5818];
/// Multicast table, 128 registers.
pub const MTA: usize = 0x5200;
/// Receive address 0.
pub const RAL: usize = 0x5400;
pub const RAH: usize = 0x5404;
pub const RAH_VALID: u32 = 1 << 31;

/// Value of registers of an absent device.
pub const ALL_ONES: u32 = u32::MAX;

/// Sets `set` in a register and clears `clear`.
pub fn change(registers: &dyn Registers, at: usize, clear: u32, set: u32) {
    registers.write32(at, registers.read32(at) & !clear | set);
}

/// Writes address (two registers) and length in bytes of an empty ring to its queue's registers from `at` on. Head and
/// tail, at 0x10 and 0x18, become 0.
pub fn give_ring(registers: &dyn Registers, at: usize, address: u64, bytes: u32) {
    registers.write32(at, address as u32);
    registers.write32(at + 4, (address >> 32) as u32);
    registers.write32(at + 8, bytes);
    registers.write32(at + 0x10, 0);
    registers.write32(at + 0x18, 0);
}
