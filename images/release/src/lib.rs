//! Releases of the appliance, and the slots of a disk that they boot from.
//!
//! A *release* is a file: a [`Header`] of 4096 bytes, which is signed, and then the image, an ELF file. A disk that the
//! appliance boots from has a partition of type [`layout::PARTITION_TYPE`] with two *slots*, each of which holds a release
//! as it is in the file, and a [`Record`], kept twice, of which slot boots. The UEFI front end reads the record and boots;
//! the appliance writes releases into the slot that it does not run from, and says in the record that the next start is a
//! trial. A trial that the appliance does not confirm is followed by a start of what ran before.

#![cfg_attr(not(test), no_std)]

mod header;
pub mod layout;
mod record;

pub use header::{Digest, HEADER, Header, Refusal};
pub use record::{Choice, Record, Slot, newest};
