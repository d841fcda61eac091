//! The list of checks.

use anyhow::Result;

use super::tree::Tree;
use super::{compiler, dependencies, text, unit};

/// A check of the tree.
pub(super) struct Check {
    pub name: &'static str,
    pub lane: Lane,
    /// Returns a remark for the table, or the error.
    pub run: fn(&Tree) -> Result<String>,
}

/// Checks of one lane run one after the other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// The main workspace with clippy and rustdoc, which share a target directory.
    Compiling,
    /// Everything else.
    Beside,
}

const fn compiling(name: &'static str, run: fn(&Tree) -> Result<String>) -> Check {
    Check { name, lane: Lane::Compiling, run }
}

const fn beside(name: &'static str, run: fn(&Tree) -> Result<String>) -> Check {
    Check { name, lane: Lane::Beside, run }
}

/// All checks, in the order of the table and of each lane.
pub(super) const CHECKS: &[Check] = &[
    beside("fmt", text::format),
    beside("tidy", text::tidy),
    beside("typos", text::typos),
    beside("workflow", text::workflow),
    beside("deny", dependencies::deny),
    compiling("clippy", compiler::host),
    compiling("doc", compiler::documentation),
    compiling("clippy-image", compiler::image),
    beside("clippy-kernel", compiler::kernel),
    beside("clippy-efi", compiler::efi),
    beside("unit", unit::changed_crates),
];
