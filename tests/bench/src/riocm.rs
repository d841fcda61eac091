//! The `riocm` suite: instructions of LINX over RIOCM at both ends, without what the driver costs, and what it allocates.

use anyhow::{Context, Result};
use launch::setup::{self, Purpose};

use crate::callgrind::Program;
use crate::report::Report;

/// Bytes of a large message.
const LARGE: f64 = 65536.0;

/// Runs the suite.
pub fn bench() -> Result<()> {
    setup::install(&[Purpose::Count])?;
    let program = Program::build("bench-linx")?;
    let memory = program.output("memory", 0)?;
    let (allocations, _) =
        memory.trim().split_once(' ').context("bench-linx memory prints two numbers")?;
    let carried = program.instructions("carry-64")?;
    let message = program.instructions("message-64")? - carried;
    let beside_names = program.instructions("message-64-beside-names")? - carried;

    let mut report = Report::new("riocm", None);
    report.add("message_64b_instructions", message, 1000.0);
    report.add("message_64b_beside_1000_names_ratio", beside_names / message, 1.02);
    // With the driver's own copy of each packet.
    for (key, scenario) in [
        ("message_64k_instructions_per_byte", "message-64k"),
        ("message_64k_patched_instructions_per_byte", "message-64k-patched"),
    ] {
        report.add(key, program.instructions_of_few(scenario)? / LARGE, 0.35);
    }
    report.add("allocations_after_setup", allocations.parse()?, 0.0);
    report.close()
}
