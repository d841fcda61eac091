//! Runs test cases with cargo and counts the results.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Options;
use super::plan::{Cases, Job};
use super::suites::Suite;
use crate::fuzz::Fuzzer;
use crate::setup::Purpose;
use crate::{command, races, workspace};

/// The results of a suite.
#[derive(Default)]
pub(super) struct Outcome {
    pub passed: usize,
    pub failed: usize,
    /// Marked `#[ignore]`.
    pub ignored: usize,
    /// Cases, and the time between the previous result and theirs.
    pub times: Vec<(String, Duration)>,
}

/// Runs one job with its output on this terminal.
pub(super) fn run(
    job: &Job,
    options: &Options,
    environment: &[(&str, PathBuf)],
) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    match job.suite.name {
        "races" => run_cases(job.suite, &mut races::cases()?, environment, &mut outcome)?,
        "guided" => {
            let guided = Fuzzer::build()?.run(options.minutes, &options.case)?;
            outcome.passed += guided.passed;
            outcome.failed += guided.failed;
        }
        _ => {
            if let Some(mut cases) = cases(job, options)? {
                run_cases(job.suite, &mut cases, environment, &mut outcome)?;
            }
        }
    }
    Ok(outcome)
}

/// The cargo command of a suite's tests. Arguments for libtest may be appended.
fn cargo_test(suite: &Suite) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(workspace::root()).arg("test");
    match suite.target {
        // Without documentation tests: there are none, and rustdoc may belong to another toolchain.
        None => cargo.args(["--no-fail-fast", "--tests"]),
        Some(target) => cargo.args(["--test", target]),
    };
    // One profile and one set of features for all suites, so that shared crates are compiled once.
    cargo.args(["--profile", "host", "--workspace"]);
    cargo
}

/// The cargo commands that only compile the programs of jobs, each once.
pub(super) fn compile(jobs: &[Job]) -> Vec<Command> {
    let mut programs = Vec::new();
    let mut commands = Vec::new();
    for suite in jobs.iter().map(|job| job.suite) {
        match suite.name {
            "races" => commands.extend(races::compile().ok()),
            "guided" => commands.extend(Fuzzer::compile().ok()),
            _ => {}
        }
        if matches!(suite.name, "races" | "guided") {
            continue;
        }
        if !programs.contains(&suite.target) {
            programs.push(suite.target);
            let mut cargo = cargo_test(suite);
            cargo.arg("--no-run");
            commands.push(cargo);
        }
    }
    commands
}

/// The names of a suite's cases. Its test program may contain other suites too.
fn names(suite: &Suite) -> Result<Vec<String>> {
    let module = format!("{}::", suite.of.unwrap_or(suite.name));
    let mut cargo = cargo_test(suite);
    cargo.args(["--quiet", "--", "--list", "--format", "terse"]);
    if suite.module {
        cargo.arg(&module);
    }
    let output = cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.context("could not start cargo")?;
    if !output.status.success() {
        bail!("the cases of {} could not be listed: {}", suite.name, output.status);
    }
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = names.lines().filter_map(|line| line.strip_suffix(": test"));
    let ours = names.filter(|name| !suite.module || name.starts_with(&module));
    Ok(ours.map(str::to_string).collect())
}

/// The cargo command that runs a job's cases; `None` if it has no cases.
fn cases(job: &Job, options: &Options) -> Result<Option<Command>> {
    let suite = job.suite;
    let mut cargo = cargo_test(suite);
    cargo.arg("--");
    if suite.needs.guests() || suite.uses.contains(&Purpose::OpenMpi) {
        // Each case runs two machines, or a peer that busy-polls.
        cargo.args(["--test-threads", "1"]);
    } else if suite.target.is_some() {
        // Two machines at a time: on a small host more machines only delay each other.
        cargo.args(["--test-threads", "2"]);
    }
    if options.seed.is_some() {
        cargo.arg("--nocapture");
    }
    let module = suite.of.unwrap_or(suite.name).len() + "::".len();
    let chosen = match &job.cases {
        Cases::All if !suite.module => return Ok(Some(cargo)),
        Cases::Named(parts) if !suite.module => {
            cargo.args(parts);
            return Ok(Some(cargo));
        }
        Cases::All => names(suite)?,
        Cases::Named(parts) => {
            let mut names = names(suite)?;
            names.retain(|name| parts.iter().any(|part| name[module..].contains(part.as_str())));
            names
        }
        Cases::Part { part, of } => names(suite)?.into_iter().skip(*part).step_by(*of).collect(),
    };
    if chosen.is_empty() {
        return Ok(None);
    }
    cargo.arg("--exact").args(chosen);
    Ok(Some(cargo))
}

/// Runs cases and adds their results to `outcome`.
fn run_cases(
    suite: &Suite,
    cargo: &mut Command,
    environment: &[(&str, PathBuf)],
    outcome: &mut Outcome,
) -> Result<()> {
    eprintln!("$ {}", command::shell_line(cargo));
    cargo.envs(environment.iter().map(|(name, value)| (name, value)));
    // The message of a failure has its location; a backtrace of the harness adds nothing.
    cargo.env("RUST_BACKTRACE", "0");
    cargo.stdin(Stdio::null()).stdout(Stdio::piped());
    command::end_with_us(cargo);
    let mut child = cargo.spawn().context("could not start cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let (failed, passed) = (outcome.failed, outcome.passed);
    let mut last = Instant::now();
    for line in BufReader::new(output).lines() {
        let line = line.context("could not read what cargo prints")?;
        println!("{line}");
        if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.split(" ... ").next()) {
            outcome.times.push((format!("{}: {name}", suite.name), last.elapsed()));
            last = Instant::now();
        }
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
        // A sanitizer may report after all cases have ended.
        println!("{}: its cases passed, but {status}", suite.name);
        outcome.failed += 1;
    }
    Ok(())
}

/// Reads the counts in libtest's closing line.
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
        times: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_the_closing_line_of_libtest() {
        let line = "test result: ok. 12 passed; 1 failed; 2 ignored; 0 measured; 3 filtered out";
        let outcome = counts(line).unwrap();
        assert_eq!((outcome.passed, outcome.failed, outcome.ignored), (12, 1, 2));
        assert!(counts("running 3 tests").is_none());
    }
}
