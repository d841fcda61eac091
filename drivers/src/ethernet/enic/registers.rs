//! Registers of queues and interrupts (Linux: `vnic_wq.h`, `vnic_rq.h`, `vnic_cq.h`, `vnic_intr.h`): 32 bits each,
//! every 8 bytes, in blocks of 128 bytes. A queue must not be changed while it runs.

use crate::hal::Registers;
use core::sync::atomic::{Ordering, fence};

/// Bytes of a block.
pub const BLOCK: usize = 128;
pub const ALL_ONES: u32 = u32::MAX;

// Of all queues.
pub const BASE: usize = 0x00;
pub const SIZE: usize = 0x08;
// Of work and receive queues.
pub const POSTED: usize = 0x10;
pub const COMPLETIONS: usize = 0x18;
pub const ENABLE: usize = 0x20;
pub const RUNNING: usize = 0x28;
pub const FETCHED: usize = 0x30;
/// Error registers of a work queue: interrupt enable, interrupt, status.
pub const WORK_ERROR: usize = 0x40;
/// Error registers of a receive queue.
pub const RECEIVE_ERROR: usize = 0x38;
const STATUS: usize = 0x10;

/// Initial values of a completion queue from 0x10 on: flow control, colour, head, tail, colour of the tail, interrupt,
/// entries, messages (enabled or not).
const COMPLETION: [u32; 8] = [0, 1, 0, 0, 1, 1, 1, 0];
const COMPLETION_FIRST: usize = 0x10;
const COMPLETION_INTERRUPT: usize = 0x50;

// Of an interrupt.
const COALESCING_TIMER: usize = 0x00;
const COALESCING_TYPE: usize = 0x10;
const MASK_ON_ASSERTION: usize = 0x18;
const MASK: usize = 0x20;
const CREDITS: usize = 0x28;

/// A ring: bus address, and number of entries.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    pub address: u64,
    pub entries: u32,
}

/// Sets up an empty work or receive queue, and enables it. It begins with the entry of index `first`.
pub fn start(
    registers: &dyn Registers,
    queue: usize,
    error: usize,
    ring: Ring,
    completions: u32,
    first: u32,
) {
    let put = |at: usize, value: u32| registers.write32(queue * BLOCK + at, value);
    registers.write64(queue * BLOCK + BASE, ring.address);
    put(SIZE, ring.entries);
    put(FETCHED, first);
    put(POSTED, first);
    put(COMPLETIONS, completions);
    put(error, 0);
    put(error + 8, 0);
    put(error + STATUS, 0);
    fence(Ordering::SeqCst);
    put(ENABLE, 1);
}

/// Sets up a completion queue, whose first lap has colour 1.
pub fn start_completions(registers: &dyn Registers, queue: usize, ring: Ring, interrupt: u32) {
    let put = |at: usize, value: u32| registers.write32(queue * BLOCK + at, value);
    registers.write64(queue * BLOCK + BASE, ring.address);
    put(SIZE, ring.entries);
    COMPLETION.iter().enumerate().for_each(|(n, &word)| put(COMPLETION_FIRST + 8 * n, word));
    put(COMPLETION_INTERRUPT, interrupt);
}

/// Disables queues. The caller disables receive queues twice: the first time may leave descriptors in a cache (Linux:
/// `vnic_rq_disable`).
pub fn stop(registers: &dyn Registers) {
    for queue in 0..registers.len() / BLOCK {
        registers.write32(queue * BLOCK + ENABLE, 0);
    }
}

/// Whether all queues have stopped.
pub fn have_stopped(registers: &dyn Registers) -> bool {
    (0..registers.len() / BLOCK).all(|queue| registers.read32(queue * BLOCK + RUNNING) == 0)
}

/// The error status of a queue: 0 without an error, all ones if the device is absent.
pub fn error(registers: &dyn Registers, queue: usize, error: usize) -> u32 {
    registers.read32(queue * BLOCK + error + STATUS)
}

/// Rings the doorbell of a queue: descriptors up to `index` are posted.
#[inline]
pub fn post(registers: &dyn Registers, queue: usize, index: u32) {
    fence(Ordering::Release);
    registers.write32(queue * BLOCK + POSTED, index);
}

/// Sets up an interrupt: masked, and masked again by the device when it is raised.
pub fn start_interrupt(registers: &dyn Registers, interrupt: usize) {
    let put = |at: usize, value: u32| registers.write32(interrupt * BLOCK + at, value);
    put(MASK, 1);
    put(COALESCING_TIMER, 0);
    put(COALESCING_TYPE, 0);
    put(MASK_ON_ASSERTION, 1);
    put(CREDITS, 0);
}

/// Masks an interrupt, or enables it for the next event. Earlier events raise none.
pub fn set_masked(registers: &dyn Registers, interrupt: usize, masked: bool) {
    if !masked {
        registers.write32(interrupt * BLOCK + CREDITS, 0);
    }
    registers.write32(interrupt * BLOCK + MASK, masked.into());
}
