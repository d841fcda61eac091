//! `./isthmus test`: runs the test suites and closes with one line that sums them up.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;

use images::Format;

use crate::ahead::Ahead;
use crate::build::{self, Families};
use crate::fuzz::Fuzzer;
use crate::qemu::Program;
use crate::races;
use crate::setup::{self, Purpose};
use crate::{command, fresh, guest, image, models, workspace};

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
    /// How long the suite `fuzz` looks for inputs by coverage (5 with `--full` and where CI is set, else 1)
    #[arg(long)]
    minutes: Option<u32>,
    /// Feed an input that the suite `fuzz` has kept once more; its directory has the name of its target
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// In a new Debian 12 with nothing but what the README names, made with debootstrap (as root)
    #[arg(long)]
    fresh: bool,
}

/// A set of cases that cargo runs.
struct Suite {
    name: &'static str,
    /// Its test target, of which no two in the workspace have the same name; none for the unit tests of every crate.
    target: Option<&'static str>,
    /// Its cases are those of the target's module that has the suite's name.
    module: bool,
    needs: Needs,
    /// What has to be installed for it: every program of the host's that it runs is in one of these.
    uses: &'static [Purpose],
    /// Minutes of waiting for Linux's timers, or of measuring tools: run when named, or with `--full`.
    long: bool,
    /// A family that the usual image has not: these cases boot one of their own.
    family: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq)]
enum Needs {
    Nothing,
    Image,
    /// The QEMU that is unpacked for what the host's may not have.
    Qemu,
    /// That, and the image.
    ImageAndQemu,
    /// The image and its disk and ISO formats.
    Formats,
    /// Linux guests.
    Guests,
    /// The image and Linux guests.
    ImageAndGuests,
    /// Linux guests with device models.
    Models,
    /// Likewise, and the image.
    ImageAndModels,
}

impl Needs {
    fn image(self) -> bool {
        use Needs::{Formats, Image, ImageAndGuests, ImageAndModels, ImageAndQemu};
        matches!(self, Image | ImageAndQemu | Formats | ImageAndGuests | ImageAndModels)
    }

    fn unpacked_qemu(self) -> bool {
        matches!(self, Needs::Qemu | Needs::ImageAndQemu) || self.models()
    }

    fn guests(self) -> bool {
        matches!(self, Needs::Guests | Needs::ImageAndGuests) || self.models()
    }

    fn models(self) -> bool {
        matches!(self, Needs::Models | Needs::ImageAndModels)
    }
}

/// Open MPI's own usNIC as a peer, and tshark.
const OPEN_MPI: &[Purpose] = &[Purpose::Host, Purpose::OpenMpi, Purpose::Captures];
/// The image, in QEMU, and Open MPI's own usNIC as its peer.
const OPEN_MPI_AND_IMAGE: &[Purpose] = &[
    Purpose::Host,
    Purpose::Build,
    Purpose::Run,
    Purpose::OpenMpi,
    Purpose::Captures,
    Purpose::Python,
];
/// A peer in Python, and tshark, which reads what is said.
const DISSECTED: &[Purpose] = &[Purpose::Host, Purpose::Python, Purpose::Captures];
/// The image, and a peer in Python.
const BOOT_PYTHON: &[Purpose] = &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Python];
/// What compiling a suite takes.
const HOST: &[Purpose] = &[Purpose::Host];
/// Sanitizers and libFuzzer as well.
const SANITIZED: &[Purpose] = &[Purpose::Host, Purpose::Sanitizers];
/// The image, in QEMU.
const BOOT: &[Purpose] = &[Purpose::Host, Purpose::Build, Purpose::Run];
/// Likewise, in a QEMU that has devices which the host's may not have.
const BOOT_MODELS: &[Purpose] = &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Models];
/// The image, under libvirt.
const BOOT_LIBVIRT: &[Purpose] = &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Libvirt];
/// Drivers in process, on QEMU's devices.
const QTEST: &[Purpose] = &[Purpose::Host, Purpose::Run, Purpose::Models];
/// The image, in QEMU, and clients that speak TLS.
const TLS_USED: &[Purpose] = &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Tls];
/// The image in all formats, under all firmware.
const FORMATS_USED: &[Purpose] =
    &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Images, Purpose::Test];
/// Linux guests, for which programs are compiled here.
const GUESTS: &[Purpose] = &[Purpose::Host, Purpose::Run, Purpose::Guest];
/// Linux guests with device models, in a QEMU that can show them.
const MODELS: &[Purpose] = &[Purpose::Host, Purpose::Run, Purpose::Guest, Purpose::Models];
/// Likewise, and the image.
const IMAGE_AND_MODELS: &[Purpose] =
    &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Guest, Purpose::Models];
/// Likewise, and Open MPI's own usNIC.
const ENIC_USED: &[Purpose] = &[
    Purpose::Host,
    Purpose::Build,
    Purpose::Run,
    Purpose::Guest,
    Purpose::Models,
    Purpose::OpenMpi,
];
/// Likewise, and what is captured is read with tshark.
const MODELS_AND_CAPTURES: &[Purpose] = &[
    Purpose::Host,
    Purpose::Build,
    Purpose::Run,
    Purpose::Guest,
    Purpose::Models,
    Purpose::Captures,
];
/// The image and Linux guests.
const INTEROP: &[Purpose] = &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Guest];
/// What the image captured is read with tshark.
const CAPTURES: &[Purpose] =
    &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Guest, Purpose::Captures];

const SUITES: &[Suite] = &[
    Suite { target: None, uses: SANITIZED, ..host_suite("unit") },
    host_suite("sim"),
    Suite { uses: SANITIZED, ..host_suite("fuzz") },
    Suite { target: Some("usnic"), uses: OPEN_MPI, ..host_suite("usnic") },
    Suite {
        target: Some("usnic_image"),
        needs: Needs::Image,
        uses: OPEN_MPI_AND_IMAGE,
        ..host_suite("usnic_image")
    },
    Suite { target: Some("linx"), uses: DISSECTED, ..host_suite("linx") },
    Suite { target: Some("qtest"), needs: Needs::Qemu, uses: QTEST, ..host_suite("qtest") },
    boot_suite("boot"),
    boot_suite("console"),
    boot_suite("net"),
    boot_suite("cores"),
    boot_suite("config"),
    Suite { uses: TLS_USED, ..boot_suite("tls") },
    boot_suite("disk"),
    boot_suite("nvme"),
    Suite { needs: Needs::ImageAndQemu, uses: BOOT_MODELS, ..boot_suite("nics") },
    Suite { needs: Needs::Formats, uses: FORMATS_USED, ..boot_suite("save") },
    Suite { needs: Needs::Formats, uses: FORMATS_USED, ..boot_suite("netboot") },
    boot_suite("volumes"),
    boot_suite("ntb"),
    Suite { uses: BOOT_PYTHON, ..boot_suite("linx_tcp") },
    Suite {
        target: Some("matrix"),
        module: false,
        needs: Needs::Formats,
        uses: FORMATS_USED,
        ..boot_suite("matrix")
    },
    Suite { long: true, uses: BOOT_LIBVIRT, ..boot_suite("libvirt") },
    Suite { needs: Needs::Guests, uses: GUESTS, ..interop_suite("lab_selftest") },
    Suite { needs: Needs::Models, uses: MODELS, ..interop_suite("models") },
    Suite { needs: Needs::Models, uses: MODELS, ..long_suite("ntb_hw") },
    Suite { needs: Needs::ImageAndModels, uses: IMAGE_AND_MODELS, ..long_suite("ntb_netdev") },
    Suite { needs: Needs::ImageAndModels, uses: ENIC_USED, ..interop_suite("enic") },
    Suite { needs: Needs::ImageAndModels, uses: IMAGE_AND_MODELS, ..long_suite("ixgbe") },
    Suite { needs: Needs::ImageAndModels, uses: MODELS_AND_CAPTURES, ..long_suite("rapidio") },
    Suite {
        needs: Needs::ImageAndModels,
        uses: IMAGE_AND_MODELS,
        family: Some("mlx5"),
        ..long_suite("mlx5")
    },
    Suite { needs: Needs::ImageAndModels, uses: IMAGE_AND_MODELS, ..long_suite("passthrough") },
    Suite { needs: Needs::Guests, uses: GUESTS, ..interop_suite("inprocess") },
    Suite { needs: Needs::Guests, uses: GUESTS, ..long_suite("rnbd_faults") },
    interop_suite("smc"),
    Suite { needs: Needs::Image, uses: CAPTURES, ..interop_suite("smc_version1") },
    Suite { needs: Needs::Guests, uses: GUESTS, ..long_suite("smc_faults") },
    long_suite("smc_scenarios"),
    long_suite("smc_links"),
    long_suite("smc_hostile"),
    long_suite("relay"),
    long_suite("messaging"),
    long_suite("smc_scale"),
    long_suite("perf_tools"),
    interop_suite("perf"),
    long_suite("perf_lossy"),
    Suite { uses: CAPTURES, ..long_suite("captures") },
    long_suite("roce_hostile"),
    interop_suite("storage"),
    interop_suite("storage_cores"),
    long_suite("paths"),
    interop_suite("remote"),
    long_suite("remote_faults"),
    long_suite("remote_mirror"),
    long_suite("ntb_chain"),
    long_suite("rnbd_soak"),
    long_suite("rtrs_hostile"),
];

/// Cases that may be left out, because they need what few machines have. Any other that is left out has
/// failed.
const MAY_BE_SKIPPED: &[&str] = &["boot under KVM"];

/// Suites that provoke faults, which takes an image of their own.
const PROVOKE: &[&str] = &["boot", "cores", "ntb", "smc"];

/// The image's formats, and the environment variables that tell the tests where they are.
const FORMATS: &[(&str, Format)] = &[
    ("ISTHMUS_ISO", Format::Iso),
    ("ISTHMUS_RAW", Format::Raw),
    ("ISTHMUS_QCOW2", Format::Qcow2),
    ("ISTHMUS_PXE", Format::Pxe),
];

const fn host_suite(name: &'static str) -> Suite {
    Suite {
        name,
        target: Some(name),
        module: false,
        needs: Needs::Nothing,
        uses: HOST,
        long: false,
        family: None,
    }
}

const fn boot_suite(name: &'static str) -> Suite {
    let target = Some("boot");
    Suite { target, module: true, needs: Needs::Image, uses: BOOT, ..host_suite(name) }
}

const fn interop_suite(name: &'static str) -> Suite {
    let (target, needs) = (Some("interop"), Needs::ImageAndGuests);
    Suite { target, module: true, needs, uses: INTEROP, ..host_suite(name) }
}

const fn long_suite(name: &'static str) -> Suite {
    Suite { long: true, ..interop_suite(name) }
}

impl Options {
    /// How long inputs are looked for by coverage.
    fn minutes(&self) -> u32 {
        let thorough = self.full || std::env::var_os("CI").is_some();
        self.minutes.unwrap_or(if thorough { 5 } else { 1 })
    }
}

/// What came out of a suite.
#[derive(Default)]
struct Outcome {
    passed: usize,
    failed: usize,
    /// Marked `#[ignore]`.
    ignored: usize,
}

/// Runs the suites asked for. An error when a case failed or a suite could not run.
pub fn test(options: &Options) -> Result<()> {
    if options.fresh {
        return fresh::test(&fresh_arguments(options));
    }
    if let Some(input) = &options.replay {
        setup::install(SANITIZED)?;
        return Fuzzer::build()?.replay(input);
    }
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
    let uses: Vec<Purpose> = suites.iter().flat_map(|suite| suite.uses).copied().collect();
    setup::install(&uses)?;
    let ahead = Ahead::start(compile(&suites));
    if suites.iter().any(|suite| suite.needs.guests()) {
        guest::prepare()?;
    }
    if suites.iter().any(|suite| suite.needs.unpacked_qemu()) {
        Program::with_vfio_user()?;
    }
    if suites.iter().any(|suite| suite.needs.models()) {
        environment.push(("ISTHMUS_MODELS", models::build()?));
    }
    let with_image = || suites.iter().filter(|suite| suite.needs.image());
    let mut families = BTreeMap::new();
    for family in with_image().filter_map(|suite| suite.family) {
        if !families.contains_key(family) {
            let name = Some(format!("isthmus-{family}"));
            let options =
                build::Options { families: Families::and(family), name, ..Default::default() };
            families.insert(family, build::build(&options)?.elf);
        }
    }
    if with_image().any(|suite| suite.family.is_none()) {
        // The image for uhyve is loaded as uhyve does it when it is built.
        let uhyve = suites.iter().any(|suite| suite.name == "boot");
        let faults = suites.iter().any(|suite| PROVOKE.contains(&suite.name));
        let options = build::Options { uhyve, faults, ..Default::default() };
        let image = build::build(&options)?;
        if let Some(faults) = &image.faults {
            environment.push(("ISTHMUS_FAULTS", faults.clone()));
        }
        if suites.iter().any(|suite| suite.needs == Needs::Formats) {
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

    ahead.finish();
    let mut table = Vec::new();
    for suite in suites {
        let started = Instant::now();
        let own = suite.family.and_then(|family| families.get(family));
        let own = own.map(|image| ("ISTHMUS_IMAGE", image.clone()));
        let environment: Vec<_> = environment.iter().cloned().chain(own).collect();
        let mut outcome = run(suite, options, &environment)?;
        if suite.name == "unit" && options.case.is_empty() {
            run_cases(suite, &mut races::cases()?, &environment, &mut outcome)?;
        }
        // A seed is one of the cases' that are made by chance.
        if suite.name == "fuzz" && options.seed.is_none() {
            let guided = Fuzzer::build()?.run(options.minutes(), &options.case)?;
            outcome.passed += guided.passed;
            outcome.failed += guided.failed;
        }
        table.push((suite.name, outcome, started.elapsed()));
    }
    let skipped = fs::read_to_string(&skipped)?;
    summary(&table, &skipped, &options.case)
}

/// What `./isthmus` is told in a fresh system: the same, but for `--fresh`.
fn fresh_arguments(options: &Options) -> Vec<String> {
    let mut words = vec!["test".to_string()];
    words.extend(options.suites.iter().cloned());
    if options.full {
        words.push("--full".into());
    }
    if !options.case.is_empty() {
        words.extend(["--case".into(), options.case.clone()]);
    }
    if let Some(seed) = options.seed {
        words.extend(["--seed".into(), seed.to_string()]);
    }
    if let Some(minutes) = options.minutes {
        words.extend(["--minutes".into(), minutes.to_string()]);
    }
    words
}

/// Runs one suite with its output on this terminal.
fn run(suite: &Suite, options: &Options, environment: &[(&str, PathBuf)]) -> Result<Outcome> {
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
fn compile(suites: &[&Suite]) -> Vec<Command> {
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
    let module = format!("{}::", suite.name);
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
fn run_cases(
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

/// Prints what came out; an error when a case failed, or when one that must run did not. `case` is what the
/// cases were chosen by.
fn summary(
    table: &[(&str, Outcome, std::time::Duration)],
    skipped: &str,
    case: &str,
) -> Result<()> {
    println!("\n{:<10} {:>7} {:>7} {:>9}", "suite", "passed", "failed", "seconds");
    let (mut passed, mut failed) = (0, 0);
    for (name, outcome, time) in table {
        let seconds = time.as_secs_f64();
        println!("{name:<10} {:>7} {:>7} {seconds:>9.1}", outcome.passed, outcome.failed);
        passed += outcome.passed;
        failed += outcome.failed;
    }
    let mut must: Vec<String> = Vec::new();
    for line in skipped.lines() {
        println!("skipped: {line}");
        if !may_be_skipped(line) {
            must.push(line.to_string());
        }
    }
    for (name, outcome, _) in table {
        if outcome.ignored > 0 {
            println!("skipped: {name}: {} cases are marked #[ignore]", outcome.ignored);
            must.push(name.to_string());
        }
        if case.is_empty() && outcome.passed + outcome.failed == 0 {
            println!("skipped: {name}: none of its cases ran");
            must.push(name.to_string());
        }
    }
    // A skipped case ends without an error, so that libtest counts it as passed.
    let skips = skipped.lines().count();
    println!("\n{} passed, {failed} failed, {skips} skipped", passed.saturating_sub(skips));
    if failed > 0 {
        bail!("{failed} cases failed");
    }
    if !must.is_empty() {
        bail!("skipped, but must run: {}", must.join("; "));
    }
    if passed == 0 {
        bail!("no case is called {case:?}");
    }
    Ok(())
}

/// Whether a case may be left out, by the line that tells of it (`CASE: REASON`).
fn may_be_skipped(line: &str) -> bool {
    let case = line.split(": ").next().unwrap_or(line);
    MAY_BE_SKIPPED.contains(&case)
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

    #[test]
    fn what_must_run_may_not_be_skipped() {
        let outcome = |passed, failed, ignored| Outcome { passed, failed, ignored };
        let close = |outcome, skipped: &str| {
            let table = [("boot", outcome, std::time::Duration::ZERO)];
            summary(&table, skipped, "").map_err(|error| error.to_string())
        };
        assert_eq!(close(outcome(3, 0, 0), "boot under KVM: no KVM\n"), Ok(()));
        assert!(close(outcome(3, 0, 0), "tshark: not installed\n").unwrap_err().contains("must"));
        assert!(close(outcome(3, 0, 1), "").unwrap_err().contains("must run"));
        assert!(close(outcome(0, 0, 0), "").unwrap_err().contains("must run"));
        assert!(close(outcome(3, 1, 0), "").unwrap_err().contains("1 cases failed"));
    }

    #[test]
    fn every_suite_compiles_with_what_it_installs() {
        for suite in SUITES {
            assert!(suite.uses.contains(&Purpose::Host), "{}", suite.name);
            if suite.needs.image() {
                assert!(suite.uses.contains(&Purpose::Build), "{}", suite.name);
            }
            if suite.needs.guests() {
                assert!(suite.uses.contains(&Purpose::Guest), "{}", suite.name);
            }
        }
    }
}
