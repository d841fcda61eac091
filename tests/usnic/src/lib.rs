//! The usNIC engine over ordinary UDP sockets ([`host`]), the stock BTL of Open MPI as its peer ([`stock`]), and
//! sessions between the two ([`session`]); the image in QEMU, with peers at the other end of its wire ([`wire`]) or in
//! a network namespace ([`namespace`]); the engine as a rank in a job of the stock MPI ([`mpi`]).

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
