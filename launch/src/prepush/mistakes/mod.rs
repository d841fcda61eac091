//! `./isthmus prepush --mistakes`: each check has to fail on a mistake that is planted for it.
//!
//! The mistakes are made in a copy of the working tree, one at a time. A mistake counts as found when its check fails
//! with a text that it does not print for the tree as it is.

mod copy;
mod list;

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Result, bail};

use super::check::CHECKS;
use super::tools::Tools;
use super::tree::Tree;
use copy::Copy;
use list::Mistake;

/// Plants all mistakes of the checks that `selected` accepts, and prints a table. Fails if a check misses a mistake.
pub(super) fn show(tree: &Tree, selected: impl Fn(&str) -> bool) -> Result<()> {
    let copy = Copy::of(&tree.root)?;
    let mut before = BTreeMap::new();
    let mut rows = Vec::new();
    for mistake in list::all().into_iter().filter(|mistake| selected(mistake.check)) {
        let started = Instant::now();
        let mut copied = Tree {
            root: copy.root().into(),
            only: mistake.only,
            advisories: None,
            tools: Tools { toolchain: tree.tools.toolchain.clone() },
        };
        let usual = before.entry((mistake.check, mistake.only));
        let usual = usual.or_insert_with(|| output(&copied, mistake.check)).clone();
        let planted = copy.plant(&mistake)?;
        if mistake.check == "deny" {
            copied.advisories = planted.advisories();
        }
        let found = output(&copied, mistake.check);
        drop(planted);
        let is_found = found.contains(&mistake.expected) && !usual.contains(&mistake.expected);
        if !is_found {
            eprintln!("expected {:?}, but the check printed:\n{found}", mistake.expected);
        }
        rows.push((mistake, is_found, started.elapsed()));
    }
    println!("\n{:<14} {:<44} {:<7} {:>8}", "check", "mistake", "result", "seconds");
    for (Mistake { check, what, .. }, is_found, time) in &rows {
        let result = if *is_found { "found" } else { "MISSED" };
        println!("{check:<14} {what:<44} {result:<7} {:>8.1}", time.as_secs_f64());
    }
    match rows.iter().filter(|(_, is_found, _)| !is_found).count() {
        0 => Ok(()),
        missed => bail!("{missed} of {} mistakes were not found", rows.len()),
    }
}

/// The output of a check that fails; empty if the check passes.
fn output(tree: &Tree, name: &str) -> String {
    let check = CHECKS.iter().find(|check| check.name == name).expect("a check of this name");
    (check.run)(tree).err().map(|error| format!("{error:#}")).unwrap_or_default()
}
