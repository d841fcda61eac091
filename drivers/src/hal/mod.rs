//! Interfaces of drivers: to the machine (configuration space, registers, DMA memory, time), and to the crates that use
//! their devices (ports, disks).

mod arena;
mod backoff;
mod buddy;
mod cells;
mod claims;
mod copy;
mod crc32;
mod crc32c;
mod device_life;
mod disk;
mod disk_queues;
mod frame_memory;
mod health;
mod io_ports;
mod location;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod memory;
mod mmio;
mod part;
mod platform;
mod poison;
mod port;
mod registers;
mod retired;
mod time;
mod timers;
mod window;

pub use arena::Arena;
pub use backoff::Backoff;
pub use buddy::{Buddy, BuddyBlock};
pub use cells::{Cell, Cells};
pub use claims::{Claim, Claims};
pub use crc32::Crc32;
pub use crc32c::Crc32c;
pub use device_life::{DeviceLife, DeviceState};
pub use disk::{
    Completion, CrashWriter, Disk, DiskError, Features, Geometry, Operation, Request, SubmitError,
};
pub use disk_queues::{CoreQueue, MoreQueues, QueueCount, QueueSeat, Wake};
pub use frame_memory::FrameMemory;
pub use health::{Health, Notice, Severity};
pub use io_ports::IoPorts;
pub use location::{BusAddress, Location, Unit};
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub use memory::detect as detect_avx;
pub use mmio::Mmio;
pub use part::{Absent, Hold};
pub use pci_types::{ConfigRegionAccess, PciAddress};
pub use platform::{Interrupt, Platform};
pub use poison::{poison, unpoison};
pub use port::{Frame, HashKey, Packet, Port, PortCounters, TransmitError, UdpFlow};
pub use registers::Registers;
pub use retired::{Retired, Through, TransmitProgress};
pub use time::{Clock, Instant, relax};
pub use timers::Timers;
pub use window::{OutOfWindow, Window};
