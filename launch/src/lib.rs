//! The host side of Isthmus: builds the image, boots it in QEMU, tests and measures it.
//!
//! `cli.rs` is the command behind `./isthmus`; the modules are a library so that `tests/` uses the same
//! QEMU runner. Only this crate and `tests/` know Linux. The feature `engines` adds the modules that link drivers,
//! protocol engines or the configuration's parser; building and booting do not need them.

pub mod ahead;
pub mod bench;
pub mod build;
#[cfg(feature = "engines")]
pub mod check;
pub mod cli;
pub mod command;
pub mod demo;
pub mod fresh;
pub mod full;
pub mod fuzz;
pub mod guest;
pub mod http;
#[cfg(feature = "engines")]
pub mod image;
pub mod models;
#[cfg(feature = "engines")]
pub mod ntb;
pub mod pages;
#[cfg(feature = "engines")]
pub mod passthrough;
pub mod prepush;
#[cfg(feature = "engines")]
pub mod probe;
pub mod progress;
pub mod qemu;
pub mod races;
#[cfg(feature = "engines")]
pub mod release;
pub mod remote;
#[cfg(feature = "engines")]
pub mod run;
pub mod sanitizer;
pub mod setup;
pub mod symbolize;
pub mod terminal;
pub mod test;
#[cfg(feature = "engines")]
pub mod uhyve;
pub mod workspace;
