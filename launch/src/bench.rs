//! `./isthmus bench`: builds the image and runs the benchmarks of `tests/bench` on it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::process::Command;

use anyhow::{Result, bail};

use crate::build::{self, Families};
use crate::{command, workspace};

/// The suites, of which `target/bench/SUITE.json` is written.
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

/// The family of drivers that the image of a suite has besides the usual ones.
fn family(suite: &str) -> Option<&'static str> {
    (suite == "mlx5").then_some("mlx5")
}

/// Runs the named suites, or all, each to its end; fails if a bar is missed. `keys` are the figures that the
/// suite `scale` measures; all, if none is named.
pub fn bench(suites: &[String], keys: &[String]) -> Result<()> {
    if !keys.is_empty() && suites != ["scale"] {
        bail!("--key is for the suite scale alone: ./isthmus bench scale --key {}", keys[0]);
    }
    let mut failed = Vec::new();
    let mut images = BTreeMap::new();
    for suite in
        SUITES.iter().filter(|name| suites.is_empty() || suites.iter().any(|asked| asked == *name))
    {
        let family = family(suite);
        if let Entry::Vacant(image) = images.entry(family) {
            let options = match family {
                Some(name) => build::Options {
                    families: Families::and(name),
                    name: Some(format!("isthmus-{name}")),
                    ..build::Options::default()
                },
                None => build::Options::default(),
            };
            image.insert(build::build(&options)?.elf);
        }
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.current_dir(workspace::root()).env("ISTHMUS_IMAGE", &images[&family]);
        cargo.args(["run", "--quiet", "--profile", "host", "-p", "bench", "--", suite]);
        cargo.args(keys.iter().flat_map(|key| ["--key", key]));
        if let Err(error) = command::run(&mut cargo) {
            eprintln!("{error:#}");
            failed.push(*suite);
        }
    }
    if !failed.is_empty() {
        bail!("benches that missed a bar or could not run: {}", failed.join(", "));
    }
    Ok(())
}
