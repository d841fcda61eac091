//! `./isthmus check`: what the appliance would say about a configuration document.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use appliance::config;

/// Checks the document at `path` with the code that runs in the appliance.
pub fn check(path: &Path) -> Result<()> {
    let text = fs::read(path).with_context(|| format!("could not read {}", path.display()))?;
    for warning in config::renamed_keys(&text) {
        println!("{}: {warning}", path.display());
    }
    match config::check(&text) {
        Ok(config) => {
            for what in config.open_to_everybody() {
                println!("{}: {what}: open to everybody", path.display());
            }
            println!("{}: good", path.display());
            Ok(())
        }
        Err(problems) => {
            for problem in &problems {
                println!("{}: {problem}", path.display());
            }
            bail!("{} is not usable; mistakes: {}", path.display(), problems.len());
        }
    }
}
