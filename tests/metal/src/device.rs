//! A slot of the machine: the function's registers, the memory that it reaches, and its interrupts.

use crate::msix::Lines;
use drivers::hal::{Registers, Window};
use models::{Function, Interrupt, LATE_MODELS, Lateness, Machine, Memory, Unreachable};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Addresses of BARs: 64-bit BARs above 4 GiB, others below, `ROOM` bytes apart.
const ABOVE_4_GIB: u64 = 0x38_0000_0000;
const BELOW_4_GIB: u64 = 0xf000_0000;
const ROOM: u64 = 1 << 25;

pub type Route = Arc<dyn Fn(u64, &[u8]) -> bool + Send + Sync>;

pub type Shared<F> = Arc<Mutex<Slot<F>>>;

/// A BAR with its assigned address.
#[derive(Clone, Copy)]
struct Placed {
    index: u8,
    address: u64,
    size: u64,
}

/// A stuck bit of a register.
#[derive(Clone, Copy, Debug)]
pub struct Stuck {
    /// The BAR.
    pub bar: u8,
    /// Offset of the word in the BAR.
    pub offset: u64,
    /// The bit of the word.
    pub bit: u8,
    /// The value that it reads as.
    pub set: bool,
}

/// A slot with its function.
pub struct Slot<F> {
    pub function: F,
    pub lines: Lines,
    pub memory: Window,
    /// Handles writes to addresses that are not memory. Returns whether a function is there.
    pub route: Option<Route>,
    /// Memory behind BARs that are windows to another machine.
    pub windows: Vec<(u8, Window)>,
    bars: Vec<Placed>,
    /// The function was removed.
    pub absent: bool,
    /// The function is removed after this many accesses.
    pub absent_after: Option<u64>,
    /// A stuck bit.
    pub stuck: Option<Stuck>,
    /// Registers that were read, by BAR and offset, rounded down to words.
    pub read_from: BTreeSet<(u8, u64)>,
    pub now: u64,
    pub accesses: u64,
    pub reads: u64,
    /// Time of the model's next work, as its last poll returned it.
    pub due: Option<u64>,
}

impl<F: Function> Slot<F> {
    pub fn new(mut function: F, memory: Window) -> Self {
        let mut bars = Vec::new();
        for bar in function.bars().to_vec() {
            let config = function.config();
            let at = 0x10 + 4 * u64::from(bar.index);
            let mut flags = [0; 4];
            config.read(at, &mut flags);
            let wide = flags[0] & 6 == 4;
            let start = if wide { ABOVE_4_GIB } else { BELOW_4_GIB };
            let address = start + ROOM * u64::from(bar.index);
            config.write(at, &(address as u32).to_le_bytes());
            if wide {
                config.write(at + 4, &((address >> 32) as u32).to_le_bytes());
            }
            bars.push(Placed { index: bar.index, address, size: bar.size });
        }
        function.attach(Arc::new(Inside(memory)));
        if let Some(lateness) = Lateness::of(std::env::var(LATE_MODELS).ok().as_deref()) {
            function.be_late(lateness);
        }
        let lines = Lines::of(function.config());
        Slot {
            function,
            lines,
            memory,
            route: None,
            windows: Vec::new(),
            bars,
            absent: false,
            absent_after: None,
            stuck: None,
            read_from: BTreeSet::new(),
            now: 0,
            accesses: 0,
            reads: 0,
            due: None,
        }
    }

    /// The BAR and the offset in it that contain `len` bytes at `address`.
    pub fn place(&self, address: u64, len: usize) -> Option<(u8, u64)> {
        self.bars.iter().find_map(|bar| {
            let start = address.checked_sub(bar.address)?;
            (start.checked_add(len as u64)? <= bar.size).then_some((bar.index, start))
        })
    }

    /// Whether the function answers accesses to a BAR: memory is decoded, the BAR has its address, and no
    /// function-level reset is under way.
    fn decodes(&mut self, bar: u8) -> bool {
        let now = self.now;
        let placed = self.bars.iter().find(|placed| placed.index == bar).map(|bar| bar.address);
        let config = self.function.config();
        let mut bytes = [0; 8];
        config.read(0x10 + 4 * u64::from(bar), &mut bytes);
        if bytes[0] & 6 != 4 {
            bytes[4..].fill(0);
        }
        let address = u64::from_le_bytes(bytes) & !0xf;
        config.decodes_memory() && !config.is_silent(now) && placed == Some(address)
    }

    /// Runs the work of the model that is due.
    pub fn poll(&mut self) {
        if !self.absent {
            self.lines.update(self.function.config());
            let route = self.route.as_deref();
            let mut world = World { memory: self.memory, lines: &mut self.lines, route };
            self.due = self.function.poll(self.now, &mut world);
        }
    }

    fn read(&mut self, bar: u8, offset: u64, into: &mut [u8]) {
        (self.accesses, self.reads) = (self.accesses + 1, self.reads + 1);
        self.absent |= self.absent_after.is_some_and(|most| self.accesses > most);
        if self.absent || !self.decodes(bar) {
            return into.fill(0xff);
        }
        self.read_from.insert((bar, offset & !3));
        match self.lines.entry(bar, offset) {
            Some(word) => into.copy_from_slice(&word.to_le_bytes()[..into.len().min(4)]),
            None => self.function.read(bar, offset, into),
        }
        if let Some(stuck) = self.stuck.filter(|stuck| stuck.bar == bar) {
            let place = (stuck.offset + u64::from(stuck.bit / 8)).checked_sub(offset);
            if let Some(byte) = place.and_then(|place| into.get_mut(place as usize)) {
                let bit = 1 << (stuck.bit % 8);
                *byte = if stuck.set { *byte | bit } else { *byte & !bit };
            }
        }
    }

    /// Handles another function's write. Returns whether the address is in a BAR of this function.
    pub fn write_from_neighbour(&mut self, address: u64, bytes: &[u8]) -> bool {
        let Some((bar, offset)) = self.place(address, bytes.len()) else { return false };
        let accesses = self.accesses;
        self.write(bar, offset, bytes);
        self.accesses = accesses;
        true
    }

    fn write(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        self.accesses += 1;
        if self.absent || !self.decodes(bar) || self.lines.write(bar, offset, bytes) {
            return;
        }
        self.lines.update(self.function.config());
        let route = self.route.as_deref();
        let mut world = World { memory: self.memory, lines: &mut self.lines, route };
        self.function.write(bar, offset, bytes, self.now, &mut world);
    }
}

/// Stored to when a model starts to work. A tracer of memory accesses attributes those up to the store to [`LEFT`] to
/// the model.
pub static ENTERED: AtomicU8 = AtomicU8::new(0);
/// Stored to when a model stops working.
pub static LEFT: AtomicU8 = AtomicU8::new(0);

/// Handles the CPU's register access. The model's instructions are not the driver's: `tests/bench` excludes them from
/// its counts by the names of this function and of [`work_of_the_model`].
#[inline(never)]
pub fn access_of_the_model<F: Function, T>(
    slot: &Shared<F>,
    access: impl FnOnce(&mut Slot<F>) -> T,
) -> T {
    entered(slot, access)
}

/// Runs the model's work that no access triggers.
#[inline(never)]
pub fn work_of_the_model<F: Function>(slot: &Shared<F>) {
    entered(slot, Slot::poll);
}

#[inline(always)]
fn entered<F: Function, T>(slot: &Shared<F>, work: impl FnOnce(&mut Slot<F>) -> T) -> T {
    ENTERED.store(1, Ordering::Relaxed);
    let done = work(&mut slot.lock().unwrap_or_else(PoisonError::into_inner));
    LEFT.store(1, Ordering::Relaxed);
    done
}

/// The machine's memory.
struct Inside(Window);

impl Inside {
    fn part(&self, address: u64, len: usize) -> Result<Window, Unreachable> {
        let offset = address.checked_sub(self.0.bus_address()).ok_or(Unreachable(address))?;
        self.0.slice(offset as usize, len).ok_or(Unreachable(address))
    }
}

impl Memory for Inside {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreachable> {
        self.part(address, into.len())?.read(0, into).map_err(|_| Unreachable(address))
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Unreachable> {
        let part = self.part(address, bytes.len())?;
        match bytes.try_into() {
            Ok(word) if address.is_multiple_of(8) => part.store64(0, u64::from_le_bytes(word)),
            _ => part.write(0, bytes).map_err(|_| Unreachable(address))?,
        }
        Ok(())
    }
}

/// The machine as the model sees it.
struct World<'a> {
    memory: Window,
    lines: &'a mut Lines,
    route: Option<&'a (dyn Fn(u64, &[u8]) -> bool + Send + Sync)>,
}

impl Machine for World<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreachable> {
        Inside(self.memory).read(address, into)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Unreachable> {
        if self.route.is_some_and(|route| route(address, bytes)) {
            return Ok(());
        }
        Inside(self.memory).write(address, bytes)
    }

    fn interrupt(&mut self, interrupt: Interrupt) -> bool {
        match interrupt {
            Interrupt::Msix(vector) => self.lines.raise(vector),
            Interrupt::Msi(0) => self.lines.raise_msi(),
            Interrupt::Msi(_) | Interrupt::Intx => false,
        }
    }
}

/// Maps `len` bytes of registers from `start` of a BAR on.
pub fn registers<F: Function + Send + 'static>(
    slot: &Shared<F>,
    bar: u8,
    start: u64,
    len: usize,
) -> Box<dyn Registers> {
    Box::new(Mapped { slot: slot.clone(), bar, start, len })
}

struct Mapped<F> {
    slot: Shared<F>,
    bar: u8,
    start: u64,
    len: usize,
}

impl<F: Function> Mapped<F> {
    fn load(&self, offset: usize, into: &mut [u8]) {
        let inside = offset.checked_add(into.len()).is_some_and(|end| end <= self.len);
        if !inside || !offset.is_multiple_of(into.len()) {
            return into.fill(0xff);
        }
        access_of_the_model(&self.slot, |slot| {
            slot.read(self.bar, self.start + offset as u64, into)
        });
    }

    fn store(&self, offset: usize, bytes: &[u8]) {
        let inside = offset.checked_add(bytes.len()).is_some_and(|end| end <= self.len);
        if inside && offset.is_multiple_of(bytes.len()) {
            access_of_the_model(&self.slot, |slot| {
                slot.write(self.bar, self.start + offset as u64, bytes)
            });
        }
    }
}

macro_rules! access {
    ($read:ident, $write:ident, $t:ty) => {
        fn $read(&self, offset: usize) -> $t {
            let mut bytes = [0; size_of::<$t>()];
            self.load(offset, &mut bytes);
            <$t>::from_le_bytes(bytes)
        }

        fn $write(&self, offset: usize, value: $t) {
            self.store(offset, &value.to_le_bytes());
        }
    };
}

impl<F: Function + Send> Registers for Mapped<F> {
    fn len(&self) -> usize {
        self.len
    }
    access!(read8, write8, u8);
    access!(read16, write16, u16);
    access!(read32, write32, u32);
    access!(read64, write64, u64);

    fn writes_64_bytes(&self) -> bool {
        true
    }

    fn write_64_bytes(&self, offset: usize, words: &[u64; 8]) {
        let mut bytes = [0; 64];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        self.store(offset, &bytes);
    }
}
