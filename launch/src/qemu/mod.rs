//! Running the appliance (and Linux guests) in QEMU 7.2 or later.
//!
//! [`Spec`] says what machine to start; [`Vm`] is that machine running: its serial console, its QMP
//! monitor, its exit code. QEMU is the client of every socket, and we listen before it starts, so that
//! no byte of the console is missed and nothing has to be retried. A `Vm` that is dropped is killed.

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
