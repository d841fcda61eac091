//! The parts of the UEFI front end that need no firmware: the image's ELF file, the memory map in PVH's
//! format, the command line and the partition table. Pure functions, tested on the host (`cargo test --lib`).
#![no_std]
#![forbid(unsafe_code)]
#[cfg(test)]
extern crate std;

pub mod command_line;
pub mod elf;
pub mod memory;
pub mod partition_table;
