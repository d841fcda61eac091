//! `./isthmus test`: runs the test suites and closes with one line that sums them up.

mod cases;
mod suites;
mod summary;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::Result;
use clap::Args;

use crate::ahead::Ahead;
use crate::build::{self, Families};
use crate::fuzz::Fuzzer;
use crate::qemu::Program;
use crate::races;
use crate::setup::{self, Purpose};
use crate::{command, fresh, full, guest, models, workspace};
use cases::{compile, run, run_cases};
use suites::{FORMATS, METAL, Needs, PROVOKE, SANITIZED, SUITES, Suite};
use summary::summary;

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
    /// With the image for development (`./isthmus build --dev`), which is built sooner: what is shipped stays untried
    #[arg(long)]
    dev: bool,
    /// In a new Debian 12 with nothing but what the README names, made with debootstrap (as root)
    #[arg(long)]
    fresh: bool,
}

impl Options {
    /// How long inputs are looked for by coverage.
    fn minutes(&self) -> u32 {
        let thorough = self.full || std::env::var_os("CI").is_some();
        self.minutes.unwrap_or(if thorough { 5 } else { 1 })
    }
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
    let profile = build::Profile::dev(options.dev);
    let mut families = BTreeMap::new();
    let mut packed = None;
    for family in with_image().filter_map(|suite| suite.family) {
        if !families.contains_key(family) {
            let name = Some(format!("isthmus-{family}"));
            let options = build::Options {
                families: Families::and(family),
                name,
                profile,
                ..Default::default()
            };
            families.insert(family, build::build(&options)?.elf);
        }
    }
    if with_image().any(|suite| suite.family.is_none()) {
        let uhyve = suites.iter().any(|suite| suite.needs == Needs::Uhyve);
        let faults = suites.iter().any(|suite| PROVOKE.contains(&suite.name));
        let options = build::Options { uhyve, faults, profile, ..Default::default() };
        let image = build::build(&options)?;
        if let Some(uhyve) = &image.uhyve {
            environment.push(("ISTHMUS_UHYVE", uhyve.clone()));
        }
        if let Some(faults) = &image.faults {
            environment.push(("ISTHMUS_FAULTS", faults.clone()));
        }
        if suites.iter().any(|suite| suite.needs == Needs::Formats) {
            packed = Some(image.elf.clone());
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
    if let Some(elf) = &packed {
        let pack = full::in_tests()?;
        for (variable, format) in FORMATS {
            let path = directory.join(format!("isthmus.{format}"));
            let mut pack = Command::new(&pack);
            pack.args(["image", format, "--elf"]).arg(elf).arg("--output").arg(&path);
            command::run(&mut pack)?;
            environment.push((variable, path));
        }
    }
    let mut table = Vec::new();
    for suite in suites {
        let started = Instant::now();
        let own = suite.family.and_then(|family| families.get(family));
        let own = own.map(|image| ("ISTHMUS_IMAGE", image.clone()));
        let mut environment: Vec<_> = environment.iter().cloned().chain(own).collect();
        if suite.of.is_some() {
            let unsaid = METAL.iter().filter(|(name, _)| std::env::var_os(name).is_none());
            environment.extend(unsaid.map(|(name, value)| (*name, PathBuf::from(value))));
        }
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
    if options.dev {
        words.push("--dev".into());
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
