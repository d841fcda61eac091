//! 82576 (`igb` of Linux and QEMU): up to eight of its queues, advanced descriptors, MSI-X or MSI. SR-IOV stays
//! disabled.

use super::chip::{self, Causes, Chip, Mode, Model, Setup};
use super::receive::BUFFER;
use super::registers as r;
use super::transmit::Format;
use crate::hal::Registers;
use alloc::boxed::Box;

/// Intel's PCI device IDs: 82576, and cards with several of it, for copper.
pub const DEVICES: [u16; 4] = [0x10c9, 0x10e8, 0x1526, 0x150a];

// Interrupt registers, with the same layout in a virtual function (82576, 8.8 and 9.7). Each bit is a vector.
const GPIE: usize = 0x1514;
/// MSI-X with several vectors; causes are cleared when their message is sent, pending bits when they are enabled.
const GPIE_MSIX: u32 = 1 << 4 | 1 << 30 | 1 << 31;
pub const EIMS: usize = 0x1524;
pub const EIMC: usize = 0x1528;
const EIAC: usize = 0x152c;
const EIAM: usize = 0x1530;
pub const EICR: usize = 0x1580;
const EITR: usize = 0x1680;
/// Vectors of a receive queue (bits 0 to 7) and a transmit queue (bits 8 to 15): a register for each of the first eight
/// pairs.
const IVAR: usize = 0x1700;
const IVAR_0_AND_1: u32 = 1 << 7 | 1 << 8 | 1 << 15;
const IVAR_NEXT: u32 = 2 << 8 | 2;
/// Vectors of queue 0; each further queue has the next two.
const RECEIVED: u32 = 1;
const SENT: u32 = 2;

/// Split and replication: size of buffers in KiB, advanced descriptors with one buffer, drop frames without a buffer.
const SRRCTL: usize = 0x0c;
const SRRCTL_VALUE: u32 = (BUFFER >> 10) as u32 | 1 << 25 | 1 << 31;
/// The queue is enabled; prefetch, host and write-back thresholds in descriptors.
const QUEUE: u32 = 1 << 25 | 1 << 16 | 8;
/// Longest packet, with FCS.
const RLPML: usize = 0x5004;
/// Several receive queues, chosen by a hash.
const BY_HASH: u32 = 2;
const QUEUES: usize = 8;

/// The chip.
#[derive(Default)]
pub struct Igb;

/// Register bases of a pair of queues: receive, transmit. Those of the first four are at other offsets (82576, 8.1.3).
pub const fn queue(number: usize) -> [usize; 2] {
    match number {
        0..4 => [r::RDBAL + 0x100 * number, r::TDBAL + 0x100 * number],
        _ => [0xc000 + 0x40 * number, 0xe000 + 0x40 * number],
    }
}

/// Sets up the vectors of `queues` queues, with a vector for each cause.
pub fn start_vectors(registers: &dyn Registers, queues: usize) {
    for n in 0..queues {
        registers.write32(IVAR + 4 * n, IVAR_0_AND_1 + IVAR_NEXT * n as u32);
    }
    registers.write32(EIAC, (1 << (2 * queues)) - 1);
    registers.write32(EIAM, 0);
    (0..2 * queues).for_each(|n| registers.write32(EITR + 4 * n, 0));
}

/// See [`Chip::set_interrupts`].
pub fn set_vectors(registers: &dyn Registers, queue: usize, causes: Causes) {
    let both = (RECEIVED | SENT) << (2 * queue);
    if causes.is_none() {
        return registers.write32(EIMC, both);
    }
    // Clears earlier causes: the loop checks for their events itself.
    registers.write32(EICR, both);
    registers.write32(EIMS, causes.bits(RECEIVED, SENT) << (2 * queue));
}

/// Sets up the rings of queues and enables them. Buffers are posted afterwards.
pub fn enable_queues(registers: &dyn Registers, setup: &Setup<'_>) {
    for (n, rings) in setup.rings.iter().enumerate() {
        let [receive, transmit] = queue(n);
        r::give_ring(registers, receive, rings.receive.0, rings.receive.1);
        r::give_ring(registers, transmit, rings.transmit.0, rings.transmit.1);
        registers.write32(receive + SRRCTL, SRRCTL_VALUE);
        registers.write32(receive + r::CONTROL, QUEUE | 8 << 8);
        registers.write32(transmit + r::CONTROL, QUEUE | 1 << 8);
    }
}

impl Model for Igb {
    const IS_VIRTUAL: bool = false;
}

impl Chip for Igb {
    fn registers(&self) -> usize {
        0x2_0000
    }

    fn format(&self) -> Format {
        Format::Advanced
    }

    fn tails(&self, number: usize) -> [usize; 2] {
        queue(number).map(|at| at + r::TAIL)
    }

    fn queues(&self) -> usize {
        QUEUES
    }

    fn for_further_queue(&self) -> Option<Box<dyn Chip>> {
        Some(Box::new(Igb))
    }

    fn most_mtu(&self) -> u16 {
        crate::ethernet::MOST_MTU
    }

    fn start(&mut self, registers: &dyn Registers, setup: &Setup<'_>) {
        chip::start_physical(registers, setup);
        chip::hash_addresses(registers, setup, r::HASH, BY_HASH, 1);
        registers.write32(RLPML, setup.longest as u32 + 4);
        if setup.mode == Mode::Msix {
            registers.write32(GPIE, GPIE_MSIX);
            start_vectors(registers, setup.rings.len());
        }
        enable_queues(registers, setup);
        chip::enable_physical(registers);
    }

    fn set_interrupts(&self, registers: &dyn Registers, mode: Mode, queue: usize, causes: Causes) {
        match mode {
            Mode::Msix => set_vectors(registers, queue, causes),
            Mode::Msi => chip::set_physical_causes(registers, causes),
        }
    }

    fn missed(&self, registers: &dyn Registers) -> u64 {
        chip::missed_by_physical(registers)
    }
}
