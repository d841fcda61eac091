//! The operator's interface to the appliance: the configuration document, the serial console, the log, and reports.
//! None of it is on the data path, so the image builds it for size.
//!
//! ```text
//!    image, host's document, disk, command line, console
//!         │ TOML documents, in this order
//!         ▼
//!    config (one table of keys) ──► Config ──► gateway::start, orders
//!    console (editor, completion, help) ──► commands ──► management
//!    log_ring (audit, refusals, problems, notes) ◄── all crates
//!         └──► audit (the lines about operators, kept by the config disk)
//! ```
//!
//! Invariants:
//!
//! * A document that cannot be read, or is damaged, leaves closed what it could have restricted.
//! * A secret is neither displayed, nor logged, nor kept in the history.
//!
//! Tests: `config/*_tests.rs`, `console/tests.rs`, `tests/fuzz`, the suites `config`, `console`, `save`.

pub mod audit;
pub mod caller;
pub mod config;
pub mod console;
pub mod crash;
pub mod log_ring;
pub mod refused;
pub mod report;
mod suggestion;
