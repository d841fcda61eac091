//! The `riocm` suite: instructions of LINX over RIOCM at both ends, without the driver, and its allocations; and an
//! echo over a channel of rio_cm compared with Linux, including machine and driver.

use anyhow::{Context, Result};
use launch::setup::{self, Purpose};

use crate::callgrind::Program;
use crate::report::Report;
use crate::rio_cm_echo;

/// The module of `bench-linx` that acts as the driver.
const DRIVER: &str = "bench_linx::driver";
/// Bytes of a large message.
const LARGE: f64 = 65536.0;

/// Runs the suite.
pub fn bench() -> Result<()> {
    setup::install(&[Purpose::Count])?;
    let program = Program::build("bench-linx")?;
    let memory = program.output("memory", 0)?;
    let (allocations, _) =
        memory.trim().split_once(' ').context("bench-linx memory prints two numbers")?;
    let message = program.instructions_without("message-64", DRIVER)?;
    let beside_names = program.instructions_without("message-64-beside-names", DRIVER)?;

    let mut report = Report::new("riocm", Some(0));
    report.add("message_64b_instructions", message);
    report.ratio("message_64b_beside_1000_names_ratio", beside_names, message);
    // Includes the driver's copy of each packet.
    for (key, scenario) in [
        ("message_64k_instructions_per_byte", "message-64k"),
        ("message_64k_patched_instructions_per_byte", "message-64k-patched"),
    ] {
        report.add(key, program.instructions_of_few(scenario)? / LARGE);
    }
    report.add("allocations_after_setup", allocations.parse()?);
    let echo = rio_cm_echo::measure()?;
    report.ratio("rio_cm_echo_ratio", echo.ours, echo.linux);
    for (key, value) in [
        ("rio_cm_echo_rounds", echo.rounds),
        ("rio_cm_echo_halts", echo.halts),
        ("rio_cm_echo_interrupts", echo.interrupts),
    ] {
        report.add(key, value);
    }
    report.close()
}
