//! The `metal` suite: what drivers of real hardware cost, counted by callgrind on models of their devices; what
//! the models do is left out.

use anyhow::Result;
use launch::setup::{self, Purpose};

use crate::callgrind::Program;
use crate::report::Report;

/// What belongs to a model, and not to its driver.
const MODEL: &str = "of_the_model";

/// Runs the suite.
pub fn bench() -> Result<()> {
    setup::install(&[Purpose::Count])?;
    let program = Program::build("bench-metal")?;
    let mut report = Report::new("metal", None);
    let read = program.instructions_within("nvme-read4k", "bench_metal*turn", MODEL)?;
    report.add("nvme_read4k_instructions", read, 500.0);
    let packet = program.instructions_within("igb-packet", "bench_metal*packets", MODEL)?;
    report.add("igb_packet_instructions", packet, 250.0);
    let packet = program.instructions_within("enic-packet", "bench_metal*packets", MODEL)?;
    report.add("enic_packet_instructions", packet, 250.0);
    report.close()
}
