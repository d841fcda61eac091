//! Intel's non-transparent bridges, back to back: the third generation (Xeon, Skylake) and the fourth (Ice Lake to
//! Granite Rapids). Registers as in Linux `drivers/ntb/hw/intel/ntb_hw_gen{3,4}.{c,h}`.
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

/// The device of the third generation.
pub const DEVICE: u16 = 0x201c;
/// The devices of the fourth: in Ice Lake (revisions below 0x10) and Sapphire Rapids, and in Granite Rapids.
pub const GEN4: u16 = 0x347e;
/// See [`GEN4`].
pub const GRANITE_RAPIDS: u16 = 0x0db4;
/// The registers.
const REGISTERS: Bar = Bar { index: 0, size: 0x1_0000 };
const VECTORS: u16 = 33;

// Configuration space.
const WINDOW_SIZES: usize = 0xd0;
const WINDOW_SIZES_4: usize = 0xc4;
const PORT_DEFINITION: usize = 0xd4;
const LINK_STATUS: usize = 0x1a2;

/// What the model does wrong, or firmware has set up wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The port is transparent, or towards a root port: not back to back.
    NotBackToBack,
    /// The first window's BAR was given no memory.
    NoWindow,
    /// The limit of a window cannot be written.
    NoLimit,
    /// The translation of a window cannot be written.
    NoTranslation,
    /// The index of a window's translation cannot be written (Ice Lake).
    NoIndex,
    /// The link is never trained.
    NoTraining,
    /// Bells set their bit and raise no interrupt.
    NoInterrupt,
    /// Bells do not arrive.
    NoBell,
    /// Scratchpads do not arrive.
    NoScratchpad,
    /// A byte of each 16 KiB that are written is wrong.
    Corrupt,
}

impl Fault {
    /// By name.
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

/// How the two functions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// PCI device id: [`DEVICE`], or that of another generation.
    pub device: u16,
    /// Its revision.
    pub revision: u8,
    /// Bytes of each of the two windows, a power of two.
    pub window: u64,
    /// What is wrong.
    pub fault: Option<Fault>,
}

impl Config {
    /// A good one.
    pub fn new(device: u16, window: u64) -> Self {
        Config { device, revision: 4, window, fault: None }
    }
}

/// What is done to the other machine's registers.
#[derive(Clone, Copy, Debug)]
enum Signal {
    Scratchpad(usize, u32),
    Bell(u64),
}

/// Both sides.
struct Pair {
    generation: Generation,
    window: u64,
    sides: [Side; 2],
    /// What is under way to each.
    to: [Crossing<Signal>; 2],
    /// When the link is trained; None while it is not, or is already.
    trained_at: Option<Nanoseconds>,
    link: bool,
    /// The cable is there.
    cable: bool,
    fault: Option<Fault>,
}

/// The function in one of the two machines.
pub struct IntelNtb {
    pair: Arc<Mutex<Pair>>,
    generation: Generation,
    me: usize,
    config: ConfigSpace,
    bars: [Bar; 3],
}

impl IntelNtb {
    /// The functions of both machines: upstream device and downstream device.
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

    /// The cable is pulled out, or put back.
    pub fn set_cable(&self, there: bool) {
        self.state().cable = there;
    }

    /// From now on this is wrong, or nothing.
    pub fn inject(&self, fault: Option<Fault>) {
        self.state().fault = fault;
    }

    /// Where accesses through the other machine's first window end in this one's memory: from, and how many bytes.
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

    /// Shows the state of the link, which is the same for both, in this one's configuration space.
    fn show_link(&mut self, up: bool) {
        if self.generation.is_third() {
            let status = if up { self.generation.link_up() } else { 0 };
            self.config.put(LINK_STATUS, &status.to_le_bytes());
        }
    }

    /// Takes note of what the driver has written to configuration space.
    fn see(&self, pair: &mut Pair) {
        pair.sides[self.me].bases = [self.bar_address(2), self.bar_address(4)];
        pair.to[self.me].see(&self.config);
    }
}

impl Pair {
    /// Both want the link, and there is a cable: it comes up some time later.
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

    /// Where an access of `me` through a window ends at the other machine.
    fn translated(&self, me: usize, bar: u8, offset: u64, len: usize) -> Option<u64> {
        let window = usize::from(bar / 2 - 1);
        let other = &self.sides[1 - me];
        let (start, limit) = other.windows[window];
        // The other's limit is an address of its own BAR.
        let end = other.bases[window] + offset + len as u64;
        let index = other.index[window];
        let inside = index == 0 || offset + len as u64 <= 1 << index.min(63);
        let start =
            if self.generation.aligns_to_bar() { start & !(self.window - 1) } else { start };
        (self.link && self.to[me].is_master() && start != 0 && end <= limit && inside)
            .then(|| start + offset)
    }

    /// What is under way to a machine arrives.
    fn deliver(&mut self, machine: usize) {
        let side = &mut self.sides[machine];
        self.to[machine].deliver(|signal| match signal {
            Signal::Scratchpad(n, value) => side.scratchpads[n] = value,
            Signal::Bell(bits) => side.ring(bits),
        });
    }

    /// A machine writes through a window.
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

    /// A machine signals the other, if that arrives at all.
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
        self.see(pair);
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
                    // What was written before arrives before.
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
        self.see(pair);
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
        self.see(pair);
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
