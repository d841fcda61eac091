//! The appliance without its platform: configuration, console, services and the poll loop.
//! Runs in the image (`appliance/image`) and, for its tests, on the host.

pub mod config;
pub mod console;
pub mod gateway;
pub mod log_ring;
pub mod loops;
pub mod machine;
pub mod report;
mod suggestion;
