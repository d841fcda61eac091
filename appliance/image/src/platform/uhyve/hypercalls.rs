//! Hypercalls of uhyve. Each of the two users has parameter memory of its own, in the image, where virtual addresses
//! are physical ones.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use drivers::hal::Window;
use drivers::uhyve::{Hypercalls, Uhyve};

/// The file that uhyve maps for the configuration.
pub const CONFIG_FILE: &str = "/isthmus.toml";

/// Parameters and data of calls.
#[repr(C, align(4096))]
struct Memory(UnsafeCell<[u8; 4096]>);

// SAFETY: accessed only through windows, which give no references.
unsafe impl Sync for Memory {}

static CONSOLE_MEMORY: Memory = Memory(UnsafeCell::new([0; 4096]));
static CRASH_MEMORY: Memory = Memory(UnsafeCell::new([0; 4096]));

impl Memory {
    fn with<T: Default>(&'static self, call: impl FnOnce(&Uhyve) -> T) -> T {
        let start = NonNull::from(self).cast::<u8>();
        // SAFETY: a static of the image, which is mapped one to one and writable for ever. There are no references to
        // the contents of the cell.
        let window = unsafe { Window::from_raw(start, start.as_ptr() as u64, 4096) };
        // The image lies below 4 GiB.
        Uhyve::new(window).as_ref().map(call).unwrap_or_default()
    }
}

/// Calls uhyve with the memory of the loop, which owns the console.
pub fn with_console_memory<T: Default>(call: impl FnOnce(&Uhyve) -> T) -> T {
    CONSOLE_MEMORY.with(call)
}

/// Calls uhyve with the memory of bring-up, when one core runs, and of the one core with a fatal error.
pub fn with_crash_memory<T: Default>(call: impl FnOnce(&Uhyve) -> T) -> T {
    CRASH_MEMORY.with(call)
}

/// The ports of hypercalls.
pub struct Ports;

impl Hypercalls for Ports {
    fn call(&mut self, port: u16, parameters: u32) {
        // SAFETY: a hypercall with the parameters of `drivers::uhyve`, which name only the memory reserved for them
        // (above). (`Port` is not used, because it promises the compiler that memory is not accessed.)
        unsafe {
            asm!("out dx, eax", in("dx") port, in("eax") parameters, options(nostack, preserves_flags));
        }
    }
}

/// Ends uhyve with this code.
pub fn exit(code: i32) -> ! {
    with_crash_memory(|uhyve| uhyve.exit(&mut Ports, code));
    loop {
        x86_64::instructions::interrupts::disable();
        x86_64::instructions::hlt();
    }
}
