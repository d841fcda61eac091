//! Storage: volumes (memory, disks, extents, mirrors), and RNBD, which serves them to others and brings those of
//! others.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod rnbd;
pub mod volume;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
