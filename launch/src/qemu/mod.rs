//! Running the appliance (and Linux guests) in QEMU 7.2 or later.
//!
//! [`Spec`] describes a machine to start; [`Vm`] is the running machine: its serial console, its QMP
//! monitor, its exit code. QEMU connects to every socket as the client, and the launcher listens before QEMU
//! starts, so that no byte of the console is lost and no connection is retried. Dropping a `Vm` kills QEMU.

mod arguments;
pub mod boots;
mod cached_disk;
mod device;
pub mod ivshmem;
mod kvm;
pub mod plugin;
mod port;
mod program;
mod qmp;
mod serial;
mod spec;
mod vm;

pub use cached_disk::{CachedDisk, Counts};
pub use device::{Disk, DiskModel, Fault, Nic, NicModel};
pub use kvm::accelerator;
pub use port::free_port;
pub use program::Program;
pub use qmp::Qmp;
pub use serial::{Serial, plain_text};
pub use spec::{Accelerator, Boot, Firmware, Machine, Spec};
pub use vm::{PROMPT, Reply, Vm};
