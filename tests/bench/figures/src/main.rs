//! `figures REPORT…`: records the reports `SUITE.json` at these paths in `docs/figures.json`, and renders the pages
//! from it.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use figures::{Recorded, render};

fn main() -> ExitCode {
    match run(std::env::args_os().skip(1).map(Into::into)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(reports: impl Iterator<Item = std::path::PathBuf>) -> Result<()> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."));
    let root = root.canonicalize().context("the checkout no longer exists")?;
    let record = root.join("docs/figures.json");
    let mut recorded = Recorded::read(&record)?;
    for report in reports {
        let suite =
            report.file_stem().and_then(|name| name.to_str()).context("a report without a name")?;
        let text = fs::read_to_string(&report).with_context(|| report.display().to_string())?;
        recorded.record(suite, &text).with_context(|| report.display().to_string())?;
    }
    recorded.forget_unknown();
    write(&record, &recorded.to_json())?;
    for file in render(&root, &recorded)? {
        write(&file.path, &file.text)?;
    }
    Ok(())
}

/// Writes a file, unless it has this text already.
fn write(path: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|present| present == text) {
        return Ok(());
    }
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    println!("{}", path.display());
    fs::write(path, text).with_context(|| format!("could not write {}", path.display()))
}
