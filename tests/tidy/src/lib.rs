//! Rules for the text of the tree that no compiler checks. `suites/tidy.rs` applies them to the working tree.
//!
//! A check is a function from text to a list of [`Finding`]s. It reads no files, so that unit tests can pass prepared
//! mistakes. Only [`Tree`] reads files.

#![forbid(unsafe_code)]

pub mod allowances;
pub mod dead_code;
pub mod fences;
pub mod figures;
pub mod functions;
pub mod index;
pub mod lengths;
pub mod links;
pub mod openings;
pub mod overflow;
pub mod report;
pub mod rust_text;
pub mod status;
mod tree;

use core::fmt;

pub use tree::Tree;

/// A line of the tree that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file, from the top of the tree.
    pub file: String,
    /// Line number, from 1; 0 for the whole file.
    pub line: usize,
    /// The broken rule, and how it is broken.
    pub text: String,
}

impl Finding {
    /// A finding at a line.
    pub fn at(file: &str, line: usize, text: impl Into<String>) -> Finding {
        Finding { file: file.into(), line, text: text.into() }
    }

    /// A finding about a whole file.
    pub fn of(file: &str, text: impl Into<String>) -> Finding {
        Finding::at(file, 0, text)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.text),
            line => write!(f, "{}:{line}: {}", self.file, self.text),
        }
    }
}
