//! Registers of the physical function, as byte offsets in BAR 0 (Intel 82599 datasheet, chapter 8.2; Linux:
//! `drivers/net/ethernet/intel/ixgbe/ixgbe_type.h`).

pub const CTRL: u64 = 0x0000;
pub const CTRL_MASTER_DISABLE: u32 = 1 << 2;
/// Link reset, which also resets the device, and software reset.
pub const CTRL_RESETS: u32 = 1 << 3 | 1 << 26;
pub const STATUS: u64 = 0x0008;
pub const STATUS_MASTER_ENABLED: u32 = 1 << 19;
pub const ESDP: u64 = 0x0020;
/// The pin that turns the module's transmitter off.
pub const ESDP_LASER_OFF: u32 = 1 << 3;
pub const I2CCTL: u64 = 0x0028;
pub const EICR: u64 = 0x0800;
pub const EICS: u64 = 0x0808;
pub const EIAC: u64 = 0x0810;
pub const EIMS: u64 = 0x0880;
pub const EIMC: u64 = 0x0888;
pub const EIAM: u64 = 0x0890;
pub const GPIE: u64 = 0x0898;
pub const GPIE_MSIX: u32 = 1 << 4;
pub const GPIE_OTHER_CLEAR_DISABLE: u32 = 1 << 5;
pub const GPIE_AUTO_MASK: u32 = 1 << 30;
pub const IVAR: core::ops::Range<u64> = 0x0900..0x0a00;
pub const IVAR_MISC: u64 = 0x0a00;
/// Extended causes and masks, one bit a vector: two registers of each.
pub const EICS_EX: u64 = 0x0a90;
pub const EIMS_EX: u64 = 0x0aa0;
pub const EIMC_EX: u64 = 0x0ab0;
pub const EIAM_EX: u64 = 0x0ad0;
/// Queue registers: receive queues 0 to 63, receive queues 64 to 127, transmit queues.
pub const RECEIVE: u64 = 0x1000;
pub const RECEIVE_64: u64 = 0xd000;
pub const TRANSMIT: u64 = 0x6000;
/// Registers of queues 0 to 15 at the 82598's offsets.
pub const SRRCTL_82598: u64 = 0x2100;
pub const DCA_RXCTRL_82598: u64 = 0x2200;
pub const RDRXCTL: u64 = 0x2f00;
pub const RDRXCTL_CRC_STRIP: u32 = 1 << 1;
pub const RDRXCTL_DMA_INIT_DONE: u32 = 1 << 3;
pub const RXCTRL: u64 = 0x3000;
/// Size of the first of eight receive packet buffers: 512 KiB after a reset.
pub const RXPBSIZE: u64 = 0x3c00;
pub const PACKET_BUFFER: u32 = 512 << 10;
pub const HLREG0: u64 = 0x4240;
pub const HLREG0_CRC_STRIP: u32 = 1 << 1;
pub const HLREG0_JUMBO: u32 = 1 << 2;
pub const HLREG0_PAD: u32 = 1 << 10;
/// FCS is added and stripped, short frames are padded, lengths are checked.
pub const HLREG0_AFTER_RESET: u32 = 1 | HLREG0_CRC_STRIP | HLREG0_PAD | 1 << 27;
pub const MSCA: u64 = 0x425c;
pub const MSRWD: u64 = 0x4260;
pub const MAXFRS: u64 = 0x4268;
pub const AUTOC: u64 = 0x42a0;
pub const AUTOC_RESTART: u32 = 1 << 12;
pub const AUTOC_10G_SERIAL: u32 = 3 << 13;
pub const AUTOC_MODE: u32 = 7 << 13;
pub const LINKS: u64 = 0x42a4;
pub const LINKS_UP_AT_10G: u32 = 1 << 30 | 3 << 28;
pub const AUTOC2: u64 = 0x42a8;
pub const AUTOC2_SFI: u32 = 2 << 16;
pub const ANLP1: u64 = 0x42b0;
pub const DMATXCTL: u64 = 0x4a80;
pub const RXCSUM: u64 = 0x5000;
pub const RXCSUM_HASH: u32 = 1 << 13;
pub const FCTRL: u64 = 0x5080;
pub const FCTRL_MULTICAST: u32 = 1 << 8;
pub const FCTRL_UNICAST: u32 = 1 << 9;
pub const FCTRL_BROADCAST: u32 = 1 << 10;
pub const VLNCTRL: u64 = 0x5088;
pub const VLNCTRL_FILTER: u32 = 1 << 30;
pub const MCSTCTRL: u64 = 0x5090;
pub const MCSTCTRL_ENABLE: u32 = 1 << 2;
pub const MTA: u64 = 0x5200;
/// Receive addresses: 0 to 15 at the 82598's offset, then all 128.
pub const RAL_82598: core::ops::Range<u64> = 0x5400..0x5480;
pub const RAL: u64 = 0xa200;
pub const ADDRESSES: u64 = 128;
pub const RAH_VALID: u32 = 1 << 31;
pub const MRQC: u64 = 0x5818;
pub const RETA: u64 = 0x5c00;
pub const RSSRK: u64 = 0x5c80;
pub const VFTA: u64 = 0xa000;
pub const SECRXCTRL: u64 = 0x8d00;
pub const SECRXCTRL_DISABLE: u32 = 1 << 1;
pub const SECRXSTAT: u64 = 0x8d04;
pub const FDIRCTRL: u64 = 0xee00;
pub const FDIRCMD: u64 = 0xee2c;
pub const EEC: u64 = 0x1_0010;
/// The EEPROM is present and has 2^(3 + 6) words.
pub const EEC_PRESENT: u32 = 1 << 8 | 3 << 11;
pub const EEC_READ: u32 = 1 << 9;
pub const EERD: u64 = 0x1_0014;
pub const SWSM: u64 = 0x1_0140;
pub const FWSM: u64 = 0x1_0148;
pub const SW_FW_SYNC: u64 = 0x1_0160;
pub const FLEX_MNG: core::ops::Range<u64> = 0x1_5800..0x1_5f00;
pub const HICR: u64 = 0x1_5f00;
