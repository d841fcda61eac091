//! The boot stub, which runs before the kernel.
//!
//! ```text
//!    PVH (QEMU, UEFI front end) ──┐
//!    Multiboot2 (GRUB) ───────────┼──► stub (32 bit) ──► page tables, memory map, arena, clock ──► _start
//!    uhyve ───────────────────────┘                                   └──► BootInfo ──► appliance/image
//! ```
//!
//! Invariants:
//!
//! * Memory of the DMA arena is given to nothing else.
//!
//! Tests: unit tests, the suites `boot`, `matrix`, `platform`, `uhyve`.
//!
//! With it, the image boots without a separate loader. Its entry points are for PVH (QEMU's `-kernel`, the UEFI
//! front end) and Multiboot2 (GRUB). It makes the first page tables, collects the memory map, reserves the
//! DMA arena, measures the clock and enters Hermit's `_start`.
//!
//! uhyve loads a separate image (feature `uhyve`), whose only entry point is for uhyve.
//!
//! The stub (feature `stub`) is linked into the kernel bundle. Without the feature this crate has only the
//! image's interface to it: [`BootInfo`] and its accessor.
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
#[cfg(any(all(feature = "stub", not(feature = "uhyve")), test))]
mod processor;
#[cfg(feature = "stub")]
mod stub;
pub mod tsc;

pub use info::{BootInfo, ClockSource, Protocol, Screen, boot_info};
pub use memory_map::{ArenaRequest, Kind, MemoryMap, Region, parse_size};
