//! A channel: its registers, and the execution of its descriptor chain.

use super::Fault;
use super::descriptor::{COMPLETION_ADDRESS, Kind, NEXT_ADDRESS, READ_DATA, execute};
use crate::registers::{byte_of, with_half};
use crate::{Machine, Nanoseconds};

/// Execution time of a descriptor: within a factor of two of hardware, so that a driver that does not wait for
/// completions fails.
const DESCRIPTOR: Nanoseconds = 1_000;

/// CHANSTS, bits 0 to 2.
const ACTIVE: u64 = 0;
const DONE: u64 = 1;
const SUSPENDED: u64 = 2;
const HALTED: u64 = 3;

/// CHANCTRL: rearms the interrupt; writes a completion at an error; raises an interrupt at an error.
const REARM: u16 = 1 << 0;
const ERROR_COMPLETION: u16 = 1 << 2;
const ERROR_INTERRUPT: u16 = 1 << 4;

/// CHANCMD.
const SUSPEND: u64 = 1 << 2;
const RESUME: u64 = 1 << 4;
const RESET: u64 = 1 << 5;

/// Value of the compatibility register, beside CHANCTRL: version 2 of the registers.
const COMPATIBILITY: u64 = 2;

/// A channel's request to its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Interrupt,
}

#[derive(Clone, Debug)]
pub struct Channel {
    control: u16,
    /// Descriptors that were submitted (DMACOUNT), modulo 2^16.
    submitted: u16,
    /// Descriptors that were executed, modulo 2^16.
    done: u16,
    /// Address of the last executed descriptor.
    completed: u64,
    /// The last completion value that was written to memory.
    reported: u64,
    status: u64,
    chain: u64,
    next: u64,
    completion_address: u64,
    errors: u32,
    error_mask: u32,
    /// An interrupt was raised, and the driver has not rearmed since.
    blocked: bool,
    /// Another interrupt is raised at the rearm.
    pending: bool,
    /// When the current descriptor completes.
    busy_until: Option<Nanoseconds>,
    copies: u64,
    nulls: u64,
    xors: u64,
    bytes: u64,
    fences: u64,
    halts: u64,
}

impl Default for Channel {
    fn default() -> Self {
        Channel {
            control: 0,
            submitted: 0,
            done: 0,
            completed: 0,
            reported: 0,
            status: HALTED,
            chain: 0,
            next: 0,
            completion_address: 0,
            errors: 0,
            error_mask: 0,
            blocked: false,
            pending: false,
            busy_until: None,
            copies: 0,
            nulls: 0,
            xors: 0,
            bytes: 0,
            fences: 0,
            halts: 0,
        }
    }
}

impl Channel {
    pub fn byte(&self, offset: u64) -> u8 {
        match offset {
            0x00..=0x01 => byte_of(self.control.into(), offset),
            0x02..=0x03 => byte_of(COMPATIBILITY, offset - 0x02),
            0x06..=0x07 => byte_of(self.submitted.into(), offset - 0x06),
            0x08..=0x0f => byte_of(self.completed | self.status, offset - 0x08),
            0x10..=0x17 => byte_of(self.chain, offset - 0x10),
            0x18..=0x1f => byte_of(self.completion_address, offset - 0x18),
            0x20..=0x27 => byte_of(self.next, offset - 0x20),
            0x28..=0x2b => byte_of(self.errors.into(), offset - 0x28),
            0x2c..=0x2f => byte_of(self.error_mask.into(), offset - 0x2c),
            // CHANCMD reads as 0: commands are executed at once.
            _ => 0,
        }
    }

    pub fn write(
        &mut self,
        offset: u64,
        value: u64,
        length: usize,
        now: Nanoseconds,
    ) -> Option<Event> {
        match offset {
            0x00 => {
                self.control = value as u16 & !REARM;
                if value as u16 & REARM != 0 {
                    self.blocked = false;
                    return self.pending.then_some(Event::Interrupt);
                }
            }
            0x04 => self.command(value, now),
            0x06 => {
                self.submitted = value as u16;
                let usable = self.errors & !self.error_mask == 0 && self.chain != 0;
                if self.submitted != self.done && (self.status <= DONE || usable) {
                    self.status = ACTIVE;
                    self.start_next(now);
                }
            }
            0x10 | 0x14 => {
                self.chain = if length == 8 {
                    value
                } else {
                    with_half(self.chain, offset - 0x10, value as u32)
                };
                (self.next, self.submitted, self.done, self.completed) = (self.chain, 0, 0, 0);
                self.busy_until = None;
            }
            0x18 if length == 8 => self.completion_address = value,
            0x18 | 0x1c => {
                self.completion_address =
                    with_half(self.completion_address, offset - 0x18, value as u32);
            }
            0x28 => self.errors &= !(value as u32),
            0x2c => self.error_mask = value as u32,
            _ => {}
        }
        None
    }

    fn command(&mut self, command: u64, now: Nanoseconds) {
        if command & RESET != 0 {
            let error_mask = self.error_mask;
            self.power_on();
            self.error_mask = error_mask;
        } else if command & SUSPEND != 0 && self.status <= DONE {
            self.status = SUSPENDED;
            self.busy_until = None;
        } else if command & RESUME != 0 && self.status == SUSPENDED {
            self.status = ACTIVE;
            self.start_next(now);
        }
    }

    /// Starts the next descriptor, if there is one and none is executing.
    fn start_next(&mut self, now: Nanoseconds) {
        if self.status == ACTIVE && self.submitted != self.done && self.busy_until.is_none() {
            self.busy_until = Some(now + DESCRIPTOR);
        }
    }

    /// When the current descriptor completes.
    pub fn due(&self) -> Option<Nanoseconds> {
        self.busy_until
    }

    /// Completes the current descriptor.
    pub fn step(
        &mut self,
        bus_master: bool,
        fault: Option<Fault>,
        machine: &mut dyn Machine,
    ) -> Option<Event> {
        let at = self.busy_until.take()?;
        if fault == Some(Fault::Hang) {
            self.busy_until = Some(at + DESCRIPTOR * 1_000_000);
            return None;
        }
        let address = self.next;
        let halts = matches!(fault, Some(Fault::Halt | Fault::HaltOnce));
        let result = if halts {
            Err(READ_DATA)
        } else if bus_master {
            execute(machine, address, fault)
        } else {
            Err(NEXT_ADDRESS)
        };
        let done = match result {
            Ok(done) => done,
            Err(errors) => return self.halt(errors, machine),
        };
        self.done = self.done.wrapping_add(done.slots);
        self.next = done.next;
        self.completed = address & !0x3f;
        self.bytes += done.bytes;
        self.fences += u64::from(done.fence);
        match done.kind {
            Kind::Copy => self.copies += 1,
            Kind::Null => self.nulls += 1,
            Kind::Xor => self.xors += 1,
        }
        if self.done == self.submitted {
            self.status = DONE;
        }
        if done.completion && fault != Some(Fault::NoCompletion) {
            let word = match fault {
                Some(Fault::WrongCompletion) => self.completed + 0x40,
                Some(Fault::NobodysCompletion) => 0xdead_0000,
                Some(Fault::StaleCompletion) => self.reported,
                _ => self.completed,
            } | self.status;
            self.reported = self.completed;
            if machine.write(self.completion_address, &word.to_le_bytes()).is_err() {
                return self.halt(COMPLETION_ADDRESS, machine);
            }
        }
        self.start_next(at);
        done.interrupt.then_some(Event::Interrupt)
    }

    fn halt(&mut self, errors: u32, machine: &mut dyn Machine) -> Option<Event> {
        self.errors |= errors;
        self.status = HALTED;
        self.halts += 1;
        if self.control & ERROR_COMPLETION != 0 {
            let word = self.completed | HALTED;
            // If this write fails, too, memory cannot report the error: CHANERR has it.
            let _ = machine.write(self.completion_address, &word.to_le_bytes());
        }
        (self.control & ERROR_INTERRUPT != 0).then_some(Event::Interrupt)
    }

    /// Whether an interrupt may be raised now. Otherwise it is raised at the rearm.
    pub fn take_interrupt(&mut self) -> bool {
        self.pending = self.blocked;
        !core::mem::replace(&mut self.blocked, true)
    }

    /// Restores the power-on state, except for counters.
    pub fn power_on(&mut self) {
        let Channel { copies, nulls, xors, bytes, fences, halts, .. } = *self;
        *self = Channel { copies, nulls, xors, bytes, fences, halts, ..Channel::default() };
    }

    pub fn counted(&self) -> [(&'static str, u64); 6] {
        [
            ("copies", self.copies),
            ("nulls", self.nulls),
            ("xors", self.xors),
            ("bytes", self.bytes),
            ("fences", self.fences),
            ("halts", self.halts),
        ]
    }
}
