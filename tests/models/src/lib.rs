//! Models of PCI devices at register level: what a driver reads, writes and is interrupted by.
//!
//! A model is a state machine. Accesses come in as calls, the time is an argument, and what it wants of the
//! machine (DMA, interrupts) goes out through [`Machine`]: nothing here does I/O, starts a thread or reads a
//! clock. So the same model is driven by unit tests of our drivers in process, and by `models-server`, which
//! shows it to QEMU as a PCI function.
//!
//! What proves a model is the stock Linux driver on it, not our own.
#![forbid(unsafe_code)]

mod big_endian;
mod config_space;
pub mod dsa;
pub mod enic;
mod function;
pub mod intel_nic;
pub mod ioat;
pub mod ixgbe;
pub mod mlx5;
pub mod ntb;
pub mod nvme;
mod offload;
pub mod ptdma;
pub mod rapidio;
mod registers;
pub mod testing;
pub mod tsi721;
pub mod uhyve;
pub mod vmxnet3;

pub use config_space::{ConfigSpace, PortType};
pub use function::{
    Bar, Cable, Function, Interrupt, Interrupts, Machine, Memory, Nanoseconds, Unreachable,
};
