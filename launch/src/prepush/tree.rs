//! The working tree that is checked.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::tools::Tools;
use crate::workspace;

/// A working tree, and the programs that check it.
pub(super) struct Tree {
    pub root: PathBuf,
    /// The only crate to compile, for a planted mistake; `None` compiles all.
    pub only: Option<&'static str>,
    /// A clone of the public advisory database for crates.
    pub advisories: Option<PathBuf>,
    pub tools: Tools,
}

impl Tree {
    /// The checkout that this program was built from.
    pub fn here() -> Result<Tree> {
        let named = env::var_os("ISTHMUS_ADVISORY_DB").map(PathBuf::from);
        let advisories = named.unwrap_or_else(|| workspace::target().join("advisory-db"));
        Ok(Tree {
            root: workspace::root().into(),
            only: None,
            advisories: advisories.is_dir().then_some(advisories),
            tools: Tools::find()?,
        })
    }

    /// A file or directory of the tree.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// A command that runs at the top of the tree.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command
    }
}

/// The output directory of clippy, rustdoc and these checks.
pub(super) fn target() -> PathBuf {
    workspace::target().join("prepush")
}
