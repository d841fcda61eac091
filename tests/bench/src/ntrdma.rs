//! The `ntrdma` suite, native on the host: two providers over shared memory. Times are measured with a thread for each
//! provider, beside bare memory in the same run. callgrind counts instructions. On models of Intel's bridge and I/OAT
//! engines the suite counts the bytes that processors access (by lackey), accesses to registers, and instructions.

use anyhow::{Context, Result};
use launch::setup::{self, Purpose};

use crate::callgrind::Program;
use crate::memory_trace::bytes_touched;
use crate::report::Report;

/// Turns; the best one is the result.
const TURNS: u64 = 40;

/// Bytes of the traced WRITE.
const LONG: f64 = 1048576.0;

/// qperf's measurements in the order of the program's output: bytes per second, nanoseconds.
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
    report.ratio("write_bw_ratio", ours, memcpy);
    let [ours, bare] = pair(&program, "latency")?;
    report.ratio("write_lat_ratio", ours, bare);
    let rung = program.instructions_within("send", "doorbell_to_completion", "storage::frame")?;
    report.add("send_instructions", rung);
    // Includes both posts, which precede the doorbell.
    report.add("send_and_posts_instructions", program.instructions("send")?);
    // Without frame assembly, which a network card does in hardware.
    let server = |scenario| program.instructions_within(scenario, "server_turn", "storage::frame");
    report.ratio("rnbd_read4k_qd32_ratio", server("read-ntrdma")?, server("read-roce")?);
    over_gen3(&program, &mut report)?;
    let printed = program.output("qperf", TURNS)?;
    for (key, figure) in QPERF.into_iter().zip(printed.split_whitespace()) {
        report.add(key, figure.parse::<f64>()?.round());
    }
    report.close()
}

/// Over Intel's bridge of the third generation, with an I/OAT engine at each side.
fn over_gen3(program: &Program, report: &mut Report) -> Result<()> {
    let touched =
        |scenario| Ok::<_, anyhow::Error>(bytes_touched(program.path(), scenario, 2)? / LONG);
    report.add("ioat_cpu_bytes_per_byte", touched("write-covered")?);
    // If no window covers the region, the peer's processor copies.
    report.add("ioat_cpu_bytes_per_byte_uncovered", touched("write-elsewhere")?);
    let [writes, reads] = pair(program, "registers")?;
    report.add("mmio_writes_per_batch", writes);
    report.add("mmio_reads_per_batch", reads);
    // The work of models at an access is not counted. Other work of models happens outside of the server's turn.
    let gen3 = program.instructions_within("read-gen3", "server_turn", "access_of_the_model")?;
    let ivshmem = program.instructions_only_within("read-ivshmem", "server_turn")?;
    report.ratio("ntb_read4k_ratio", gen3, ivshmem);
    Ok(())
}

/// Returns the two numbers that a scenario prints.
fn pair(program: &Program, scenario: &str) -> Result<[f64; 2]> {
    let printed = program.output(scenario, TURNS)?;
    let (a, b) = printed.trim().split_once(' ').context("bench-ntrdma prints two numbers")?;
    Ok([a.parse()?, b.parse()?])
}
