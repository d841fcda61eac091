//! The appliance without its platform: configuration, console, services and the poll loop.
//! Runs in the image (`appliance/image`) and, for its tests, on the host.

mod families;
pub mod gateway;
pub mod loops;
pub mod machine;

pub use net::randomness;
pub use operator::{audit, config, console, crash, log_ring, refused, report};
