//! 82574L (`e1000e` of Linux and QEMU): two pairs of queues, extended descriptors, MSI-X or MSI.

use super::chip::{self, Causes, Chip, Mode, Model, Setup};
use super::registers::{self as r, change};
use super::transmit::Format;
use crate::hal::Registers;
use alloc::boxed::Box;

/// Intel's PCI device IDs: 82574L, 82574LA.
pub const DEVICES: [u16; 2] = [0x10d3, 0x10f6];

/// Interrupt throttling of all vectors.
const ITR: usize = 0x00c4;
/// Interrupt throttling of each of five vectors.
const EITR: usize = 0x00e8;
const VECTORS: usize = 5;
/// Causes that are cleared when their message is sent.
const EIAC: usize = 0x00dc;
/// Vectors of causes: receive queues 0 and 1 in bits 0 to 7, transmit queues 0 and 1 in bits 8 to 15. Of four vectors,
/// two per queue, the first of each is used.
const IVAR: usize = 0x00e4;
const IVAR_QUEUE_0: u32 = 1 << 3 | 1 << 11;
const IVAR_QUEUE_1: u32 = 0xa << 4 | 0xa << 12;
/// Causes of queue 0; those of queue 1 are the next bits.
const CAUSE_RECEIVE_QUEUE: u32 = 1 << 20;
const CAUSE_TRANSMIT_QUEUE: u32 = 1 << 22;
const QUEUES: usize = 2;
/// Distance between the registers of two queues.
const NEXT_QUEUE: usize = 0x100;
/// Chooses a receive queue by a hash.
const BY_HASH: u32 = 1;
/// Bit of a redirection table entry that selects the queue.
const IN_TABLE: u8 = 1 << 7;
/// Arbitration of a transmit queue: enabled, and its weight.
const TARC: usize = 0x3840;
const TARC_VALUE: u32 = 1 << 10 | 3;
/// Receive filter control: extended descriptors.
const RFCTL: usize = 0x5008;
const RFCTL_EXTENDED: u32 = 1 << 15;
/// Receive filter control: no filters of iSCSI and NFS.
const RFCTL_PLAIN: u32 = 1 | 1 << 6 | 1 << 7;
/// Thresholds in descriptors; each descriptor is written back when it is done.
const QUEUE: u32 = 1 << 24 | 1 << 16;
const QUEUE_TRANSMIT: u32 = QUEUE | 1 << 22 | 1 << 8 | 0x1f;
/// PCI Express control, which Linux changes against lost completions (82574 specification update, erratum 25).
const GCR: usize = 0x5b00;
const GCR2: usize = 0x5b64;

/// The chip.
#[derive(Default)]
pub struct E1000e;

impl Model for E1000e {
    const IS_VIRTUAL: bool = false;
}

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

    fn for_further_queue(&self) -> Option<Box<dyn Chip>> {
        Some(Box::new(E1000e))
    }

    // Limited by frames of 9,234 bytes with FCS and a tag.
    fn most_mtu(&self) -> u16 {
        9212
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
            // A single queue keeps the reset value.
            if setup.rings.len() > 1 {
                change(registers, TARC + at, 0x7f, TARC_VALUE);
            }
        }
        chip::hash_addresses(registers, setup, r::HASH, BY_HASH, IN_TABLE);
        registers.write32(ITR, 0);
        (0..VECTORS).for_each(|n| registers.write32(EITR + 4 * n, 0));
        if setup.mode == Mode::Msix {
            let (second, cleared) = match setup.rings.len() {
                1 => (0, CAUSE_RECEIVE_QUEUE | CAUSE_TRANSMIT_QUEUE),
                _ => (IVAR_QUEUE_1, 3 * (CAUSE_RECEIVE_QUEUE | CAUSE_TRANSMIT_QUEUE)),
            };
            registers.write32(IVAR, IVAR_QUEUE_0 | second);
            registers.write32(EIAC, cleared);
        }
        chip::enable_physical(registers);
    }

    fn set_interrupts(&self, registers: &dyn Registers, mode: Mode, queue: usize, causes: Causes) {
        if mode == Mode::Msi {
            return chip::set_physical_causes(registers, causes);
        }
        let both = (CAUSE_RECEIVE_QUEUE | CAUSE_TRANSMIT_QUEUE) << queue;
        if causes.is_none() {
            return registers.write32(r::IMC, both);
        }
        registers.write32(r::ICR, both);
        registers.write32(r::IMS, causes.bits(CAUSE_RECEIVE_QUEUE, CAUSE_TRANSMIT_QUEUE) << queue);
    }

    fn missed(&self, registers: &dyn Registers) -> u64 {
        chip::missed_by_physical(registers)
    }
}
