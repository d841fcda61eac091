//! `./isthmus test`: runs the test suites and closes with one line that sums them up.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;

use images::Format;

use crate::build;
use crate::setup::{self, Purpose};
use crate::{command, guest, image, workspace};

/// Options of `./isthmus test`.
#[derive(Args)]
pub struct Options {
    /// The suites to run (when none is named, all but the long ones)
    #[arg(value_parser = SUITES.iter().map(|suite| suite.name).collect::<Vec<_>>())]
    suites: Vec<String>,
    /// The whole matrix of machines, not a covering choice; the longest paste; the long suites
    #[arg(long)]
    full: bool,
    /// Run only the cases whose name contains this
    #[arg(long, default_value = "")]
    case: String,
    /// Replay this seed of the simulator or of the fuzzer, and tell what happens
    #[arg(long)]
    seed: Option<u64>,
}

/// A set of cases that cargo runs.
struct Suite {
    name: &'static str,
    /// The package and its test target; none for the unit tests of every crate.
    target: Option<(&'static str, &'static str)>,
    needs: Needs,
    /// Minutes of waiting for Linux's timers, or of measuring tools: run when named, or with `--full`.
    long: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Needs {
    Nothing,
    Image,
    /// The image and its disk and ISO formats.
    Formats,
    /// Linux guests.
    Guests,
    /// The image and Linux guests.
    ImageAndGuests,
}

impl Needs {
    fn image(self) -> bool {
        matches!(self, Needs::Image | Needs::Formats | Needs::ImageAndGuests)
    }

    fn guests(self) -> bool {
        matches!(self, Needs::Guests | Needs::ImageAndGuests)
    }
}

const SUITES: &[Suite] = &[
    Suite { name: "unit", target: None, needs: Needs::Nothing, long: false },
    Suite { name: "sim", target: Some(("sim", "sim")), needs: Needs::Nothing, long: false },
    Suite { name: "fuzz", target: Some(("fuzz", "fuzz")), needs: Needs::Nothing, long: false },
    boot_suite("boot", Needs::Image),
    boot_suite("console", Needs::Image),
    boot_suite("net", Needs::Image),
    boot_suite("cores", Needs::Image),
    boot_suite("config", Needs::Image),
    boot_suite("disk", Needs::Image),
    boot_suite("save", Needs::Image),
    boot_suite("volumes", Needs::Image),
    boot_suite("ntb", Needs::Image),
    boot_suite("matrix", Needs::Formats),
    interop_suite("guests", Needs::Guests),
    interop_suite("engines", Needs::Guests),
    Suite { long: true, ..interop_suite("adversity", Needs::Guests) },
    interop_suite("smc", Needs::ImageAndGuests),
    interop_suite("smc_version1", Needs::Image),
    Suite { long: true, ..interop_suite("smc_adversity", Needs::Guests) },
    Suite { long: true, ..interop_suite("smc_scenarios", Needs::ImageAndGuests) },
    Suite { long: true, ..interop_suite("smc_links", Needs::ImageAndGuests) },
    Suite { long: true, ..interop_suite("smc_liars", Needs::ImageAndGuests) },
    Suite { long: true, ..interop_suite("relay", Needs::ImageAndGuests) },
    Suite { long: true, ..interop_suite("messaging", Needs::ImageAndGuests) },
    Suite { long: true, ..interop_suite("crowd", Needs::ImageAndGuests) },
    Suite { long: true, ..interop_suite("services", Needs::ImageAndGuests) },
    interop_suite("fabric", Needs::ImageAndGuests),
    Suite { long: true, ..interop_suite("rough", Needs::ImageAndGuests) },
    Suite { long: true, ..interop_suite("captures", Needs::ImageAndGuests) },
    Suite { long: true, ..interop_suite("crafted", Needs::ImageAndGuests) },
    interop_suite("storage", Needs::ImageAndGuests),
    Suite { long: true, ..interop_suite("paths", Needs::ImageAndGuests) },
    interop_suite("remote", Needs::ImageAndGuests),
    Suite { long: true, ..interop_suite("remote_adversity", Needs::ImageAndGuests) },
    Suite { long: true, ..interop_suite("remote_mirror", Needs::ImageAndGuests) },
    Suite { long: true, ..interop_suite("ntb_chain", Needs::ImageAndGuests) },
    Suite { long: true, ..interop_suite("endurance", Needs::ImageAndGuests) },
    Suite { long: true, ..interop_suite("strangers", Needs::ImageAndGuests) },
];

/// The image's formats, and the environment variables that tell the tests where they are.
const FORMATS: &[(&str, Format)] =
    &[("ISTHMUS_ISO", Format::Iso), ("ISTHMUS_RAW", Format::Raw), ("ISTHMUS_QCOW2", Format::Qcow2)];

const fn boot_suite(name: &'static str, needs: Needs) -> Suite {
    Suite { name, target: Some(("boot-tests", name)), needs, long: false }
}

const fn interop_suite(name: &'static str, needs: Needs) -> Suite {
    Suite { name, target: Some(("interop-tests", name)), needs, long: false }
}

/// What came out of a suite.
#[derive(Default)]
struct Outcome {
    passed: usize,
    failed: usize,
}

/// Runs the suites asked for. An error when a case failed or a suite could not run.
pub fn test(options: &Options) -> Result<()> {
    let asked = |suite: &&Suite| {
        let by_default = options.suites.is_empty() && (options.full || !suite.long);
        by_default || options.suites.iter().any(|name| name == suite.name)
    };
    let suites: Vec<&Suite> = SUITES.iter().filter(asked).collect();
    let directory = workspace::target().join("test");
    fs::create_dir_all(&directory)?;
    let skipped = directory.join("skipped");
    fs::write(&skipped, "")?;

    let mut environment: Vec<(&str, PathBuf)> = vec![("ISTHMUS_SKIPPED", skipped.clone())];
    if suites.iter().any(|suite| suite.needs.guests()) {
        guest::prepare()?;
    }
    if suites.iter().any(|suite| suite.name == "captures") {
        setup::install(&[Purpose::Captures])?;
    }
    if suites.iter().any(|suite| suite.needs.image()) {
        setup::install(&[Purpose::Build, Purpose::Run, Purpose::Test])?;
        // The image for uhyve is loaded as uhyve does it when it is built.
        let uhyve = suites.iter().any(|suite| suite.name == "boot");
        let image = build::build(&build::Options { uhyve })?;
        if suites.iter().any(|suite| suite.needs == Needs::Formats) {
            setup::install(&[Purpose::Images])?;
            for (variable, format) in FORMATS {
                let path = directory.join(format!("isthmus.{}", format.name()));
                image::make(&image.elf, *format, "", &path)?;
                environment.push((variable, path));
            }
        }
        environment.push(("ISTHMUS_IMAGE", image.elf));
    }
    if options.full {
        environment.push(("ISTHMUS_FULL", "1".into()));
    }

    if let Some(seed) = options.seed {
        environment.push(("ISTHMUS_SEED", seed.to_string().into()));
    }

    let mut table = Vec::new();
    for suite in suites {
        let started = Instant::now();
        let outcome = run(suite, options, &environment)?;
        table.push((suite.name, outcome, started.elapsed()));
    }
    let skipped = fs::read_to_string(&skipped)?;
    summary(&table, &skipped)
}

/// Runs one suite with its output on this terminal.
fn run(suite: &Suite, options: &Options, environment: &[(&str, PathBuf)]) -> Result<Outcome> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(workspace::root()).arg("test");
    match suite.target {
        // There are no examples in documentation; rustdoc may be another toolchain's.
        None => cargo.args(["--no-fail-fast", "--lib", "--bins", "--tests"]),
        Some((package, target)) => {
            cargo.args(["--profile", "host", "-p", package, "--test", target])
        }
    };
    cargo.arg("--");
    if suite.needs.guests() {
        cargo.args(["--test-threads", "1"]); // each case has two machines
    } else if suite.target.is_some() {
        // Two machines at a time: more of them only wait for each other on a small host.
        cargo.args(["--test-threads", "2"]);
    }
    if options.seed.is_some() {
        cargo.arg("--nocapture");
    }
    if !options.case.is_empty() {
        cargo.arg(&options.case);
    }
    eprintln!("$ {}", command::shell_line(&cargo));
    cargo.envs(environment.iter().map(|(name, value)| (name, value)));
    // The place of a failure is in its message; a backtrace of the harness says nothing.
    cargo.env("RUST_BACKTRACE", "0");
    cargo.stdin(Stdio::null()).stdout(Stdio::piped());
    command::end_with_us(&mut cargo);
    let mut child = cargo.spawn().context("could not start cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut outcome = Outcome::default();
    for line in BufReader::new(output).lines() {
        let line = line.context("could not read what cargo prints")?;
        println!("{line}");
        if let Some((passed, failed)) = counts(&line) {
            outcome.passed += passed;
            outcome.failed += failed;
        }
    }
    let status = child.wait()?;
    if !status.success() && outcome.failed == 0 {
        bail!("the suite {} could not be run: {status}", suite.name);
    }
    Ok(outcome)
}

/// `(passed, failed)` of libtest's closing line.
fn counts(line: &str) -> Option<(usize, usize)> {
    let counts = line.trim().strip_prefix("test result: ")?;
    let number_before = |word: &str| {
        let before = counts.split(word).next()?;
        before.rsplit(' ').next()?.parse().ok()
    };
    Some((number_before(" passed")?, number_before(" failed")?))
}

fn summary(table: &[(&str, Outcome, std::time::Duration)], skipped: &str) -> Result<()> {
    println!("\n{:<10} {:>7} {:>7} {:>9}", "suite", "passed", "failed", "seconds");
    let (mut passed, mut failed) = (0, 0);
    for (name, outcome, time) in table {
        let seconds = time.as_secs_f64();
        println!("{name:<10} {:>7} {:>7} {seconds:>9.1}", outcome.passed, outcome.failed);
        passed += outcome.passed;
        failed += outcome.failed;
    }
    for line in skipped.lines() {
        println!("skipped: {line}");
    }
    // A skipped case ends without an error, so that libtest counts it as passed.
    let skips = skipped.lines().count();
    println!("\n{} passed, {failed} failed, {skips} skipped", passed.saturating_sub(skips));
    if failed > 0 {
        bail!("{failed} cases failed");
    }
    Ok(())
}
