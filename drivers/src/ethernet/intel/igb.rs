//! 82576 (`igb` of Linux and QEMU): the first of its queues, advanced descriptors, MSI-X or MSI. Its virtual functions
//! are left off.

use super::Error;
use super::chip::{self, Chip, Mode, Setup};
use super::receive::BUFFER;
use super::registers as r;
use super::transmit::Format;
use crate::hal::Registers;
use core::time::Duration;

/// PCI device IDs of Intel's: 82576, and cards with several of it, for copper.
pub const DEVICES: [u16; 4] = [0x10c9, 0x10e8, 0x1526, 0x150a];

// The same in a virtual function (82576, 8.8 and 9.7), where a bit stands for a vector.
const GPIE: usize = 0x1514;
/// MSI-X of several vectors; causes are cleared as their message is sent; pending bits as they are enabled.
const GPIE_MSIX: u32 = 1 << 4 | 1 << 30 | 1 << 31;
pub const EIMS: usize = 0x1524;
pub const EIMC: usize = 0x1528;
const EIAC: usize = 0x152c;
const EIAM: usize = 0x1530;
pub const EICR: usize = 0x1580;
const EITR: usize = 0x1680;
/// Vectors of receive queue 0 (bits 0 to 7) and transmit queue 0 (bits 8 to 15).
const IVAR: usize = 0x1700;
const IVAR_0_AND_1: u32 = 1 << 7 | 1 << 8 | 1 << 15;
/// The two vectors.
const RECEIVED: u32 = 1;
const SENT: u32 = 2;

/// Split and replication: size of buffers in KiB, advanced descriptors with one buffer, drop what finds none.
const SRRCTL: usize = 0x280c;
const SRRCTL_VALUE: u32 = (BUFFER >> 10) as u32 | 1 << 25 | 1 << 31;
/// The queue is enabled; prefetch, host and write-back thresholds in descriptors.
const QUEUE: u32 = 1 << 25 | 1 << 16 | 8;
/// Longest packet, with FCS.
const RLPML: usize = 0x5004;
/// Multiple receive queues, which are not used.
const MRQC: usize = 0x5818;

/// The chip.
pub struct Igb;

/// Interrupts of queue 0, each cause on a vector of its own.
pub fn start_vectors(registers: &dyn Registers) {
    registers.write32(IVAR, IVAR_0_AND_1);
    registers.write32(EIAC, RECEIVED | SENT);
    registers.write32(EIAM, 0);
    (0..2).for_each(|n| registers.write32(EITR + 4 * n, 0));
}

/// See [`Chip::set_interrupts`].
pub fn set_vectors(registers: &dyn Registers, received: bool, sent: bool) {
    if !received && !sent {
        return registers.write32(EIMC, RECEIVED | SENT);
    }
    let mut vectors = 0;
    if received {
        vectors |= RECEIVED;
    }
    if sent {
        vectors |= SENT;
    }
    // What was before is pending, and the loop looks for it.
    registers.write32(EICR, RECEIVED | SENT);
    registers.write32(EIMS, vectors);
}

/// Enables queue 0; its receive ring is told of buffers afterwards.
pub fn enable_queue(registers: &dyn Registers) {
    registers.write32(SRRCTL, SRRCTL_VALUE);
    registers.write32(r::RXDCTL, QUEUE | 8 << 8);
    registers.write32(r::TXDCTL, QUEUE | 1 << 8);
}

impl Chip for Igb {
    fn registers(&self) -> usize {
        0x2_0000
    }

    fn format(&self) -> Format {
        Format::Advanced
    }

    fn most_mtu(&self) -> u16 {
        crate::ethernet::MOST_MTU
    }

    fn reset(&mut self, registers: &dyn Registers) {
        chip::reset_physical(registers);
    }

    fn is_reset(
        &mut self,
        registers: &dyn Registers,
        waited: Duration,
    ) -> Result<Option<[u8; 6]>, Error> {
        chip::is_physical_reset(registers, waited)
    }

    fn start(&mut self, registers: &dyn Registers, setup: &Setup) {
        chip::start_physical(registers, setup);
        registers.write32(MRQC, 0);
        registers.write32(RLPML, setup.longest as u32 + 4);
        if setup.mode == Mode::Msix {
            registers.write32(GPIE, GPIE_MSIX);
            start_vectors(registers);
        }
        enable_queue(registers);
        chip::enable_physical(registers);
    }

    fn set_interrupts(&self, registers: &dyn Registers, mode: Mode, received: bool, sent: bool) {
        match mode {
            Mode::Msix => set_vectors(registers, received, sent),
            Mode::Msi => chip::set_physical_causes(registers, received, sent),
        }
    }

    fn missed(&self, registers: &dyn Registers) -> u64 {
        chip::missed_by_physical(registers)
    }
}
