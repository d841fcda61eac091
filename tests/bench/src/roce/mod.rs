//! The `roce` suite: instructions per packet of the RoCE provider, and per round of a stock tool.
//!
//! `bench-roce` repeats an operation under callgrind. The difference between two numbers of repetitions gives its cost.
//! The costs of ICRC, copy and the bench's own wire are counted in the same way and subtracted. Payloads have 1,024
//! bytes unless a name says otherwise.

mod write_latency;

use anyhow::{Context, Result};
use launch::setup::{self, Purpose};

use crate::callgrind::Program;
use crate::instructions::Plugin;
use crate::report::Report;

/// Bytes that the ICRC of a packet covers in addition to the payload.
const COVERED: f64 = 8.0 + 20.0 + 8.0 + 12.0;

/// Runs the suite.
pub fn bench() -> Result<()> {
    setup::install(&[Purpose::Run, Purpose::Guest, Purpose::Count])?;
    let program = Program::build("bench-roce")?;
    let count = |scenario| program.instructions(scenario);
    let memory = program.output("memory", 0)?;
    let (allocations, bytes) =
        memory.trim().split_once(' ').context("bench-roce memory prints two numbers")?;

    let mut report = Report::new("roce", Some(0));
    let receive = count("receive")? - count("icrc-1024")? - count("copy")?;
    report.add("rx_write_packet_instructions", receive);
    // The payload is not copied for sending.
    let transmit = count("transmit")? - count("icrc-window")?;
    report.add("tx_write_packet_instructions", transmit);
    report.add("icrc_instructions_per_byte", count("icrc-4096")? / (COVERED + 4096.0));
    let smaller = count("icrc-1024")? / (COVERED + 1024.0);
    report.add("icrc_instructions_per_byte_of_1024", smaller);
    // The SEND and its ACK, each computed at both ends.
    let icrcs = 2.0 * count("icrc-64")? + 2.0 * count("icrc-ack")?;
    let round = count("round")? - count("carry")? - icrcs;
    report.add("send_64b_round_instructions", round);
    report.add("allocations_after_setup", allocations.parse()?);
    report.add("bytes_per_idle_qp", bytes.parse()?);
    let [ours, linux] = write_latency::measure(&Plugin::compile()?)?;
    report.ratio("guest_write_lat_ratio", ours, linux);
    report.close()
}
