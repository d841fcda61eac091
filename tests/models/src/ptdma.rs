//! Model of AMD's PTDMA as stock `ptdma` uses it (Linux, drivers/dma/ptdma): one queue of 32-byte descriptors that copy
//! ("pass-through"). Not modelled: other engines, stopping after a descriptor, the queue's priority.

use crate::registers::{byte_of, number, read_bytes};
use crate::{Bar, ConfigSpace, Function, Interrupt, Interrupts, Machine, Nanoseconds, PortType};
use std::collections::BTreeMap;

/// PCI device id.
pub const DEVICE: u16 = 0x1498;

const REGISTERS: Bar = Bar { index: 2, size: 0x10_0000 };
const MSIX: Bar = Bar { index: 5, size: 0x2000 };
const VECTORS: u16 = 2;

// Registers of the queue.
const CONTROL: u64 = 0x1000;
const TAIL: u64 = 0x1004;
const HEAD: u64 = 0x1008;
const INTERRUPTS: u64 = 0x100c;
const INTERRUPT_STATUS: u64 = 0x1010;
const STATUS: u64 = 0x1100;
const LAST_INTERRUPT: u64 = 0x1104;

const RUN: u32 = 1;
const COMPLETED: u32 = 1;
const ERROR: u32 = 2;

const DESCRIPTOR: u32 = 32;
/// First word of a descriptor: interrupt on completion; number of the engine.
const INTERRUPT: u32 = 2;
const PASS_THROUGH: u32 = 5;

// Errors, as the lower bits of the status.
const ILLEGAL_ENGINE: u32 = 1;
const ILLEGAL_LENGTH: u32 = 9;
const NOT_REACHED: u32 = 11;
const DESCRIPTOR_NOT_READ: u32 = 20;

/// Execution time of a descriptor. Each nanosecond more copies 8 bytes.
const OVERHEAD: Nanoseconds = 2_000;

/// Faults to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A byte of every seventh copy is wrong.
    CorruptCopy,
    /// No interrupt is raised.
    NoInterrupt,
    /// The interrupt status stays 0.
    NoStatus,
    /// Every copy fails.
    Error,
    /// The next copy fails.
    ErrorOnce,
    /// A copy never completes.
    Hang,
}

impl Fault {
    /// Faults by name.
    pub const NAMED: [(&str, Fault); 6] = [
        ("corrupt-copy", Fault::CorruptCopy),
        ("no-interrupt", Fault::NoInterrupt),
        ("no-status", Fault::NoStatus),
        ("error", Fault::Error),
        ("error-once", Fault::ErrorOnce),
        ("hang", Fault::Hang),
    ];
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    copies: u64,
    bytes: u64,
    errors: u64,
    interrupts: u64,
}

/// The engine.
pub struct Ptdma {
    config: ConfigSpace,
    fault: Option<Fault>,
    control: u32,
    tail: u32,
    head: u32,
    interrupts: u32,
    interrupt_status: u32,
    status: u32,
    /// An interrupt must be raised.
    unsent: bool,
    /// When the descriptor at the head completes.
    due: Option<Nanoseconds>,
    others: BTreeMap<u64, u32>,
    counts: Counts,
}

impl Ptdma {
    /// Creates an engine in its power-on state.
    pub fn new(fault: Option<Fault>) -> Self {
        let config = ConfigSpace::new(0x1022, DEVICE, 0x10_80_00, 0)
            .subsystem(0x1022, DEVICE)
            .memory_bar(REGISTERS.index, REGISTERS.size)
            .memory_bar_32(MSIX.index, MSIX.size as u32)
            .msix(VECTORS, MSIX.index, 0, 0x1000)
            .express(PortType::IntegratedEndpoint)
            .power_management()
            .extended(1, 1, 0x100);
        Ptdma {
            config,
            fault,
            control: 0,
            tail: 0,
            head: 0,
            interrupts: 0,
            interrupt_status: 0,
            status: 0,
            unsent: false,
            due: None,
            others: BTreeMap::new(),
            counts: Counts::default(),
        }
    }

    /// Replaces the injected fault; None removes it.
    pub fn inject(&mut self, fault: Option<Fault>) {
        self.fault = fault;
    }

    fn runs(&self) -> bool {
        self.control & RUN != 0 && self.head != self.tail
    }

    /// Starts the descriptor at the head, if there is one.
    fn begin(&mut self, now: Nanoseconds, machine: &mut dyn Machine) {
        if !self.runs() || self.due.is_some() || self.fault == Some(Fault::Hang) {
            return;
        }
        let length = self.descriptor(machine).map_or(0, |words| words[1]);
        self.due = Some(now + OVERHEAD + Nanoseconds::from(length) / 8);
    }

    fn descriptor(&self, machine: &mut dyn Machine) -> Option<[u32; 8]> {
        if !self.config.is_bus_master() {
            return None;
        }
        let mut bytes = [0; DESCRIPTOR as usize];
        let address = u64::from(self.control >> 16) << 32 | u64::from(self.head);
        machine.read(address, &mut bytes).ok()?;
        Some(core::array::from_fn(|n| number(&bytes[4 * n..4 * n + 4]) as u32))
    }

    /// Executes the descriptor at the head, and returns its first word. An error is the error code.
    fn execute(&mut self, machine: &mut dyn Machine) -> Result<u32, u32> {
        let words = self.descriptor(machine).ok_or(DESCRIPTOR_NOT_READ)?;
        let length = words[1];
        let address = |low: usize| u64::from(words[low]) | u64::from(words[low + 1] & 0xffff) << 32;
        if words[0] >> 20 & 15 != PASS_THROUGH {
            return Err(ILLEGAL_ENGINE);
        }
        if length == 0 {
            return Err(ILLEGAL_LENGTH);
        }
        match self.fault {
            Some(Fault::Error) => return Err(NOT_REACHED),
            Some(Fault::ErrorOnce) => {
                self.fault = None;
                return Err(NOT_REACHED);
            }
            _ => {}
        }
        let mut bytes = vec![0; length as usize];
        machine.read(address(2), &mut bytes).map_err(|_| NOT_REACHED)?;
        if self.fault == Some(Fault::CorruptCopy) && self.counts.copies % 7 == 3 {
            bytes[length as usize / 2] ^= 1;
        }
        machine.write(address(4), &bytes).map_err(|_| NOT_REACHED)?;
        self.counts.copies += 1;
        self.counts.bytes += u64::from(length);
        Ok(words[0])
    }

    /// Completes the descriptor at the head.
    fn complete(&mut self, machine: &mut dyn Machine) {
        let result = self.execute(machine);
        // The ring has 2^(size + 1) descriptors, and is aligned to its size.
        let ring = DESCRIPTOR << ((self.control >> 3 & 31) + 1);
        self.head = self.head & !(ring - 1) | (self.head + DESCRIPTOR) & (ring - 1);
        let event = match result {
            Ok(word) => {
                self.status = 0;
                if word & INTERRUPT != 0 { COMPLETED } else { 0 }
            }
            Err(error) => {
                self.counts.errors += 1;
                (self.status, self.control) = (error, self.control & !RUN);
                ERROR
            }
        };
        if self.fault != Some(Fault::NoStatus) {
            self.interrupt_status |= event;
            self.unsent |= event & self.interrupts != 0;
        }
    }
}

impl Function for Ptdma {
    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn bars(&self) -> &[Bar] {
        &[REGISTERS, MSIX]
    }

    fn interrupts(&self) -> Interrupts {
        Interrupts { msix: VECTORS, ..Interrupts::default() }
    }

    fn read(&mut self, bar: u8, offset: u64, into: &mut [u8]) {
        if bar != REGISTERS.index {
            return into.fill(0);
        }
        read_bytes(offset, into, |at| {
            let value = match at & !3 {
                CONTROL => self.control,
                TAIL => self.tail,
                HEAD => self.head,
                INTERRUPTS => self.interrupts,
                INTERRUPT_STATUS | LAST_INTERRUPT => self.interrupt_status,
                STATUS => self.status,
                other => self.others.get(&other).copied().unwrap_or(0),
            };
            byte_of(value.into(), at % 4)
        });
    }

    fn write(
        &mut self,
        bar: u8,
        offset: u64,
        bytes: &[u8],
        now: Nanoseconds,
        machine: &mut dyn Machine,
    ) {
        let value = number(bytes) as u32;
        match (bar == REGISTERS.index, offset) {
            (false, _) => {}
            (_, CONTROL) => {
                self.control = value;
                if value & RUN == 0 {
                    self.due = None;
                }
            }
            (_, TAIL) => self.tail = value,
            (_, HEAD) => self.head = value,
            // Events that happened while interrupts were disabled raise an interrupt now.
            (_, INTERRUPTS) => {
                self.unsent |= self.interrupt_status & value & !self.interrupts != 0;
                self.interrupts = value;
            }
            (_, INTERRUPT_STATUS) => self.interrupt_status &= !value,
            (_, other) => _ = self.others.insert(other, value),
        }
        self.begin(now, machine);
    }

    fn poll(&mut self, now: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        while self.due.is_some_and(|due| due <= now) {
            let due = self.due.take().unwrap_or(now);
            self.complete(machine);
            // The next descriptor starts when this one completes.
            self.begin(due, machine);
        }
        if std::mem::take(&mut self.unsent)
            && self.fault != Some(Fault::NoInterrupt)
            && machine.interrupt(Interrupt::Msix(0))
        {
            self.counts.interrupts += 1;
        }
        self.due
    }

    fn reset(&mut self) {
        let config = std::mem::replace(&mut self.config, Ptdma::new(None).config);
        *self = Ptdma { config, counts: self.counts, ..Ptdma::new(self.fault) };
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let all = [
            ("copies", self.counts.copies),
            ("bytes", self.counts.bytes),
            ("errors", self.counts.errors),
            ("interrupts", self.counts.interrupts),
        ];
        all.map(|(name, count)| (name.to_string(), count)).to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestMachine;

    const RING: u64 = 0x1000;

    fn write(engine: &mut Ptdma, machine: &mut TestMachine, offset: u64, value: u32) {
        engine.write(2, offset, &value.to_le_bytes(), 0, machine);
    }

    fn read(engine: &mut Ptdma, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        engine.read(2, offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// A running ring of 32. Its last and its first descriptor copy 64 bytes each.
    fn started(fault: Option<Fault>) -> (Ptdma, TestMachine) {
        let mut engine = Ptdma::new(fault);
        let mut machine = TestMachine::new(1 << 16);
        engine.config.write(4, &6u16.to_le_bytes());
        machine.memory[0x4000..0x4040].fill(7);
        for (slot, to) in [(31u64, 0x5000u32), (0, 0x6000)] {
            let words = [0x50_0012u32, 64, 0x4000, 0, to, 0, 0, 0];
            let at = (RING + 32 * slot) as usize;
            for (n, word) in words.into_iter().enumerate() {
                machine.memory[at + 4 * n..at + 4 * n + 4].copy_from_slice(&word.to_le_bytes());
            }
        }
        write(&mut engine, &mut machine, INTERRUPTS, 3);
        write(&mut engine, &mut machine, HEAD, (RING + 31 * 32) as u32);
        write(&mut engine, &mut machine, TAIL, (RING + 32) as u32);
        write(&mut engine, &mut machine, CONTROL, 4 << 3 | RUN);
        (engine, machine)
    }

    #[test]
    fn descriptors_are_executed_in_order_and_on_time() {
        let (mut engine, mut machine) = started(None);
        assert_eq!(engine.poll(OVERHEAD, &mut machine), Some(OVERHEAD + 8));
        engine.poll(OVERHEAD + 8, &mut machine);
        assert_eq!((machine.memory[0x503f], machine.memory[0x6000]), (7, 0));
        assert_eq!(read(&mut engine, HEAD), RING as u32);
        assert_eq!(engine.poll(3 * OVERHEAD, &mut machine), None);
        assert_eq!(machine.memory[0x603f], 7);
        assert_eq!((read(&mut engine, HEAD), read(&mut engine, INTERRUPT_STATUS)), (0x1020, 1));
        assert_eq!(machine.interrupts, [Interrupt::Msix(0), Interrupt::Msix(0)]);
    }

    #[test]
    fn an_error_stops_the_queue() {
        let (mut engine, mut machine) = started(Some(Fault::Error));
        assert_eq!(engine.poll(1_000_000, &mut machine), None);
        assert_eq!((read(&mut engine, STATUS), read(&mut engine, INTERRUPT_STATUS)), (11, 2));
        assert_eq!((read(&mut engine, CONTROL) & RUN, engine.counts.errors), (0, 1));
    }
}
