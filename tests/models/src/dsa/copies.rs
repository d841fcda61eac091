//! Descriptors: copies and batches, and the completion records and interrupts that report them.

use super::{BATCH, Dsa, Fault, LONGEST, VECTORS};
use crate::registers::number;
use crate::{Interrupt, Machine};

// Flags and operations of descriptors, and statuses of completion records.
const FENCE: u64 = 1;
const RECORDED: u64 = 4;
const RECORD_ALWAYS: u64 = 8;
const INTERRUPTS: u64 = 16;
pub(super) const NOOP: u64 = 0;
pub(super) const BATCHED: u64 = 1;
pub(super) const MOVE: u64 = 3;
const SUCCESS: u8 = 1;
const BATCH_FAILED: u8 = 5;
const BAD_OPERATION: u8 = 0x10;
const BAD_LENGTH: u8 = 0x13;
const BAD_COUNT: u8 = 0x14;
const HARDWARE: u8 = 0x1a;
const NOT_REACHED: u8 = 0x1f;

impl Dsa {
    /// Executes a copy or a NOOP, and returns its status.
    fn copy(&mut self, words: &[u64; 8], machine: &mut dyn Machine) -> u8 {
        let (operation, length) = (words[0] >> 56, words[4] as u32 as usize);
        if operation == NOOP {
            return SUCCESS;
        }
        if operation != MOVE {
            return BAD_OPERATION;
        }
        if length == 0 || length > 1 << LONGEST {
            return BAD_LENGTH;
        }
        match self.fault {
            Some(Fault::Error) => return HARDWARE,
            Some(Fault::ErrorAt(count)) if count == self.counts.copies => {
                self.fault = None;
                return HARDWARE;
            }
            _ => {}
        }
        let mut bytes = vec![0; length];
        if machine.read(words[2], &mut bytes).is_err() {
            return NOT_REACHED;
        }
        if self.fault == Some(Fault::Corrupt) {
            bytes[length / 2] ^= 1;
        }
        if machine.write(words[3], &bytes).is_err() {
            return NOT_REACHED;
        }
        self.counts.copies += 1;
        self.counts.bytes += length as u64;
        SUCCESS
    }

    fn record(&mut self, words: &[u64; 8], status: u8, count: u32, machine: &mut dyn Machine) {
        self.counts.failed += u64::from(status != SUCCESS);
        let flags = words[0] >> 32;
        let wanted = flags & RECORDED != 0 && (flags & RECORD_ALWAYS != 0 || status != SUCCESS);
        if wanted && self.fault != Some(Fault::NoRecord) {
            let rest = u64::from(count) << 32;
            // The status is written last.
            let _ = machine.write(words[1].wrapping_add(8), &[0; 24]);
            let _ = machine.write(words[1], &(rest | u64::from(status)).to_le_bytes());
        }
        if flags & INTERRUPTS != 0 && self.fault != Some(Fault::NoInterrupt) {
            // Without the command that requests an interrupt handle, the handle is the vector's number.
            let vector = (words[4] >> 32) as u16;
            let raised = vector < VECTORS && machine.interrupt(Interrupt::Msix(vector));
            self.counts.interrupts += u64::from(raised);
        }
    }

    /// Executes the oldest descriptor of a queue. Returns false if a fault makes the queue hang in it.
    pub(super) fn step(&mut self, words: &[u64; 8], machine: &mut dyn Machine) -> bool {
        if words[0] >> 56 != BATCHED {
            if matches!(self.fault, Some(Fault::Hang | Fault::HangOnce)) {
                return false;
            }
            let status = self.copy(words, machine);
            self.record(words, status, 0, machine);
            return true;
        }
        self.counts.batches += 1;
        let count = words[4] as u32 as usize;
        if !(2..=1 << BATCH).contains(&count) {
            self.record(words, BAD_COUNT, 0, machine);
            return true;
        }
        let mut list = vec![0; 64 * count];
        if machine.read(words[2], &mut list).is_err() {
            self.record(words, NOT_REACHED, 0, machine);
            return true;
        }
        let descriptor = |n: usize| -> [u64; 8] {
            core::array::from_fn(|word| number(&list[64 * n + 8 * word..64 * n + 8 * word + 8]))
        };
        let is_fence = |n: &usize| descriptor(*n)[0] >> 32 & FENCE != 0;
        let (mut begin, mut failed) = (0, false);
        while begin < count && !failed {
            let end = (begin + 1..count).find(is_fence).unwrap_or(count);
            self.counts.fences += u64::from(end < count);
            for n in (begin..end).rev() {
                let words = descriptor(n);
                let status = self.copy(&words, machine);
                failed |= status != SUCCESS;
                self.record(&words, status, 0, machine);
            }
            begin = end;
            if matches!(self.fault, Some(Fault::Hang | Fault::HangOnce)) {
                return false;
            }
        }
        let status = if failed { BATCH_FAILED } else { SUCCESS };
        self.record(words, status, begin as u32, machine);
        true
    }
}
