//! Model of VMware's Ethernet interface vmxnet3, version 1, from Linux's driver (`drivers/net/vmxnet3/vmxnet3_defs.h`):
//! up to eight queue pairs, with faults to inject.
//!
//! Not modelled: filters, offloads, data rings, the second receive ring, events, masking by the device itself.

mod queue;

use crate::registers::{byte_of, number};
use crate::{Bar, ConfigSpace, Function, Interrupt, Interrupts, Machine, Nanoseconds, PortType};
use queue::{Pair, Ring};
use std::collections::VecDeque;

const BARS: [Bar; 3] =
    [Bar { index: 0, size: 4096 }, Bar { index: 1, size: 4096 }, Bar { index: 2, size: 4096 }];

const MAGIC: u32 = 0xbabe_fee1;
/// Most queue pairs, and most interrupts.
const PAIRS: usize = 8;
const INTERRUPTS: usize = 25;

/// The MAC address.
pub const MAC: [u8; 6] = [0, 0x50, 0x56, 1, 2, 3];

/// Faults to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The device does not support version 1.
    NoVersion,
    /// The MAC address is zero.
    NoAddress,
    /// Activation fails.
    NotActive,
    /// No interrupts are raised.
    NoInterrupts,
    /// Sent packets are not completed until a reset.
    NeverCompletes,
    /// The next transmit completion is written twice.
    CompletesTwice,
    /// The next transmit completion names a descriptor this far after the right one.
    CompletesAnother(u32),
    /// The next frame is completed with this length.
    Length(u16),
    /// The next frame is completed with an error.
    Damaged,
    /// The next frame's completion names a buffer this far after the right one.
    ReceivesAt(u32),
    /// The device reports stopped queues until a reset.
    Stopped,
    /// This queue sends nothing until a reset.
    QueueHangs(usize),
}

/// The device.
pub struct Vmxnet3 {
    config: ConfigSpace,
    faults: Vec<Fault>,
    /// The link is up.
    pub link: bool,
    /// Frames from the wire, not received yet.
    pub arriving: VecDeque<Vec<u8>>,
    /// Frames that were sent to the wire.
    pub sent: Vec<Vec<u8>>,
    shared: u64,
    command: u32,
    active: bool,
    hung: bool,
    masked: [bool; INTERRUPTS],
    raised: [bool; INTERRUPTS],
    pairs: Vec<Pair>,
    /// RSS key and indirection table.
    hash: Option<([u8; 40], [u8; 128])>,
    /// The driver's violations of the device's rules.
    pub complaints: Vec<String>,
    resets: u64,
}

impl Vmxnet3 {
    /// Creates a device in its power-on state with this number of MSI-X vectors; 0: MSI only.
    pub fn new(vectors: u16) -> Self {
        let mut config = ConfigSpace::new(0x15ad, 0x07b0, 0x02_00_00, 1);
        for bar in BARS {
            config = config.memory_bar_32(bar.index, bar.size as u32);
        }
        config = match vectors {
            0 => config.msi(0),
            vectors => config.msix(vectors, 2, 0, 0x800),
        };
        Vmxnet3 {
            config: config.express(PortType::Endpoint).power_management(),
            faults: Vec::new(),
            link: true,
            arriving: VecDeque::new(),
            sent: Vec::new(),
            shared: 0,
            command: 0,
            active: false,
            hung: false,
            masked: [true; INTERRUPTS],
            raised: [false; INTERRUPTS],
            pairs: Vec::new(),
            hash: None,
            complaints: Vec::new(),
            resets: 0,
        }
    }

    /// Injects a fault.
    pub fn inject(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Removes all faults.
    pub fn repair(&mut self) {
        self.faults.clear();
    }

    /// Removes the faults that last across a reset.
    pub fn faults_that_last_end(&mut self) {
        self.faults.retain(|&fault| fault != Fault::Stopped);
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

    fn clear_state(&mut self) {
        (self.active, self.hung, self.shared) = (false, false, 0);
        self.masked = [true; INTERRUPTS];
        self.raised = [false; INTERRUPTS];
        self.pairs.clear();
        self.hash = None;
    }

    fn load<const N: usize>(&mut self, address: u64, machine: &mut dyn Machine) -> u64 {
        let mut bytes = [0; N];
        if machine.read(address, &mut bytes).is_err() {
            self.complain(format!("{address:#x} cannot be read"));
        }
        number(&bytes)
    }

    /// Reads the RSS configuration if there are several queues. Returns whether it is supported.
    fn take_hash(&mut self, pairs: usize, machine: &mut dyn Machine) -> bool {
        if pairs == 1 {
            return true;
        }
        let features = self.load::<4>(self.shared + 24, machine);
        let place = [648, 652].map(|at| self.load::<4>(self.shared + at, machine));
        let address = self.load::<8>(self.shared + 656, machine);
        let kind = self.load::<8>(address, machine);
        let (mut key, mut table) = ([0; 40], [0; 128]);
        if machine.read(address + 8, &mut key).is_err()
            || machine.read(address + 48, &mut table).is_err()
        {
            return false;
        }
        self.hash = Some((key, table));
        // Toeplitz over IPv4 and IPv6 addresses; sizes of key and table.
        features & 2 != 0
            && place == [1, 176]
            && kind == 0x0080_0028_0001_0005
            && table.iter().all(|&queue| usize::from(queue) < pairs)
    }

    fn activate(&mut self, machine: &mut dyn Machine) {
        let shared = self.shared;
        if self.has(Fault::NotActive) || self.load::<4>(shared, machine) as u32 != MAGIC {
            return;
        }
        let mtu = self.load::<4>(shared + 56, machine);
        if !(60..=9000).contains(&mtu) {
            return self.complain(format!("an MTU of {mtu}"));
        }
        let counts = self.load::<2>(shared + 62, machine);
        let pairs = counts as usize & 0xff;
        if counts >> 8 != counts & 0xff || !pairs.is_power_of_two() || pairs > PAIRS {
            return self.complain(format!("queues: {counts:#x}"));
        }
        if self.load::<4>(shared + 120, machine) & 0xd != 0xd {
            self.complain("own address, broadcast and all multicast are not enabled");
        }
        if !self.take_hash(pairs, machine) {
            return self.complain("the RSS configuration is not a hash of addresses");
        }
        let interrupts = self.load::<1>(shared + 81, machine);
        let queues = self.load::<8>(shared + 40, machine);
        let mut ring = |queue: u64, at: u64, entries: u64| {
            let base = queues + 256 * queue;
            let address = self.load::<8>(base + at, machine);
            Ring::new(address, self.load::<4>(base + entries, machine) as u32)
        };
        let mut all = Vec::new();
        for pair in 0..pairs as u64 {
            let receive = pairs as u64 + pair;
            all.push(Pair {
                transmit: ring(pair, 16, 56),
                transmitted: ring(pair, 32, 64),
                receive: ring(receive, 16, 56),
                received: ring(receive, 32, 64),
                ..Pair::default()
            });
        }
        let mut interrupt = |queue: u64| self.load::<1>(queues + 256 * queue + 72, machine) as u8;
        for (pair, number) in all.iter_mut().zip(0..) {
            pair.interrupts = [interrupt(pairs as u64 + number), interrupt(number)];
            if pair.interrupts.iter().any(|&one| u64::from(one) >= interrupts) {
                return self.complain("an interrupt does not exist");
            }
        }
        self.pairs = all;
        self.active = true;
    }

    fn execute(&mut self, command: u32, machine: &mut dyn Machine) {
        self.command = command;
        match command {
            0xcafe_0000 => self.activate(machine),
            0xcafe_0001 => self.active = false,
            0xcafe_0002 => {
                self.resets += 1;
                self.clear_state();
            }
            0xf00d_0000 | 0xf00d_0001 if self.active => {
                let queues = self.load::<8>(self.shared + 40, machine);
                let stopped = u8::from(self.has(Fault::Stopped));
                _ = machine.write(queues + 80, &[stopped]);
                for (at, pair) in (self.pairs.len() as u64..).zip(&self.pairs) {
                    _ = machine.write(queues + 256 * at + 152, &pair.missed.to_le_bytes());
                }
            }
            0xf00d_0000..=0xf00d_0002 => {}
            _ => self.complain(format!("command {command:#x}")),
        }
    }

    fn answer(&self) -> u32 {
        match self.command {
            0xcafe_0000 => u32::from(!self.active),
            0xf00d_0002 => 10_000 << 16 | u32::from(self.link),
            _ => 0,
        }
    }

    /// Raises the interrupt of a pair's receive queue (0) or transmit queue (1).
    fn raise(&mut self, pair: usize, queue: usize, machine: &mut dyn Machine) {
        let interrupt = self.pairs[pair].interrupts[queue];
        self.raised[usize::from(interrupt)] = true;
        self.deliver(interrupt, machine);
    }

    fn deliver(&mut self, interrupt: u8, machine: &mut dyn Machine) {
        let n = usize::from(interrupt);
        if self.masked[n] || !self.raised[n] || self.has(Fault::NoInterrupts) {
            return;
        }
        self.raised[n] = false;
        match self.interrupts().msix {
            0 => machine.interrupt(Interrupt::Msi(0)),
            _ => machine.interrupt(Interrupt::Msix(interrupt.into())),
        };
    }
}

impl Function for Vmxnet3 {
    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn bars(&self) -> &[Bar] {
        &BARS
    }

    fn interrupts(&self) -> Interrupts {
        // The first capability is MSI-X or MSI.
        let mut first = [0; 4];
        self.config.read(0x50, &mut first);
        match first[0] {
            0x11 => Interrupts { msix: u16::from(first[2]) + 1, ..Interrupts::default() },
            _ => Interrupts { msi: 1, ..Interrupts::default() },
        }
    }

    fn read(&mut self, bar: u8, offset: u64, into: &mut [u8]) {
        let [a, b, c, d, e, f] = if self.has(Fault::NoAddress) { [0; 6] } else { MAC };
        let value = match (bar, offset) {
            (1, 0x00) => u32::from(!self.has(Fault::NoVersion)) | 6,
            (1, 0x08) => 1,
            (1, 0x20) => self.answer(),
            (1, 0x28) => u32::from_le_bytes([a, b, c, d]),
            (1, 0x30) => u32::from_le_bytes([e, f, 0, 0]),
            _ => 0,
        };
        into.iter_mut().zip(0..).for_each(|(place, at)| *place = byte_of(value.into(), at));
    }

    fn write(
        &mut self,
        bar: u8,
        offset: u64,
        bytes: &[u8],
        _: Nanoseconds,
        machine: &mut dyn Machine,
    ) {
        let value = number(bytes) as u32;
        match (bar, offset) {
            (0, 0..0xc8) if offset.is_multiple_of(8) => {
                self.masked[(offset / 8) as usize] = value & 1 != 0;
                self.deliver((offset / 8) as u8, machine);
            }
            (0, 0x600..0x640 | 0x800..0x840) if offset.is_multiple_of(8) => {}
            (1, 0x00 | 0x08) if value == 1 => {}
            (1, 0x10) => self.shared = value.into(),
            (1, 0x18) => self.shared |= u64::from(value) << 32,
            (1, 0x20) => self.execute(value, machine),
            (1, 0x28 | 0x30) => {}
            _ => self.complain(format!("{value:#x} goes to {offset:#x} of BAR {bar}")),
        }
    }

    fn poll(&mut self, _: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        if self.config.is_bus_master() && self.active && self.link && !self.hung {
            (0..self.pairs.len()).for_each(|pair| self.send(pair, machine));
            self.take_in(machine);
        }
        None
    }

    fn reset(&mut self) {
        self.clear_state();
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let counted = [("resets", self.resets), ("complaints", self.complaints.len() as u64)];
        counted.map(|(name, count)| (name.to_string(), count)).into()
    }
}
