//! RNBD, the block device protocol over RTRS (Linux, drivers/block/rnbd). `wire` has the formats of RTRS user headers
//! and data, `server` exports volumes, and `client` maps devices of other servers.

pub mod client;
pub mod server;
#[cfg(test)]
mod tests;
pub mod wire;
