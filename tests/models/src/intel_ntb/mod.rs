//! Intel's non-transparent bridge of the third generation (Xeon, Skylake), back to back: two functions, one in each
//! machine, that are one state. Registers as in Linux `drivers/ntb/hw/intel/ntb_hw_gen3.{c,h}`.
//!
//! What a machine writes to its windows, to the other's scratchpads and bells is posted: it arrives, in order, when
//! the other machine's function is polled. Not modelled: loads through a window, which give ones, and the secondary
//! side's own configuration space.

mod side;
#[cfg(test)]
mod tests;

use crate::registers::{number, read_bytes};
use crate::{Bar, ConfigSpace, Function, Interrupt, Interrupts, Machine, Nanoseconds, PortType};
use side::{LINK_BELL, Side};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The device.
pub const DEVICE: u16 = 0x201c;
/// The registers.
const REGISTERS: Bar = Bar { index: 0, size: 0x1_0000 };
const MSIX_TABLE: u32 = 0x8000;
const MSIX_PENDING: u32 = 0x9000;
const VECTORS: u16 = 33;
/// How long a link takes to be trained.
const TRAINING: Nanoseconds = 100_000_000;

// Configuration space.
const WINDOW_SIZES: usize = 0xd0;
const PORT_DEFINITION: usize = 0xd4;
const LINK_STATUS: usize = 0x1a2;
/// Active, 16 lanes, 8 GT/s.
const LINK_UP: u16 = 0x2000 | 16 << 4 | 3;

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
    /// Bells set their bit and raise no interrupt.
    NoInterrupt,
    /// Bells do not arrive.
    NoBell,
}

/// How the two functions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// PCI device id: [`DEVICE`], or that of another generation.
    pub device: u16,
    /// Bytes of each of the two windows, a power of two.
    pub window: u64,
    /// What is wrong.
    pub fault: Option<Fault>,
}

/// What is under way to a machine.
#[derive(Clone, Debug)]
enum Posted {
    Write(u64, Vec<u8>),
    Scratchpad(usize, u32),
    Bell(u64),
}

/// Both sides.
struct Pair {
    sides: [Side; 2],
    /// What is under way to each.
    arriving: [VecDeque<Posted>; 2],
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
    me: usize,
    config: ConfigSpace,
    bars: [Bar; 3],
}

impl IntelNtb {
    /// The functions of both machines: upstream device and downstream device.
    pub fn pair(settings: Config) -> [IntelNtb; 2] {
        assert!(settings.window.is_power_of_two(), "a BAR's size is a power of two");
        let pair = Arc::new(Mutex::new(Pair {
            sides: [Side::new(), Side::new()],
            arriving: [VecDeque::new(), VecDeque::new()],
            trained_at: None,
            link: false,
            cable: true,
            fault: settings.fault,
        }));
        [0, 1].map(|me| {
            let no_window = settings.fault == Some(Fault::NoWindow);
            let connection = u8::from(settings.fault != Some(Fault::NotBackToBack));
            let mut config = ConfigSpace::new(0x8086, settings.device, 0x06_80_00, 4)
                .subsystem(0x8086, 0)
                .memory_bar(REGISTERS.index, REGISTERS.size);
            for index in [2, 4] {
                if !no_window {
                    config = config.memory_bar(index, settings.window);
                }
            }
            let mut config = config
                .msix(VECTORS, REGISTERS.index, MSIX_TABLE, MSIX_PENDING)
                .express(PortType::IntegratedEndpoint)
                .power_management()
                .extended(1, 1, 0x100);
            config.put(WINDOW_SIZES, &[settings.window.trailing_zeros() as u8; 2]);
            config.put(PORT_DEFINITION, &[connection | (me as u8) << 4]);
            let window = |index| Bar { index, size: settings.window };
            let bars = [REGISTERS, window(2), window(4)];
            IntelNtb { pair: pair.clone(), me, config, bars }
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
        let status = if up { LINK_UP } else { 0 };
        self.config.put(LINK_STATUS, &status.to_le_bytes());
    }
}

impl Pair {
    /// Both want the link, and there is a cable: it comes up some time later.
    fn train(&mut self, now: Nanoseconds) {
        let wanted = self.cable && self.sides.iter().all(Side::wants_link);
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
            self.arriving.iter_mut().for_each(VecDeque::clear);
        }
        for side in &mut self.sides {
            side.bells |= LINK_BELL;
            side.unsent |= LINK_BELL;
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

    fn read(&mut self, bar: u8, offset: u64, into: &mut [u8]) {
        let pair = self.state();
        let (own, peer) = (&pair.sides[self.me], &pair.sides[1 - self.me]);
        match (bar, offset) {
            (0, 0x180..0x1c0) => {
                let reached = |at: u64| if pair.link { peer.byte(at - 0x100) } else { 0xff };
                read_bytes(offset, into, reached);
            }
            (0, _) => read_bytes(offset, into, |at| own.byte(at)),
            _ => into.fill(0xff),
        }
    }

    fn write(&mut self, bar: u8, offset: u64, bytes: &[u8], now: Nanoseconds, _: &mut dyn Machine) {
        let me = self.me;
        let master = self.config.is_bus_master();
        let mut pair = self.state();
        let pair = &mut *pair;
        let value = number(bytes);
        let to_peer = match (bar, offset) {
            (0, 0x100..0x180) if value & 1 != 0 => {
                pair.sides[me].counts.rung += 1;
                Posted::Bell(1 << ((offset - 0x100) / 4))
            }
            (0, 0x100..0x180) => return,
            (0, 0x180..0x1c0) => Posted::Scratchpad((offset - 0x180) as usize / 4, value as u32),
            (0, _) => {
                pair.sides[me].write(offset, value, bytes, pair.fault);
                return pair.train(now);
            }
            (2 | 4, _) => {
                pair.sides[me].counts.window_writes += 1;
                let window = usize::from(bar / 2 - 1);
                let (start, limit) = pair.sides[1 - me].windows[window];
                // The other's limit is an address of its own BAR.
                let base = pair.sides[1 - me].bases[window];
                let end = offset + bytes.len() as u64;
                if !pair.link || !master || start == 0 || base + end > limit {
                    pair.sides[me].counts.missed += 1;
                    return;
                }
                Posted::Write(start + offset, bytes.to_vec())
            }
            _ => return,
        };
        let lost =
            !pair.link || matches!(to_peer, Posted::Bell(_)) && pair.fault == Some(Fault::NoBell);
        if !lost {
            pair.arriving[1 - me].push_back(to_peer);
        }
    }

    fn poll(&mut self, now: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        let me = self.me;
        let bases = [self.bar_address(2), self.bar_address(4)];
        let master = self.config.is_bus_master();
        let mut guard = self.state();
        let pair = &mut *guard;
        pair.sides[me].bases = bases;
        pair.train(now);
        while let Some(posted) = pair.arriving[me].pop_front() {
            let side = &mut pair.sides[me];
            match posted {
                Posted::Write(address, bytes) => {
                    if !master || machine.write(address, &bytes).is_err() {
                        side.counts.unreachable += 1;
                    }
                }
                Posted::Scratchpad(n, value) => side.scratchpads[n] = value,
                Posted::Bell(bits) => {
                    side.bells |= bits;
                    side.unsent |= bits;
                }
            }
        }
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
        let counts = pair.sides[me].counts;
        pair.sides[me] = Side::new();
        pair.sides[me].counts = counts;
        pair.arriving[me].clear();
        if pair.link {
            pair.set_link(false);
        }
        drop(guard);
        self.show_link(false);
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let counts = self.state().sides[self.me].counts;
        let all = [
            ("window_writes", counts.window_writes),
            ("missed", counts.missed),
            ("unreachable", counts.unreachable),
            ("rung", counts.rung),
            ("interrupts", counts.interrupts),
        ];
        all.map(|(name, count)| (name.to_string(), count)).to_vec()
    }
}
