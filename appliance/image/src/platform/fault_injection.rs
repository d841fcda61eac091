//! Fault injection, only in images for tests (feature `faults`): `isthmus.test.fault=KIND` on the command line takes
//! effect during bring-up, keys on the console later. Ctrl-\\ is a panic, Ctrl-] a page fault. After Ctrl-^ and Ctrl-_,
//! also panics, the disconnect of peers (`last_act`) panics or never ends.

use core::arch::asm;
use core::hint::black_box;
use core::sync::atomic::{AtomicU8, Ordering};

/// An address that is not canonical: using it is a general protection fault.
const NOT_CANONICAL: usize = 0x8000_0000_0000_0000;
/// An address that is not mapped.
const NOT_MAPPED: usize = 0x2000_0000_0000;

/// The key that requested a fault in the disconnect after a panic; 0 if none did.
static LAST_ACT: AtomicU8 = AtomicU8::new(0);
const CTRL_CARET: u8 = 0x1e;
const CTRL_UNDERSCORE: u8 = 0x1f;

/// Injects the faults that are requested by `keys`.
pub fn check_keys(keys: &[u8]) {
    const CTRL_BACKSLASH: u8 = 0x1c;
    const CTRL_BRACKET: u8 = 0x1d;
    if keys.contains(&CTRL_BACKSLASH) {
        fault("panic");
    }
    if keys.contains(&CTRL_BRACKET) {
        fault("pf");
    }
    for key in [CTRL_CARET, CTRL_UNDERSCORE] {
        if keys.contains(&key) {
            LAST_ACT.store(key, Ordering::Relaxed);
            fault("panic");
        }
    }
}

/// Injects the requested fault into the disconnect after a panic.
pub fn last_act() {
    match LAST_ACT.load(Ordering::Relaxed) {
        CTRL_CARET => panic!("injected into the disconnect after a panic"),
        CTRL_UNDERSCORE => loop {
            core::hint::spin_loop();
        },
        _ => {}
    }
}

/// Injects the fault `kind`, which ends the machine. Returns if the kind is unknown.
pub fn fault(kind: &str) {
    match kind {
        "panic" => panic!("injected by the command line or a key"),
        "stack" => {
            black_box(deep(0));
        }
        "memory" => {
            black_box(vec![1u8; 1 << 44]);
        }
        "pf" => read(NOT_MAPPED),
        "core1" => {
            super::cores::spawn_on(1, Box::new(|| read(NOT_MAPPED)));
            loop {
                core::hint::spin_loop();
            }
        }
        "gp" => read(NOT_CANONICAL),
        "null" => read(8),
        // SAFETY: none: it does what must not be done, and a test sees that the fault is caught. The same below.
        "ud" => unsafe { asm!("ud2") },
        "text" => {
            let code = fault as *const () as *mut u8;
            // SAFETY: see above.
            unsafe { code.write_volatile(0) };
        }
        "rodata" => {
            // SAFETY: see above.
            unsafe { kind_table().write_volatile(0) };
        }
        "exec" => {
            let data = black_box(Box::new([0xc3u8; 16]));
            // SAFETY: see above.
            unsafe { asm!("call {}", in(reg) data.as_ptr(), clobber_abi("C")) };
        }
        _ => {}
    }
}

fn read(address: usize) {
    // SAFETY: none: see above.
    black_box(unsafe { (address as *const u8).read_volatile() });
}

/// A constant in the image's read-only data.
fn kind_table() -> *mut u8 {
    static CONSTANT: [u8; 64] = [7; 64];
    black_box(&CONSTANT).as_ptr().cast_mut()
}

/// Recursion that the compiler cannot turn into a loop.
#[expect(unconditional_recursion, reason = "it is meant to overflow the stack")]
fn deep(depth: u64) -> u64 {
    let room = black_box([depth; 64]);
    deep(depth + 1) + room[0]
}
