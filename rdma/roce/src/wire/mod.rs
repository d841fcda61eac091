//! Wire formats of RoCE: frames (Ethernet, IP, UDP, GRH), the base transport header and its
//! extended headers (InfiniBand Architecture vol. 1, ch. 9; annexes A16, A17; Linux
//! `drivers/infiniband/sw/rxe/rxe_hdr.h`), and the messages of the connection manager (ch. 12;
//! Linux `include/rdma/ibta_vol1_c12.h`).
//!
//! Every `parse` checks lengths once and never panics; every `emit` writes what `parse` reads. All fields are
//! big-endian on the wire, except for the ICRC.

pub mod bth;
mod error;
pub mod extended;
pub mod frame;
pub mod header_prediction;
pub mod icrc;
pub mod opcode;

pub(crate) use ::cm::wire::{be24, bytes, get16, get24, get32, get64};
pub use ::cm::wire::{ip_cm, mad, message as cm};
pub use error::Error;
