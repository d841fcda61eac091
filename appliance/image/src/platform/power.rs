//! Powers the machine off, and restarts it.
//!
//! Tests see an exit code: with `-device isa-debug-exit,iobase=0xf4,iosize=4` QEMU exits with
//! `(code + 16) * 2 + 1`, where code is 0 or a constant below: 33 is a regular power-off, 35 a panic,
//! 37 a refusal to start, 39 memory that is not protected, 97 + 2 * vector a CPU exception (125 is a page
//! fault). Exit code 1 is a panic of the kernel. uhyve exits with the code itself.

pub use super::board::power::{Button, debug_exit, off, reset, set_acpi};

/// The appliance panicked.
pub const PANIC: u8 = 1;
/// The machine lacks something that the appliance needs. (The boot stub uses it as well.)
pub const REFUSED: u8 = 2;
/// Memory protection is incomplete.
pub const UNPROTECTED: u8 = 3;
/// A CPU exception. The vector is added.
pub const EXCEPTION: u8 = 32;
