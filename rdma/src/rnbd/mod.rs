//! RNBD, the block device protocol over RTRS (Linux, drivers/block/rnbd). `wire` is what travels
//! as RTRS user header or data; `server` exports volumes.

pub mod server;
pub mod wire;
