//! What is wrong, as it is found.

use crate::config::item::problem;
use crate::config::origin::{Kind, Origin, Problem};
use crate::config::tree::Node;

/// Problems as they are found.
pub(super) struct Report<'a> {
    pub root: &'a Node,
    pub problems: Vec<Problem>,
}

impl Report<'_> {
    /// What the value at a path, or else what is above it, was read from.
    pub fn origin(&self, path: &str) -> Origin {
        self.root.nearest(path).origin
    }

    #[inline(never)]
    pub fn add(&mut self, path: String, reason: String, accepted: &str) {
        self.problems.push(problem(self.root.nearest(&path), &path, reason, accepted.into()));
    }

    /// Something that may still come, if the entry is being made.
    #[inline(never)]
    pub fn missing(&mut self, path: String, reason: String, accepted: &str) {
        self.add(path, reason, accepted);
        if let Some(problem) = self.problems.last_mut() {
            problem.kind = Kind::Missing;
        }
    }
}
