//! SMC-R: TCP sockets whose bytes travel by RDMA (RFC 7609; versions 2 and 2.1 as Linux 6.12 speaks
//! them in net/smc).
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod acceptor;
pub mod admission;
mod connections;
pub mod connector;
pub mod echo;
pub mod engine;
mod tcp;
pub mod wire;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
