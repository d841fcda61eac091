//! Model of VMware's PVSCSI adapter (Linux: `drivers/scsi/vmw_pvscsi.h`) with one disk in memory, and with faults to
//! inject.
//!
//! Not modelled: scatter lists, the message ring, configuration pages, more than one target.

mod unit;

use crate::registers::{byte_of, number, read_bytes};
use crate::{Bar, ConfigSpace, Function, Interrupt, Interrupts, Machine, Nanoseconds};
pub use unit::Unit;

const BAR: Bar = Bar { index: 0, size: 0x8000 };
const PAGE: u64 = 4096;
const REQUEST: u64 = 128;
const COMPLETION: u64 = 32;

const RESET: u32 = 1;
const SETUP_RINGS: u32 = 3;
const SETUP_REQUEST_CALL: u32 = 10;
/// Words of the descriptor of [`SETUP_RINGS`].
const RINGS: usize = 132;

const NO_TARGET: u16 = 0x11;

/// Faults to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The rings are refused.
    RefusesRings,
    /// The next command does not complete.
    NeverCompletes,
    /// The next command completes with this host status.
    HostStatus(u16),
    /// The next command completes with this host status, and claims to have transferred this many bytes.
    Bytes(u16, u64),
    /// The next command fails with this sense key, code and qualifier.
    Sense([u8; 3]),
    /// The next completion has this context.
    Context(u64),
    /// The next command is completed twice.
    Twice,
    /// The index of completions is this much too large.
    Index(u32),
    /// No interrupts are raised.
    NoInterrupts,
}

/// Rings as the driver has set them up: pages of requests and completions.
#[derive(Clone, Debug, Default)]
struct Rings {
    state: u64,
    requests: Vec<u64>,
    completions: Vec<u64>,
}

/// The adapter.
pub struct Pvscsi {
    config: ConfigSpace,
    /// The disk, at target 0.
    pub unit: Unit,
    faults: Vec<Fault>,
    command: u32,
    data: Vec<u32>,
    status: u32,
    rings: Option<Rings>,
    fetched: u32,
    completed: u32,
    /// Difference of the written index of completions ([`Fault::Index`]).
    skew: u32,
    cause: u32,
    mask: u32,
    kicks: u64,
    commands: u64,
    resets: u64,
    /// The driver's violations of the interface.
    pub complaints: Vec<String>,
}

impl Default for Pvscsi {
    fn default() -> Self {
        Pvscsi {
            config: ConfigSpace::new(0x15ad, 0x07c0, 0x01_00_00, 2)
                .memory_bar(BAR.index, BAR.size)
                .msi(0),
            unit: Unit::default(),
            faults: Vec::new(),
            command: 0,
            data: Vec::new(),
            status: 0,
            rings: None,
            fetched: 0,
            completed: 0,
            skew: 0,
            cause: 0,
            mask: 0,
            kicks: 0,
            commands: 0,
            resets: 0,
            complaints: Vec::new(),
        }
    }
}

impl Pvscsi {
    /// Injects a fault.
    pub fn inject(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Removes all faults.
    pub fn repair(&mut self) {
        self.faults.clear();
    }

    fn complain(&mut self, what: String) {
        self.complaints.push(what);
    }

    /// Removes the first fault that matches, and returns its parameter.
    fn once<T>(&mut self, matches: impl Fn(Fault) -> Option<T>) -> Option<T> {
        let at = self.faults.iter().position(|&fault| matches(fault).is_some())?;
        matches(self.faults.remove(at))
    }

    fn start_command(&mut self, command: u32) {
        self.command = command;
        self.data.clear();
        self.status = match command {
            RESET => {
                self.reset();
                self.resets += 1;
                0
            }
            SETUP_RINGS => RINGS as u32,
            SETUP_REQUEST_CALL => 1,
            _ => u32::MAX,
        };
    }

    fn add_data(&mut self, word: u32) {
        self.data.push(word);
        match (self.command, self.data.len()) {
            (SETUP_RINGS, RINGS) => self.set_rings(),
            (SETUP_REQUEST_CALL, 1) => self.status = 1,
            (SETUP_RINGS, _) => {}
            _ => self.complain(format!("data for command {}", self.command)),
        }
    }

    fn set_rings(&mut self) {
        let number = |at: usize| u64::from(self.data[at + 1]) << 32 | u64::from(self.data[at]);
        let counts = [self.data[0], self.data[1]].map(|count| count as usize);
        if self.faults.contains(&Fault::RefusesRings)
            || counts.iter().any(|count| !count.is_power_of_two() || *count > 32)
        {
            self.status = u32::MAX;
            return;
        }
        let list =
            |at: usize, count: usize| (0..count).map(|n| number(at + 2 * n) * PAGE).collect();
        self.rings = Some(Rings {
            state: number(2) * PAGE,
            requests: list(4, counts[0]),
            completions: list(68, counts[1]),
        });
        (self.fetched, self.completed, self.status) = (0, 0, 0);
    }

    /// Fetches and executes the requests in the ring.
    fn work(&mut self, machine: &mut dyn Machine) {
        let Some(rings) = self.rings.clone() else { return };
        let mut word = [0; 4];
        if machine.read(rings.state, &mut word).is_err() {
            return self.complain("the rings' state cannot be reached".into());
        }
        let end = u32::from_le_bytes(word);
        let entries = (rings.requests.len() as u64 * PAGE / REQUEST) as u32;
        if end.wrapping_sub(self.completed) > entries {
            self.complain(format!(
                "{} requests in a ring of {entries}",
                end.wrapping_sub(self.completed)
            ));
        }
        let mut done = false;
        while self.fetched != end {
            let at = u64::from(self.fetched % entries);
            let page = rings.requests[(at * REQUEST / PAGE) as usize];
            let mut request = [0; REQUEST as usize];
            if machine.read(page + at * REQUEST % PAGE, &mut request).is_err() {
                return self.complain("a request cannot be reached".into());
            }
            self.fetched = self.fetched.wrapping_add(1);
            _ = machine.write(rings.state + 4, &self.fetched.to_le_bytes());
            done |= self.execute(&request, &rings, machine);
        }
        if done {
            self.cause |= 1;
            self.raise(machine);
        }
    }

    fn execute(&mut self, request: &[u8; 128], rings: &Rings, machine: &mut dyn Machine) -> bool {
        self.commands += 1;
        let number = |at: usize| request[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let (context, address, len, sense_at) = (number(0), number(8), number(16), number(24));
        let flags = u32::from_le_bytes([request[36], request[37], request[38], request[39]]);
        if context == 0 || context >> 32 != 0 || request[56] != 16 || request[66] != 0 {
            self.complain(format!("request {context:#x} is malformed"));
        }
        if flags.count_ones() != 1 || flags & 0x1c == 0 || (flags == 4) != (len == 0) {
            self.complain(format!("request has flags {flags:#x} for {len} bytes"));
        }
        if self.once(|fault| (fault == Fault::NeverCompletes).then_some(())).is_some() {
            return false;
        }
        let host = self.once(|fault| match fault {
            Fault::HostStatus(status) => Some(status),
            _ => None,
        });
        let injected = self.once(|fault| match fault {
            Fault::Sense(sense) => Some(sense),
            _ => None,
        });
        let mut data = vec![0; if flags == 0x10 { len as usize } else { 0 }];
        if !data.is_empty() && machine.read(address, &mut data).is_err() {
            self.complain(format!("data at {address:#x} cannot be reached"));
        }
        let result = match injected {
            Some(sense) => Err(sense),
            None => self.unit.command(&request[40..56], &data),
        };
        let (mut bytes, mut host_status, mut scsi_status, mut sense_len) = (0, 0u16, 0u16, 0u32);
        match (host, result) {
            (Some(host), _) => host_status = host,
            _ if request[67] != 0 || request[57..65] != [0; 8] => host_status = NO_TARGET,
            (_, Err([key, code, qualifier])) => {
                let mut sense = [0; 18];
                (sense[0], sense[2], sense[7]) = (0x70, key, 10);
                (sense[12], sense[13]) = (code, qualifier);
                (scsi_status, sense_len) = (2, 18);
                _ = machine.write(sense_at, &sense);
            }
            (_, Ok(answer)) => {
                let part = answer.len().min(len as usize);
                bytes = if flags == 0x10 { len } else { part as u64 };
                if flags == 8 && machine.write(address, &answer[..part]).is_err() {
                    self.complain(format!("data at {address:#x} cannot be reached"));
                }
                if bytes < len {
                    host_status = 0x0c;
                }
            }
        }
        let claimed = self.once(|fault| match fault {
            Fault::Bytes(host, bytes) => Some((host, bytes)),
            _ => None,
        });
        (host_status, bytes) = claimed.unwrap_or((host_status, bytes));
        let mut entry = [0; COMPLETION as usize];
        let context = self.once(|fault| match fault {
            Fault::Context(context) => Some(context),
            _ => None,
        });
        entry[..8].copy_from_slice(&context.unwrap_or(number(0)).to_le_bytes());
        entry[8..16].copy_from_slice(&bytes.to_le_bytes());
        entry[16..20].copy_from_slice(&sense_len.to_le_bytes());
        entry[20..22].copy_from_slice(&host_status.to_le_bytes());
        entry[22..24].copy_from_slice(&scsi_status.to_le_bytes());
        if self.once(|fault| (fault == Fault::Twice).then_some(())).is_some() {
            self.complete(&entry, rings, machine);
        }
        self.complete(&entry, rings, machine);
        true
    }

    fn complete(&mut self, entry: &[u8], rings: &Rings, machine: &mut dyn Machine) {
        let entries = (rings.completions.len() as u64 * PAGE / COMPLETION) as u32;
        let at = u64::from(self.completed % entries);
        let page = rings.completions[(at * COMPLETION / PAGE) as usize];
        self.completed = self.completed.wrapping_add(1);
        let by = self.once(|fault| match fault {
            Fault::Index(by) => Some(by),
            _ => None,
        });
        self.skew += by.unwrap_or(0);
        let end = self.completed.wrapping_add(self.skew);
        let written = machine.write(page + at * COMPLETION % PAGE, entry);
        if written.and_then(|()| machine.write(rings.state + 12, &end.to_le_bytes())).is_err() {
            self.complain("a completion cannot be reached".into());
        }
    }

    fn raise(&self, machine: &mut dyn Machine) {
        if self.cause & self.mask != 0 && !self.faults.contains(&Fault::NoInterrupts) {
            machine.interrupt(Interrupt::Msi(0));
        }
    }
}

impl Function for Pvscsi {
    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn bars(&self) -> &[Bar] {
        &[BAR]
    }

    fn interrupts(&self) -> Interrupts {
        Interrupts { msi: 1, ..Interrupts::default() }
    }

    fn read(&mut self, _: u8, offset: u64, into: &mut [u8]) {
        let value = match offset & !3 {
            0x0008 => self.status,
            0x100c => self.cause,
            0x2010 => self.mask,
            _ => 0,
        };
        read_bytes(offset, into, |at| byte_of(value.into(), at & 3));
    }

    fn write(
        &mut self,
        _: u8,
        offset: u64,
        bytes: &[u8],
        _: Nanoseconds,
        machine: &mut dyn Machine,
    ) {
        let value = number(bytes) as u32;
        match (offset, bytes.len()) {
            (0x0000, 4) => self.start_command(value),
            (0x0004, 4) => self.add_data(value),
            (0x100c, 4) => self.cause &= !value,
            (0x2010, 4) => {
                self.mask = value;
                self.raise(machine);
            }
            (0x3014 | 0x4018, 4) => self.kicks += 1,
            _ => self.complain(format!("{} bytes go to {offset:#x}", bytes.len())),
        }
    }

    fn poll(&mut self, _: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        if self.config.is_bus_master() && self.kicks > 0 {
            self.work(machine);
        }
        None
    }

    fn reset(&mut self) {
        self.rings = None;
        (self.cause, self.mask, self.kicks, self.skew) = (0, 0, 0, 0);
        // Each unit reports the reset with its next command.
        self.faults.retain(|fault| !matches!(fault, Fault::Sense([6, 0x29, 0])));
        self.faults.insert(0, Fault::Sense([6, 0x29, 0]));
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let counted = [
            ("commands", self.commands),
            ("resets", self.resets),
            ("flushes", self.unit.flushes),
            ("complaints", self.complaints.len() as u64),
        ];
        counted.map(|(name, count)| (name.to_string(), count)).into()
    }
}
