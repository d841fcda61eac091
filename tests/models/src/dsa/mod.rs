//! Model of Intel DSA as `idxd` uses it (Linux, drivers/dma/idxd): dedicated queues with an engine each, copies,
//! batches with fences, completion records. Descriptors between two fences of a batch are executed in reverse order,
//! which the specification permits. MSI-X vectors: the first for commands, one for the completions of each queue.
//!
//! Not modelled: shared queues, PASIDs, page faults, the event log, operations but NOOP, BATCH and MEMMOVE.

mod commands;
mod copies;

use crate::registers::{byte_of, number, read_bytes};
use crate::{
    Bar, ConfigSpace, Function, Interrupt, Interrupts, Lateness, Machine, Nanoseconds, PortType,
};
use copies::{BATCHED, MOVE, NOOP};
use std::collections::{BTreeMap, VecDeque};

/// The device in Sapphire Rapids.
pub const DEVICE: u16 = 0x0b25;

const REGISTERS: Bar = Bar { index: 0, size: 0x1_0000 };
const PORTALS: Bar = Bar { index: 2, size: 0x1_0000 };
/// The number of queues, also of groups and engines; and the entries that all queues share.
const QUEUES: usize = 4;
const ENTRIES: u64 = 64;
/// MSI-X vectors: one for commands, and one for each queue.
const VECTORS: u16 = 1 + QUEUES as u16;
/// Offsets of the tables, and bytes of their entries.
const GROUP_TABLE: u64 = 0x400;
const QUEUE_TABLE: u64 = 0x600;
const PERMISSION_TABLE: u64 = 0x800;
const MSIX_TABLE: u32 = 0x2000;
const MSIX_PENDING: u32 = 0x3000;
const GROUP: u64 = 64;
const QUEUE: u64 = 64;
/// Most bytes of a copy and descriptors of a batch, as log2.
const LONGEST: u64 = 31;
const BATCH: u64 = 10;

const CAUSES: u64 = 0x98;
const COMMAND: u64 = 0xa0;
const ACTIVE: u32 = 1 << 31;
/// Command flag: raise an interrupt at completion. `COMMAND_ENDED` is the interrupt's cause.
const INTERRUPT_WANTED: u32 = 1 << 31;
const COMMAND_ENDED: u32 = 2;

// States of the device.
const DISABLED: u32 = 0;
const ENABLED: u32 = 1;
const HALTED: u32 = 3;

/// Execution times of a command and of a descriptor.
const COMMAND_TIME: Nanoseconds = 10_000;
const DESCRIPTOR_TIME: Nanoseconds = 500;

/// Faults to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The tables are read-only (locked by firmware).
    Locked,
    /// Commands never complete.
    StuckCommand,
    /// A byte of every copy is wrong.
    Corrupt,
    /// Every copy fails.
    Error,
    /// The copy after this many others fails, once.
    ErrorAt(u64),
    /// A batch is executed up to its first fence, then its queue hangs.
    Hang,
    /// As `Hang`, once.
    HangOnce,
    /// No completion record is written.
    NoRecord,
    /// No interrupt is raised for a completion.
    NoInterrupt,
    /// The device halts at the next descriptor.
    Halt,
}

impl Fault {
    /// Faults that the command line offers, with their names; stock Linux must detect them.
    pub const NAMED: [(&str, Fault); 2] =
        [("corrupt-copy", Fault::Corrupt), ("no-interrupt", Fault::NoInterrupt)];
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    copies: u64,
    bytes: u64,
    batches: u64,
    fences: u64,
    failed: u64,
    aborted: u64,
    interrupts: u64,
    /// Rejected portal writes: no complete descriptor, a full queue, or a queue that is not enabled.
    torn: u64,
}

/// State of a queue.
#[derive(Clone, Debug, Default)]
struct Queue {
    is_enabled: bool,
    waiting: VecDeque<[u64; 8]>,
    /// When the oldest descriptor completes.
    due: Option<Nanoseconds>,
    hangs: bool,
}

/// The engine.
pub struct Dsa {
    config: ConfigSpace,
    fault: Option<Fault>,
    /// Version, major in bits 15:8.
    version: u32,
    state: u32,
    lateness: Option<Lateness>,
    command: Option<(Nanoseconds, u32)>,
    command_error: u8,
    causes: u32,
    tables: BTreeMap<u64, u32>,
    queues: [Queue; QUEUES],
    counts: Counts,
}

impl Dsa {
    /// Creates an engine in its power-on state.
    pub fn new(fault: Option<Fault>) -> Self {
        let config = ConfigSpace::new(0x8086, DEVICE, 0x08_80_00, 0)
            .subsystem(0x8086, 0)
            .memory_bar(REGISTERS.index, REGISTERS.size)
            .memory_bar(PORTALS.index, PORTALS.size)
            .express(PortType::IntegratedEndpoint)
            .power_management()
            .msix(VECTORS, REGISTERS.index, MSIX_TABLE, MSIX_PENDING)
            .extended(1, 1, 0x100);
        Dsa {
            config,
            fault,
            version: 0x100,
            state: DISABLED,
            lateness: None,
            command: None,
            command_error: 0,
            causes: 0,
            tables: BTreeMap::new(),
            queues: Default::default(),
            counts: Counts::default(),
        }
    }

    /// Sets the version: 0x100 to 0x3ff.
    pub fn with_version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Halts the device, as an earlier system may leave it. It asks for this reset: 0 by command, 1 of the function, 2
    /// or 3 of the machine.
    pub fn with_halt(mut self, reset: u32) -> Self {
        self.state = HALTED | reset << 2;
        self
    }

    /// Replaces the injected fault; None removes it.
    pub fn inject(&mut self, fault: Option<Fault>) {
        self.fault = fault;
    }

    fn table(&self, at: u64) -> u32 {
        self.tables.get(&at).copied().unwrap_or(0)
    }

    /// Queues a descriptor that was written to a portal.
    fn submit(&mut self, offset: u64, bytes: &[u8], now: Nanoseconds) {
        let n = (offset / 0x4000) as usize;
        let size = self.table(QUEUE_TABLE + n as u64 * QUEUE) as usize;
        let running = self.state == ENABLED;
        let Some(queue) = self.queues.get_mut(n).filter(|queue| running && queue.is_enabled) else {
            self.counts.torn += 1;
            return;
        };
        if bytes.len() != 64 || !offset.is_multiple_of(64) || queue.waiting.len() >= size {
            self.counts.torn += 1;
            return;
        }
        let words = core::array::from_fn(|word| number(&bytes[8 * word..8 * word + 8]));
        queue.waiting.push_back(words);
        if queue.due.is_none() && !queue.hangs {
            queue.due = Some(now + DESCRIPTOR_TIME);
        }
    }

    fn run(&mut self, n: usize, now: Nanoseconds, machine: &mut dyn Machine) {
        while self.state == ENABLED && self.queues[n].due.is_some_and(|due| due <= now) {
            if self.fault == Some(Fault::Halt) {
                self.state = HALTED;
                return;
            }
            let due = self.queues[n].due.take().unwrap_or(now);
            let Some(words) = self.queues[n].waiting.front().copied() else { return };
            if !self.step(&words, machine) {
                self.queues[n].hangs = true;
                if self.fault == Some(Fault::HangOnce) {
                    self.fault = None;
                }
                return;
            }
            let queue = &mut self.queues[n];
            queue.waiting.pop_front();
            queue.due = (!queue.waiting.is_empty()).then_some(due + DESCRIPTOR_TIME);
        }
    }

    fn word(&self, at: u64) -> u64 {
        let unlocked = u64::from(self.fault != Some(Fault::Locked));
        match at {
            0x00 => self.version.into(),
            0x10 => LONGEST << 16 | BATCH << 21 | unlocked << 31,
            // Capabilities: entries, queues, entry sizes of 2^(5 + 1), dedicated queues, address translation, operation
            // limits.
            0x20 => ENTRIES | (QUEUES as u64) << 16 | 1 << 24 | 1 << 49 | 1 << 50 | 1 << 54,
            0x30 => QUEUES as u64 | 96 << 8,
            0x38 => QUEUES as u64,
            0x40 => 1 << NOOP | 1 << BATCHED | 1 << MOVE,
            0x60 => {
                let [groups, queues, permissions] =
                    [GROUP_TABLE, QUEUE_TABLE, PERMISSION_TABLE].map(|table| table / 0x100);
                groups | queues << 16 | permissions << 32
            }
            0x90 => self.state.into(),
            CAUSES => self.causes.into(),
            0xa8 => {
                let active = if self.command.is_some() { ACTIVE } else { 0 };
                (active | u32::from(self.command_error)).into()
            }
            _ => u64::from(self.table(at)) | u64::from(self.table(at + 4)) << 32,
        }
    }
}

impl Function for Dsa {
    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn bars(&self) -> &[Bar] {
        &[REGISTERS, PORTALS]
    }

    fn interrupts(&self) -> Interrupts {
        Interrupts { msix: VECTORS, ..Interrupts::default() }
    }

    fn portals(&self) -> Option<Bar> {
        Some(PORTALS)
    }

    fn read(&mut self, bar: u8, offset: u64, into: &mut [u8]) {
        if bar != REGISTERS.index {
            return into.fill(0xff);
        }
        read_bytes(offset, into, |at| byte_of(self.word(at & !7), at % 8));
    }

    fn write(&mut self, bar: u8, offset: u64, bytes: &[u8], now: Nanoseconds, _: &mut dyn Machine) {
        if bar == PORTALS.index {
            return self.submit(offset, bytes, now);
        }
        match offset {
            COMMAND => {
                let late = self.lateness.as_mut().map_or(0, Lateness::next_delay);
                self.command = Some((now + COMMAND_TIME + late, number(bytes) as u32));
            }
            CAUSES => self.causes &= !(number(bytes) as u32),
            GROUP_TABLE.. => {
                for (at, word) in (offset..).step_by(4).zip(bytes.chunks(4)) {
                    if self.is_open(at) {
                        self.tables.insert(at, number(word) as u32);
                    }
                }
            }
            _ => {}
        }
    }

    fn poll(&mut self, now: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        (0..QUEUES).for_each(|n| self.run(n, now, machine));
        let stuck = self.fault == Some(Fault::StuckCommand);
        if let Some((_, word)) = self.command.take_if(|(due, _)| *due <= now && !stuck) {
            if self.drains(word) {
                self.command = Some((now + COMMAND_TIME, word));
            } else {
                self.command_error = self.execute_command(word).err().unwrap_or(0);
                if word & INTERRUPT_WANTED != 0 {
                    self.causes |= COMMAND_ENDED;
                    self.counts.interrupts += u64::from(machine.interrupt(Interrupt::Msix(0)));
                }
            }
        }
        let command = self.command.map(|(due, _)| due).filter(|_| !stuck);
        self.queues.iter().filter_map(|queue| queue.due).chain(command).min()
    }

    fn reset(&mut self) {
        let config = std::mem::replace(&mut self.config, Dsa::new(None).config);
        let Dsa { counts, version, lateness, .. } = *self;
        *self = Dsa { config, counts, version, lateness, ..Dsa::new(self.fault) };
    }

    fn be_late(&mut self, lateness: Lateness) {
        self.lateness = Some(lateness);
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let Counts { copies, bytes, batches, fences, failed, aborted, interrupts, torn } =
            self.counts;
        let all = [
            ("copies", copies),
            ("bytes", bytes),
            ("batches", batches),
            ("fences", fences),
            ("failed", failed),
            ("aborted", aborted),
            ("interrupts", interrupts),
            ("torn", torn),
        ];
        all.map(|(name, count)| (name.to_string(), count)).to_vec()
    }
}
