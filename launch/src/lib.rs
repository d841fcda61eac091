//! The host side of Isthmus: builds the image, boots it in QEMU, tests and measures it.
//!
//! `main.rs` is the command behind `./isthmus`; the modules are a library so that `tests/` uses the same
//! QEMU runner. Only this crate and `tests/` know Linux.

pub mod ahead;
pub mod bench;
pub mod build;
pub mod check;
pub mod command;
pub mod demo;
pub mod fresh;
pub mod fuzz;
pub mod guest;
pub mod http;
pub mod image;
pub mod models;
pub mod ntb;
pub mod passthrough;
pub mod prepush;
pub mod probe;
pub mod progress;
pub mod qemu;
pub mod races;
pub mod release;
pub mod run;
pub mod sanitizer;
pub mod setup;
pub mod symbolize;
pub mod terminal;
pub mod test;
pub mod uhyve;
pub mod workspace;
