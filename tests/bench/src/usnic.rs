//! The `usnic` suite: instructions of the usNIC engine at both ends, without what the wire and the UDP checksum
//! cost, and what it allocates.

use anyhow::{Context, Result};
use launch::setup::{self, Purpose};

use crate::callgrind::Program;
use crate::report::Report;

const MEGABYTE: f64 = 1048576.0;

/// Runs the suite.
pub fn bench() -> Result<()> {
    setup::install(&[Purpose::Count])?;
    let program = Program::build("bench-usnic")?;
    let memory = program.output("memory", 0)?;
    let (allocations, bytes) =
        memory.trim().split_once(' ').context("bench-usnic memory prints two numbers")?;
    let carried = program.instructions("carry-64")?;
    let send = program.instructions("send-64")? - carried;
    let beside_idle = program.instructions("send-64-beside-idle")? - carried;

    let mut report = Report::new("usnic", None);
    report.add("send_64b_instructions", send, 1000.0);
    report.add("send_64b_beside_1000_idle_ratio", beside_idle / send, 1.05);
    for (key, scenario, most) in [
        ("put_1m_instructions_per_byte_mtu1500", "put-1m-1500", 0.4),
        ("put_1m_instructions_per_byte_mtu9000", "put-1m-9000", 0.1),
    ] {
        // With the wire's own copy of each packet.
        let put = program.instructions_of_few(scenario)?;
        report.add(key, put / MEGABYTE, most);
    }
    report.add("allocations_after_setup", allocations.parse()?, 0.0);
    report.add("bytes_per_idle_endpoint", bytes.parse()?, 8192.0);
    report.close()
}
