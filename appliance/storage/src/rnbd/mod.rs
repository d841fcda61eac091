//! RNBD, the block device protocol over RTRS (Linux, drivers/block/rnbd). `wire` is what travels
//! as RTRS user header or data; `server` exports volumes, `client` maps those of others.

pub mod client;
pub mod server;
#[cfg(test)]
mod tests;
pub mod wire;
