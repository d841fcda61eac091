//! Cases run under cargo, and are counted.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::Options;
use super::suites::Suite;
use crate::fuzz::Fuzzer;
use crate::setup::Purpose;
use crate::{command, races, workspace};

/// What came out of a suite.
#[derive(Default)]
pub(super) struct Outcome {
    pub passed: usize,
    pub failed: usize,
    /// Marked `#[ignore]`.
    pub ignored: usize,
}

/// Runs one suite with its output on this terminal.
pub(super) fn run(
    suite: &Suite,
    options: &Options,
    environment: &[(&str, PathBuf)],
) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    if let Some(mut cases) = cases(suite, options)? {
        run_cases(suite, &mut cases, environment, &mut outcome)?;
    }
    Ok(outcome)
}

/// The cargo command of a suite's tests, to which what libtest is told can be added.
fn cargo_test(suite: &Suite) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(workspace::root()).arg("test");
    match suite.target {
        // There are no examples in documentation; rustdoc may be another toolchain's.
        None => cargo.args(["--no-fail-fast", "--tests"]),
        Some(target) => cargo.args(["--test", target]),
    };
    // One profile for all, and one choice of features: what they have in common is compiled once.
    cargo.args(["--profile", "host", "--workspace"]);
    cargo
}

/// The cargo commands that only compile suites, each once.
pub(super) fn compile(suites: &[&Suite]) -> Vec<Command> {
    let mut programs = Vec::new();
    let mut commands = Vec::new();
    for suite in suites {
        if !programs.contains(&suite.target) {
            programs.push(suite.target);
            let mut cargo = cargo_test(suite);
            cargo.arg("--no-run");
            commands.push(cargo);
        }
        commands.extend(match suite.name {
            "unit" => races::compile().ok(),
            "fuzz" => Fuzzer::compile().ok(),
            _ => None,
        });
    }
    commands
}

/// The names of a suite's cases that contain `case`, of the program that has those of other suites too.
fn named(suite: &Suite, case: &str) -> Result<Vec<String>> {
    let module = format!("{}::", suite.of.unwrap_or(suite.name));
    let mut cargo = cargo_test(suite);
    cargo.args(["--quiet", "--", "--list", "--format", "terse", &module]);
    let output = cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.context("could not start cargo")?;
    if !output.status.success() {
        bail!("the cases of {} could not be listed: {}", suite.name, output.status);
    }
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = names.lines().filter_map(|line| line.strip_suffix(": test"));
    let ours = names.filter(|name| name.strip_prefix(&module).is_some_and(|n| n.contains(case)));
    Ok(ours.map(str::to_string).collect())
}

/// The cargo command that runs a suite's cases; none when it has none of that name.
fn cases(suite: &Suite, options: &Options) -> Result<Option<Command>> {
    let mut cargo = cargo_test(suite);
    cargo.arg("--");
    if suite.needs.guests() || suite.uses.contains(&Purpose::OpenMpi) {
        // Each case has two machines, or a peer that spins.
        cargo.args(["--test-threads", "1"]);
    } else if suite.target.is_some() {
        // Two machines at a time: more of them only wait for each other on a small host.
        cargo.args(["--test-threads", "2"]);
    }
    if options.seed.is_some() {
        cargo.arg("--nocapture");
    }
    if suite.module {
        let names = named(suite, &options.case)?;
        if names.is_empty() {
            return Ok(None);
        }
        cargo.arg("--exact").args(names);
    } else if !options.case.is_empty() {
        cargo.arg(&options.case);
    }
    Ok(Some(cargo))
}

/// Runs cases, and adds what came out.
pub(super) fn run_cases(
    suite: &Suite,
    cargo: &mut Command,
    environment: &[(&str, PathBuf)],
    outcome: &mut Outcome,
) -> Result<()> {
    eprintln!("$ {}", command::shell_line(cargo));
    cargo.envs(environment.iter().map(|(name, value)| (name, value)));
    // The place of a failure is in its message; a backtrace of the harness says nothing.
    cargo.env("RUST_BACKTRACE", "0");
    cargo.stdin(Stdio::null()).stdout(Stdio::piped());
    command::end_with_us(cargo);
    let mut child = cargo.spawn().context("could not start cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let (failed, passed) = (outcome.failed, outcome.passed);
    for line in BufReader::new(output).lines() {
        let line = line.context("could not read what cargo prints")?;
        println!("{line}");
        if let Some(some) = counts(&line) {
            outcome.passed += some.passed;
            outcome.failed += some.failed;
            outcome.ignored += some.ignored;
        }
    }
    let status = child.wait()?;
    if !status.success() && outcome.failed == failed {
        if outcome.passed == passed {
            bail!("the suite {} could not be run: {status}", suite.name);
        }
        // A sanitizer speaks up when all cases have ended.
        println!("{}: its cases passed, but {status}", suite.name);
        outcome.failed += 1;
    }
    Ok(())
}

/// What libtest's closing line tells.
fn counts(line: &str) -> Option<Outcome> {
    let counts = line.trim().strip_prefix("test result: ")?;
    let number_before = |word: &str| {
        let before = counts.split(word).next()?;
        before.rsplit(' ').next()?.parse().ok()
    };
    Some(Outcome {
        passed: number_before(" passed")?,
        failed: number_before(" failed")?,
        ignored: number_before(" ignored")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtest_s_closing_line_is_read() {
        let line = "test result: ok. 12 passed; 1 failed; 2 ignored; 0 measured; 3 filtered out";
        let outcome = counts(line).unwrap();
        assert_eq!((outcome.passed, outcome.failed, outcome.ignored), (12, 1, 2));
        assert!(counts("running 3 tests").is_none());
    }
}
