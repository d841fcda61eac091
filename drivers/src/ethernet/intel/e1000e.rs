//! 82574L (`e1000e` of Linux and QEMU): one pair of queues, extended descriptors, MSI-X or MSI.

use super::Error;
use super::chip::{self, Chip, Mode, Setup};
use super::registers::{self as r, ALL_ONES, change};
use super::transmit::Format;
use crate::hal::Registers;
use core::time::Duration;

/// PCI device IDs of Intel's: 82574L, 82574LA.
pub const DEVICES: [u16; 2] = [0x10d3, 0x10f6];

/// Interrupt throttling, in all and of each of five vectors.
const ITR: usize = 0x00c4;
const EITR: usize = 0x00e8;
const VECTORS: usize = 5;
/// Causes that are cleared as their message is sent.
const EIAC: usize = 0x00dc;
/// Which vector a cause raises: receive queue 0 in bits 0 to 3, transmit queue 0 in bits 8 to 11.
const IVAR: usize = 0x00e4;
const IVAR_BOTH_ON_0: u32 = 1 << 3 | 1 << 11;
const CAUSE_RECEIVE_QUEUE: u32 = 1 << 20;
const CAUSE_TRANSMIT_QUEUE: u32 = 1 << 22;
/// Receive filter control: extended descriptors.
const RFCTL: usize = 0x5008;
const RFCTL_EXTENDED: u32 = 1 << 15;
/// No filters of iSCSI and NFS.
const RFCTL_PLAIN: u32 = 1 | 1 << 6 | 1 << 7;
/// Thresholds in descriptors; each is written back as it is done.
const QUEUE: u32 = 1 << 24 | 1 << 16;
const QUEUE_TRANSMIT: u32 = QUEUE | 1 << 22 | 1 << 8 | 0x1f;
/// PCI Express control: what Linux sets against completions that get lost (82574 specification update, erratum 25).
const GCR: usize = 0x5b00;
const GCR2: usize = 0x5b64;

/// The chip.
pub struct E1000e;

impl Chip for E1000e {
    fn registers(&self) -> usize {
        0x2_0000
    }

    fn format(&self) -> Format {
        Format::Extended
    }

    // Frames of 9,234 bytes with FCS and a tag.
    fn most_mtu(&self) -> u16 {
        9212
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
        change(registers, GCR, 0, 1 << 22);
        change(registers, GCR2, 0, 1);
        registers.write32(RFCTL, RFCTL_EXTENDED | RFCTL_PLAIN);
        registers.write32(r::RXDCTL, QUEUE);
        registers.write32(r::TXDCTL, QUEUE_TRANSMIT);
        registers.write32(ITR, 0);
        (0..VECTORS).for_each(|n| registers.write32(EITR + 4 * n, 0));
        if setup.mode == Mode::Msix {
            registers.write32(IVAR, IVAR_BOTH_ON_0);
            registers.write32(EIAC, CAUSE_RECEIVE_QUEUE | CAUSE_TRANSMIT_QUEUE);
        }
        chip::enable_physical(registers);
    }

    fn set_interrupts(&self, registers: &dyn Registers, mode: Mode, received: bool, sent: bool) {
        if mode == Mode::Msi {
            return chip::set_physical_causes(registers, received, sent);
        }
        if !received && !sent {
            return registers.write32(r::IMC, ALL_ONES);
        }
        let mut causes = 0;
        if received {
            causes |= CAUSE_RECEIVE_QUEUE;
        }
        if sent {
            causes |= CAUSE_TRANSMIT_QUEUE;
        }
        registers.write32(r::ICR, ALL_ONES);
        registers.write32(r::IMS, causes);
    }

    fn missed(&self, registers: &dyn Registers) -> u64 {
        chip::missed_by_physical(registers)
    }
}
