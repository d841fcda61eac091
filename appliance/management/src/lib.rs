//! Management: reports (`show`, `/status`, `/api`, `/metrics`) and commands (console, writes over HTTP).
//!
//! This crate is below the gateway, so it cannot name the gateway's state, a plane or a loop. Its one trait is
//! [`Appliance`]:
//!
//! * A [`status`] answers a query: a plain structure of counters and names, collected from every core involved. The
//!   owner builds a status on request, never on the data path.
//! * An [order](orders) is a change. This crate parses the command and checks it against statuses. The owner of the
//!   object executes the order.
//!
//! Only the console ([`Operator`]) and the HTTP servers ([`Web`]) use statuses and orders.
//!
//! # Reports in pieces
//!
//! A page over HTTP is generated while it is sent. Each piece of `/metrics` regenerates its section and skips the part
//! already written (`net::metrics::Writer::resume`). `/status` and `/api` walk a tree and generate long lists eight
//! rows at a time (`pieces.rs`). The servers of all interfaces together generate at most one piece a round
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
