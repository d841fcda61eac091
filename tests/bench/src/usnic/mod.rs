//! The `usnic` suite: instructions of the usNIC engine at both ends, without what the wire and the UDP checksum
//! cost; what it allocates; and how fast messages get to a stock receiver that loses some, beside a stock sender.
//!
//! `bench-usnic` carries datagrams between two engines itself: it puts each datagram together, with a copy that in
//! the appliance is the device's, and calls the other engine with it. None of that is counted, only what happens
//! within the calls of both engines, from sending to giving a message back. The one copy that the engine makes, from
//! the datagram to where the bytes belong, is part of it.

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
    // One that waits for its ACK, with all packets and timers of its own.
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
