//! Models of PCI devices at register level.
//!
//! A model is a state machine without I/O. Register accesses are calls, time is an argument, and DMA and interrupts go
//! out through [`Machine`]. Models start no threads and read no clock. So a unit test of a driver uses the same model
//! in process as `models-server`, which serves it to QEMU as a PCI function over vfio-user.
//!
//! # Strict and late
//!
//! A model refuses what silicon refuses, also where Linux would not notice: registers before memory is decoded, stores of
//! the wrong width, commands in the wrong state, and reordered writes while Relaxed Ordering is on. What it refuses is in
//! `complaints`. A model that was made late ([`Lateness`]) answers commands 0.1 to 100 ms later, as firmware does. Both
//! harnesses make their models late if the environment variable `ISTHMUS_LATE_MODELS` is set; its value is the seed.
//!
//! # Evidence for a device
//!
//! Three steps: (1) Isthmus' driver against the model in one process, with faults; (2) the stock Linux driver against
//! the model, which proves the model; (3) the image against the same model.
//!
//! | model | steps done | suites |
//! |---|---|---|
//! | NVMe | 1, 2, 3 | `models`, `disk_metal` |
//! | AHCI, PVSCSI | 1; QEMU's own models instead of steps 2 and 3 | `qtest`, `ahci`, `pvscsi` |
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

pub mod ahci;
mod big_endian;
mod config_space;
pub mod dsa;
pub mod enic;
mod function;
pub mod intel_nic;
pub mod ioat;
pub mod ixgbe;
mod lateness;
pub mod mlx5;
pub mod ntb;
pub mod nvme;
mod offload;
pub mod ptdma;
pub mod pvscsi;
pub mod rapidio;
mod registers;
mod relaxed;
pub mod testing;
pub mod tsi721;
pub mod uhyve;
pub mod vmxnet3;

pub use config_space::{ConfigSpace, PortType};
pub use function::{
    Bar, Cable, Function, Interrupt, Interrupts, Machine, Memory, Nanoseconds, Unreachable,
    reset_by_machine, take_function_reset,
};
pub use lateness::{Lateness, VARIABLE as LATE_MODELS};
