//! The boot stub: what runs before the kernel.
//!
//! It makes the image boot itself, without a separate loader: entered by PVH (QEMU's `-kernel`, the UEFI
//! front end) or by Multiboot2 (GRUB) it makes the first page tables, collects the memory map, keeps the
//! DMA arena out of the kernel's hands, measures the clock and enters Hermit's `_start`.
//!
//! uhyve loads an image of its own (feature `uhyve`), whose only entry point is for that.
//!
//! The stub (feature `stub`) is linked into the kernel bundle. Without the feature this crate is what
//! the image sees of it: [`BootInfo`] and how to get it.
#![no_std]
#[cfg(test)]
extern crate std;

pub mod acpi;
#[cfg(any(feature = "uhyve", test))]
mod device_tree;
#[cfg(any(feature = "stub", test))]
mod fdt;
mod info;
mod memory_map;
#[cfg(any(all(feature = "stub", not(feature = "uhyve")), test))]
mod multiboot2;
#[cfg(feature = "stub")]
mod stub;
pub mod tsc;

pub use info::{BootInfo, ClockSource, Protocol, Screen, boot_info};
pub use memory_map::{ArenaRequest, Kind, MemoryMap, Region, parse_size};
