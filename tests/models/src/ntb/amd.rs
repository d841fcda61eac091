//! Model of AMD's non-transparent bridge: a primary and a secondary side. Registers as in Linux
//! `drivers/ntb/hw/amd/ntb_hw_amd.{c,h}`.
//!
//! Each side has a bank of registers at 0x400, and sees the other's at 0x800. Both are in one device, so access does
//! not need a link. The owner of the memory writes a window's translation and limit into the other side's bank. Both
//! sides share sixteen scratchpads.
//!
//! The link is trained before drivers start. Link events come only when the cable is unplugged or plugged in. Each side
//! sets a ready bit, which the other side reads.
//!
//! Not modelled: power events, and shared vectors.

use super::Counts;
use super::crossing::{Crossing, TRAINING};
use crate::registers::{byte_of, number, read_bytes, with_half};
use crate::{
    Bar, ConfigSpace, Function, Interrupt, Interrupts, Machine, Memory, Nanoseconds, PortType,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// PCI device id of a device with windows behind BARs 2 and 4.
pub const DEVICE: u16 = 0x148b;
/// PCI device id of a device with a third window, behind BAR 1.
pub const THREE_WINDOWS: u16 = 0x145b;

const REGISTERS: Bar = Bar { index: 0, size: 0x1_0000 };
const MSIX_TABLE: u32 = 0x4000;
const MSIX_PENDING: u32 = 0x5000;
/// Vectors: 16 for doorbells, 8 for events.
const VECTORS: u16 = 24;
const BELLS: u16 = 16;
const EVENT_VECTOR: u16 = 16;

// Events.
const LINK_UP: u32 = 0x20;
const LINK_DOWN: u32 = 0x40;
const ALL_EVENTS: u32 = 0x7f;
/// Side information: the side's software is ready.
const READY: u32 = 2;
/// Link status of the function: 16 lanes, 8 GT/s.
const LINK_STATUS: u16 = 0x0103;

/// Faults to inject, of the device or of its set-up by firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The first window's BAR has no memory.
    NoWindow,
    /// Limits of windows are read-only.
    NoLimit,
    /// Translations of windows are read-only.
    NoTranslation,
    /// Doorbells set their bit but raise no interrupt.
    NoInterrupt,
    /// Doorbells are lost.
    NoBell,
    /// Writes to scratchpads are lost.
    NoScratchpad,
    /// A byte in every 16 KiB of written memory is wrong.
    Corrupt,
}

impl Fault {
    /// Faults by name.
    pub const NAMED: [(&str, Fault); 7] = [
        ("no-window", Fault::NoWindow),
        ("no-limit", Fault::NoLimit),
        ("no-translation", Fault::NoTranslation),
        ("no-interrupt", Fault::NoInterrupt),
        ("no-bell", Fault::NoBell),
        ("no-scratchpad", Fault::NoScratchpad),
        ("corrupt", Fault::Corrupt),
    ];
}

/// Properties of the two functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// PCI device id.
    pub device: u16,
    /// Bytes of each window, a power of two.
    pub window: u64,
    /// Injected fault.
    pub fault: Option<Fault>,
}

impl Config {
    /// A configuration without a fault.
    pub fn new(device: u16, window: u64) -> Self {
        Config { device, window, fault: None }
    }
}

/// A bank of registers. Windows are behind BARs 1, 2 and 4. Each has a translation and a limit in bytes.
#[derive(Clone, Debug)]
struct Bank {
    control: u32,
    side: u32,
    translations: [u64; 3],
    limits: [u64; 3],
    bells: u16,
    bells_masked: u16,
    /// Doorbells whose interrupt was not raised yet.
    unsent: u16,
    events: u32,
    events_masked: u32,
    event_unsent: bool,
    acknowledged: u32,
    counts: Counts,
}

impl Bank {
    fn new(me: usize) -> Self {
        Bank {
            control: 0,
            side: me as u32,
            translations: [0; 3],
            limits: [0; 3],
            bells: 0,
            bells_masked: 0xffff,
            unsent: 0,
            events: 0,
            events_masked: ALL_EVENTS,
            event_unsent: false,
            acknowledged: 0,
            counts: Counts::default(),
        }
    }

    /// Reports an event. It replaces a pending one, because the driver handles single events only.
    fn report_event(&mut self, event: u32) {
        (self.events, self.event_unsent) = (event, true);
    }

    fn byte(&self, at: u64) -> u8 {
        let word = |value: u64| byte_of(value, at % 8);
        match at {
            0x08..0x0c => byte_of(self.side.into(), at % 4),
            0x14..0x18 => byte_of(self.limits[0], at % 4),
            0x18..0x28 => word(self.limits[1 + (at - 0x18) as usize / 8]),
            0x30..0x48 => word(self.translations[(at - 0x30) as usize / 8]),
            0x5c..0x5e => byte_of(self.bells_masked.into(), at % 2),
            0x60..0x62 => byte_of(self.bells.into(), at % 2),
            0x70..0x74 => byte_of(self.events_masked.into(), at % 4),
            0x74..0x78 => byte_of(self.events.into(), at % 4),
            0xa0..0xa4 => byte_of(self.acknowledged.into(), at % 4),
            _ => 0,
        }
    }

    fn write(&mut self, at: u64, value: u64, len: usize, fault: Option<Fault>) {
        let merged = |old: u64| match len {
            8 => value,
            _ => with_half(old, at % 8, value as u32),
        };
        match at {
            0x08 => self.side = self.side & !READY | value as u32 & READY,
            0x14..0x28 if fault == Some(Fault::NoLimit) => {}
            0x30..0x48 if fault == Some(Fault::NoTranslation) => {}
            0x14 => self.limits[0] = value & 0xffff_ffff,
            0x18..0x28 => {
                let limit = &mut self.limits[1 + (at - 0x18) as usize / 8];
                *limit = merged(*limit);
            }
            0x30..0x48 => {
                let translation = &mut self.translations[(at - 0x30) as usize / 8];
                *translation = merged(*translation);
            }
            0x5c => {
                self.unsent |= self.bells & self.bells_masked & !(value as u16);
                self.bells_masked = value as u16;
            }
            0x60 => {
                self.bells &= !(value as u16);
                self.unsent &= self.bells;
            }
            0x70 => {
                self.event_unsent |= self.events & self.events_masked & !(value as u32) != 0;
                self.events_masked = value as u32;
            }
            0x74 => self.events &= !(value as u32),
            0xa0 => self.acknowledged = value as u32,
            _ => {}
        }
    }
}

/// A posted write to the other side's registers.
#[derive(Clone, Copy, Debug)]
enum Signal {
    Scratchpad(usize, u32),
    Bell(u16),
}

/// The device: both sides.
struct Pair {
    banks: [Bank; 2],
    scratchpads: [u32; 16],
    /// Posted accesses to each machine.
    to: [Crossing<Signal>; 2],
    trained_at: Option<Nanoseconds>,
    link: bool,
    cable: bool,
    fault: Option<Fault>,
}

/// The function of one side, in its machine.
pub struct AmdNtb {
    pair: Arc<Mutex<Pair>>,
    me: usize,
    config: ConfigSpace,
    bars: Vec<Bar>,
}

impl AmdNtb {
    /// Creates the functions of both machines: primary and secondary side.
    pub fn pair(settings: Config) -> [AmdNtb; 2] {
        assert!(settings.window.is_power_of_two(), "a BAR's size is a power of two");
        let pair = Arc::new(Mutex::new(Pair {
            banks: [Bank::new(0), Bank::new(1)],
            scratchpads: [0; 16],
            to: [Crossing::new(), Crossing::new()],
            trained_at: None,
            link: true,
            cable: true,
            fault: settings.fault,
        }));
        let three = settings.device == THREE_WINDOWS;
        [0, 1].map(|me| {
            let mut config = ConfigSpace::new(0x1022, settings.device, 0x06_80_00, 0)
                .subsystem(0x1022, settings.device);
            let mut bars = vec![REGISTERS];
            // BAR 1 is free only if BAR 0 has 32 bits.
            config = match three {
                true => config
                    .memory_bar_32(0, REGISTERS.size as u32)
                    .memory_bar_32(1, settings.window as u32),
                false => config.memory_bar(0, REGISTERS.size),
            };
            let window = |index| Bar { index, size: settings.window };
            bars.extend(three.then_some(window(1)));
            if settings.fault != Some(Fault::NoWindow) {
                config = config.memory_bar(2, settings.window).memory_bar(4, settings.window);
                bars.extend([window(2), window(4)]);
            }
            let config = config
                .msix(VECTORS, REGISTERS.index, MSIX_TABLE, MSIX_PENDING)
                .express_at_speed(PortType::IntegratedEndpoint, LINK_STATUS)
                .power_management()
                .extended(1, 1, 0x100);
            AmdNtb { pair: pair.clone(), me, config, bars }
        })
    }

    fn state(&self) -> MutexGuard<'_, Pair> {
        self.pair.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unplugs the cable, or plugs it in.
    pub fn set_cable(&self, there: bool) {
        self.state().cable = there;
    }

    /// Replaces the injected fault; None removes it.
    pub fn inject(&self, fault: Option<Fault>) {
        self.state().fault = fault;
    }

    /// The memory of this machine that the other machine's window behind BAR 2 exposes: start and bytes.
    pub fn exposed(&self) -> (u64, u64) {
        let other = &self.state().banks[1 - self.me];
        (other.translations[1], other.limits[1])
    }
}

impl Pair {
    /// Trains the link for some time after the cable is plugged in.
    fn train(&mut self, now: Nanoseconds) {
        match (self.cable, self.link) {
            (true, false) => {
                let at = *self.trained_at.get_or_insert(now + TRAINING);
                if now >= at {
                    self.set_link(true);
                }
            }
            (false, true) => self.set_link(false),
            (false, false) => self.trained_at = None,
            (true, true) => {}
        }
    }

    fn set_link(&mut self, up: bool) {
        (self.link, self.trained_at) = (up, None);
        if !up {
            self.to.iter_mut().for_each(Crossing::clear);
        }
        self.banks
            .iter_mut()
            .for_each(|bank| bank.report_event(if up { LINK_UP } else { LINK_DOWN }));
    }

    /// Translates an access of `me` through a window to the other machine's memory.
    fn translated(&self, me: usize, bar: u8, offset: u64, len: usize) -> Option<u64> {
        let window = match bar {
            1 => 0,
            2 => 1,
            _ => 2,
        };
        let (start, limit) = (self.banks[me].translations[window], self.banks[me].limits[window]);
        let inside = offset + len as u64 <= limit;
        (self.link && inside && start != 0).then(|| start + offset)
    }

    fn deliver(&mut self, machine: usize) {
        let (bank, scratchpads) = (&mut self.banks[machine], &mut self.scratchpads);
        self.to[machine].deliver(|signal| match signal {
            Signal::Scratchpad(n, value) => scratchpads[n] = value,
            Signal::Bell(bits) => {
                bank.bells |= bits;
                bank.unsent |= bits;
            }
        });
    }

    fn write_through(&mut self, me: usize, bar: u8, offset: u64, bytes: &[u8]) {
        self.banks[me].counts.window_writes += 1;
        let Some(address) = self.translated(me, bar, offset, bytes.len()) else {
            self.banks[me].counts.missed += 1;
            return;
        };
        let mut bytes = bytes.to_vec();
        if self.fault == Some(Fault::Corrupt) && address % 0x4000 == 0x40 {
            bytes[0] ^= 1;
        }
        self.to[1 - me].post_write(address, &bytes);
    }
}

/// The side whose bank contains the offset.
fn bank_of(me: usize, offset: u64) -> Option<usize> {
    match offset {
        0x400..0x800 => Some(me),
        0x800..0xc00 => Some(1 - me),
        _ => None,
    }
}

impl Function for AmdNtb {
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
        let pair = &mut *guard;
        pair.to[me].update_master(&self.config);
        if bar != 0 {
            match pair.translated(me, bar, offset, into.len()) {
                Some(address) => {
                    // Earlier writes arrive before a load.
                    pair.deliver(peer);
                    pair.to[peer].load(address, into);
                }
                None => {
                    pair.banks[me].counts.missed += 1;
                    into.fill(0xff);
                }
            }
            return;
        }
        if (0x210..0x250).contains(&offset) {
            pair.deliver(peer);
        }
        read_bytes(offset, into, |at| match (at, bank_of(me, at)) {
            (0x200..0x204, _) => byte_of(pair.banks[me].control.into(), at % 4),
            (0x204..0x208, _) => byte_of(pair.link.into(), at % 4),
            (0x210..0x250, _) => {
                byte_of(pair.scratchpads[(at - 0x210) as usize / 4].into(), at % 4)
            }
            (_, Some(bank)) => pair.banks[bank].byte(at % 0x400),
            _ => 0,
        });
    }

    fn write(&mut self, bar: u8, offset: u64, bytes: &[u8], now: Nanoseconds, _: &mut dyn Machine) {
        let me = self.me;
        let mut guard = self.state();
        let pair = &mut *guard;
        pair.to[me].update_master(&self.config);
        let value = number(bytes);
        match (bar, offset) {
            (0, 0x200) => pair.banks[me].control = value as u32,
            (0, 0x210..0x250) if pair.fault == Some(Fault::NoScratchpad) => {}
            (0, 0x210..0x250) => {
                let n = (offset - 0x210) as usize / 4;
                match n / 8 == me {
                    true => pair.scratchpads[n] = value as u32,
                    // A write to the other side's scratchpads arrives after earlier writes through windows.
                    false => pair.to[1 - me].post(Signal::Scratchpad(n, value as u32)),
                }
            }
            (0, 0x454) => {
                pair.banks[me].counts.rung += 1;
                if pair.link && pair.fault != Some(Fault::NoBell) {
                    pair.to[1 - me].post(Signal::Bell(value as u16));
                }
            }
            (0, _) => {
                if let Some(bank) = bank_of(me, offset) {
                    let fault = pair.fault;
                    pair.banks[bank].write(offset % 0x400, value, bytes.len(), fault);
                }
                pair.train(now);
            }
            _ => pair.write_through(me, bar, offset, bytes),
        }
    }

    fn poll(&mut self, now: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        let me = self.me;
        let mut guard = self.state();
        let pair = &mut *guard;
        pair.to[me].update_master(&self.config);
        pair.train(now);
        pair.deliver(me);
        let silent = pair.fault == Some(Fault::NoInterrupt);
        let bank = &mut pair.banks[me];
        let due = bank.unsent & bank.bells & !bank.bells_masked;
        bank.unsent &= !due;
        let mut vectors: Vec<u16> = (0..BELLS).filter(|bell| due >> bell & 1 == 1).collect();
        if bank.event_unsent && bank.events & !bank.events_masked != 0 {
            bank.event_unsent = false;
            vectors.push(EVENT_VECTOR);
        }
        for vector in vectors {
            if !silent && machine.interrupt(Interrupt::Msix(vector)) {
                bank.counts.interrupts += 1;
            }
        }
        pair.trained_at
    }

    fn reset(&mut self) {
        let me = self.me;
        let mut guard = self.state();
        let pair = &mut *guard;
        let counts = pair.banks[me].counts;
        pair.banks[me] = Bank { counts, ..Bank::new(me) };
        pair.scratchpads[8 * me..8 * me + 8].fill(0);
        pair.to[me].clear();
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let pair = self.state();
        let unreachable = pair.to[self.me].unreachable;
        Counts { unreachable, ..pair.banks[self.me].counts }.list()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestMachine, TestMemory};

    struct World {
        functions: [AmdNtb; 2],
        machines: [TestMachine; 2],
        memory: [Arc<TestMemory>; 2],
    }

    impl World {
        fn up() -> Self {
            let mut functions = AmdNtb::pair(Config::new(DEVICE, 1 << 16));
            let machines = [0; 2].map(|_| TestMachine::new(0));
            let memory = [0; 2].map(|_| TestMemory::new(1 << 16));
            for (function, memory) in functions.iter_mut().zip(&memory) {
                function.attach(memory.clone());
                function.config.write(0x04, &6u16.to_le_bytes());
            }
            let mut world = World { functions, machines, memory };
            world.poll(0);
            world
        }

        fn poll(&mut self, now: Nanoseconds) {
            for (function, machine) in self.functions.iter_mut().zip(&mut self.machines) {
                function.poll(now, machine);
            }
        }

        fn write(&mut self, n: usize, bar: u8, offset: u64, bytes: &[u8]) {
            self.functions[n].write(bar, offset, bytes, TRAINING, &mut self.machines[n]);
        }

        fn read(&mut self, n: usize, bar: u8, offset: u64) -> u32 {
            let mut bytes = [0; 4];
            self.functions[n].read(bar, offset, &mut bytes);
            u32::from_le_bytes(bytes)
        }
    }

    #[test]
    fn ready_side_is_visible_to_the_other() {
        let mut world = World::up();
        assert_eq!((world.read(0, 0, 0x408), world.read(1, 0, 0x408)), (0, 1));
        world.write(1, 0, 0x408, &3u32.to_le_bytes());
        assert_eq!((world.read(0, 0, 0x808), world.read(0, 0, 0x408)), (3, 0));
        world.functions[0].set_cable(false);
        world.poll(0);
        assert_eq!((world.read(0, 0, 0x474), world.read(0, 0, 0x808)), (LINK_DOWN, 3));
        assert!(world.machines[0].interrupts.is_empty(), "events are masked");
        world.write(0, 0, 0x470, &0u32.to_le_bytes());
        world.poll(0);
        assert_eq!(world.machines[0].interrupts, [Interrupt::Msix(EVENT_VECTOR)]);
        world.functions[0].set_cable(true);
        world.poll(0);
        assert_eq!(world.read(0, 0, 0x474), LINK_DOWN);
        world.poll(TRAINING);
        assert_eq!(world.read(0, 0, 0x474), LINK_UP);
    }

    #[test]
    fn windows_are_translated_and_signals_stay_ordered() {
        let mut world = World::up();
        world.write(0, 0, 0x838, &0x4000u64.to_le_bytes());
        world.write(0, 0, 0x818, &0x1000u64.to_le_bytes());
        assert_eq!(world.functions[0].exposed(), (0x4000, 0x1000));
        world.write(0, 0, 0x45c, &0u16.to_le_bytes());
        world.write(1, 2, 0xffc, &[7; 4]);
        world.write(1, 2, 0xffe, &[7; 4]);
        world.write(1, 4, 0, &[7; 4]);
        world.write(1, 0, 0x210, &9u32.to_le_bytes());
        world.write(1, 0, 0x454, &4u16.to_le_bytes());
        assert_eq!(world.read(1, 2, 0xffc), 0x0707_0707, "a load comes after earlier writes");
        world.poll(TRAINING);
        assert_eq!(world.read(0, 0, 0x210), 9);
        assert_eq!(world.read(0, 0, 0x460) as u16, 4);
        assert_eq!(world.machines[0].interrupts, [Interrupt::Msix(2)]);
        let memory = world.memory[0].0.lock().unwrap();
        assert_eq!(memory.iter().filter(|&&byte| byte == 7).count(), 4);
        let missed = world.functions[1].counters().into_iter().find(|(name, _)| name == "missed");
        assert_eq!(missed.unwrap().1, 2);
    }
}
