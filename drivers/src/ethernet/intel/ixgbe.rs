//! 82599 (`ixgbe` of Linux): up to eight of its queues, advanced descriptors, MSI-X or MSI. SR-IOV stays disabled.
//! Link, module and lanes are used as the EEPROM has configured them.

use super::Error;
use super::chip::{self, Causes, Chip, EEPROM_TIMEOUT, Mode, Model, Setup};
use super::receive::BUFFER;
use super::registers::{self as r, ALL_ONES, change};
use super::transmit::Format;
use crate::hal::Registers;
use alloc::boxed::Box;
use core::time::Duration;

/// Intel's PCI device IDs: 82599 with a cage for a module.
pub const DEVICES: [u16; 6] = [0x10fb, 0x1529, 0x1507, 0x154d, 0x154a, 0x1557];

const LAN_ID: u32 = 3 << 2;
const CTRL_EXT_NO_SNOOP_DISABLE: u32 = 1 << 16;
const ESDP: usize = 0x0020;
/// Pin that disables the transmitter of a module.
const LASER_OFF: u32 = 1 << 3;
const MULTICAST_CONTROL: usize = 0x5090;
const MTA: usize = 0x5200;
const RAL: usize = 0xa200;
const FCTRL: usize = 0x5080;
/// All of multicast, and broadcast.
const FCTRL_VALUE: u32 = 1 << 8 | 1 << 10;
const HLREG0: usize = 0x4240;
/// FCS is generated and stripped, jumbo frames are enabled, short frames are padded.
const HLREG0_SET: u32 = 1 | 1 << 1 | 1 << 2 | 1 << 10;
const MAXFRS: usize = 0x4268;
const AUTOC: usize = 0x42a0;
const AUTOC_RESTART: u32 = 1 << 12;
const LINKS: usize = 0x42a4;
pub const LINK_UP: u32 = 1 << 30;
const RDRXCTL: usize = 0x2f00;
const DMA_INIT_DONE: u32 = 1 << 3;
/// First packets of coalescing, which is disabled.
const RDRXCTL_CLEAR: u32 = 31 << 17;
/// FCS is stripped, and two bits that must be set (Linux: `ixgbe_setup_rdrxctl`).
const RDRXCTL_SET: u32 = 1 << 1 | 1 << 25 | 1 << 26;
const RFCTL: usize = 0x5008;
const RFCTL_NO_COALESCING: u32 = 1 << 5;
const RXCTRL: usize = 0x3000;
const SECRXCTRL: usize = 0x8d00;
const SECRX_DISABLE: u32 = 1 << 1;
const SECRXSTAT: usize = 0x8d04;
const SECRX_READY: u32 = 1;
const DMATXCTL: usize = 0x4a80;
const TRANSMIT_ENABLE: u32 = 1;
/// Maximum number of bytes that are read for packets at once, without priorities (82599, 4.6.11.3.4).
const DTXMXSZRQ: usize = 0x8100;
const EEC: usize = 0x1_0010;
const EERD: usize = 0x1_0014;
/// EEPROM word that locates the section of port 0, which begins with its length.
const CORE_0: u32 = 0x09;
/// Counters: CRC errors, frames too short or too long, frames without room in the chip, frames without a descriptor.
const MISSED: [usize; 4] = [0x4000, 0x4040, 0x3fa0, 0x1430];
/// Descriptor error bits: CRC, length, symbols, too long, any error of the MAC. Checksum errors do not count.
pub const DAMAGE: u32 = 1 << 24 | 1 << 25 | 1 << 27 | 1 << 28 | 1 << 29;

/// Offsets of interrupt registers.
pub struct Vectors {
    pub cause: usize,
    pub clears: usize,
    pub set: usize,
    pub clear: usize,
    pub masks: usize,
    pub queues: usize,
    pub throttle: usize,
}

const VECTORS: Vectors = Vectors {
    cause: 0x0800,
    clears: 0x0810,
    set: 0x0880,
    clear: 0x0888,
    masks: 0x0890,
    queues: 0x0900,
    throttle: 0x0820,
};
const GPIE: usize = 0x0898;
/// MSI-X, and its pending bits; reading the causes does not clear vectors.
const GPIE_MSIX: u32 = 1 << 4 | 1 << 5 | 1 << 31;
/// Vectors of queue 0: receive on the first, transmit on the second. Queue 1 is in the other half, with the next two.
const IVAR_0_AND_1: u32 = 1 << 7 | 1 << 8 | 1 << 15;
const IVAR_NEXT: u32 = 2 << 8 | 2;
const RECEIVED: u32 = 1;
const SENT: u32 = 1 << 1;
/// Chooses a receive queue by a hash.
const BY_HASH: u32 = 1;
const QUEUES: usize = 8;

/// Registers of receive queue 0, with the same layout in virtual functions. The further queues follow.
pub const RECEIVE: usize = 0x1000;
const TRANSMIT: usize = 0x6000;
const NEXT_QUEUE: usize = 0x40;
const SPLIT: usize = 0x14;
/// Size of buffers in KiB, advanced descriptors with one buffer, drop frames without a buffer.
const SPLIT_VALUE: u32 = (BUFFER >> 10) as u32 | 1 << 25 | 1 << 28;
const ENABLE: u32 = 1 << 25;
/// Prefetch threshold of 32 descriptors; each descriptor is written back when it is done.
const TRANSMIT_VALUE: u32 = ENABLE | 1 << 8 | 32;

/// The chip.
#[derive(Default)]
pub struct Ixgbe;

impl Vectors {
    /// Sets up the vectors of `queues` queues.
    pub fn start(&self, registers: &dyn Registers, messages: bool, queues: usize) {
        for n in (0..queues).step_by(2) {
            let even = IVAR_0_AND_1 + IVAR_NEXT * n as u32;
            let odd = if n + 1 < queues { even + IVAR_NEXT } else { 0 };
            registers.write32(self.queues + 2 * n, odd << 16 | even);
        }
        let all = (1 << (2 * queues)) - 1;
        registers.write32(self.clears, if messages { all } else { 0 });
        registers.write32(self.masks, 0);
        (0..2 * queues).for_each(|n| registers.write32(self.throttle + 4 * n, 0));
    }

    /// See [`Chip::set_interrupts`].
    pub fn apply(&self, registers: &dyn Registers, queue: usize, causes: Causes) {
        let both = (RECEIVED | SENT) << (2 * queue);
        if causes.is_none() {
            return registers.write32(self.clear, both);
        }
        // Clears earlier causes: the loop checks for their events itself.
        registers.write32(self.cause, both);
        registers.write32(self.set, causes.bits(RECEIVED, SENT) << (2 * queue));
    }
}

/// Tail registers of a pair of queues. `transmit`: registers of transmit queue 0.
pub const fn tails(transmit: usize, queue: usize) -> [usize; 2] {
    let at = NEXT_QUEUE * queue + r::TAIL;
    [RECEIVE + at, transmit + at]
}

/// Sets up the rings of queues, and polls each queue for a while until it is enabled.
pub fn start_queues(registers: &dyn Registers, transmit: usize, setup: &Setup<'_>) {
    for (n, rings) in setup.rings.iter().enumerate() {
        let [receive, transmit] = [RECEIVE, transmit].map(|at| at + NEXT_QUEUE * n);
        r::give_ring(registers, receive, rings.receive.0, rings.receive.1);
        registers.write32(receive + SPLIT, SPLIT_VALUE);
        registers.write32(receive + r::CONTROL, ENABLE);
        wait_for(registers, receive + r::CONTROL, ENABLE);
        r::give_ring(registers, transmit, rings.transmit.0, rings.transmit.1);
        registers.write32(transmit + r::CONTROL, TRANSMIT_VALUE);
        wait_for(registers, transmit + r::CONTROL, ENABLE);
    }
}

/// Stops `queues` pairs of queues.
pub fn stop_queues(registers: &dyn Registers, transmit: usize, queues: usize) {
    for at in (0..queues).map(|n| NEXT_QUEUE * n + r::CONTROL) {
        registers.write32(RECEIVE + at, 0);
        registers.write32(transmit + at, 0);
    }
}

/// Polls a register until one of the bits is set, or a limit is reached. A chip that never sets them fails later
/// checks.
fn wait_for(registers: &dyn Registers, at: usize, bits: u32) {
    const POLLS: u32 = 10_000;
    _ = (0..POLLS).take_while(|_| registers.read32(at) & bits == 0).count();
}

/// Whether the link is up, by the link register at `at`; None if the chip is absent.
pub fn link(registers: &dyn Registers, at: usize) -> Option<bool> {
    let links = registers.read32(at);
    (links != ALL_ONES).then_some(links & LINK_UP != 0)
}

/// The MAC address that the chip has read from the EEPROM at reset; otherwise it is read now.
fn address(registers: &dyn Registers) -> Result<[u8; 6], Error> {
    if let Some(mac) = chip::received_address(registers, RAL) {
        return Ok(mac);
    }
    let port = (registers.read32(r::STATUS) & LAN_ID) >> 2;
    let section = chip::read_eeprom(registers, EERD, CORE_0 + port).ok_or(Error::NoMac)?;
    chip::read_address(registers, EERD, u32::from(section) + 1)
}

impl Model for Ixgbe {
    const IS_VIRTUAL: bool = false;
}

impl Chip for Ixgbe {
    fn registers(&self) -> usize {
        0x2_0000
    }

    fn format(&self) -> Format {
        Format::Advanced
    }

    fn tails(&self, queue: usize) -> [usize; 2] {
        tails(TRANSMIT, queue)
    }

    fn queues(&self) -> usize {
        QUEUES
    }

    fn for_further_queue(&self) -> Option<Box<dyn Chip>> {
        Some(Box::new(Ixgbe))
    }

    fn damage(&self) -> u32 {
        DAMAGE
    }

    fn link(&self, registers: &dyn Registers) -> Option<bool> {
        link(registers, LINKS)
    }

    fn most_mtu(&self) -> u16 {
        crate::ethernet::MOST_MTU
    }

    fn reset(&mut self, registers: &dyn Registers) {
        registers.write32(VECTORS.clear, !(1 << 31));
        registers.write32(RXCTRL, 0);
        change(registers, DMATXCTL, TRANSMIT_ENABLE, 0);
        stop_queues(registers, TRANSMIT, QUEUES);
        chip::reset_bus_master(registers);
    }

    fn is_reset(
        &mut self,
        registers: &dyn Registers,
        waited: Duration,
    ) -> Result<Option<[u8; 6]>, Error> {
        let control = registers.read32(r::CTRL);
        if control == ALL_ONES {
            return Err(Error::Absent);
        }
        let has_read = registers.read32(EEC) & r::EECD_AUTO_READ != 0;
        let can_copy = registers.read32(RDRXCTL) & DMA_INIT_DONE != 0;
        if control & r::CTRL_RESET != 0 || !can_copy || !has_read && waited < EEPROM_TIMEOUT {
            return Ok(None);
        }
        registers.write32(VECTORS.clear, !(1 << 31));
        address(registers).map(Some)
    }

    fn start(&mut self, registers: &dyn Registers, setup: &Setup<'_>) {
        change(registers, r::CTRL_EXT, 0, r::CTRL_EXT_DRIVER_LOADED | CTRL_EXT_NO_SNOOP_DISABLE);
        change(registers, ESDP, LASER_OFF, 0);
        if self.link(registers) == Some(false) {
            change(registers, AUTOC, 0, AUTOC_RESTART);
        }
        let [a, b, c, d, e, f] = setup.mac;
        registers.write32(RAL, u32::from_le_bytes([a, b, c, d]));
        registers.write32(RAL + 4, u32::from_le_bytes([e, f, 0, 0]) | r::RAH_VALID);
        (0..128).for_each(|n| registers.write32(MTA + 4 * n, 0));
        registers.write32(MULTICAST_CONTROL, 0);
        registers.write32(FCTRL, FCTRL_VALUE);
        change(registers, HLREG0, 0, HLREG0_SET);
        registers.write32(MAXFRS, (setup.longest as u32 + 4) << 16);
        change(registers, RDRXCTL, RDRXCTL_CLEAR, RDRXCTL_SET);
        change(registers, RFCTL, 0, RFCTL_NO_COALESCING);
        registers.write32(r::RXCSUM, 0);
        registers.write32(DTXMXSZRQ, 0xfff);
        let messages = setup.mode == Mode::Msix;
        registers.write32(GPIE, if messages { GPIE_MSIX } else { 0 });
        VECTORS.start(registers, messages, setup.rings.len());
        chip::hash_addresses(registers, setup, r::HASH, BY_HASH, 1);
        change(registers, DMATXCTL, 0, TRANSMIT_ENABLE);
        start_queues(registers, TRANSMIT, setup);
        // No frame may arrive while receiving is being enabled (Linux: `ixgbe_enable_rx_dma_82599`).
        change(registers, SECRXCTRL, 0, SECRX_DISABLE);
        wait_for(registers, SECRXSTAT, SECRX_READY);
        change(registers, RXCTRL, 0, 1);
        change(registers, SECRXCTRL, SECRX_DISABLE, 0);
    }

    fn set_interrupts(&self, registers: &dyn Registers, _: Mode, queue: usize, causes: Causes) {
        VECTORS.apply(registers, queue, causes);
    }

    fn missed(&self, registers: &dyn Registers) -> u64 {
        chip::count(registers, &MISSED)
    }
}
