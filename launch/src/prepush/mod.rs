//! `./isthmus prepush`: the checks before a push, in minutes. It boots nothing; `./isthmus test` does.
//!
//! Two lanes run side by side. One runs clippy and rustdoc over the main workspace, in a target directory of its own,
//! so that it does not invalidate the builds of tests. The other runs the short checks, the small workspaces and the
//! unit tests of changed crates.

mod capture;
mod changed;
mod check;
mod compiler;
mod dependencies;
mod mistakes;
mod table;
mod text;
mod tools;
mod tree;
mod unit;

use std::thread;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;

use check::{CHECKS, Check, Lane};
use table::Row;
use tree::Tree;

/// Options of `./isthmus prepush`.
#[derive(Args)]
pub struct Options {
    /// Run this check only (may be given several times)
    #[arg(long = "check", value_name = "NAME")]
    #[arg(value_parser = CHECKS.iter().map(|check| check.name).collect::<Vec<_>>())]
    checks: Vec<String>,
    /// Show that each check fails: plant a mistake for it in a copy of the tree
    #[arg(long)]
    mistakes: bool,
}

/// Runs all checks, or the selected ones. Fails if a check fails.
pub fn prepush(options: &Options) -> Result<()> {
    let tree = Tree::here()?;
    let selected =
        |name: &str| options.checks.is_empty() || options.checks.iter().any(|n| n == name);
    if options.mistakes {
        return mistakes::show(&tree, selected);
    }
    let checks: Vec<&Check> = CHECKS.iter().filter(|check| selected(check.name)).collect();
    let rows = run(&tree, &checks);
    table::print(&rows);
    let failed = rows.iter().filter(|row| row.outcome.is_err()).count();
    match failed {
        0 => Ok(()),
        _ => bail!("{failed} of {} checks failed", rows.len()),
    }
}

/// Options of `./isthmus tidy`.
#[derive(Args)]
pub struct TidyOptions {
    /// Print the measures of the tree: sizes, repeats, circles of modules
    #[arg(long)]
    report: bool,
    /// With --report: list the places that the measures count
    #[arg(long, requires = "report")]
    places: bool,
}

/// `./isthmus tidy`: the rules for the text of the tree alone, or its measures.
pub fn tidy(options: &TidyOptions) -> Result<()> {
    let tree = Tree::here()?;
    match options.report {
        true => text::report(&tree, options.places),
        false => text::tidy(&tree).map(drop),
    }
}

/// Runs the checks, those of each lane one after the other, and returns their rows in the order of `checks`.
fn run(tree: &Tree, checks: &[&'static Check]) -> Vec<Row> {
    let lane = |lane: Lane| -> Vec<Row> {
        let mine = checks.iter().filter(|check| check.lane == lane);
        mine.map(|check| run_one(tree, check)).collect()
    };
    let mut rows = thread::scope(|scope| {
        let compiling = scope.spawn(|| lane(Lane::Compiling));
        let beside = lane(Lane::Beside);
        let mut rows = compiling.join().unwrap_or_default();
        rows.extend(beside);
        rows
    });
    rows.sort_by_key(|row| checks.iter().position(|check| check.name == row.name));
    rows
}

fn run_one(tree: &Tree, check: &Check) -> Row {
    let started = Instant::now();
    let outcome = (check.run)(tree);
    let row = Row { name: check.name, outcome, time: started.elapsed() };
    table::report(&row);
    row
}
