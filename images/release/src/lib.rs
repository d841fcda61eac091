//! Releases of the appliance, and the slots of the disk from which they boot.
//!
//! ```text
//!    launcher: signs ──► Header + ELF ──► appliance: verifies, writes a slot ──► Record (trial)
//!                                                        UEFI front end: boots the slot of the Record
//! ```
//!
//! Invariants:
//!
//! * A trial that was not confirmed is not started a second time.
//!
//! Tests: unit tests, `tests/fuzz`, the suite `upgrade`.
//!
//! A *release* is a file: a [`Header`] of 4096 bytes, which is signed, and then the image, an ELF file. A boot disk has a
//! partition of type [`layout::PARTITION_TYPE`] with two *slots*, each of which contains a release as in the file, and a
//! [`Record`], in two copies, which selects the slot.
//!
//! Three programs use this crate:
//!
//! * The launcher signs a header with the image's digest.
//! * The appliance (`gateway/upgrade`) checks the signature, writes a release into the slot that it does not run from,
//!   and records that the next start is a trial.
//! * The UEFI front end (`images/efi/src/slots.rs`) boots the slot of the record. It records the start of a trial before
//!   the trial, so after any end of an unconfirmed trial the next start is of the previous release. It checks digests,
//!   not signatures, because write access to that disk includes the front end.

#![cfg_attr(not(test), no_std)]

mod header;
pub mod layout;
mod note;
mod record;

pub use header::{Digest, HEADER, Header, Refusal};
pub use note::{NOTE, Note, latest};
pub use record::{Choice, Record, Slot, newest};
