//! SCSI disks (SPC-4, SBC-3) behind any host adapter: commands, discovery of units, and requests in flight. A driver of
//! an adapter is an [`Adapter`]. No task management, no protection information, no hotplug of units.

mod adapter;
pub mod command;
mod controller;
mod discover;
mod disk;

pub use adapter::{Adapter, Limits, MOST_ZEROES, PARAMETERS, Place, SENSE, Taken};
pub use discover::Unit;
pub use disk::open;
