//! uhyve's interface, as the image uses it: each user with memory of its own in the image, whose addresses are those of
//! memory.

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

// SAFETY: only looked at through windows, which give no references.
unsafe impl Sync for Memory {}

static OF_THE_CONSOLE: Memory = Memory(UnsafeCell::new([0; 4096]));
static OF_LAST_WORDS: Memory = Memory(UnsafeCell::new([0; 4096]));

impl Memory {
    fn with<T: Default>(&'static self, call: impl FnOnce(&Uhyve) -> T) -> T {
        let start = NonNull::from(self).cast::<u8>();
        // SAFETY: a static of the image's, which is mapped one to one and writable for ever; nobody has a reference to
        // what is in the cell.
        let window = unsafe { Window::from_raw(start, start.as_ptr() as u64, 4096) };
        // The image lies below 4 GiB.
        Uhyve::new(window).as_ref().map(call).unwrap_or_default()
    }
}

/// For the loop, which has the console.
pub fn of_the_console<T: Default>(call: impl FnOnce(&Uhyve) -> T) -> T {
    OF_THE_CONSOLE.with(call)
}

/// For bring-up, which is alone, and for the one core that dies.
pub fn of_last_words<T: Default>(call: impl FnOnce(&Uhyve) -> T) -> T {
    OF_LAST_WORDS.with(call)
}

/// The ports of hypercalls.
pub struct Ports;

impl Hypercalls for Ports {
    fn call(&mut self, port: u16, parameters: u32) {
        // SAFETY: a hypercall, whose parameters are those of `drivers::uhyve`, and name no memory but that which was set
        // aside for them (above). (`Port` promises the compiler that memory does not matter.)
        unsafe {
            asm!("out dx, eax", in("dx") port, in("eax") parameters, options(nostack, preserves_flags));
        }
    }
}

/// Ends uhyve with this code.
pub fn exit(code: i32) -> ! {
    of_last_words(|uhyve| uhyve.exit(&mut Ports, code));
    loop {
        x86_64::instructions::interrupts::disable();
        x86_64::instructions::hlt();
    }
}
