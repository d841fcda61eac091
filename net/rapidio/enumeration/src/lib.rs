//! Enumeration: every device of a network is found, end points get ids, switches get routes (RapidIO 2.2 annex 1,
//! "System Bringup"; Linux `drivers/rapidio/rio-scan.c`, whose ids, tags and routes these are).
//!
//! A **host** walks from its port outwards, depth first, ports of a switch in ascending order, and locks each device.
//! Component tags count from 1, the host's own, in the order of discovery; ids are the lowest that are free. Of two
//! hosts that meet, the one with the lower id retreats. An **agent** waits until a host has found it, and walks then
//! along the routes that it finds, changing nothing but the lock of a switch while it reads its table.
//!
//! Differences to Linux, none of which changes an id: an end point behind a link that does not answer is left out and
//! does not end the enumeration; a lock that a lower host holds is waited for ten seconds and not for ever; boards
//! that come later are enumerated ([`Master`]).
//!
//! Walks are written as `async` functions, because they are sequences of questions: each `await` is one maintenance
//! request. `walk::Walk` asks the port; there is no executor and nothing is woken.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod agent;
mod blocks;
mod change;
mod device;
mod host;
mod master;
mod routes;
mod walk;

pub use device::{Device, Kind, Network, Row};
pub use master::{Event, Master, Reach, Role, State};
pub use walk::Failed;
