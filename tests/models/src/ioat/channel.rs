//! A channel: its registers, and the execution of its descriptor chain.

use super::Fault;
use super::descriptor::{COMPLETION_ADDRESS, Kind, NEXT_ADDRESS, READ_DATA, execute};
use crate::registers::{byte_of, with_half};
use crate::relaxed::{Held, Relaxed, release};
use crate::{Lateness, Machine, Nanoseconds};

/// Execution time of a descriptor: within a factor of two of hardware, so that a driver that does not wait for
/// completions fails.
const DESCRIPTOR: Nanoseconds = 1_000;

/// Time to suspend, and to reset.
const SUSPEND_TIME: Nanoseconds = 5_000;
const RESET_TIME: Nanoseconds = 20_000;

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
    /// The driver has violated a rule of the device.
    Complaint(&'static str),
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
    /// When a SUSPEND command is done.
    suspends_at: Option<Nanoseconds>,
    /// When a RESET command is done. None for ever while the channel runs: it is not obeyed.
    resets_at: Option<Nanoseconds>,
    /// A RESET command was given, and is not done.
    resetting: bool,
    /// Data that was overtaken by its completion, and when it is written.
    held: Held,
    held_until: Option<Nanoseconds>,
    lateness: Option<Lateness>,
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
            suspends_at: None,
            resets_at: None,
            resetting: false,
            held: Held::new(),
            held_until: None,
            lateness: None,
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
            // RESET reads as 1 until it is done.
            0x04 if self.resetting => RESET as u8,
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
            0x04 => return self.command(value, now),
            0x06 => {
                self.submitted = value as u16;
                let usable = self.errors & !self.error_mask == 0 && self.chain != 0;
                if self.submitted != self.done && (self.status <= DONE || usable) {
                    self.status = ACTIVE;
                    self.start_next(now);
                }
            }
            // Linux (`ioat/init.c`): "doing 2 32bit writes to mmio since 1 64b write doesn't work".
            0x10 | 0x18 if length != 4 => {
                return Some(Event::Complaint("a 64-bit store to CHAINADDR or CHANCMP is ignored"));
            }
            0x10 | 0x14 => {
                self.chain = with_half(self.chain, offset - 0x10, value as u32);
                (self.next, self.submitted, self.done, self.completed) = (self.chain, 0, 0, 0);
                self.busy_until = None;
            }
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

    fn command(&mut self, command: u64, now: Nanoseconds) -> Option<Event> {
        let late = self.lateness.as_mut().map_or(0, Lateness::next_delay);
        if command & RESET != 0 {
            self.resetting = true;
            if self.status == ACTIVE {
                return Some(Event::Complaint("RESET of an active channel is ignored"));
            }
            self.resets_at = Some(now + RESET_TIME + late);
        } else if command & SUSPEND != 0 && self.status <= DONE {
            self.suspends_at = Some(now + SUSPEND_TIME + late);
        } else if command & RESUME != 0 && self.status == SUSPENDED {
            self.status = ACTIVE;
            self.start_next(now);
        }
        None
    }

    /// Ends commands that are done at `now`, and writes data that was held back.
    pub fn finish_commands(&mut self, now: Nanoseconds, machine: &mut dyn Machine) {
        if self.held_until.take_if(|at| *at <= now).is_some() {
            release(&mut self.held, machine);
        }
        if self.suspends_at.take_if(|at| *at <= now).is_some() {
            self.status = SUSPENDED;
            self.busy_until = None;
            if self.resetting && self.resets_at.is_none() {
                self.resets_at = Some(now + RESET_TIME);
            }
        }
        if self.resets_at.take_if(|at| *at <= now).is_some() {
            let (error_mask, lateness) = (self.error_mask, self.lateness);
            self.power_on();
            (self.error_mask, self.lateness) = (error_mask, lateness);
        }
    }

    /// Answers commands late from now on.
    pub fn be_late(&mut self, lateness: Lateness) {
        self.lateness = Some(lateness);
    }

    /// Starts the next descriptor, if there is one and none is executing.
    fn start_next(&mut self, now: Nanoseconds) {
        if self.status == ACTIVE && self.submitted != self.done && self.busy_until.is_none() {
            self.busy_until = Some(now + DESCRIPTOR);
        }
    }

    /// When the current descriptor or a command is done.
    pub fn due(&self) -> Option<Nanoseconds> {
        let all = [self.busy_until, self.suspends_at, self.resets_at, self.held_until];
        all.into_iter().flatten().min()
    }

    /// Whether the current descriptor is complete at `now`.
    pub fn is_done(&self, now: Nanoseconds) -> bool {
        self.busy_until.is_some_and(|at| at <= now)
    }

    /// Completes the current descriptor. If the function `reorders`, the completion overtakes the data.
    pub fn step(
        &mut self,
        bus_master: bool,
        reorders: bool,
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
        } else if bus_master && reorders {
            self.held_until = Some(at + DESCRIPTOR);
            release(&mut self.held, machine);
            execute(&mut Relaxed { machine: &mut *machine, held: &mut self.held }, address, fault)
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
        let Channel { copies, nulls, xors, bytes, fences, halts, lateness, .. } = *self;
        let fresh = Channel { copies, nulls, xors, bytes, fences, halts, ..Channel::default() };
        *self = Channel { lateness, ..fresh };
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
