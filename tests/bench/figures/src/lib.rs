//! The figures of `./isthmus bench`: their meanings, their bars, and the values recorded in `docs/figures.json`.
//! `docs/figures.md`, the pictures and a part of the README are rendered from these.

mod figure;
pub mod number;
mod page;
mod picture;
mod pictures;
mod readme;
mod recorded;
mod render;
mod suites;

pub use figure::{Bar, Figure, Of, Suite};
pub use recorded::{Measured, Recorded};
pub use render::{Rendered, render};
pub use suites::SUITES;

/// The suite with this name.
pub fn suite(name: &str) -> Option<&'static Suite> {
    SUITES.iter().copied().find(|suite| suite.name == name)
}
