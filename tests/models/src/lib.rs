//! Models of PCI devices at register level.
//!
//! A model is a state machine without I/O. Register accesses are calls, time is an argument, and DMA and interrupts go
//! out through [`Machine`]. Models start no threads and read no clock. So a unit test of a driver uses the same model
//! in process as `models-server`, which serves it to QEMU as a PCI function over vfio-user.
//!
//! # Evidence for a device
//!
//! Three steps: (1) Isthmus' driver against the model in one process, with faults; (2) the stock Linux driver against
//! the model, which proves the model; (3) the image against the same model.
//!
//! | model | steps done | suites |
//! |---|---|---|
//! | NVMe | 1, 2, 3 | `models`, `disk_metal` |
//! | Intel 82599 and its virtual function | 1, 2, 3 | `ixgbe` |
//! | Cisco VIC | 1, 2, 3 | `enic` |
//! | ConnectX | 1, 2, 3 | `mlx5` |
//! | Tsi721 | 1, 2, 3 | `rapidio` |
//! | I/OAT, PTDMA | 1, 2, 3 | `models`, `ntb_bridges` |
//! | Intel's, AMD's and Switchtec's bridges | 1, 2, 3 | `ntb_hw`, `ntb_bridges` |
//! | DSA | 1, 2 | `ntb_hw` |
//!
//! Step 2 of DSA uses an `idxd` module built for CPUs without MOVDIR64B: it makes eight stores instead. Step 3, and
//! Debian's own `idxd`, need a host with KVM and the instruction. Their cases are skipped elsewhere, and have not run
//! yet.
//!
//! `models-server … --engine` adds an engine to a bridge. `models-server enic --own-address` and `--wire` select the
//! other end of the cable: Isthmus' own driver, or datagrams. The 82599 server's second function is at the other end of
//! the first one's cable.
//!
//! One process serves several Tsi721 on a RapidIO network of switches and boards ([`rapidio`]), which a text describes.
//! With `--own` one end point is Isthmus (`server/src/own.rs`), so stock Linux in a guest is the peer of its driver,
//! enumeration, rionet and rio_cm.
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
