//! RapidIO networks over a master port ([`drivers::rapidio::MasterPort`]): who is there and how to reach whom
//! ([`enumeration`]), Ethernet ([`rionet`]) and channels ([`rio_cm`]) over messages, as Linux has them.
//!
//! Engines without I/O: they are polled with the port and the time. [`end_point`] is all of them at one port.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod end_point;
pub mod rio_cm;
pub mod rionet;
pub mod tap;

pub use rapidio_enumeration as enumeration;
