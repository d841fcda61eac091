//! The `usnic` suite: instructions of the usNIC engine at both ends, without what the wire and the UDP checksum
//! cost; what it allocates; and how fast messages get to a stock receiver that loses some, beside a stock sender.
//!
//! `bench-usnic` carries datagrams between two engines itself. What that costs (a copy of each datagram, which in
//! the appliance is the device's) happens in one function, `wire`, and is taken off; the one copy that the engine
//! makes, from the datagram to where the bytes belong, is counted, and so is the loop that calls both.

mod loss;

use anyhow::{Context, Result};
use launch::setup::{self, Purpose};

use crate::callgrind::Program;
use crate::report::{Bar, Report};

const MEGABYTE: f64 = 1048576.0;
/// The function of `bench-usnic` that is no part of the engine.
const WIRE: &str = "bench_usnic::wire";

/// Runs the suite.
pub fn bench() -> Result<()> {
    setup::install(&[Purpose::Host, Purpose::Count, Purpose::OpenMpi])?;
    let program = Program::build("bench-usnic")?;
    let memory = program.output("memory", 0)?;
    let (allocations, bytes) =
        memory.trim().split_once(' ').context("bench-usnic memory prints two numbers")?;
    let send = program.instructions_without("send-64", WIRE)?;
    let alone = program.instructions_without("send-64-alone", WIRE)?;
    let beside_idle = program.instructions_without("send-64-beside-idle", WIRE)?;

    let mut report = Report::new("usnic", None);
    report.add("send_64b_instructions", send, 1000.0);
    // One that waits for its ACK, with all packets and timers of its own.
    report.check("send_64b_alone_instructions", alone, Bar::None);
    report.add("send_64b_beside_1000_idle_ratio", beside_idle / send, 1.05);
    for (key, scenario, most) in [
        ("put_1m_instructions_per_byte_mtu1500", "put-1m-1500", 0.4),
        ("put_1m_instructions_per_byte_mtu9000", "put-1m-9000", 0.1),
    ] {
        let put = program.instructions_of_few_without(scenario, WIRE)?;
        report.add(key, put / MEGABYTE, most);
    }
    report.add("allocations_after_setup", allocations.parse()?, 0.0);
    report.add("bytes_per_idle_endpoint", bytes.parse()?, 8192.0);
    loss::measure(&mut report)?;
    report.close()
}
