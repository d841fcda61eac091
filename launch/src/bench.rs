//! `./isthmus bench`: builds the image and runs the benchmarks of `tests/bench` on it, records the results, and
//! renders the pages of figures.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};
use clap::Args;

use crate::build::{self, Families, commit};
use crate::setup::{self, Purpose};
use crate::{command, workspace};

/// The suites. Each writes `target/bench/SUITE.json`.
pub const SUITES: &[&str] = &[
    "boot",
    "roce",
    "ntrdma",
    "rnbd",
    "rtrs-client",
    "smcr",
    "usnic",
    "riocm",
    "scale",
    "metal",
    "mlx5",
];

/// Options of `./isthmus bench`.
#[derive(Args)]
pub struct Options {
    /// The suites to run (all when none is named)
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(SUITES))]
    suites: Vec<String>,
    /// Measure only this figure of the suite scale (may be given several times)
    #[arg(long = "key", value_name = "KEY")]
    keys: Vec<String>,
    /// Run every suite, record the results in docs/figures.json, and render docs/figures.md
    #[arg(long, conflicts_with_all = ["suites", "keys"])]
    all: bool,
    /// Record the results of the named suites, and render docs/figures.md; with no suite, only render it
    #[arg(long, conflicts_with = "all")]
    render: bool,
}

/// Runs the named suites, or all, each to its end, and records the results if requested. Fails if a bar is missed.
pub fn bench(options: &Options) -> Result<()> {
    let Options { suites, keys, all, render } = options;
    if !keys.is_empty() && *suites != ["scale"] {
        bail!("--key needs the suite scale: ./isthmus bench scale --key {}", keys[0]);
    }
    if *render && suites.is_empty() {
        setup::install(&[Purpose::Host])?;
        return record(&[]);
    }
    setup::install(&[Purpose::Build, Purpose::Host, Purpose::Run])?;
    let (reports, failed) = measure(suites, keys)?;
    if *all || *render {
        record(&reports)?;
    }
    if !failed.is_empty() {
        bail!("benches that missed a bar or could not run: {}", failed.join(", "));
    }
    Ok(())
}

/// Runs the named suites, or all. Returns the reports that they have written, and the suites that could not run or
/// missed a bar.
fn measure(suites: &[String], keys: &[String]) -> Result<(Vec<PathBuf>, Vec<&'static str>)> {
    let (mut reports, mut failed) = (Vec::new(), Vec::new());
    let mut images = BTreeMap::new();
    let commit = commit::of_tree();
    for suite in
        SUITES.iter().filter(|name| suites.is_empty() || suites.iter().any(|named| named == *name))
    {
        let family = family(suite);
        if let Entry::Vacant(place) = images.entry(family) {
            place.insert(image(family)?);
        }
        let report = workspace::target().join(format!("bench/{suite}.json"));
        let before = report.metadata().and_then(|file| file.modified()).ok();
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.current_dir(workspace::root()).env("ISTHMUS_IMAGE", &images[&family]);
        cargo.env("ISTHMUS_COMMIT", &commit);
        cargo.args(["run", "--quiet", "--profile", "host", "-p", "bench", "--", suite]);
        cargo.args(keys.iter().flat_map(|key| ["--key", key]));
        if let Err(error) = command::run(&mut cargo) {
            eprintln!("{error:#}");
            failed.push(*suite);
        }
        let after = report.metadata().and_then(|file| file.modified()).ok();
        if after.is_some() && after != before {
            reports.push(report);
        }
    }
    Ok((reports, failed))
}

/// The family of drivers that a suite's image has besides the default ones.
fn family(suite: &str) -> Option<&'static str> {
    (suite == "mlx5").then_some("mlx5")
}

fn image(family: Option<&str>) -> Result<PathBuf> {
    let options = match family {
        Some(name) => build::Options {
            families: Families::and(name),
            name: Some(format!("isthmus-{name}")),
            ..build::Options::default()
        },
        None => build::Options::default(),
    };
    Ok(build::build(&options)?.elf)
}

/// Records these reports in `docs/figures.json`, and renders the pages and pictures from it (`tests/bench/figures`).
fn record(reports: &[PathBuf]) -> Result<()> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(workspace::root());
    cargo.args(["run", "--quiet", "--profile", "host", "-p", "figures", "--"]).args(reports);
    command::run(&mut cargo)
}
