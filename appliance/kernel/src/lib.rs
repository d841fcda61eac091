//! The kernel side of the image: Hermit's kernel and the boot stub, compiled for `x86_64-unknown-none`.
#![no_std]

extern crate boot;
extern crate hermit;
extern crate log;

/// There is no stub in this bundle: something else (uhyve) loads the image and enters the kernel.
#[cfg(not(feature = "stub"))]
#[unsafe(no_mangle)]
extern "C" fn isthmus_boot_info() -> Option<&'static boot::BootInfo> {
    None
}
