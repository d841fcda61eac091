//! A machine with a model as its PCI function: Isthmus' drivers find it, map its registers, and use it in one process.
//! The machine has no threads: [`Metal::run`] runs the model, and reading the clock advances the time.

pub mod bridges;
pub mod connectx;
mod device;
mod msix;

pub use device::{ENTERED, LEFT, Stuck};
use device::{Shared, Slot};
use drivers::hal::{
    Arena, Clock, ConfigRegionAccess, Instant, Interrupt, PciAddress, Platform, Registers, Window,
};
use drivers::inventory::Inventory;
use models::{Function, reset_by_machine, take_function_reset};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Bus address of the memory. It differs from the address in this process.
pub const MEMORY: u64 = 0x10_0000;
/// PCI address of the function.
fn place() -> PciAddress {
    PciAddress::new(0, 0, 3, 0)
}

/// The machine.
pub struct Metal<F> {
    slot: Shared<F>,
    arena: Arena,
    /// Interrupts that can still be allocated.
    pub interrupts: u32,
}

impl<F: Function + Send + 'static> Metal<F> {
    /// Creates a machine with this function and this many bytes of memory.
    pub fn new(function: F, memory: usize) -> Self {
        // Page-aligned for the CPU as for devices.
        let whole = vec![0u64; (memory + 4096) / 8].leak();
        let skipped = whole.as_ptr().addr().wrapping_neg() % 4096;
        let start = NonNull::from(&mut whole[skipped / 8..]).cast();
        // SAFETY: the memory is leaked, so mapped for ever, and the only reference to it has just ended.
        let memory = unsafe { Window::from_raw(start, MEMORY, memory) };
        Metal::with_memory(function, memory)
    }

    /// Creates a machine with this memory, which other machines may share.
    pub fn with_memory(function: F, memory: Window) -> Self {
        let slot = Arc::new(Mutex::new(Slot::new(function, memory)));
        Metal { slot, arena: Arena::new(memory), interrupts: 4 }
    }

    /// Adds another function to the machine. It can write to this function's BARs.
    pub fn beside<G: Function + Send + 'static>(&self, function: G) -> Metal<G> {
        let memory = self.slot().memory;
        let mut slot = Slot::new(function, memory);
        let other = self.slot.clone();
        slot.route = Some(Arc::new(move |address, bytes| {
            // Part of the first model's work, which the caller has entered.
            let mut slot = other.lock().unwrap_or_else(PoisonError::into_inner);
            slot.write_from_neighbour(address, bytes)
        }));
        Metal { slot: Arc::new(Mutex::new(slot)), arena: self.arena.share(), interrupts: 4 }
    }

    /// Puts `memory` of another machine behind a BAR: the CPU's writes to the BAR go there directly.
    pub fn put_behind(&self, bar: u8, memory: Window) {
        self.slot().windows.push((bar, memory));
    }

    /// A part of the memory by bus address.
    pub fn memory(&self, address: u64, len: usize) -> Window {
        let all = self.slot().memory;
        let offset = address - all.bus_address();
        all.slice(offset as usize, len).expect("the machine has that memory")
    }

    /// Number of register reads so far.
    pub fn reads(&self) -> u64 {
        self.slot().reads
    }

    /// Runs the inventory of drivers on the machine.
    pub fn find(&self) -> Inventory {
        let mut inventory = Inventory::default();
        inventory.scan_pci(Box::leak(Box::new(Access(self.slot.clone()))));
        inventory
    }

    /// Calls `look` with the model.
    pub fn model<T>(&self, look: impl FnOnce(&mut F) -> T) -> T {
        look(&mut self.slot().function)
    }

    /// Runs the work of the model that is due.
    pub fn run(&self) {
        device::work_of_the_model(&self.slot);
    }

    /// Removes the function from the machine, or restores it.
    pub fn pull_out(&self, out: bool) {
        self.slot().absent = out;
    }

    /// Resets the function as the machine does (hot reset, containment of a port): it is silent for `time`, and has lost
    /// its BARs and all other registers.
    pub fn hot_reset(&self, time: Duration) {
        let slot = &mut *self.slot();
        let now = slot.now;
        reset_by_machine(&mut slot.function, now, time.as_nanos() as u64);
        slot.lines.reset();
        slot.lines.update(slot.function.config());
    }

    /// Sets the stuck bit of a register; None removes it.
    pub fn stick(&self, bit: Option<Stuck>) {
        self.slot().stuck = bit;
    }

    /// Removes the function after this many more register accesses.
    pub fn pull_out_after(&self, accesses: u64) {
        let slot = &mut *self.slot();
        slot.absent_after = Some(slot.accesses + accesses);
    }

    /// Registers read so far, by BAR and offset.
    pub fn read_from(&self) -> Vec<(u8, u64)> {
        self.slot().read_from.iter().copied().collect()
    }

    /// The machine's clock. Each read runs the model, and advances the time by a millisecond.
    pub fn clock(&self) -> MetalClock<F> {
        MetalClock(self.slot.clone())
    }

    /// Advances the time.
    pub fn pass(&self, time: Duration) -> Instant {
        let slot = &mut *self.slot();
        slot.now += time.as_nanos() as u64;
        Instant::from_nanos(slot.now)
    }

    /// Time of the model's next work, as its last run returned it.
    pub fn due(&self) -> Option<Instant> {
        self.slot().due.map(Instant::from_nanos)
    }

    /// Number of register accesses so far.
    pub fn accesses(&self) -> u64 {
        self.slot().accesses
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Slot<F>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: a model writes to memory by copies, at the addresses that its driver has programmed. It holds no reference.
unsafe impl<F: Function + Send + 'static> Platform for Metal<F> {
    fn map_registers(&mut self, address: u64, len: usize) -> Option<Box<dyn Registers>> {
        let (bar, start) = self.slot().place(address, len)?;
        Some(device::registers(&self.slot, bar, start, len))
    }

    fn map_memory(&mut self, _: u64, _: usize) -> Option<Window> {
        None
    }

    fn map_window(&mut self, address: u64, len: usize) -> Option<Window> {
        let slot = self.slot();
        let (bar, _) = slot.place(address, len)?;
        let (_, memory) = slot.windows.iter().find(|(behind, _)| *behind == bar)?;
        let memory = memory.slice(0, len)?;
        // SAFETY: the memory is mapped as in the window `memory`. Only the bus address differs.
        Some(unsafe { Window::from_raw(memory.as_ptr(), address, len) })
    }

    fn allocate_interrupt(&mut self) -> Option<Interrupt> {
        self.interrupts = self.interrupts.checked_sub(1)?;
        let raised: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(0)));
        let address = self.slot().lines.add(raised);
        // SAFETY: the address is never written to: the machine uses it as the number of a counter.
        Some(unsafe { Interrupt::new(address, 0x55, raised) })
    }

    fn clock(&self) -> Option<Box<dyn Clock + Send>> {
        Some(Box::new(Metal::clock(self)))
    }

    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }
}

/// See [`Metal::clock`].
pub struct MetalClock<F>(Shared<F>);

impl<F: Function> Clock for MetalClock<F> {
    fn now(&self) -> Instant {
        let slot = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slot.now += 1_000_000;
        slot.poll();
        Instant::from_nanos(slot.now)
    }
}

/// Configuration space of the machine.
struct Access<F>(Shared<F>);

impl<F: Function> ConfigRegionAccess for Access<F> {
    unsafe fn read(&self, address: PciAddress, offset: u16) -> u32 {
        let slot = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if address != place() || slot.absent {
            return u32::MAX;
        }
        let (now, mut bytes) = (slot.now, [0; 4]);
        slot.function.config().read_at(now, offset.into(), &mut bytes);
        u32::from_le_bytes(bytes)
    }

    unsafe fn write(&self, address: PciAddress, offset: u16, value: u32) {
        let slot = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if address == place() && !slot.absent {
            let now = slot.now;
            slot.function.config().write_at(now, offset.into(), &value.to_le_bytes());
            if take_function_reset(&mut slot.function, now) {
                slot.lines.reset();
            }
            slot.lines.update(slot.function.config());
        }
    }
}
