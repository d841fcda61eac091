//! The `usnic` suite: instructions of the usNIC engine at both ends, without the wire and the UDP checksum; its
//! allocations; and the rate of messages to a stock receiver with packet loss, compared with a stock sender.
//!
//! `bench-usnic` carries datagrams between two engines itself: it assembles each datagram, with a copy that in the
//! appliance the device makes, and calls the other engine with it. Only instructions within the calls of both engines
//! are counted, from sending a message to returning its memory. They include the engine's only copy, from the datagram
//! to the final place of the bytes.

mod loss;

use anyhow::{Context, Result};
use launch::setup::{self, Purpose};

use crate::callgrind::Program;
use crate::report::Report;

const MEGABYTE: f64 = 1048576.0;
/// The module of `bench-usnic` whose functions call the engine, each once.
const ENGINE: &str = "bench_usnic::engine::";

/// Runs the suite.
pub fn bench() -> Result<()> {
    setup::install(&[Purpose::Host, Purpose::Count, Purpose::OpenMpi])?;
    let program = Program::build("bench-usnic")?;
    let memory = program.output("memory", 0)?;
    let (allocations, bytes) =
        memory.trim().split_once(' ').context("bench-usnic memory prints two numbers")?;
    let send = program.instructions_only_within("send-64", ENGINE)?;
    let alone = program.instructions_only_within("send-64-alone", ENGINE)?;
    let beside_idle = program.instructions_only_within("send-64-beside-idle", ENGINE)?;

    let mut report = Report::new("usnic", None);
    report.add("send_64b_instructions", send);
    // A message that waits for its ACK, with all its packets and timers.
    report.add("send_64b_alone_instructions", alone);
    report.ratio("send_64b_beside_1000_idle_ratio", beside_idle, send);
    for (key, scenario) in [
        ("put_1m_instructions_per_byte_mtu1500", "put-1m-1500"),
        ("put_1m_instructions_per_byte_mtu9000", "put-1m-9000"),
    ] {
        let put = program.instructions_of_few_only_within(scenario, ENGINE)?;
        report.add(key, put / MEGABYTE);
    }
    report.add("allocations_after_setup", allocations.parse()?);
    report.add("bytes_per_idle_endpoint", bytes.parse()?);
    loss::measure(&mut report)?;
    report.close()
}
