//! A machine of one PCI function that is a model: our drivers find it, map its registers, and work with it in one
//! process. Nothing happens but when it is told to: the model does its work in [`Metal::run`], time passes by looks
//! at the clock.

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
use models::Function;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Bus address of the memory: not where it lies for us.
pub const MEMORY: u64 = 0x10_0000;
/// Where the function is.
fn place() -> PciAddress {
    PciAddress::new(0, 0, 3, 0)
}

/// The machine.
pub struct Metal<F> {
    slot: Shared<F>,
    arena: Arena,
    /// Interrupts that are left.
    pub interrupts: u32,
}

impl<F: Function + Send + 'static> Metal<F> {
    /// A machine with this function and so many bytes of memory.
    pub fn new(function: F, memory: usize) -> Self {
        // On a page's boundary for the CPU as for devices.
        let whole = vec![0u64; (memory + 4096) / 8].leak();
        let skipped = whole.as_ptr().addr().wrapping_neg() % 4096;
        let start = NonNull::from(&mut whole[skipped / 8..]).cast();
        // SAFETY: leaked, so mapped for ever, and the only reference was just given up.
        let memory = unsafe { Window::from_raw(start, MEMORY, memory) };
        Metal::with_memory(function, memory)
    }

    /// A machine with this memory, which others may reach as well.
    pub fn with_memory(function: F, memory: Window) -> Self {
        let slot = Arc::new(Mutex::new(Slot::new(function, memory)));
        Metal { slot, arena: Arena::new(memory), interrupts: 4 }
    }

    /// Another function in the same machine, which reaches this one's BARs.
    pub fn beside<G: Function + Send + 'static>(&self, function: G) -> Metal<G> {
        let memory = self.slot().memory;
        let mut slot = Slot::new(function, memory);
        let other = self.slot.clone();
        slot.route = Some(Arc::new(move |address, bytes| {
            // Within what the first function's model does, which has been entered.
            let mut slot = other.lock().unwrap_or_else(PoisonError::into_inner);
            slot.write_from_beside(address, bytes)
        }));
        Metal { slot: Arc::new(Mutex::new(slot)), arena: self.arena.share(), interrupts: 4 }
    }

    /// What the CPU writes to a BAR goes straight to `memory`, of another machine.
    pub fn put_behind(&self, bar: u8, memory: Window) {
        self.slot().windows.push((bar, memory));
    }

    /// A part of the memory, by its bus address.
    pub fn memory(&self, address: u64, len: usize) -> Window {
        let all = self.slot().memory;
        let offset = address - all.bus_address();
        all.slice(offset as usize, len).expect("the machine has that memory")
    }

    /// Reads from registers so far.
    pub fn reads(&self) -> u64 {
        self.slot().reads
    }

    /// What our inventory finds.
    pub fn find(&self) -> Inventory {
        let mut inventory = Inventory::default();
        inventory.scan_pci(Box::leak(Box::new(Access(self.slot.clone()))));
        inventory
    }

    /// Looks at the model, or changes it.
    pub fn model<T>(&self, look: impl FnOnce(&mut F) -> T) -> T {
        look(&mut self.slot().function)
    }

    /// The model does what it has to do.
    pub fn run(&self) {
        device::work_of_the_model(&self.slot);
    }

    /// The function is pulled out of the machine, or put back.
    pub fn pull_out(&self, out: bool) {
        self.slot().absent = out;
    }

    /// From now on a bit of a register reads as it likes, or none does.
    pub fn stick(&self, bit: Option<Stuck>) {
        self.slot().stuck = bit;
    }

    /// The function is pulled out when so many more accesses to registers were made.
    pub fn pull_out_after(&self, accesses: u64) {
        let slot = &mut *self.slot();
        slot.absent_after = Some(slot.accesses + accesses);
    }

    /// Registers that were read so far, by BAR and offset.
    pub fn read_from(&self) -> Vec<(u8, u64)> {
        self.slot().read_from.iter().copied().collect()
    }

    /// The machine's clock. The model works at each look, and a millisecond passes.
    pub fn clock(&self) -> MetalClock<F> {
        MetalClock(self.slot.clone())
    }

    /// So much time passes.
    pub fn pass(&self, time: Duration) -> Instant {
        let slot = &mut *self.slot();
        slot.now += time.as_nanos() as u64;
        Instant::from_nanos(slot.now)
    }

    /// When the model has something to do again, as it said when it was last run.
    pub fn due(&self) -> Option<Instant> {
        self.slot().due.map(Instant::from_nanos)
    }

    /// Accesses to registers so far.
    pub fn accesses(&self) -> u64 {
        self.slot().accesses
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Slot<F>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: a model writes to memory by copies, where it was told to; no reference to it is held.
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
        // SAFETY: the memory is mapped as the window says; only its bus address is another one here.
        Some(unsafe { Window::from_raw(memory.as_ptr(), address, len) })
    }

    fn allocate_interrupt(&mut self) -> Option<Interrupt> {
        self.interrupts = self.interrupts.checked_sub(1)?;
        let raised: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(0)));
        let address = self.slot().lines.add(raised);
        // SAFETY: nobody writes there: the machine takes it for the number of a counter.
        Some(unsafe { Interrupt::new(address, 0x55, raised) })
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
        let mut bytes = [0; 4];
        slot.function.config().read(offset.into(), &mut bytes);
        u32::from_le_bytes(bytes)
    }

    unsafe fn write(&self, address: PciAddress, offset: u16, value: u32) {
        let slot = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if address == place() && !slot.absent {
            let config = slot.function.config();
            config.write(offset.into(), &value.to_le_bytes());
            slot.lines.see(config);
        }
    }
}
