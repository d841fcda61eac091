//! Model of Microchip's Switchtec PFX, third generation, with two non-transparent partitions, a host at each. Registers
//! as in Linux `include/linux/switchtec.h`, `drivers/pci/switch/switchtec.c` and
//! `drivers/ntb/hw/mscc/ntb_hw_switchtec.c`.
//!
//! Not modelled: management commands (MRPC), crosslinks, messages of a partition to itself.

mod bells;
mod control;
#[cfg(test)]
mod tests;

use super::Counts;
use super::crossing::Crossing;
use crate::registers::{number, with_half};
use crate::{
    Bar, ConfigSpace, Function, Interrupt, Interrupts, Machine, Memory, Nanoseconds, PortType,
};
use bells::Bells;
use control::Control;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// PCI vendor id.
pub const VENDOR: u16 = 0x11f8;
/// PCI device id of a PFX 24xG3 with NTB.
pub const DEVICE: u16 = 0x8531;

const REGISTERS: Bar = Bar { index: 0, size: 0x40_0000 };
const VECTORS: u16 = 4;
/// Delay of doorbells with [`Fault::LateBells`].
const LATE: Nanoseconds = 200_000_000;

// Parts of BAR 0, and their sizes per partition or function.
const SYSTEM: u64 = 0x2000;
const PARTITION: u64 = 0x2018;
const PARTITIONS: u64 = 0x4000;
const PARTITION_SIZE: u64 = 0x400;
const BRIDGE: u64 = 0x1_0000;
const CONTROL: u64 = 0x1_4000;
const CONTROL_SIZE: u64 = 0x2000;
const BELLS: u64 = 0x7_4000;
const BELLS_SIZE: u64 = 0x4000;
const FUNCTIONS: u64 = 0x13_4000;
const FUNCTION_SIZE: u64 = 0x1000;

/// Link status in the upper half of a word: 16 lanes, 8 GT/s.
const LINK_STATUS: u32 = 0x0103_0000;
/// Event header: the event has occurred; writable enable bits.
const OCCURRED: u32 = 1;
const EVENT_ENABLES: u32 = 0xe;

/// Faults to inject, of the device or of the switch's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The function has the management class only.
    NotBridge,
    /// The other partition is not part of the bridge.
    Alone,
    /// The lookup table has no entries.
    NoTable,
    /// Lock operations never complete.
    NoLock,
    /// Entries of the lookup table are read-only.
    NoTranslation,
    /// Operations take half a second.
    Slow,
    /// Messages are lost.
    NoMessage,
    /// Doorbells set their bit but raise no interrupt.
    NoInterrupt,
    /// Doorbells are lost.
    NoBell,
    /// Doorbells take a fifth of a second.
    LateBells,
    /// A byte in every 16 KiB of written memory is wrong.
    Corrupt,
}

impl Fault {
    /// Faults by name.
    pub const NAMED: [(&str, Fault); 11] = [
        ("not-bridge", Fault::NotBridge),
        ("alone", Fault::Alone),
        ("no-table", Fault::NoTable),
        ("no-lock", Fault::NoLock),
        ("no-translation", Fault::NoTranslation),
        ("slow", Fault::Slow),
        ("no-message", Fault::NoMessage),
        ("no-interrupt", Fault::NoInterrupt),
        ("no-bell", Fault::NoBell),
        ("late-bells", Fault::LateBells),
        ("corrupt", Fault::Corrupt),
    ];
}

/// Properties of the two functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of BAR 2, a power of two: lookup windows of 64 KiB each, then the direct window.
    pub window: u64,
    /// Entries of the lookup table.
    pub entries: usize,
    /// Injected fault.
    pub fault: Option<Fault>,
}

impl Config {
    /// A configuration with eight entries and without a fault.
    pub fn new(window: u64) -> Self {
        Config { window, entries: 8, fault: None }
    }
}

/// A posted write to the other partition's registers.
#[derive(Clone, Copy, Debug)]
enum Signal {
    Bells(u64),
    Message(usize, u32),
}

/// The switch: both partitions.
struct Switch {
    controls: [Control; 2],
    bells: [Bells; 2],
    /// Event headers by offset.
    events: [BTreeMap<u64, u32>; 2],
    counts: [Counts; 2],
    /// Posted accesses to each machine.
    to: [Crossing<Signal>; 2],
    /// Delayed doorbells, with their times of arrival.
    late: [VecDeque<(Nanoseconds, u64)>; 2],
    cable: bool,
    now: Nanoseconds,
    fault: Option<Fault>,
}

/// The function of one partition, in its machine.
pub struct Switchtec {
    switch: Arc<Mutex<Switch>>,
    me: usize,
    config: ConfigSpace,
    bars: [Bar; 2],
}

impl Switchtec {
    /// Creates the functions of both machines: partitions 0 and 1.
    pub fn pair(settings: Config) -> [Switchtec; 2] {
        assert!(settings.window.is_power_of_two(), "a BAR's size is a power of two");
        let fault = settings.fault;
        let entries = if fault == Some(Fault::NoTable) { 0 } else { settings.entries };
        let switch = Arc::new(Mutex::new(Switch {
            controls: [Control::new(entries), Control::new(entries)],
            bells: [Bells::new(), Bells::new()],
            events: Default::default(),
            counts: Default::default(),
            to: [Crossing::new(), Crossing::new()],
            late: Default::default(),
            cable: true,
            now: 0,
            fault,
        }));
        let class = if fault == Some(Fault::NotBridge) { 0x05_80_00 } else { 0x06_80_00 };
        [0, 1].map(|me| {
            let table = (BELLS + BELLS_SIZE * me as u64) as u32 + 0x2000;
            let config = ConfigSpace::new(VENDOR, DEVICE, class, 0)
                .subsystem(VENDOR, DEVICE)
                .memory_bar(REGISTERS.index, REGISTERS.size)
                .memory_bar(2, settings.window)
                .msix(VECTORS, REGISTERS.index, table, table + 0x1000)
                .express(PortType::IntegratedEndpoint)
                .power_management()
                .extended(1, 1, 0x100);
            let bars = [REGISTERS, Bar { index: 2, size: settings.window }];
            Switchtec { switch: switch.clone(), me, config, bars }
        })
    }

    fn state(&self) -> MutexGuard<'_, Switch> {
        self.switch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Disconnects the partitions, or connects them.
    pub fn set_cable(&self, there: bool) {
        self.state().cable = there;
    }

    /// Replaces the injected fault; None removes it.
    pub fn inject(&self, fault: Option<Fault>) {
        self.state().fault = fault;
    }

    /// Lock operations that had to wait for the other host.
    pub fn waited(&self) -> u64 {
        self.state().controls.iter().map(|control| control.waited).sum()
    }
}

/// The number of the block of `size` bytes that contains the offset, and the offset in it.
fn place(offset: u64, start: u64, size: u64) -> (usize, u64) {
    (((offset - start) / size) as usize, (offset - start) % size)
}

impl Switch {
    fn settle(&mut self, now: Nanoseconds) -> Option<Nanoseconds> {
        self.now = now;
        for (late, to) in self.late.iter_mut().zip(&mut self.to) {
            while let Some((_, bells)) = late.pop_front_if(|&mut (due, _)| due <= now) {
                to.post(Signal::Bells(bells));
            }
        }
        let late = self.late.iter().filter_map(|late| late.front()).map(|&(due, _)| due);
        self.controls.iter_mut().filter_map(|control| control.settle(now)).chain(late).min()
    }

    fn translated(&self, me: usize, offset: u64, len: usize) -> Option<u64> {
        let (partition, address) = self.controls[me].translated(offset, len)?;
        (self.cable && partition == 1 - me).then_some(address)
    }

    fn deliver(&mut self, partition: usize) {
        let bells = &mut self.bells[partition];
        self.to[partition].deliver(|signal| match signal {
            Signal::Bells(bits) => bells.ring(bits),
            Signal::Message(number, value) => bells.receive(1 - partition, number, value),
        });
    }

    fn signal(&mut self, me: usize, signal: Signal) {
        let lost = match signal {
            Signal::Bells(_) => Fault::NoBell,
            Signal::Message(..) => Fault::NoMessage,
        };
        match signal {
            _ if !self.cable || self.fault == Some(lost) => {}
            Signal::Bells(bells) if self.fault == Some(Fault::LateBells) => {
                self.late[1 - me].push_back((self.now + LATE, bells));
            }
            _ => self.to[1 - me].post(signal),
        }
    }

    /// Reads a word of the registers.
    fn read(&self, me: usize, offset: u64) -> u32 {
        let event = || self.events[me].get(&offset).copied().unwrap_or(0);
        match offset {
            SYSTEM => u32::from(DEVICE) << 16 | u32::from(VENDOR),
            PARTITION => me as u32,
            // Number of partitions, and the own one; the bridge's partitions; requester id of the host.
            BRIDGE => 2 | (me as u32) << 8,
            0x1_0004 if self.fault == Some(Fault::Alone) => 1 << me,
            0x1_0004 => 3,
            0x1_000c => 0x0100,
            0x1_0020..0x1_0320 => {
                let (partition, at) = place(offset, 0x1_0020, 16);
                let alone = self.fault == Some(Fault::Alone);
                if at == 4 && partition < 2 && !alone { 2 >> partition } else { 0 }
            }
            CONTROL..BELLS => {
                let (partition, at) = place(offset, CONTROL, CONTROL_SIZE);
                self.controls.get(partition).map_or(0, |control| control.read(me, at))
            }
            BELLS..FUNCTIONS => {
                let (partition, at) = place(offset, BELLS, BELLS_SIZE);
                self.bells.get(partition).map_or(0, |bells| bells.read(at))
            }
            // Endpoints of both partitions. The driver stops at the first of another vendor.
            FUNCTIONS.. => match place(offset, FUNCTIONS, FUNCTION_SIZE) {
                (0..2, 0) => u32::from(DEVICE) << 16 | u32::from(VENDOR),
                (0..2, 0x74) => LINK_STATUS,
                (0..2, 0xd30) => event(),
                _ => 0,
            },
            PARTITIONS..BRIDGE => match place(offset, PARTITIONS, PARTITION_SIZE) {
                (partition, 0x14) => partition as u32,
                // No other functions; events go to vector 0.
                (_, 0x10 | 0x18..0xd4) => 0xff,
                (_, 0x100) => 0,
                _ => event(),
            },
            _ => event(),
        }
    }

    fn write(&mut self, me: usize, offset: u64, value: u32) {
        match offset {
            CONTROL..BELLS => {
                let (partition, at) = place(offset, CONTROL, CONTROL_SIZE);
                let slow = self.fault == Some(Fault::Slow);
                let after = self.now + if slow { 500_000_000 } else { 20_000_000 };
                let fault = self.fault;
                if let Some(control) = self.controls.get_mut(partition) {
                    control.write(me, at, value, after, fault);
                }
            }
            BELLS..FUNCTIONS => {
                let (partition, at) = place(offset, BELLS, BELLS_SIZE);
                if partition != me {
                    return;
                }
                match at {
                    0x1000 | 0x1004 => {
                        let bells = self.bells[me].leaving(with_half(0, at % 8, value));
                        if bells != 0 {
                            self.counts[me].rung += 1;
                            self.signal(me, Signal::Bells(bells));
                        }
                    }
                    0x1068..0x1088 if at % 8 == 0 => {
                        self.bells[me].write(at, value);
                        self.signal(me, Signal::Message((at - 0x1068) as usize / 8, value));
                    }
                    _ => self.bells[me].write(at, value),
                }
            }
            _ => {
                let header = self.events[me].entry(offset).or_default();
                *header = *header & !(value & OCCURRED) & !EVENT_ENABLES | value & EVENT_ENABLES;
            }
        }
    }

    fn write_through(&mut self, me: usize, offset: u64, bytes: &[u8]) {
        self.counts[me].window_writes += 1;
        let Some(address) = self.translated(me, offset, bytes.len()) else {
            self.counts[me].missed += 1;
            return;
        };
        let mut bytes = bytes.to_vec();
        if self.fault == Some(Fault::Corrupt) && address % 0x4000 == 0x40 {
            bytes[0] ^= 1;
        }
        self.to[1 - me].post_write(address, &bytes);
    }
}

impl Function for Switchtec {
    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn bars(&self) -> &[Bar] {
        &self.bars
    }

    fn interrupts(&self) -> Interrupts {
        Interrupts { msix: VECTORS, ..Interrupts::default() }
    }

    fn attach(&mut self, memory: Arc<dyn Memory>) {
        self.state().to[self.me].attach(memory);
    }

    fn read(&mut self, bar: u8, offset: u64, into: &mut [u8]) {
        let (me, peer) = (self.me, 1 - self.me);
        let mut guard = self.state();
        let switch = &mut *guard;
        switch.to[me].update_master(&self.config);
        if bar != 0 {
            match switch.translated(me, offset, into.len()) {
                Some(address) => {
                    // Earlier writes arrive before a load.
                    switch.deliver(peer);
                    switch.to[peer].load(address, into);
                }
                None => {
                    switch.counts[me].missed += 1;
                    into.fill(0xff);
                }
            }
            return;
        }
        for (at, place) in (offset..).zip(into) {
            *place = switch.read(me, at & !3).to_le_bytes()[at as usize % 4];
        }
    }

    fn write(&mut self, bar: u8, offset: u64, bytes: &[u8], now: Nanoseconds, _: &mut dyn Machine) {
        let me = self.me;
        let mut guard = self.state();
        let switch = &mut *guard;
        switch.to[me].update_master(&self.config);
        switch.settle(now);
        if bar != 0 {
            return switch.write_through(me, offset, bytes);
        }
        let own = BELLS + BELLS_SIZE * me as u64;
        let is_vectors = (own + 0x1020..own + 0x1060).contains(&offset);
        if is_vectors || bytes.len() < 4 {
            if (own..own + BELLS_SIZE).contains(&offset) {
                switch.bells[me].write_bytes(offset - own, bytes);
            }
            return;
        }
        for (at, word) in (offset..).step_by(4).zip(bytes.chunks(4)) {
            switch.write(me, at, number(word) as u32);
        }
    }

    fn poll(&mut self, now: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        let me = self.me;
        let mut guard = self.state();
        let switch = &mut *guard;
        switch.to[me].update_master(&self.config);
        let due = switch.settle(now);
        switch.deliver(me);
        let vectors = std::mem::take(&mut switch.bells[me].due);
        if switch.fault != Some(Fault::NoInterrupt) {
            for vector in (0..VECTORS).filter(|vector| vectors >> vector & 1 == 1) {
                switch.counts[me].interrupts +=
                    u64::from(machine.interrupt(Interrupt::Msix(vector)));
            }
        }
        due
    }

    fn reset(&mut self) {
        let me = self.me;
        let mut guard = self.state();
        let switch = &mut *guard;
        switch.controls[me].clear();
        switch.controls.iter_mut().for_each(|control| control.release(me));
        switch.bells[me] = Bells::new();
        switch.events[me].clear();
        switch.to[me].clear();
        switch.late[me].clear();
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let switch = self.state();
        let unreachable = switch.to[self.me].unreachable;
        let mut all = Counts { unreachable, ..switch.counts[self.me] }.list();
        let control = &switch.controls[self.me];
        all.push(("operations".to_string(), control.operations));
        all.push(("waited".to_string(), control.waited));
        all.push(("refused".to_string(), control.refused));
        all
    }
}
