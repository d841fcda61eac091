//! The figures of `./isthmus bench`: what each means, the bar that it has to hold, and the values that were recorded
//! in `docs/figures.json`, with `docs/figures.md`, the pictures and a part of the README rendered from these.

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

/// The suite of a name.
pub fn suite(name: &str) -> Option<&'static Suite> {
    SUITES.iter().copied().find(|suite| suite.name == name)
}
