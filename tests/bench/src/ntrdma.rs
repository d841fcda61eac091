//! The `ntrdma` suite, native on the host: two providers over memory that both have mapped. Time is
//! measured with a thread for each, beside the bare memory in the same run; instructions are
//! counted by callgrind.

use anyhow::{Context, Result};
use launch::setup::{self, Purpose};

use crate::callgrind::Program;
use crate::report::{Bar, Report};

/// Turns of which the best counts.
const TURNS: u64 = 40;

/// What qperf measures, in the order in which the program prints it: bytes per second, nanoseconds.
const QPERF: [&str; 6] = [
    "rc_bw",
    "rc_lat",
    "rc_rdma_write_bw",
    "rc_rdma_write_lat",
    "rc_rdma_read_bw",
    "rc_rdma_read_lat",
];

/// Runs the suite.
pub fn bench() -> Result<()> {
    setup::install(&[Purpose::Count])?;
    let program = Program::build("bench-ntrdma")?;
    let [ours, memcpy] = pair(&program, "bandwidth")?;
    let mut report = Report::new("ntrdma", None);
    report.check("write_bw_ratio", ours / memcpy, Bar::AtLeast(0.85));
    let [ours, bare] = pair(&program, "latency")?;
    report.add("write_lat_ratio", ours / bare, 3.0);
    let rung = program.instructions_within("send", "doorbell_to_completion", "storage::frame")?;
    report.add("send_instructions", rung, 1500.0);
    // With both posts, which come before the doorbell.
    report.check("send_and_posts_instructions", program.instructions("send")?, Bar::None);
    // A network card would put frames together.
    let server = |scenario| program.instructions_within(scenario, "server_turn", "storage::frame");
    let ratio = server("read-ntrdma")? / server("read-roce")?;
    report.add("rnbd_read4k_qd32_ratio", ratio, 0.5);
    let printed = program.output("qperf", TURNS)?;
    for (key, figure) in QPERF.into_iter().zip(printed.split_whitespace()) {
        report.check(key, figure.parse::<f64>()?.round(), Bar::None);
    }
    report.close()
}

/// The two numbers that a scenario prints.
fn pair(program: &Program, scenario: &str) -> Result<[f64; 2]> {
    let printed = program.output(scenario, TURNS)?;
    let (a, b) = printed.trim().split_once(' ').context("bench-ntrdma prints two numbers")?;
    Ok([a.parse()?, b.parse()?])
}
