//! Management: reports (`show`, `/status`, `/api`, `/metrics`) and commands (console, writes over HTTP).
//!
//! This crate is below the gateway, so it cannot name the gateway's state, a plane or a loop. Its one trait is
//! [`Appliance`]:
//!
//! * Questions are answered by statuses ([`status`]): plain structures of counters and names, of all cores that have a
//!   part. The owner makes a status on request, never on the data path.
//! * Changes are orders ([`orders`]). This crate parses the words and checks them against statuses. The owner of the
//!   object executes the order.
//!
//! The console ([`Operator`]) and the HTTP servers ([`Web`]) are users of these, and nothing else.
//!
//! # Reports in pieces
//!
//! A page over HTTP is made while it is sent. `/metrics` consists of sections that are made again for each piece, without
//! the part already written (`net::metrics::Writer::resume`). `/status` and `/api` walk a tree, whose long lists are made
//! eight rows at a time (`pieces.rs`). In a round the servers of all interfaces ask for one piece at most
//! (`Handler::has_time`), so neither many sessions nor pipelined requests delay the loop.

#![forbid(unsafe_code)]

mod appliance;
pub mod clients;
mod linx;
pub mod loops;
mod manage;
pub mod metrics;
pub mod ntb;
mod objects;
pub mod orders;
mod pieces;
pub mod rapidio;
pub mod remote;
mod show;
mod smc;
pub mod status;
pub mod storage_rows;
mod system;
mod unclaimed_devices;
mod upgrade;
pub mod usnic;
mod wall_clock;
mod web;
mod words;

pub use appliance::{Appliance, Told};
pub use operator::{config, console, crash, log_ring, refused, report};
pub use show::{mac, not_ready};
pub use system::Operator;
pub use unclaimed_devices::UnclaimedDevice;
pub use web::{Pages, Web};
pub use words::{at_once, missing};
