//! A port: its registers, its link, and the fetching of commands.

use super::{Drive, Fault, MILLISECOND, Plugged};
use crate::{Machine, Nanoseconds};
use core::cell::Cell;

const START: u32 = 1;
const SPIN_UP: u32 = 1 << 1;
const RECEIVE: u32 = 1 << 4;
const RECEIVES: u32 = 1 << 14;
const RUNS: u32 = 1 << 15;
const COMMAND_WRITABLE: u32 = START | SPIN_UP | 1 << 2 | RECEIVE | 1 << 17;

// Causes.
const REGISTERS: u32 = 1;
const DEVICE_BITS: u32 = 1 << 3;
const CONNECTED: u32 = 1 << 6;
const LINK_CHANGED: u32 = 1 << 22;
const INTERFACE: u32 = 1 << 27;
const TASK_FILE: u32 = 1 << 30;

const BUSY: u32 = 0x80;
const READY: u32 = 0x50;
const ERROR: u32 = 0x01;
/// SError: the link's state has changed, and a device was connected.
const DIAGNOSTICS: u32 = 1 << 16 | 1 << 26;

/// Least time of a register read over PCIe.
const READ: Nanoseconds = 50;

/// State of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Down,
    /// COMRESET since.
    Reset(Nanoseconds),
    /// The drive is ready at this time.
    Up(Nanoseconds),
}

pub struct Port {
    pub plugged: Plugged,
    pub faults: Vec<Fault>,
    pub complaints: Vec<String>,
    pub commands: u64,
    pub link_resets: u64,
    /// When the drive was told to spin up.
    pub spun_up: Option<Nanoseconds>,
    link: Link,
    list: u64,
    received: u64,
    causes: u32,
    enabled: u32,
    command: u32,
    task_file: u32,
    signature: u32,
    control: u32,
    errors: u32,
    active: u32,
    issued: u32,
    /// Commands that a fault holds back.
    held: u32,
    now: Nanoseconds,
    /// Reads of the link's state since COMRESET began. A writer of crash records has no clock and counts them.
    polls: Cell<u64>,
    /// Needs a reset of the link or a restart after an error.
    stopped_by_error: bool,
}

impl Port {
    pub fn new(plugged: Plugged, staggers: bool) -> Self {
        let mut port = Port {
            plugged,
            faults: Vec::new(),
            complaints: Vec::new(),
            commands: 0,
            link_resets: 0,
            spun_up: None,
            link: Link::Down,
            list: 0,
            received: 0,
            causes: 0,
            enabled: 0,
            command: 0,
            task_file: 0x7f,
            signature: u32::MAX,
            control: 0,
            errors: 0,
            active: 0,
            issued: 0,
            held: 0,
            now: 0,
            polls: Cell::new(0),
            stopped_by_error: false,
        };
        port.reset(staggers);
        port
    }

    /// Resets the registers. Without staggered spin-up the link comes up by itself.
    pub fn reset(&mut self, staggers: bool) {
        (self.causes, self.enabled, self.control, self.errors) = (0, 0, 0, 0);
        self.command = if staggers { 0 } else { SPIN_UP };
        (self.active, self.issued, self.held) = (0, 0, 0);
        (self.task_file, self.signature) = (0x7f, u32::MAX);
        self.stopped_by_error = false;
        self.link = Link::Down;
        if !staggers {
            self.connect();
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// Removes the first fault like this one. Whether there was one.
    pub fn once(&mut self, fault: Fault) -> bool {
        let at = self.faults.iter().position(|one| *one == fault);
        at.is_some_and(|at| {
            self.faults.remove(at);
            true
        })
    }

    pub fn plug(&mut self, plugged: Plugged) -> Plugged {
        let before = core::mem::replace(&mut self.plugged, plugged);
        self.link = Link::Down;
        self.causes |= LINK_CHANGED | CONNECTED;
        self.errors |= DIAGNOSTICS;
        self.task_file = 0x7f;
        if !matches!(self.plugged, Plugged::Nothing) {
            self.connect();
        }
        before
    }

    /// The link comes up if there is a drive.
    fn connect(&mut self) {
        if matches!(self.plugged, Plugged::Nothing) || self.has(Fault::NoLink) {
            return;
        }
        let start = match &mut self.plugged {
            Plugged::Disk(drive) => {
                drive.error = None;
                drive.shape.start * MILLISECOND
            }
            _ => MILLISECOND,
        };
        self.task_file = BUSY;
        self.link = Link::Up(self.now + start);
        self.errors |= DIAGNOSTICS;
        self.causes |= LINK_CHANGED | CONNECTED;
    }

    /// The drive sends its signature once it is ready.
    fn become_ready(&mut self) {
        let Link::Up(when) = self.link else { return };
        let receives = self.command & RECEIVE != 0;
        if self.now < when || self.task_file != BUSY || !receives || self.has(Fault::NeverReady) {
            return;
        }
        self.signature = match self.plugged {
            Plugged::Disk(_) => 0x101,
            Plugged::Other(signature) => signature,
            Plugged::Nothing => return,
        };
        self.task_file = READY | 1 << 8;
    }

    pub fn read(&self, at: u64) -> u32 {
        let low = |address: u64| address as u32;
        match at {
            0x00 => low(self.list),
            0x04 => low(self.list >> 32),
            0x08 => low(self.received),
            0x0c => low(self.received >> 32),
            0x10 => self.causes,
            0x14 => self.enabled,
            0x18 => {
                let runs = self.command & START != 0 || self.has(Fault::NeverStops);
                let receives = self.command & RECEIVE != 0;
                self.command | if runs { RUNS } else { 0 } | if receives { RECEIVES } else { 0 }
            }
            0x20 => self.task_file,
            0x24 => self.signature,
            0x28 => match (self.polled(), &self.plugged) {
                (_, Plugged::Nothing) => 0,
                (Link::Up(_), _) => 0x133,
                (Link::Down, _) if self.has(Fault::NoLink) => 1,
                _ => 0,
            },
            0x2c => self.control,
            0x30 => self.errors,
            0x34 => self.active,
            0x38 => self.issued,
            _ => 0,
        }
    }

    pub fn write(&mut self, at: u64, value: u32, now: Nanoseconds) {
        self.now = now;
        let half = |whole: u64, upper: bool| match upper {
            false => whole & !0xffff_ffff | u64::from(value),
            true => whole & 0xffff_ffff | u64::from(value) << 32,
        };
        match at {
            0x00 | 0x04 => {
                let list = half(self.list, at == 4);
                self.unchanged_while(list == self.list, START, "the command list");
                self.list = list;
            }
            0x08 | 0x0c => {
                let received = half(self.received, at == 0xc);
                self.unchanged_while(received == self.received, RECEIVE, "the area of FISes");
                self.received = received;
            }
            0x10 => self.causes &= !(value & !(LINK_CHANGED | CONNECTED)),
            0x14 => self.enabled = value,
            0x18 => self.write_command(value),
            0x2c => self.write_control(value),
            0x30 => {
                self.errors &= !value;
                if self.errors & DIAGNOSTICS == 0 {
                    self.causes &= !(LINK_CHANGED | CONNECTED);
                }
            }
            0x34 => self.active |= value,
            0x38 => {
                if self.command & START == 0 {
                    self.complaints.push("a command is issued while the list is stopped".into());
                }
                self.issued |= value;
            }
            _ => self.complaints.push(format!("register {at:#x} is written")),
        }
    }

    fn unchanged_while(&mut self, same: bool, bit: u32, what: &str) {
        if !same && self.command & bit != 0 {
            self.complaints.push(format!("{what} is moved while it is in use"));
        }
    }

    fn write_command(&mut self, value: u32) {
        let before = self.command;
        self.command = value & COMMAND_WRITABLE;
        if self.command & START != 0 && before & START == 0 {
            if self.command & RECEIVE == 0 {
                self.complaints.push("the list is started without reception of FISes".into());
            }
            if self.task_file & (BUSY | 8) != 0 {
                self.complaints.push("the list is started while the drive is busy".into());
            }
            self.stopped_by_error = false;
        }
        if before & START != 0 && self.command & START == 0 {
            (self.issued, self.active) = (0, 0);
        }
        if self.command & SPIN_UP != 0 && before & SPIN_UP == 0 {
            self.spun_up = Some(self.now);
            self.connect();
        }
    }

    /// The state of the link, and one more read of it.
    fn polled(&self) -> Link {
        self.polls.set(self.polls.get() + 1);
        self.link
    }

    fn write_control(&mut self, value: u32) {
        match (self.control & 0xf, value & 0xf) {
            (0, 1) => {
                if self.command & START != 0 {
                    self.complaints.push("the link is reset while the list runs".into());
                }
                self.link = Link::Reset(self.now);
                self.polls.set(0);
                self.task_file = 0x7f;
            }
            (1, 0) => {
                if let Link::Reset(since) = self.link
                    && self.now + READ * self.polls.get() < since + MILLISECOND
                {
                    self.complaints.push("COMRESET is shorter than a millisecond".into());
                }
                self.link_resets += 1;
                self.link = Link::Down;
                self.held = 0;
                self.connect();
            }
            _ => {}
        }
        self.control = value;
    }

    pub fn pending_interrupts(&self) -> bool {
        self.causes & self.enabled != 0 && !self.has(Fault::NoInterrupts)
    }

    pub fn poll(&mut self, now: Nanoseconds, master: bool, machine: &mut dyn Machine) {
        self.now = now;
        self.become_ready();
        let ready = matches!(self.link, Link::Up(_)) && self.task_file & BUSY == 0;
        if !master || !ready || self.command & START == 0 || self.stopped_by_error {
            return;
        }
        while let Some(slot) = (0..32u8).find(|n| (self.issued & !self.held) >> n & 1 != 0) {
            self.execute(slot, machine);
            if self.stopped_by_error {
                return;
            }
        }
    }

    /// Base of the command list.
    pub(super) fn list(&self) -> u64 {
        self.list
    }

    pub(super) fn drive(&mut self) -> Option<&mut Drive> {
        match &mut self.plugged {
            Plugged::Disk(drive) => Some(drive),
            _ => None,
        }
    }

    pub(super) fn is_active(&self, slot: u8) -> bool {
        self.active >> slot & 1 != 0
    }

    /// Whether other commands are in flight.
    pub(super) fn others(&self, slot: u8) -> (u32, u32) {
        let others = !(1u32 << slot);
        (self.active & others, self.issued & !self.active & others)
    }

    /// Holds a command back until the link is reset.
    pub(super) fn hold(&mut self, slot: u8) {
        self.held |= 1 << slot;
    }

    /// The command was completed.
    pub(super) fn complete(&mut self, slot: u8, queued: bool, machine: &mut dyn Machine) {
        self.issued &= !(1 << slot);
        self.task_file = READY;
        if queued {
            self.active &= !(1 << slot);
            self.causes |= DEVICE_BITS;
            self.receive(0x58, [0xa1, 0x40, READY as u8, 0, 0, 0, 0, 0], machine);
        } else {
            self.causes |= REGISTERS;
            self.receive(0x40, [0x34, 0x40, READY as u8, 0, 0, 0, 0, 0], machine);
        }
    }

    /// The drive has failed a command. A queued one also aborts all others, without naming any.
    pub(super) fn fail(&mut self, slot: u8, queued: bool, error: u8, machine: &mut dyn Machine) {
        let status = (READY | ERROR) as u8;
        self.task_file = READY | ERROR | u32::from(error) << 8;
        self.causes |= TASK_FILE;
        self.stopped_by_error = true;
        if queued {
            self.issued = 0;
            self.receive(0x58, [0xa1, 0x40, status, error, 0, 0, 0, 0], machine);
            if let Some(drive) = self.drive() {
                drive.error = Some((slot, error));
            }
        } else {
            self.receive(0x40, [0x34, 0x40, status, error, 0, 0, 0, 0], machine);
        }
    }

    /// The drive is busy until the link is reset.
    pub(super) fn stay_busy(&mut self) {
        self.task_file |= BUSY;
    }

    /// An error on the cable stops the port.
    pub(super) fn fail_by_cable(&mut self) {
        self.causes |= INTERFACE;
        self.stopped_by_error = true;
    }

    fn receive(&mut self, at: u64, fis: [u8; 8], machine: &mut dyn Machine) {
        if machine.write(self.received + at, &fis).is_err() {
            self.complaints.push("the area of FISes cannot be reached".into());
        }
    }
}
