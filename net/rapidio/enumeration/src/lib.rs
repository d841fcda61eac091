//! Enumeration of a RapidIO network: finds all devices, assigns ids to end points and routes to switches (RapidIO 2.2
//! annex 1, "System Bringup"). Ids, tags and routes are those of Linux (`drivers/rapidio/rio-scan.c`), as compared on
//! the same models.
//!
//! A **host** walks from its port outwards, depth first, ports of a switch in ascending order, and locks each device.
//! Component tags count from 1, the host's own, in the order of discovery. Ids are the lowest free ones. Of two hosts
//! that meet, the one with the lower id retreats. An **agent** waits until a host has found it. Then it walks along the
//! routes that it finds, and changes only the lock of a switch while it reads the table.
//!
//! # Walks
//!
//! A walk is a sequence of maintenance requests. As a state machine it would have dozens of states. So walks are
//! `async` functions, and each `await` is one request. `walk::Walk` polls them with the port and the time. There is no
//! executor, and no waker.
//!
//! The upper bits of a component tag distinguish a walk from an interrupted one, whose locks and tags may remain in
//! switches. The lower 17 bits are Linux's. A board that returns to its place gets its previous id. A host polls for
//! changes a few ports at a time, in turns. The network is shared with such a walk, not copied.
//!
//! # Differences from Linux
//!
//! None of them changes an id.
//!
//! * An end point that does not answer is left out. It does not end the enumeration.
//! * The wait for a lock of a lower host ends after ten seconds.
//! * Boards that are plugged later are enumerated ([`Master`]).
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod agent;
mod blocks;
mod capabilities;
mod change;
mod device;
mod host;
mod master;
mod reach;
mod routes;
mod walk;

pub use device::{Device, Kind, Network, Row};
pub use master::{Event, Master, Role, State};
pub use reach::Reach;
pub use walk::Failed;
