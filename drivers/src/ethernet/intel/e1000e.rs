//! 82574L (`e1000e` of Linux and QEMU): two pairs of queues, extended descriptors, MSI-X or MSI.

use super::Error;
use super::chip::{self, Chip, Mode, Setup, Wanted};
use super::registers::{self as r, change};
use super::transmit::Format;
use crate::hal::Registers;
use alloc::boxed::Box;
use core::time::Duration;

/// PCI device IDs of Intel's: 82574L, 82574LA.
pub const DEVICES: [u16; 2] = [0x10d3, 0x10f6];

/// Interrupt throttling, in all and of each of five vectors.
const ITR: usize = 0x00c4;
const EITR: usize = 0x00e8;
const VECTORS: usize = 5;
/// Causes that are cleared as their message is sent.
const EIAC: usize = 0x00dc;
/// Which vector a cause raises: receive queues 0 and 1 in bits 0 to 7, transmit queues 0 and 1 in bits 8 to 15. Of four
/// vectors, two for a queue, the first of each is used.
const IVAR: usize = 0x00e4;
const IVAR_QUEUE_0: u32 = 1 << 3 | 1 << 11;
const IVAR_QUEUE_1: u32 = 0xa << 4 | 0xa << 12;
/// Causes of queue 0; those of queue 1 are beside them.
const CAUSE_RECEIVE_QUEUE: u32 = 1 << 20;
const CAUSE_TRANSMIT_QUEUE: u32 = 1 << 22;
const QUEUES: usize = 2;
/// From the registers of a queue to those of the next.
const NEXT_QUEUE: usize = 0x100;
/// Chooses a receive queue by a hash; the bit in the table's entries that says which.
const BY_HASH: u32 = 1;
const IN_TABLE: u8 = 1 << 7;
/// Arbitration between transmit queues, of a queue: it takes part, and has so many parts.
const TARC: usize = 0x3840;
const TARC_VALUE: u32 = 1 << 10 | 3;
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

    fn tails(&self, queue: usize) -> [usize; 2] {
        [r::RDT, r::TDT].map(|at| at + NEXT_QUEUE * queue)
    }

    fn queues(&self) -> usize {
        QUEUES
    }

    fn beside(&self) -> Option<Box<dyn Chip>> {
        Some(Box::new(E1000e))
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

    fn start(&mut self, registers: &dyn Registers, setup: &Setup<'_>) {
        chip::start_physical(registers, setup);
        change(registers, GCR, 0, 1 << 22);
        change(registers, GCR2, 0, 1);
        registers.write32(RFCTL, RFCTL_EXTENDED | RFCTL_PLAIN);
        for (n, rings) in setup.rings.iter().enumerate() {
            let at = NEXT_QUEUE * n;
            r::give_ring(registers, r::RDBAL + at, rings.receive.0, rings.receive.1);
            r::give_ring(registers, r::TDBAL + at, rings.transmit.0, rings.transmit.1);
            registers.write32(r::RXDCTL + at, QUEUE);
            registers.write32(r::TXDCTL + at, QUEUE_TRANSMIT);
            // One alone is as after a reset.
            if setup.rings.len() > 1 {
                change(registers, TARC + at, 0x7f, TARC_VALUE);
            }
        }
        chip::hash_addresses(registers, setup, r::HASH, BY_HASH, IN_TABLE);
        registers.write32(ITR, 0);
        (0..VECTORS).for_each(|n| registers.write32(EITR + 4 * n, 0));
        if setup.mode == Mode::Msix {
            let (second, causes) = match setup.rings.len() {
                1 => (0, CAUSE_RECEIVE_QUEUE | CAUSE_TRANSMIT_QUEUE),
                _ => (IVAR_QUEUE_1, 3 * (CAUSE_RECEIVE_QUEUE | CAUSE_TRANSMIT_QUEUE)),
            };
            registers.write32(IVAR, IVAR_QUEUE_0 | second);
            registers.write32(EIAC, causes);
        }
        chip::enable_physical(registers);
    }

    fn set_interrupts(&self, registers: &dyn Registers, mode: Mode, queue: usize, wanted: Wanted) {
        if mode == Mode::Msi {
            return chip::set_physical_causes(registers, wanted);
        }
        let both = (CAUSE_RECEIVE_QUEUE | CAUSE_TRANSMIT_QUEUE) << queue;
        if wanted.is_nothing() {
            return registers.write32(r::IMC, both);
        }
        registers.write32(r::ICR, both);
        registers.write32(r::IMS, wanted.bits(CAUSE_RECEIVE_QUEUE, CAUSE_TRANSMIT_QUEUE) << queue);
    }

    fn missed(&self, registers: &dyn Registers) -> u64 {
        chip::missed_by_physical(registers)
    }
}
