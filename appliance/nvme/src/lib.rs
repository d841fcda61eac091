//! NVMe over Fabrics: a target that serves volumes as namespaces (NVM Express Base Specification 2.0, NVM Command Set
//! Specification 1.0, NVMe over Fabrics; Linux: drivers/nvme/target).
//!
//! [`Target`] is an engine without I/O. A transport opens a queue for each connection, passes it commands and tells it
//! when their data has arrived, and executes the queue's [`Action`]s. Time, volumes and memory are arguments.
//! [`tcp::TcpQueue`] joins a queue to a connection of [`nvme_tcp`].
//!
//! | module | what it is |
//! |---|---|
//! | `target` | subsystems, controllers and queues, and the calls of transports |
//! | `accept` | checks of a command before it is executed |
//! | `rounds` | requests that continue, with a share of each round |
//! | `ends` | ends of queues and controllers |
//! | `places` | who may have how many queues and controllers |
//! | `queue`, `request`, `pool` | a queue, its commands with their states, its memory |
//! | `fabrics` | Connect and properties |
//! | `admin`, `identify`, `features`, `log_pages`, `events` | commands of admin queues |
//! | `io`, `parts` | commands of I/O queues, each split into requests to its volume |
//! | `fused` | the fused operation Compare and Write |
//! | `throttles` | commands that wait for the limits of their namespace |
//! | `reservations` | commands, features and notices of reservations |
//! | `subsystem`, `configure` | subsystems, namespaces, allowed hosts, and their changes at run time |
//! | `keys`, `auth`, `tls`, `sources` | secrets of hosts, DH-HMAC-CHAP, TLS, and the slowing of those that fail |
//! | `discovery` | the log of the subsystems that a host may use |
//! | `tcp` | a queue over NVMe/TCP |
//!
//! # Memory
//!
//! A queue's memory is allocated when its host connects, and is all that its commands can use. Data in capsules has
//! places of its own: such data cannot wait, because the data that other commands wait for comes behind it. A command
//! that finds no memory waits in order of arrival. Reads of volumes in memory need none: the volume lends its own.
//!
//! # End of a connection
//!
//! A queue whose connection has ended stays until no volume has its requests. A Connect of the same host to the same
//! subsystem waits for that, so that no write of the old connection is executed after one of the new.
//!
//! # Not supported
//!
//! Metadata, zones, Copy.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod accept;
mod admin;
mod auth;
mod command;
mod configure;
mod controller;
mod discovery;
mod ends;
mod events;
mod fabrics;
mod features;
mod fused;
mod identify;
mod io;
mod keys;
mod log_pages;
mod output;
mod parts;
mod places;
mod pool;
mod queue;
mod request;
mod reservations;
mod rounds;
mod sources;
mod status;
mod subsystem;
mod target;
pub mod tcp;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod throttles;
mod tls;

pub use auth::SecurityCounts;
pub use controller::{ControllerView, Proof};
pub use discovery::DISCOVERY_NQN;
pub use fabrics::remedy;
pub use keys::{Demand, HostKeys};
pub use nvme_auth::Random;
pub use queue::{Action, Ends, QueueId};
pub use status::Status;
pub use subsystem::{AnaState, HostList, NamespaceConfig, NamespaceView, SubsystemConfig, is_nqn};
pub use target::{Context, Placement, Settings, Target};
