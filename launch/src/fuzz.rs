//! Coverage-guided fuzzing: runs the targets of `tests/fuzz` under libFuzzer, with AddressSanitizer and every check
//! enabled.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::sanitizer::{self, TRIPLE};
use crate::{command, workspace};

/// Compiler flags for libFuzzer: a counter for each edge, a table of the edges' addresses, and calls at comparisons
/// of values.
const COVERAGE: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];
/// Compiler flags for AddressSanitizer.
const SANITIZER: &[&str] =
    &["-Zsanitizer=address", "-Zexternal-clangrt", "--cfg", "address_sanitizer"];

/// Limits for an input: seconds of run time, and megabytes of memory.
const LIMITS: (u32, u32) = (60, 3000);
/// Interval between progress lines of a target.
const REPORT: Duration = Duration::from_secs(60);

/// The built fuzzer.
pub struct Fuzzer {
    program: PathBuf,
    targets: Vec<String>,
}

/// The results of a run.
pub struct Outcome {
    /// Number of targets that ran for all of their time.
    pub passed: usize,
    /// Number of targets that ended early.
    pub failed: usize,
}

/// `target/fuzz`.
fn directory() -> PathBuf {
    workspace::target().join("fuzz")
}

impl Fuzzer {
    /// The cargo command that builds the fuzzer.
    pub fn compile() -> Result<Command> {
        let flags: Vec<String> =
            SANITIZER.iter().chain(COVERAGE).map(|flag| flag.to_string()).collect();
        let target = directory().join("build");
        let mut cargo = sanitizer::cargo(&flags);
        cargo.args(["rustc", "--locked", "--profile", "fuzz", "-p", "fuzz", "--bin", "guided"]);
        cargo.args(["--features", "guided", "--target", TRIPLE]).arg("--target-dir").arg(&target);
        cargo.arg("--").args(sanitizer::link(&[("asan", true), ("fuzzer_no_main", false)])?);
        cargo.args(["-Clink-arg=-lstdc++", "-Clink-arg=-lm"]);
        Ok(cargo)
    }

    /// Builds the fuzzer, or finds it up to date.
    pub fn build() -> Result<Self> {
        command::run_quietly("building the fuzzer", &mut Self::compile()?)?;
        let program = directory().join("build").join(TRIPLE).join("fuzz/guided");
        let targets = command::output(&mut Command::new(&program))?;
        let targets = targets.lines().map(str::to_string).collect();
        Ok(Fuzzer { program, targets })
    }

    /// libFuzzer with one target.
    fn command(&self, target: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(target).current_dir(workspace::root());
        // Without leak detection, because memory of arenas is never freed.
        command.env("ASAN_OPTIONS", "detect_leaks=0:quarantine_size_mb=32:symbolize=0");
        command.env("RUST_BACKTRACE", "1");
        command
    }

    /// Runs each target whose name contains `case`, for an equal share of the processors' time in `minutes`. An input
    /// that ends a target is kept below `target/fuzz/crashes`, and the command that replays it is printed.
    pub fn run(&self, minutes: u32, case: &str) -> Result<Outcome> {
        let chosen: Vec<&str> =
            self.targets.iter().map(String::as_str).filter(|name| name.contains(case)).collect();
        let workers = thread::available_parallelism().map_or(1, usize::from).min(chosen.len());
        if workers == 0 || minutes == 0 {
            return Ok(Outcome { passed: 0, failed: 0 });
        }
        let seconds = (u64::from(minutes) * 60 * workers as u64 / chosen.len() as u64).max(1);
        println!(
            "\nguided by coverage: {} targets, {seconds} seconds each, {workers} at a time",
            chosen.len()
        );
        let (count, queue) = (chosen.len(), Mutex::new(VecDeque::from(chosen)));
        let next = || queue.lock().expect("no thread panics with the lock").pop_front();
        let work = || -> Result<usize> {
            let mut failed = 0;
            while let Some(target) = next() {
                failed += usize::from(!self.run_target(target, seconds)?);
            }
            Ok(failed)
        };
        let failed = thread::scope(|scope| -> Result<usize> {
            let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        })?;
        Ok(Outcome { passed: count - failed, failed })
    }

    /// Runs one target. Returns whether it ran for all of its time.
    fn run_target(&self, target: &str, seconds: u64) -> Result<bool> {
        let places = ["corpus", "crashes", "log"].map(|name| directory().join(name));
        let [grown, crashes, logs] = &places;
        let (grown, crashes) = (grown.join(target), crashes.join(target));
        for place in [&grown, &crashes, logs] {
            fs::create_dir_all(place)
                .with_context(|| format!("could not make {}", place.display()))?;
        }
        let mut seeds = self.command(target);
        command::output(seeds.arg("--seeds").arg(&grown))?;

        let log = logs.join(target);
        let output = File::create(&log).context("could not make a log")?;
        let mut fuzzer = self.command(target);
        fuzzer.arg(format!("-max_total_time={seconds}"));
        fuzzer.arg(format!("-timeout={}", LIMITS.0)).arg(format!("-rss_limit_mb={}", LIMITS.1));
        fuzzer.args(["-print_final_stats=1", "-report_slow_units=30", "-use_value_profile=1"]);
        fuzzer.arg(format!("-artifact_prefix={}/", crashes.display()));
        fuzzer.arg(&grown);
        let kept = Path::new("tests/fuzz/corpus").join(target);
        if workspace::root().join(&kept).is_dir() {
            fuzzer.arg(kept);
        }
        fuzzer.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        command::end_with_us(&mut fuzzer);
        let started = Instant::now();
        let mut child = fuzzer.spawn().context("could not start the fuzzer")?;
        let mut reported = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            thread::sleep(Duration::from_millis(100));
            if reported.elapsed() >= REPORT {
                reported = Instant::now();
                println!("  {target:<12} {}", progress(&read(&log)));
            }
        };
        let text = read(&log);
        let took = started.elapsed().as_secs();
        if status.success() {
            println!("  {target:<12} {} in {took} s", progress(&text));
            return Ok(true);
        }
        println!("  {target:<12} FAILED after {took} s: {}", progress(&text));
        failure_lines(&text).iter().for_each(|line| println!("    {line}"));
        println!("    full log: {}", log.display());
        match artifact(&text) {
            Some(input) => println!("    replay: ./isthmus test fuzz --replay {}", input.display()),
            None => println!("    no input was kept: {status}"),
        }
        Ok(false)
    }

    /// Runs an input again, whose directory is named after its target.
    pub fn replay(&self, input: &Path) -> Result<()> {
        let input = fs::canonicalize(input)
            .with_context(|| format!("there is no input {}", input.display()))?;
        let directory = input.parent().and_then(Path::file_name).unwrap_or_default();
        let Some(target) = self.targets.iter().find(|&name| directory == name.as_str()) else {
            bail!(
                "{}: the input must be in a directory with the name of its target, one of {}",
                input.display(),
                self.targets.join(", ")
            );
        };
        let mut fuzzer = self.command(target);
        fuzzer.arg(format!("-timeout={}", LIMITS.0)).arg(format!("-rss_limit_mb={}", LIMITS.1));
        command::run(fuzzer.arg(input))
    }
}

/// The fuzzer's output so far.
fn read(log: &Path) -> String {
    fs::read(log).map_or(String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The progress in the last line that states it: executions, edges and inputs of the corpus.
fn progress(text: &str) -> String {
    let last = text.lines().rev().find(|line| line.starts_with('#') && line.contains("cov:"));
    let line = last.unwrap_or_default();
    let after = |word: &str| {
        let rest = line.split(word).nth(1).unwrap_or_default();
        rest.trim_start()
            .split([' ', '/'])
            .next()
            .filter(|word| !word.is_empty())
            .unwrap_or("0")
            .to_string()
    };
    let executed =
        text.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    let number = || line.trim_start_matches('#').split_whitespace().next().unwrap_or("0");
    let executed = executed.map_or_else(number, str::trim);
    format!("{executed} executions, {} edges, {} inputs", after("cov:"), after("corp:"))
}

/// The fuzzer's lines about a failure.
fn failure_lines(text: &str) -> Vec<&str> {
    let is_start = |line: &&str| line.contains("panicked at") || line.contains("ERROR: ");
    text.lines().skip_while(|line| !is_start(line)).take(6).collect()
}

/// The input that the fuzzer has kept.
fn artifact(text: &str) -> Option<PathBuf> {
    let line = text.lines().rev().find_map(|line| line.split("Test unit written to ").nth(1))?;
    let path = Path::new(line.trim());
    Some(path.strip_prefix(workspace::root()).unwrap_or(path).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
#2\tINITED cov: 10 ft: 11 corp: 1/1b exec/s: 0 rss: 30Mb
#1024\tpulse  cov: 1234 ft: 5678 corp: 90/12Kb lim: 4 exec/s: 512 rss: 40Mb
thread 'main' panicked at tests/fuzz/src/storage.rs:1:1:
the attacker has bytes of Victim
==7== ERROR: libFuzzer: deadly signal
artifact_prefix='/x/'; Test unit written to /x/storage/crash-abc
";

    #[test]
    fn output_of_libfuzzer_is_parsed() {
        assert_eq!(progress(LOG), "1024 executions, 1234 edges, 90 inputs");
        let done = format!("{LOG}stat::number_of_executed_units: 2000\n");
        assert_eq!(progress(&done), "2000 executions, 1234 edges, 90 inputs");
        assert_eq!(progress(""), "0 executions, 0 edges, 0 inputs");
        assert_eq!(failure_lines(LOG)[1], "the attacker has bytes of Victim");
        assert_eq!(artifact(LOG), Some("/x/storage/crash-abc".into()));
    }
}
