//! `./isthmus bench scale`: what it costs that there are many: sessions, volumes, connections.
//!
//! Each figure but `idle_64_sessions_instructions_per_second` and `metrics_longest_round_instructions` is a
//! ratio of the appliance's instructions for the same work, beside many others that do nothing and beside
//! none, or of the appliance's and Linux's. Appliances halt as soon as they have nothing to do
//! (`idle_after_us=0`); what they execute while nothing is asked of them is counted beforehand, with the
//! many in place, and taken off.

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

/// Measures the figures of these keys, or all; writes `target/bench/scale.json`, and fails if a bar is
/// missed.
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
