//! Intel DSA as `idxd` uses it (Linux, drivers/dma/idxd): dedicated queues with an engine each, copies, batches with
//! fences, records of completion. What a batch has between fences is carried out from its end on, which the device may do.
//! Not modelled: shared queues, PASIDs, page faults, interrupts, operations but NOOP, BATCH and MEMMOVE.

use crate::registers::{byte_of, number, read_bytes};
use crate::{Bar, ConfigSpace, Function, Interrupts, Machine, Nanoseconds, PortType};
use std::collections::{BTreeMap, VecDeque};

/// The device in Sapphire Rapids.
pub const DEVICE: u16 = 0x0b25;

const REGISTERS: Bar = Bar { index: 0, size: 0x1_0000 };
const PORTALS: Bar = Bar { index: 2, size: 0x2_0000 };
/// Queues, groups and engines, and entries of all queues.
const QUEUES: usize = 4;
const ENTRIES: u64 = 64;
/// Where the tables lie, and bytes of their entries.
const GROUP_TABLE: u64 = 0x400;
const QUEUE_TABLE: u64 = 0x600;
const GROUP: u64 = 64;
const QUEUE: u64 = 64;
/// Most bytes of a copy and descriptors of a batch, as log2.
const LONGEST: u64 = 31;
const BATCH: u64 = 10;

const COMMAND: u64 = 0xa0;
const ACTIVE: u32 = 1 << 31;

// States of the device.
const DISABLED: u32 = 0;
const ENABLED: u32 = 1;
const HALTED: u32 = 3;

// Reasons why a command is refused.
const NO_COMMAND: u8 = 0x01;
const NO_QUEUE: u8 = 0x02;
const IS_ENABLED: u8 = 0x10;
const NO_BUS_MASTER: u8 = 0x12;
const BAD_SIZES: u8 = 0x14;
const BAD_GROUP: u8 = 0x15;
const NOT_ENABLED: u8 = 0x20;
const NO_SIZE: u8 = 0x22;
const NO_PRIORITY: u8 = 0x23;
const BAD_MODE: u8 = 0x24;
const BAD_BATCH: u8 = 0x27;
const BAD_LONGEST: u8 = 0x28;

// Flags and operations of descriptors, and what records say.
const FENCE: u64 = 1;
const RECORDED: u64 = 4;
const RECORD_ALWAYS: u64 = 8;
const NOOP: u64 = 0;
const BATCHED: u64 = 1;
const MOVE: u64 = 3;
const SUCCESS: u8 = 1;
const BATCH_FAILED: u8 = 5;
const BAD_OPERATION: u8 = 0x10;
const BAD_LENGTH: u8 = 0x13;
const BAD_COUNT: u8 = 0x14;
const HARDWARE: u8 = 0x1a;
const NOT_REACHED: u8 = 0x1f;

/// What a command takes; a descriptor.
const COMMAND_TIME: Nanoseconds = 10_000;
const DESCRIPTOR_TIME: Nanoseconds = 500;

/// What the model does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Firmware has locked the tables.
    Locked,
    /// Commands do not end.
    StuckCommand,
    /// A byte of every copy is wrong.
    Corrupt,
    /// Every copy fails.
    Error,
    /// The copy behind so many others fails, once.
    ErrorAt(u64),
    /// What is between the first fences of a batch is carried out, and then nothing more.
    Hang,
    /// The same once.
    HangOnce,
    /// Nothing is recorded.
    NoRecord,
    /// The device stands still from the next descriptor on.
    Halt,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    copies: u64,
    bytes: u64,
    batches: u64,
    fences: u64,
    failed: u64,
    aborted: u64,
    /// Writes to portals that were no descriptor, or to queues that are not there.
    torn: u64,
}

/// What a queue is at.
#[derive(Clone, Debug, Default)]
struct Queue {
    is_enabled: bool,
    waiting: VecDeque<[u64; 8]>,
    /// When the oldest is done.
    due: Option<Nanoseconds>,
    hangs: bool,
}

/// The engine.
pub struct Dsa {
    config: ConfigSpace,
    fault: Option<Fault>,
    state: u32,
    command: Option<(Nanoseconds, u32)>,
    command_error: u8,
    tables: BTreeMap<u64, u32>,
    queues: [Queue; QUEUES],
    counts: Counts,
}

impl Dsa {
    /// One as after power-on.
    pub fn new(fault: Option<Fault>) -> Self {
        let config = ConfigSpace::new(0x8086, DEVICE, 0x08_80_00, 0)
            .subsystem(0x8086, 0)
            .memory_bar(REGISTERS.index, REGISTERS.size)
            .memory_bar(PORTALS.index, PORTALS.size)
            .express(PortType::IntegratedEndpoint)
            .power_management()
            .extended(1, 1, 0x100);
        Dsa {
            config,
            fault,
            state: DISABLED,
            command: None,
            command_error: 0,
            tables: BTreeMap::new(),
            queues: Default::default(),
            counts: Counts::default(),
        }
    }

    /// From now on this is wrong, or nothing.
    pub fn inject(&mut self, fault: Option<Fault>) {
        self.fault = fault;
    }

    fn table(&self, at: u64) -> u32 {
        self.tables.get(&at).copied().unwrap_or(0)
    }

    /// Ends a command.
    fn carry_out_command(&mut self, word: u32) -> Result<(), u8> {
        let operand = word & 0xf_ffff;
        match word >> 20 & 31 {
            1 => self.enable(),
            5 => {
                self.state = DISABLED;
                self.tables.clear();
                self.queues = Default::default();
                Ok(())
            }
            6 => self.enable_queue(operand as usize),
            9 => {
                if self.state != ENABLED {
                    return Err(NOT_ENABLED);
                }
                for queue in 0..QUEUES {
                    if operand >> 16 == 0 && operand & 1 << queue != 0 {
                        let queue = &mut self.queues[queue];
                        self.counts.aborted += queue.waiting.len() as u64;
                        queue.waiting.clear();
                        (queue.due, queue.hangs) = (None, false);
                    }
                }
                Ok(())
            }
            _ => Err(NO_COMMAND),
        }
    }

    fn enable(&mut self) -> Result<(), u8> {
        let sizes = (0..QUEUES as u64).map(|n| u64::from(self.table(QUEUE_TABLE + n * QUEUE)));
        if self.state != DISABLED {
            return Err(IS_ENABLED);
        }
        if !self.config.is_bus_master() {
            return Err(NO_BUS_MASTER);
        }
        if sizes.sum::<u64>() > ENTRIES {
            return Err(BAD_SIZES);
        }
        self.state = ENABLED;
        Ok(())
    }

    fn enable_queue(&mut self, n: usize) -> Result<(), u8> {
        if n >= QUEUES {
            return Err(NO_QUEUE);
        }
        if self.state != ENABLED {
            return Err(NOT_ENABLED);
        }
        let at = QUEUE_TABLE + n as u64 * QUEUE;
        let (size, mode, limits) = (self.table(at), self.table(at + 8), self.table(at + 12));
        // One group has it, with an engine.
        let groups: Vec<u64> = (0..QUEUES as u64)
            .map(|group| GROUP_TABLE + group * GROUP)
            .filter(|group| self.table(*group) & 1 << n != 0)
            .collect();
        let has_engine = |group: &u64| self.table(group + 32) != 0;
        let checks = [
            (size == 0, NO_SIZE),
            (mode >> 4 & 15 == 0, NO_PRIORITY),
            (mode & 1 == 0, BAD_MODE),
            (u64::from(limits & 31) > LONGEST, BAD_LONGEST),
            (u64::from(limits >> 5 & 15) > BATCH, BAD_BATCH),
            (groups.len() != 1 || !groups.iter().all(has_engine), BAD_GROUP),
        ];
        if let Some((_, error)) = checks.into_iter().find(|(is_wrong, _)| *is_wrong) {
            return Err(error);
        }
        self.queues[n].is_enabled = true;
        Ok(())
    }

    /// A descriptor is written to a portal.
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

    /// Carries out a copy, or nothing; what came of it.
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
        if !wanted || self.fault == Some(Fault::NoRecord) {
            return;
        }
        let rest = u64::from(count) << 32;
        // Its status is written last.
        let _ = machine.write(words[1] + 8, &[0; 24]);
        let _ = machine.write(words[1], &(rest | u64::from(status)).to_le_bytes());
    }

    /// Carries out the oldest descriptor of a queue; false if it hangs in it.
    fn step(&mut self, words: &[u64; 8], machine: &mut dyn Machine) -> bool {
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
            0x00 => 0x100,
            0x10 => LONGEST << 16 | BATCH << 21 | unlocked << 31,
            // Sizes of entries are 2^(5 + 1); dedicated queues, address translation, limits of operations.
            0x20 => ENTRIES | (QUEUES as u64) << 16 | 1 << 24 | 1 << 49 | 1 << 50 | 1 << 54,
            0x30 => QUEUES as u64 | 96 << 8,
            0x38 => QUEUES as u64,
            0x40 => 1 << NOOP | 1 << BATCHED | 1 << MOVE,
            0x60 => GROUP_TABLE / 0x100 | QUEUE_TABLE / 0x100 << 16,
            0x90 => self.state.into(),
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
        Interrupts::default()
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
            COMMAND => self.command = Some((now + COMMAND_TIME, number(bytes) as u32)),
            GROUP_TABLE.. if self.state == DISABLED && self.fault != Some(Fault::Locked) => {
                for (at, word) in (offset..).step_by(4).zip(bytes.chunks(4)) {
                    self.tables.insert(at, number(word) as u32);
                }
            }
            _ => {}
        }
    }

    fn poll(&mut self, now: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        let stuck = self.fault == Some(Fault::StuckCommand);
        if let Some((_, word)) = self.command.take_if(|(due, _)| *due <= now && !stuck) {
            self.command_error = self.carry_out_command(word).err().unwrap_or(0);
        }
        (0..QUEUES).for_each(|n| self.run(n, now, machine));
        let command = self.command.map(|(due, _)| due).filter(|_| !stuck);
        self.queues.iter().filter_map(|queue| queue.due).chain(command).min()
    }

    fn reset(&mut self) {
        let config = std::mem::replace(&mut self.config, Dsa::new(None).config);
        *self = Dsa { config, counts: self.counts, ..Dsa::new(self.fault) };
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let Counts { copies, bytes, batches, fences, failed, aborted, torn } = self.counts;
        let all = [
            ("copies", copies),
            ("bytes", bytes),
            ("batches", batches),
            ("fences", fences),
            ("failed", failed),
            ("aborted", aborted),
            ("torn", torn),
        ];
        all.map(|(name, count)| (name.to_string(), count)).to_vec()
    }
}
