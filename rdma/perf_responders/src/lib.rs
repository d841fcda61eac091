//! Responders for network benchmarks: the appliance answers the tools with which operators measure a network.
//!
//! ```text
//!    rping, ibv_rc_pingpong, perftest, qperf on a host
//!         │ TCP or queue pair (control)        │ RDMA (measured data)
//!         ▼                                    ▼
//!    tcp_control ──► tools::Server ──► session (memory of one client) ──► verbs
//! ```
//!
//! Invariants:
//!
//! * A session reaches only its own memory.
//!
//! Tests: `src/tests.rs`, the suites `perf`, `perf_tools`, `perf_lossy`, `captures`.
//!
//! [`rping`] and [`ntb_perf`] (two appliances measure the NTB bridge between them) are independent modules.
//! `ibv_rc_pingpong`, perftest and qperf share [`tools::Server`]: each client has a session with its own memory. Client
//! and server exchange queue pair numbers over TCP ([`tcp_control`] has the listeners) or over a queue pair.
//! [`pingpong`], [`perftest`] and [`qperf`] hold these control protocols; `endpoint` moves the measured data.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod bench;
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
