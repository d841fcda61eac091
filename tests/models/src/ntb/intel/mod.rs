//! Models of Intel's non-transparent bridges, back to back: the third generation (Xeon, Skylake) and the fourth (Ice
//! Lake to Granite Rapids). Registers as in Linux `drivers/ntb/hw/intel/ntb_hw_gen{3,4}.{c,h}`.
//!
//! Not modelled: the secondary side's own configuration space.

mod generation;
mod side;
#[cfg(test)]
mod tests;

use super::Counts;
use super::crossing::{Crossing, TRAINING};
use crate::registers::{number, read_bytes};
use crate::{
    Bar, ConfigSpace, Function, Interrupt, Interrupts, Machine, Memory, Nanoseconds, PortType,
};
pub use generation::Generation;
use side::Side;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// PCI device id of the third generation.
pub const DEVICE: u16 = 0x201c;
/// PCI device id of the fourth generation in Ice Lake (revisions below 0x10) and Sapphire Rapids.
pub const GEN4: u16 = 0x347e;
/// PCI device id of the fourth generation in Granite Rapids.
pub const GRANITE_RAPIDS: u16 = 0x0db4;
const REGISTERS: Bar = Bar { index: 0, size: 0x1_0000 };
const VECTORS: u16 = 33;

// Configuration space.
const WINDOW_SIZES: usize = 0xd0;
const WINDOW_SIZES_4: usize = 0xc4;
const PORT_DEFINITION: usize = 0xd4;
const LINK_STATUS: usize = 0x1a2;

/// Faults to inject, of the device or of its set-up by firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The port is transparent or connected to a root port, not back to back.
    NotBackToBack,
    /// The first window's BAR has no memory.
    NoWindow,
    /// Limits of windows are read-only.
    NoLimit,
    /// Translations of windows are read-only.
    NoTranslation,
    /// The translation index of a window is read-only (Ice Lake).
    NoIndex,
    /// The link is never trained.
    NoTraining,
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
    pub const NAMED: [(&str, Fault); 10] = [
        ("not-back-to-back", Fault::NotBackToBack),
        ("no-window", Fault::NoWindow),
        ("no-limit", Fault::NoLimit),
        ("no-translation", Fault::NoTranslation),
        ("no-index", Fault::NoIndex),
        ("no-training", Fault::NoTraining),
        ("no-interrupt", Fault::NoInterrupt),
        ("no-bell", Fault::NoBell),
        ("no-scratchpad", Fault::NoScratchpad),
        ("corrupt", Fault::Corrupt),
    ];
}

/// Properties of the two functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// PCI device id: [`DEVICE`], [`GEN4`] or [`GRANITE_RAPIDS`].
    pub device: u16,
    /// PCI revision.
    pub revision: u8,
    /// Bytes of each of the two windows, a power of two.
    pub window: u64,
    /// Injected fault.
    pub fault: Option<Fault>,
}

impl Config {
    /// A configuration without a fault.
    pub fn new(device: u16, window: u64) -> Self {
        Config { device, revision: 4, window, fault: None }
    }
}

/// A posted write to the other machine's registers.
#[derive(Clone, Copy, Debug)]
enum Signal {
    Scratchpad(usize, u32),
    Bell(u64),
}

/// The bridge: both sides.
struct Pair {
    generation: Generation,
    window: u64,
    sides: [Side; 2],
    /// Posted accesses to each machine.
    to: [Crossing<Signal>; 2],
    /// When link training ends; None if no training is in progress.
    trained_at: Option<Nanoseconds>,
    link: bool,
    /// The cable is plugged in.
    cable: bool,
    fault: Option<Fault>,
}

/// The function of one side, in its machine.
pub struct IntelNtb {
    pair: Arc<Mutex<Pair>>,
    generation: Generation,
    me: usize,
    config: ConfigSpace,
    bars: [Bar; 3],
}

impl IntelNtb {
    /// Creates the functions of both machines: upstream device and downstream device.
    pub fn pair(settings: Config) -> [IntelNtb; 2] {
        assert!(settings.window.is_power_of_two(), "a BAR's size is a power of two");
        let generation = Generation::of(settings.device, settings.revision);
        let connection = u32::from(settings.fault != Some(Fault::NotBackToBack));
        let definition = |me| generation.port_definition(connection, me == 1);
        let pair = Arc::new(Mutex::new(Pair {
            generation,
            window: settings.window,
            sides: [0, 1].map(|me| Side::new(generation, definition(me))),
            to: [Crossing::new(), Crossing::new()],
            trained_at: None,
            link: false,
            cable: true,
            fault: settings.fault,
        }));
        [0, 1].map(|me| {
            let no_window = settings.fault == Some(Fault::NoWindow);
            let (device, revision) = (settings.device, settings.revision);
            let mut config = ConfigSpace::new(0x8086, device, 0x06_80_00, revision)
                .subsystem(0x8086, 0)
                .memory_bar(REGISTERS.index, REGISTERS.size);
            for index in [2, 4] {
                if !no_window {
                    config = config.memory_bar(index, settings.window);
                }
            }
            let (table, pending) = generation.msix();
            let mut config = config
                .msix(VECTORS, REGISTERS.index, table, pending)
                .express(PortType::IntegratedEndpoint)
                .power_management()
                .extended(1, 1, 0x100);
            let log2 = settings.window.trailing_zeros() as u8;
            if generation.is_third() {
                config.put(WINDOW_SIZES, &[log2; 2]);
                config.put(PORT_DEFINITION, &[definition(me) as u8]);
            } else {
                config.put(WINDOW_SIZES_4, &[log2; 4]);
            }
            let window = |index| Bar { index, size: settings.window };
            let bars = [REGISTERS, window(2), window(4)];
            IntelNtb { pair: pair.clone(), generation, me, config, bars }
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

    /// The memory of this machine that the other machine's first window exposes: start and bytes.
    pub fn exposed(&mut self) -> (u64, u64) {
        let base = self.bar_address(2);
        let (start, limit) = self.state().sides[self.me].windows[0];
        (start, limit.saturating_sub(base))
    }

    fn bar_address(&self, bar: u8) -> u64 {
        let mut bytes = [0; 8];
        self.config.read(0x10 + 4 * u64::from(bar), &mut bytes);
        u64::from_le_bytes(bytes) & !0xf
    }

    /// Sets the link status in this function's configuration space.
    fn show_link(&mut self, up: bool) {
        if self.generation.is_third() {
            let status = if up { self.generation.link_up() } else { 0 };
            self.config.put(LINK_STATUS, &status.to_le_bytes());
        }
    }

    /// Reads BAR addresses and bus master enable from configuration space.
    fn update_from_config(&self, pair: &mut Pair) {
        pair.sides[self.me].bases = [self.bar_address(2), self.bar_address(4)];
        pair.to[self.me].update_master(&self.config);
    }
}

impl Pair {
    /// Trains the link for some time once both sides enable it and the cable is plugged in.
    fn train(&mut self, now: Nanoseconds) {
        let wanted = self.cable
            && self.fault != Some(Fault::NoTraining)
            && self.sides.iter().all(Side::wants_link);
        match (wanted, self.link) {
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
        for side in &mut self.sides {
            side.link_changed(if up { self.generation.link_up() } else { 0 });
        }
    }

    /// Translates an access of `me` through a window to the other machine's memory.
    fn translated(&self, me: usize, bar: u8, offset: u64, len: usize) -> Option<u64> {
        let window = usize::from(bar / 2 - 1);
        let other = &self.sides[1 - me];
        let (start, limit) = other.windows[window];
        // The other side's limit is an address in its own BAR.
        let end = other.bases[window] + offset + len as u64;
        let index = other.index[window];
        let inside = index == 0 || offset + len as u64 <= 1 << index.min(63);
        let start =
            if self.generation.aligns_to_bar() { start & !(self.window - 1) } else { start };
        (self.link && self.to[me].is_master() && start != 0 && end <= limit && inside)
            .then(|| start + offset)
    }

    /// Executes the posted accesses to a machine.
    fn deliver(&mut self, machine: usize) {
        let side = &mut self.sides[machine];
        self.to[machine].deliver(|signal| match signal {
            Signal::Scratchpad(n, value) => side.scratchpads[n] = value,
            Signal::Bell(bits) => side.ring(bits),
        });
    }

    /// Posts a machine's write through a window.
    fn write_through(&mut self, me: usize, bar: u8, offset: u64, bytes: &[u8]) {
        self.sides[me].counts.window_writes += 1;
        let Some(address) = self.translated(me, bar, offset, bytes.len()) else {
            self.sides[me].counts.missed += 1;
            return;
        };
        let mut bytes = bytes.to_vec();
        if self.fault == Some(Fault::Corrupt) && address % 0x4000 == 0x40 {
            bytes[0] ^= 1;
        }
        self.to[1 - me].post_write(address, &bytes);
    }

    /// Posts a machine's signal to the other, unless a fault drops it.
    fn signal(&mut self, me: usize, signal: Signal) {
        let lost = match signal {
            Signal::Scratchpad(..) => Fault::NoScratchpad,
            Signal::Bell(_) => {
                self.sides[me].counts.rung += 1;
                Fault::NoBell
            }
        };
        if self.link && self.fault != Some(lost) {
            self.to[1 - me].post(signal);
        }
    }
}

impl Function for IntelNtb {
    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn bars(&self) -> &[Bar] {
        let none = self.state().fault == Some(Fault::NoWindow);
        if none { &self.bars[..1] } else { &self.bars }
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
        self.update_from_config(pair);
        let scratchpads = pair.generation.peer_scratchpads();
        match (bar, offset) {
            (0, at) if (scratchpads..scratchpads + 0x40).contains(&at) => {
                pair.deliver(peer);
                let (link, side) = (pair.link, &pair.sides[peer]);
                let reached =
                    |at: u64| if link { side.byte(at - scratchpads + 0x80) } else { 0xff };
                read_bytes(offset, into, reached);
            }
            (0, _) => read_bytes(offset, into, |at| pair.sides[me].byte(at)),
            _ => match pair.translated(me, bar, offset, into.len()) {
                Some(address) => {
                    // Earlier writes arrive before a load.
                    pair.deliver(peer);
                    pair.to[peer].load(address, into);
                }
                None => {
                    pair.sides[me].counts.missed += 1;
                    into.fill(0xff);
                }
            },
        }
    }

    fn write(&mut self, bar: u8, offset: u64, bytes: &[u8], now: Nanoseconds, _: &mut dyn Machine) {
        let me = self.me;
        let mut guard = self.state();
        let pair = &mut *guard;
        self.update_from_config(pair);
        let value = number(bytes);
        let scratchpads = pair.generation.peer_scratchpads();
        match (bar, offset) {
            (0, 0x100..0x180) if value & 1 != 0 => {
                pair.signal(me, Signal::Bell(1 << ((offset - 0x100) / 4)));
            }
            (0, 0x100..0x180) => {}
            (0, at) if (scratchpads..scratchpads + 0x40).contains(&at) => {
                let n = (at - scratchpads) as usize / 4;
                pair.signal(me, Signal::Scratchpad(n, value as u32));
            }
            (0, _) => {
                pair.sides[me].write(offset, value, bytes, pair.fault);
                pair.train(now);
            }
            (2 | 4, _) => pair.write_through(me, bar, offset, bytes),
            _ => {}
        }
    }

    fn poll(&mut self, now: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        let me = self.me;
        let mut guard = self.state();
        let pair = &mut *guard;
        self.update_from_config(pair);
        pair.train(now);
        pair.deliver(me);
        let fault = pair.fault;
        let side = &mut pair.sides[me];
        for bell in side.due() {
            if fault != Some(Fault::NoInterrupt)
                && machine.interrupt(Interrupt::Msix(side.vectors[bell].into()))
            {
                side.counts.interrupts += 1;
            }
        }
        let (link, due) = (pair.link, pair.trained_at);
        drop(guard);
        self.show_link(link);
        due
    }

    fn reset(&mut self) {
        let me = self.me;
        let mut guard = self.state();
        let pair = &mut *guard;
        pair.sides[me].reset();
        pair.to[me].clear();
        if pair.link {
            pair.set_link(false);
        }
        drop(guard);
        self.show_link(false);
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let pair = self.state();
        let unreachable = pair.to[self.me].unreachable;
        Counts { unreachable, ..pair.sides[self.me].counts }.list()
    }
}
