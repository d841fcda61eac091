//! The TCP transport of NVMe over Fabrics (NVM Express TCP Transport Specification 1.0; Linux:
//! include/linux/nvme-tcp.h): the PDUs of a connection, their digests, and the transfer of data by R2T.
//!
//! A connection is one queue. It moves capsules and data, and does not interpret either. It is an engine without I/O:
//! received bytes are arguments, and bytes to send are written to buffers of the caller.
//!
//! | module | what it is |
//! |---|---|
//! | `wire` | formats of the PDUs |
//! | `target` | the controller's side of a connection |
//! | `host` | the host's side of a connection, for initiators |
//! | `transmit` | PDUs to send, and the bytes of them that were sent |
//!
//! Data is copied once in each direction, between the caller's buffer and a window. Its digest is computed over the
//! caller's copy, so a window that changes meanwhile yields a PDU whose digest matches its bytes.
//!
//! A secure channel stands between the TCP connection and this crate: it encrypts and decrypts the bytes.
//!
//! Neither side sends padding other than what the peer's alignment requires, nor asks for alignment of its own.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod host;
pub mod target;
#[cfg(test)]
mod tests;
mod transmit;
pub mod wire;
