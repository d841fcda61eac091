//! The function in its slot: registers, memory that it reaches, interrupts that it raises.

use crate::msix::Lines;
use drivers::hal::{Registers, Window};
use models::{Function, Interrupt, Machine, Unreachable};
use std::sync::{Arc, Mutex, PoisonError};

/// Where BAR 0 lies; the others lie below it.
const BAR_ADDRESS: u64 = 0xfe00_0000;

/// A BAR and where it lies.
#[derive(Clone, Copy)]
pub struct Placed {
    pub index: u8,
    pub address: u64,
    pub size: u64,
}

pub type Shared<F> = Arc<Mutex<Slot<F>>>;

/// What is in the machine's slot.
pub struct Slot<F> {
    pub function: F,
    pub lines: Lines,
    memory: Window,
    pub bars: Vec<Placed>,
    /// It was pulled out.
    pub absent: bool,
    pub now: u64,
    pub accesses: u64,
}

impl<F: Function> Slot<F> {
    pub fn new(mut function: F, memory: Window) -> Self {
        let mut next = BAR_ADDRESS;
        let mut place = |bar: &models::Bar| {
            if bar.index > 0 {
                next = (next - bar.size) & !(bar.size - 1);
            }
            Placed { index: bar.index, address: next, size: bar.size }
        };
        let bars: Vec<Placed> = function.bars().iter().map(&mut place).collect();
        let config = function.config();
        for bar in &bars {
            config.write(0x10 + 4 * u64::from(bar.index), &(bar.address as u32).to_le_bytes());
        }
        let lines = Lines::of(config);
        Slot { function, lines, memory, bars, absent: false, now: 0, accesses: 0 }
    }

    /// The model does what is due.
    pub fn poll(&mut self) {
        if !self.absent {
            let mut world = World { memory: self.memory, lines: &mut self.lines };
            self.function.poll(self.now, &mut world);
        }
    }

    fn read(&mut self, bar: u8, offset: u64, into: &mut [u8]) {
        self.accesses += 1;
        if self.absent {
            return into.fill(0xff);
        }
        match self.lines.entry(offset).filter(|_| bar == 0) {
            Some(word) => into.copy_from_slice(&word.to_le_bytes()[..into.len().min(4)]),
            None => self.function.read(bar, offset, into),
        }
    }

    fn write(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        self.accesses += 1;
        if self.absent || bar == 0 && self.lines.write(offset, bytes) {
            return;
        }
        let mut world = World { memory: self.memory, lines: &mut self.lines };
        self.function.write(bar, offset, bytes, self.now, &mut world);
    }
}

/// Everything that is the model's and not the driver's goes through here, so that a count of instructions can leave
/// it out (`tests/bench/metal`).
#[inline(never)]
pub fn of_the_model<F: Function, T>(slot: &Shared<F>, work: impl FnOnce(&mut Slot<F>) -> T) -> T {
    work(&mut slot.lock().unwrap_or_else(PoisonError::into_inner))
}

/// What the model sees of the machine.
struct World<'a> {
    memory: Window,
    lines: &'a mut Lines,
}

impl World<'_> {
    fn part(&self, address: u64, len: usize) -> Result<Window, Unreachable> {
        let offset = address.checked_sub(self.memory.bus_address()).ok_or(Unreachable(address))?;
        self.memory.slice(offset as usize, len).ok_or(Unreachable(address))
    }
}

impl Machine for World<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreachable> {
        self.part(address, into.len())?.read(0, into).map_err(|_| Unreachable(address))
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Unreachable> {
        let part = self.part(address, bytes.len())?;
        match bytes.try_into() {
            Ok(word) if address.is_multiple_of(8) => part.store64(0, u64::from_le_bytes(word)),
            _ => part.write(0, bytes).map_err(|_| Unreachable(address))?,
        }
        Ok(())
    }

    fn interrupt(&mut self, interrupt: Interrupt) -> bool {
        match interrupt {
            Interrupt::Msix(vector) => self.lines.raise(vector),
            Interrupt::Msi(_) => self.lines.raise_message(),
            Interrupt::Intx => false,
        }
    }
}

/// `len` bytes of registers from `start` of a BAR on.
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
        of_the_model(&self.slot, |slot| slot.read(self.bar, self.start + offset as u64, into));
    }

    fn store(&self, offset: usize, bytes: &[u8]) {
        let inside = offset.checked_add(bytes.len()).is_some_and(|end| end <= self.len);
        if inside && offset.is_multiple_of(bytes.len()) {
            of_the_model(&self.slot, |slot| {
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
}
