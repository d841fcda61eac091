//! The usNIC engine over ordinary UDP sockets ([`host`]), the stock BTL of Open MPI as a peer ([`stock`]), and what
//! the two say to each other ([`session`]); the image in QEMU, and peers at the other end of its wire ([`wire`]), or
//! on a network of their own ([`namespace`]); a rank of ours in a job of the stock MPI ([`mpi`]).

pub mod faults;
mod frames;
pub mod host;
pub mod loss;
pub mod mpi;
pub mod namespace;
pub mod pattern;
pub mod pcap;
pub mod session;
pub mod stock;
pub mod wire;
