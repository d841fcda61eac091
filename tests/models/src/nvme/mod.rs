//! Model of an NVMe controller (NVM Express 1.4), with namespaces in memory, a volatile cache that a power cut empties,
//! and faults to inject.
//!
//! Not modelled: metadata, SGLs, namespace management, reservations, asynchronous events (they never complete), more
//! than one power state.

mod command;
mod data;
mod namespace;
mod queue;
#[cfg(test)]
mod tests;

use crate::registers::{byte_of, number, read_bytes, with_half};
use crate::{
    Bar, ConfigSpace, Function, Interrupt, Interrupts, Lateness, Machine, Nanoseconds, PortType,
};
pub use namespace::{Namespace, Shape};
use queue::{Completion, Completions, Submissions};
use std::collections::BTreeMap;

const BAR: Bar = Bar { index: 0, size: 0x4000 };
/// Offset of the MSI-X table.
pub const MSIX_TABLE: u32 = 0x2000;
const MSIX_PENDING: u32 = 0x3000;
const DOORBELLS: u64 = 0x1000;

const READY: u32 = 1;
const FATAL: u32 = 2;

/// Faults to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// CSTS.RDY stays 1.
    StuckReady,
    /// CSTS.RDY stays 0.
    NeverReady,
    /// CSTS.CFS is set until a reset.
    Fatal,
    /// CSTS.CFS is set, also after a reset.
    StuckFatal,
    /// The controller resets itself, once.
    ResetsItself,
    /// No interrupts are raised.
    NoInterrupts,
    /// The next I/O command does not complete until it is aborted or the controller is reset.
    NeverCompletes,
    /// The next I/O command does not complete until the controller is reset: Abort has no effect.
    NeverAborts,
    /// The next I/O command is completed twice.
    CompletesTwice,
    /// The next I/O command's completion has a command identifier that is this much larger.
    NamesAnother(u16),
    /// The next I/O command fails with this status field.
    Fails(u16),
    /// The next command of this opcode on the admin queue fails with an invalid field.
    RefusesAdmin(u8),
    /// Admin commands do not complete.
    DeafAdmin,
    /// The next I/O command's completion is written to this completion queue instead of its own.
    CompletesIn(u16),
    /// The next I/O command's completion names this submission queue.
    NamesQueue(u16),
}

/// Properties of a controller.
#[derive(Clone, Debug)]
pub struct Config {
    /// Serial number.
    pub serial: String,
    /// Version (VS).
    pub version: u32,
    /// Most entries of a queue.
    pub entries: u32,
    /// CAP.DSTRD: doorbells are 4 << this bytes apart.
    pub stride: u8,
    /// MDTS.
    pub mdts: u8,
    /// ONCS.
    pub optional: u16,
    /// Has a volatile write cache.
    pub volatile_cache: bool,
    /// Supports the list of active namespaces.
    pub lists_namespaces: bool,
    /// Supports namespace identification descriptors.
    pub descriptors: bool,
    /// Supports the log page SMART / Health Information.
    pub health: bool,
    /// MSI-X vectors; 0: MSI only.
    pub vectors: u16,
    /// Most pairs of I/O queues that are granted.
    pub pairs: u16,
    /// Time from CC.EN to CSTS.RDY, and back.
    pub ready_time: Nanoseconds,
    /// CAP.TO, in units of 500 ms.
    pub timeout: u8,
    /// Namespaces of the controller.
    pub namespaces: Vec<Shape>,
}

impl Default for Config {
    /// A controller with all features, and a namespace of 4,096 blocks of 512 bytes.
    fn default() -> Self {
        Config {
            serial: "model-1".into(),
            version: 0x0001_0400,
            entries: 1024,
            stride: 0,
            mdts: 5,
            optional: 0xc,
            volatile_cache: true,
            lists_namespaces: true,
            descriptors: true,
            health: true,
            vectors: 5,
            pairs: 4,
            ready_time: 0,
            timeout: 4,
            namespaces: vec![Shape::new(1, 4096, 9)],
        }
    }
}

/// The controller.
pub struct Nvme {
    settings: Config,
    config: ConfigSpace,
    namespaces: BTreeMap<u32, Namespace>,
    faults: Vec<Fault>,
    configuration: u32,
    status: u32,
    masked: u32,
    attributes: u32,
    submission_base: u64,
    completion_base: u64,
    submissions: BTreeMap<u16, Submissions>,
    completions: BTreeMap<u16, Completions>,
    /// I/O commands by submission queue, including deleted queues.
    pub done_by: BTreeMap<u16, u64>,
    /// Commands that a fault holds back: queue and identifier.
    held: Vec<(u16, u16)>,
    /// Granted queue pairs; 0 before Set Features.
    granted: u16,
    /// Composite temperature in kelvins.
    pub temperature: u16,
    /// Critical Warning field of the health log.
    pub warnings: u8,
    /// The driver's violations of the specification.
    pub complaints: Vec<String>,
    commands: u64,
    bytes: u64,
    resets: u64,
    flushes: u64,
    shutdowns: u64,
    lateness: Option<Lateness>,
    /// When the change of CC.EN takes effect.
    follows_at: Option<Nanoseconds>,
    /// When waiting commands are executed, if the controller is late.
    works_at: Option<Nanoseconds>,
}

impl Nvme {
    /// Creates a controller in its power-on state.
    pub fn new(settings: Config) -> Self {
        let mut config = ConfigSpace::new(0x1b36, 0x0010, 0x01_08_02, 2)
            .subsystem(0x1af4, 0x1100)
            .memory_bar(BAR.index, BAR.size);
        config = match settings.vectors {
            0 => config.msi(0),
            vectors => config.msix(vectors, BAR.index, MSIX_TABLE, MSIX_PENDING),
        };
        config = config.express(PortType::Endpoint).power_management();
        let namespaces =
            settings.namespaces.iter().map(|shape| (shape.nsid, Namespace::new(*shape))).collect();
        Nvme {
            settings,
            config,
            namespaces,
            faults: Vec::new(),
            configuration: 0,
            status: 0,
            masked: 0,
            attributes: 0,
            submission_base: 0,
            completion_base: 0,
            submissions: BTreeMap::new(),
            completions: BTreeMap::new(),
            done_by: BTreeMap::new(),
            held: Vec::new(),
            granted: 0,
            temperature: 310,
            warnings: 0,
            complaints: Vec::new(),
            commands: 0,
            bytes: 0,
            resets: 0,
            flushes: 0,
            shutdowns: 0,
            lateness: None,
            follows_at: None,
            works_at: None,
        }
    }

    /// Whether commands wait in a submission queue.
    fn has_commands(&self) -> bool {
        self.submissions.values().any(|queue| queue.head != queue.tail)
    }

    fn delay(&mut self) -> Nanoseconds {
        self.lateness.as_mut().map_or(0, Lateness::next_delay)
    }

    /// Injects a fault.
    pub fn inject(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Removes all faults.
    pub fn repair(&mut self) {
        self.faults.clear();
    }

    /// Cuts the power and restores it: blocks that were not flushed are lost.
    pub fn cut_power(&mut self) {
        self.namespaces.values_mut().for_each(Namespace::lose_cache);
        self.reset();
    }

    /// The namespace with this number.
    pub fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        self.namespaces.get(&nsid)
    }

    /// Changes the number of a namespace's blocks. Remaining blocks keep their data.
    pub fn resize(&mut self, nsid: u32, blocks: u64) {
        if let Some(namespace) = self.namespaces.get_mut(&nsid) {
            *namespace = Namespace::new(Shape { blocks, ..namespace.shape });
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// Removes the first fault that matches, and returns its parameter.
    fn once<T>(&mut self, matches: impl Fn(Fault) -> Option<T>) -> Option<T> {
        let at = self.faults.iter().position(|&fault| matches(fault).is_some())?;
        matches(self.faults.remove(at))
    }

    fn complain(&mut self, what: impl Into<String>) {
        self.complaints.push(what.into());
    }

    fn capabilities(&self) -> u64 {
        let queues = u64::from(self.settings.entries - 1);
        // Contiguous queues; NVM command set.
        queues
            | 1 << 16
            | u64::from(self.settings.timeout) << 24
            | u64::from(self.settings.stride) << 32
            | 1 << 37
    }

    fn csts(&self) -> u32 {
        let mut status = self.status;
        if self.has(Fault::StuckReady) {
            status |= READY;
        }
        if self.has(Fault::NeverReady) {
            status &= !READY;
        }
        if self.has(Fault::Fatal) || self.has(Fault::StuckFatal) {
            status |= FATAL;
        }
        status
    }

    fn byte(&self, offset: u64) -> u8 {
        let of = |value: u64, start: u64| byte_of(value, offset - start);
        match offset {
            0x00..=0x07 => of(self.capabilities(), 0x00),
            0x08..=0x0b => of(self.settings.version.into(), 0x08),
            0x0c..=0x0f => of(self.masked.into(), 0x0c),
            0x10..=0x13 => of(self.masked.into(), 0x10),
            0x14..=0x17 => of(self.configuration.into(), 0x14),
            0x1c..=0x1f => of(self.csts().into(), 0x1c),
            0x24..=0x27 => of(self.attributes.into(), 0x24),
            0x28..=0x2f => of(self.submission_base, 0x28),
            0x30..=0x37 => of(self.completion_base, 0x30),
            _ => 0,
        }
    }

    fn configure(&mut self, value: u32) {
        let (before, now) = (self.configuration & 1, value & 1);
        if value >> 14 & 3 != 0 {
            self.shutdowns += 1;
            self.namespaces.values_mut().for_each(Namespace::flush);
            self.status |= 2 << 2;
        }
        self.configuration = value;
        if before == 1 && now == 0 {
            self.resets += 1;
            self.drop_queues();
        }
        if before == 0 && now == 1 && value >> 16 & 0xff != 0x46 {
            self.complain(format!("CC {value:#x}: entry sizes are not 64 and 16 bytes"));
        }
    }

    /// Drops all queues and commands.
    fn drop_queues(&mut self) {
        self.status &= !(3 << 2);
        self.submissions.clear();
        self.completions.clear();
        self.held.clear();
        self.granted = 0;
        self.masked = 0;
        self.faults.retain(|&fault| fault != Fault::Fatal);
    }

    fn ring(&mut self, offset: u64, value: u32) {
        let stride = 4u64 << self.settings.stride;
        let (index, rest) = ((offset - DOORBELLS) / stride, (offset - DOORBELLS) % stride);
        let id = (index / 2) as u16;
        let (entries, place) = match index % 2 {
            0 => match self.submissions.get_mut(&id) {
                Some(queue) => (queue.entries, &mut queue.tail),
                None => return self.complain(format!("tail of queue {id}, which does not exist")),
            },
            _ => match self.completions.get_mut(&id) {
                Some(queue) => (queue.entries, &mut queue.head),
                None => return self.complain(format!("head of queue {id}, which does not exist")),
            },
        };
        if rest != 0 || value >= entries {
            return self.complain(format!("doorbell {offset:#x} with {value} of {entries}"));
        }
        *place = value;
    }

    /// Applies a change of CC.EN.
    fn follow(&mut self) {
        let enabled = self.configuration & 1 != 0;
        if enabled && self.status & READY == 0 {
            let entries = |shift: u32| (self.attributes >> shift & 0xfff) + 1;
            let (submissions, completions) = (entries(0), entries(16));
            self.submissions.insert(0, Submissions::new(self.submission_base, submissions, 0));
            let vector = Some(0);
            let queue = Completions::new(self.completion_base, completions, vector);
            self.completions.insert(0, queue);
            self.status |= READY;
        } else if !enabled {
            self.status &= !READY;
        }
        if self.once(|fault| (fault == Fault::ResetsItself).then_some(())).is_some() {
            self.drop_queues();
            (self.configuration, self.status) = (0, 0);
        }
    }

    /// Writes a completion, and raises its interrupt.
    fn post(&mut self, id: u16, done: Completion, machine: &mut dyn Machine) {
        let Some(queue) = self.completions.get_mut(&id) else { return };
        if queue.post(done, machine).is_err() {
            return self.complain("a completion queue cannot be reached");
        }
        let Some(vector) = queue.vector else { return };
        if self.has(Fault::NoInterrupts) {
            return;
        }
        match self.settings.vectors {
            0 if self.masked & 1 == 0 => _ = machine.interrupt(Interrupt::Msi(0)),
            0 => {}
            _ => _ = machine.interrupt(Interrupt::Msix(vector)),
        }
    }

    fn work(&mut self, machine: &mut dyn Machine) {
        let ids: Vec<u16> = self.submissions.keys().copied().collect();
        for id in ids {
            while let Some(queue) = self.submissions.get_mut(&id) {
                let to = queue.completions;
                if self.completions.get(&to).is_none_or(Completions::is_full) {
                    break;
                }
                let Some(command) = queue.fetch(machine) else { break };
                let head = queue.head;
                let Ok(command) = command else {
                    self.complain("a submission queue cannot be reached");
                    break;
                };
                self.commands += 1;
                *self.done_by.entry(id).or_default() += 1;
                let cid = u16::from_le_bytes([command[2], command[3]]);
                let Some((status, result)) = self.execute(id, &command, machine) else { continue };
                let mut done = Completion { result, queue: id, head, cid, status };
                if id != 0 {
                    let another = |fault| match fault {
                        Fault::NamesAnother(by) => Some(by),
                        _ => None,
                    };
                    done.cid = cid.wrapping_add(self.once(another).unwrap_or(0));
                    let queue = |fault| match fault {
                        Fault::NamesQueue(queue) => Some(queue),
                        _ => None,
                    };
                    done.queue = self.once(queue).unwrap_or(id);
                    let elsewhere = |fault| match fault {
                        Fault::CompletesIn(queue) => Some(queue),
                        _ => None,
                    };
                    if let Some(elsewhere) = self.once(elsewhere) {
                        self.post(elsewhere, done, machine);
                        continue;
                    }
                    let twice = |fault| (fault == Fault::CompletesTwice).then_some(());
                    if self.once(twice).is_some() {
                        self.post(to, done, machine);
                    }
                }
                self.post(to, done, machine);
            }
        }
    }
}

impl Function for Nvme {
    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn bars(&self) -> &[Bar] {
        &[BAR]
    }

    fn interrupts(&self) -> Interrupts {
        let msi = u16::from(self.settings.vectors == 0);
        Interrupts { msi, msix: self.settings.vectors, ..Interrupts::default() }
    }

    fn read(&mut self, _: u8, offset: u64, into: &mut [u8]) {
        read_bytes(offset, into, |at| self.byte(at));
    }

    fn write(&mut self, _: u8, offset: u64, bytes: &[u8], _: Nanoseconds, _: &mut dyn Machine) {
        let value = number(bytes);
        match (offset, bytes.len()) {
            (0x0c, 4) => self.masked |= value as u32,
            (0x10, 4) => self.masked &= !(value as u32),
            (0x14, 4) => self.configure(value as u32),
            (0x24, 4) => self.attributes = value as u32,
            (0x28 | 0x2c, 4) => {
                self.submission_base = with_half(self.submission_base, offset - 0x28, value as u32);
            }
            (0x30 | 0x34, 4) => {
                self.completion_base = with_half(self.completion_base, offset - 0x30, value as u32);
            }
            (0x28, 8) => self.submission_base = value,
            (0x30, 8) => self.completion_base = value,
            (0x2000..0x4000, _) if self.settings.stride == 0 => {}
            (DOORBELLS.., 4) => self.ring(offset, value as u32),
            _ => self.complain(format!("{} bytes are written to {offset:#x}", bytes.len())),
        }
    }

    fn poll(&mut self, now: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        let is_behind = (self.configuration ^ self.status) & READY != 0;
        if is_behind && self.follows_at.is_none() {
            self.follows_at = Some(now + self.settings.ready_time + self.delay());
        }
        if !is_behind || self.follows_at.is_some_and(|at| at <= now) {
            self.follows_at = None;
            self.follow();
        }
        if self.csts() == READY && self.config.is_bus_master() {
            if self.works_at.is_none() && self.lateness.is_some() && self.has_commands() {
                self.works_at = Some(now + self.delay());
            }
            if self.works_at.is_none_or(|at| at <= now) {
                self.works_at = None;
                self.work(machine);
            }
        }
        [self.follows_at, self.works_at].into_iter().flatten().min()
    }

    fn be_late(&mut self, lateness: Lateness) {
        self.lateness = Some(lateness);
    }

    fn reset(&mut self) {
        self.drop_queues();
        (self.follows_at, self.works_at) = (None, None);
        (self.configuration, self.status, self.attributes) = (0, 0, 0);
        (self.submission_base, self.completion_base) = (0, 0);
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let counted = [
            ("commands", self.commands),
            ("bytes", self.bytes),
            ("resets", self.resets),
            ("flushes", self.flushes),
            ("shutdowns", self.shutdowns),
            ("complaints", self.complaints.len() as u64),
        ];
        counted.map(|(name, count)| (name.to_string(), count)).into()
    }
}
