//! Collects the problems that validation finds.

use crate::config::item::problem;
use crate::config::origin::{Kind, Origin, Problem};
use crate::config::tree::Node;

/// Problems found so far, and the tree that gives their origins.
pub(super) struct Report<'a> {
    pub root: &'a Node,
    pub problems: Vec<Problem>,
}

impl Report<'_> {
    /// Origin of the value at a path, or of its nearest parent.
    pub fn origin(&self, path: &str) -> Origin {
        self.root.nearest(path).origin
    }

    #[inline(never)]
    pub fn add(&mut self, path: String, reason: String, accepted: &str) {
        self.problems.push(problem(self.root.nearest(&path), &path, reason, accepted.into()));
    }

    /// Adds a missing value. An entry under construction on the console may still get it.
    #[inline(never)]
    pub fn missing(&mut self, path: String, reason: String, accepted: &str) {
        self.add(path, reason, accepted);
        if let Some(problem) = self.problems.last_mut() {
            problem.kind = Kind::Missing;
        }
    }
}
