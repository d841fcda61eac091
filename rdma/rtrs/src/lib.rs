//! RTRS, the RDMA transport of Linux's block storage (drivers/infiniband/ulp/rtrs): sessions made
//! of paths, paths made of reliable connections, requests written straight into chunks of the
//! server's memory. `wire` is what travels, `server` the side that owns the chunks, `client` the
//! side that writes into them.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(any(test, feature = "testing"))]
extern crate std;

pub mod client;
mod errno;
mod heartbeat;
mod name;
pub mod server;

pub mod wire;

pub use errno::Errno;
pub use heartbeat::{Heartbeat, Tick};
pub use name::{BadName, Name};
