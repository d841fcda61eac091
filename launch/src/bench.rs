//! `./isthmus bench`: builds the image and runs the benchmarks of `tests/bench` on it.

use std::process::Command;

use anyhow::Result;

use crate::build::Image;
use crate::{command, workspace};

/// The suites, of which `target/bench/SUITE.json` is written.
pub const SUITES: &[&str] = &["boot", "roce", "ntrdma", "rnbd", "rtrs-client", "smcr"];

/// Runs the named suites, or all; fails if a bar is missed.
pub fn bench(image: &Image, suites: &[String]) -> Result<()> {
    for suite in
        SUITES.iter().filter(|name| suites.is_empty() || suites.iter().any(|asked| asked == *name))
    {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.current_dir(workspace::root()).env("ISTHMUS_IMAGE", &image.elf);
        cargo.args(["run", "--quiet", "--profile", "host", "-p", "bench", "--", suite]);
        command::run(&mut cargo)?;
    }
    Ok(())
}
