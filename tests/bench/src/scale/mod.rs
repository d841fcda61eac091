//! `./isthmus bench scale`: cost of many sessions, volumes and connections.
//!
//! Each figure except `idle_64_sessions_instructions_per_second` and `metrics_longest_round_instructions` is a ratio of
//! instructions for the same work: of the appliance with many idle objects to the appliance with none, or of the
//! appliance to Linux. Appliances halt as soon as they are idle (`idle_after_us=0`). Instructions of an idle appliance,
//! with the idle objects in place, are counted beforehand and subtracted.

mod crowd;
mod messages;
mod relayed;
mod storage;

use anyhow::Result;
use launch::setup::{self, Purpose};

use crate::instructions::Plugin;
use crate::report::Report;

/// The figures with a bar.
pub const KEYS: &[&str] = &[
    "read4k_64_sessions_ratio",
    "idle_64_sessions_instructions_per_second",
    "volumes_64_ratio",
    "metrics_longest_round_instructions",
    "tcp_stream_per_byte_ratio",
    "tcp_echo_1000_connections_ratio",
    "relay_1000_connections_ratio",
    "smc_connect_1000_connections_ratio",
    "relay_200_active_ratio",
];

/// Measures the figures of `keys`, or all; writes `target/bench/scale.json`, and fails if a bar is missed.
pub fn bench(keys: Vec<String>) -> Result<()> {
    setup::install(&[Purpose::Host, Purpose::Run, Purpose::Guest])?;
    let plugin = Plugin::compile()?;
    let mut report = Report::of("scale", Some(0), keys);
    if report.wants(storage::KEYS) {
        storage::measure(&plugin, &mut report)?;
    }
    if report.wants(messages::KEYS) {
        messages::measure(&plugin, &mut report)?;
    }
    if report.wants(relayed::KEYS) {
        relayed::measure(&plugin, &mut report)?;
    }
    report.close()
}
