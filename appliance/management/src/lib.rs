//! Management: reports (`show`, `/status`, `/api`, `/metrics`) and commands (console, writes over HTTP).
//!
//! ```text
//!    console ──► Operator ──┐                        ┌──► status (plain structures, built on request)
//!                           ├── Appliance (trait) ───┤
//!    HTTP ─────► Web ───────┘                        └──► orders (one change, executed by its owner)
//! ```
//!
//! Invariants:
//!
//! * A report costs the data path nothing while no operator asks for it.
//! * A command is parsed and checked here; its owner executes it.
//!
//! Tests: unit tests beside the parts, `appliance/src/gateway` tests, the suites `net`, `console`, `volumes`,
//! `storage`.
//!
//! This crate is below the gateway, so it cannot name the gateway's state, a plane or a loop. Its one trait is
//! [`Appliance`]:
//!
//! * A [`status`] answers a query: a plain structure of counters and names, collected from every core involved. The
//!   owner builds a status on request, never on the data path.
//! * An [order](orders) is a change. This crate parses the command and checks it against statuses. The owner of the
//!   object executes the order.
//!
//! Only the console ([`Operator`]) and the HTTP servers ([`Web`]) use statuses and orders. Both pass the caller, with
//! its name, address and role, to every command ([`caller`]). `configure.rs` puts candidates and revisions in force,
//! `cuts.rs` lists whom a change cuts off, `api` has the routes of `/api/v1`.
//!
//! # Reports in pieces
//!
//! A page over HTTP is generated while it is sent. Each piece of `/metrics` regenerates its section and skips the part
//! already written (`net::metrics::Writer::resume`). `/status` and `/api` walk a tree and generate long lists eight
//! rows at a time (`pieces.rs`). The servers of all interfaces together generate at most one piece a round
//! (`Handler::has_time`), so neither many sessions nor pipelined requests delay the loop.

#![forbid(unsafe_code)]

mod api;
mod appliance;
pub mod clients;
pub mod configure;
mod cuts;
mod dns;
mod doctor;
mod effects;
pub mod leaving;
mod linx;
mod log_stream;
mod login;
pub mod loops;
mod manage;
pub mod metrics;
mod nbd_client;
pub mod ntb;
mod nvme_host;
mod objects;
pub mod orders;
mod page;
mod pieces;
mod producers;
pub mod rapidio;
mod rdma_devices;
pub mod remote;
mod show;
mod smc;
pub mod status;
pub mod storage_rows;
mod system;
pub mod task;
mod unclaimed_devices;
mod upgrade;
mod upgrade_status;
pub mod usnic;
mod wall_clock;
mod web;
mod words;

pub use appliance::{Appliance, Told};
pub use operator::{audit, caller, config, console, crash, log_ring, refused, report};
pub use show::{mac, not_ready};
pub use system::Operator;
pub use unclaimed_devices::UnclaimedDevice;
pub use web::{Pages, Web};
pub use words::{at_once, missing};
