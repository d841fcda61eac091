//! Peers that the appliance offers for measurement: the tools with which operators prove a network.
//!
//! [`rping`] stands alone, and so does [`ntb_perf`], by which two appliances measure their bridge.
//! `ibv_rc_pingpong`, perftest and qperf are [`tools::Server`]: each client is a session with memory of
//! its own, and a conversation in which both sides tell their queue pairs, over TCP ([`tcp_control`] has the
//! listeners) or over a queue pair. What the tools exchange is in [`pingpong`], [`perftest`] and [`qperf`];
//! what then goes to and fro, in `endpoint`.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod channel;
mod endpoint;
mod gid;
pub mod ntb_perf;
pub mod perftest;
pub mod pingpong;
pub mod qperf;
pub mod rping;
mod session;
pub mod tcp_control;

#[cfg(test)]
mod tests;
pub mod tools;
mod write_latency;

pub use session::MEMORY as SESSION_MEMORY;
