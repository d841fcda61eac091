//! Device drivers, and the interface between them and the rest of the program.
//!
//! ```text
//!    ACPI, PCI, virtio          inventory ──► registry ──► driver::open
//!           │                                                  │
//!    device │ registers, rings,      Port   Disk   Bridge   Engine   MasterPort   Entropy
//!           ▼ DMA memory (hal)         │      │       │        │         │
//!                                      ▼      ▼       ▼        ▼         ▼
//!                               net, rdma   storage  ntrdma            net/rapidio
//! ```
//!
//! Invariants:
//!
//! * A device reaches only memory that its driver has given to it, until the driver has taken it back
//!   (`hal::Retired`).
//! * A driver checks what its device reports (registers, descriptors, completions) before it uses it as a length or an index.
//! * Each request ends exactly once. No driver waits without a deadline.
//!
//! Tests: `tests/metal` (drivers on models in one process, `bad_registers` on all of them), `tests/qtest` (QEMU's
//! cards), the suites `nics`, `disk`, `nvme`, `models`, `ixgbe`, `enic`, `mlx5`, `ntb_hw`, `rapidio`.
//!
//! * [`hal`]: what drivers need of the machine, and what other crates use of drivers (ports, disks, windows, time).
//! * A folder for each class of device, with one folder per driver: [`ethernet`], [`block`], [`entropy`], [`console`],
//!   [`ntb`], [`dma`], [`rapidio`].
//! * What drivers share: [`pci`], [`virtio`], [`fw_cfg`], [`smbios`]. [`iommu`] turns off IOMMUs that firmware has left on.
//! * [`driver`]: a driver, and a device that it can open. [`registry`]: the table of all drivers. [`inventory`]: the
//!   devices of this machine.
//!
//! # From a bus to an open device
//!
//! The table in [`registry`] lists for each driver the IDs that it matches (a virtio device type, PCI IDs, a PCI class)
//! and the kind of device that it opens (a port, disks, a bridge, a DMA engine, a source of entropy). [`inventory`]
//! walks the buses and pairs devices with drivers. It walks PCI from bus 0, from every bus where ACPI describes several
//! host bridges, and in the segments that ACPI names (`pci::scan`, `pci::Ecam`). A caller takes the devices of a class
//! from the inventory and opens them. No code above this crate names a driver.
//!
//! A new driver is a folder in its class, a line in the table, its tests, and a row in docs/run.md.
//!
//! A device behind a controller has the controller's name and its unit: `pci:0000:03:00.0/1:0`. An NVMe namespace has
//! its NSID: `pci:0000:03:00.0/1`.
//!
//! # Queues for several cores
//!
//! `Port::split` makes a port of each further pair of queues, for another core. `Port::steer` requests that a port
//! receives one UDP flow in a queue of its own, where no other traffic takes its buffers. Only enic supports it;
//! engines over UDP use it for their data and acknowledgements (`gateway::udp_engines`). `hal::MoreQueues` opens
//! further queues of disks: only NVMe supports it.
//!
//! Queues of one device go through a reset together (`ethernet/owners.rs`, `block/nvme/line.rs`).
//!
//! # Life of a device
//!
//! Drivers do not keep frames or requests for ever. A driver resets a chip that hangs or has lost its link, and a
//! virtio device with impossible rings. Memory is reused only when the device cannot reach it any more
//! (`hal::Retired`).
//!
//! `hal::CrashWriter` writes the record of a panic to a disk. It resets the device first, so it does not depend on the
//! state of its driver, and neither allocates nor locks.
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod block;
pub mod console;
pub mod dma;
pub mod driver;
pub mod entropy;
pub mod ethernet;
pub mod fw_cfg;
pub mod hal;
pub mod inventory;
pub mod iommu;
pub mod ntb;
pub mod pci;
pub mod rapidio;
pub mod registry;
pub mod smbios;
pub mod uhyve;
pub mod virtio;
