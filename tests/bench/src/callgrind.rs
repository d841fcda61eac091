//! Counts a program's instructions with callgrind. A program takes `SCENARIO COUNT` and runs the scenario COUNT times.
//! The difference between two counts gives the cost of one run, without start and end of the program.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use launch::{command, workspace};

const FEW: u64 = 1000;
const MANY: u64 = 3000;

/// A program of this workspace, built with optimisation like the image.
pub struct Program(PathBuf);

impl Program {
    /// Builds the program of a package of the same name.
    pub fn build(package: &str) -> Result<Program> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.current_dir(workspace::root());
        cargo.args(["build", "--quiet", "--release", "-p", package]);
        command::run(&mut cargo)?;
        Ok(Program(workspace::target().join("release").join(package)))
    }

    /// The program's output.
    pub fn output(&self, scenario: &str, count: u64) -> Result<String> {
        command::output(Command::new(&self.0).args([scenario, &count.to_string()]))
    }

    /// Path of the program.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Instructions for doing `scenario` once.
    pub fn instructions(&self, scenario: &str) -> Result<f64> {
        self.count(scenario, &[])
    }

    /// As [`Program::instructions`], for slow scenarios: with fewer runs.
    pub fn instructions_of_few(&self, scenario: &str) -> Result<f64> {
        self.difference(scenario, &[], [FEW / 100, MANY / 100])
    }

    /// As [`Program::instructions`], without those of a function and its callees.
    pub fn instructions_without(&self, scenario: &str, function: &str) -> Result<f64> {
        Ok(self.instructions(scenario)? - self.instructions_only_within(scenario, function)?)
    }

    /// As [`Program::instructions`], but only those of some functions and their callees. None of the functions may call
    /// another of them.
    pub fn instructions_only_within(&self, scenario: &str, functions: &str) -> Result<f64> {
        self.count(scenario, &[toggle(functions)])
    }

    /// As [`Program::instructions_only_within`], for slow scenarios: with fewer runs.
    pub fn instructions_of_few_only_within(&self, scenario: &str, functions: &str) -> Result<f64> {
        self.difference(scenario, &[toggle(functions)], [FEW / 100, MANY / 100])
    }

    /// As [`Program::instructions`], but only those of the function `within`, without those of the function `but`.
    pub fn instructions_within(&self, scenario: &str, within: &str, but: &str) -> Result<f64> {
        self.count(scenario, &[within, but].map(toggle))
    }

    fn count(&self, scenario: &str, options: &[String]) -> Result<f64> {
        self.difference(scenario, options, [FEW, MANY])
    }

    fn difference(&self, scenario: &str, options: &[String], counts: [u64; 2]) -> Result<f64> {
        let total = |count: u64| {
            let mut valgrind = Command::new("valgrind");
            valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--log-fd=1"]);
            valgrind.args(options).arg(&self.0).args([scenario, &count.to_string()]);
            let log = command::output(&mut valgrind)?;
            let collected = log.lines().find_map(|line| line.split_once("Collected : "));
            let (_, number) = collected.context("callgrind printed no number of instructions")?;
            number.trim().parse::<u64>().context("callgrind's number of instructions")
        };
        let [few, many] = counts;
        Ok((total(many)? - total(few)?) as f64 / (many - few) as f64)
    }
}

/// The option that toggles counting at each entry and each exit of a function.
fn toggle(function: &str) -> String {
    format!("--toggle-collect=*{function}*")
}
