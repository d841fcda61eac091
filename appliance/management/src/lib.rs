//! Management: what is told of the appliance (`show`, `/status`, `/api`, `/metrics`) and what is ordered of it (the
//! console's commands, what is written over HTTP). It knows no loop, data plane or service: it reads plain statuses,
//! which whoever has the things makes when asked, and acts by orders. Both go through [`Appliance`].

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
mod web;
mod words;

pub use appliance::{Appliance, Told};
pub use operator::{config, console, crash, log_ring, refused, report};
pub use show::not_ready;
pub use system::Operator;
pub use unclaimed_devices::UnclaimedDevice;
pub use web::{Pages, Web};
pub use words::{at_once, missing};
