//! The Ethernet side: ports, and the control plane (smoltcp) with its services.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod capture;
