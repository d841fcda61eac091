//! The operator's interface to the appliance: the configuration document, the serial console, the log, and reports.
//! None of it is on the data path, so the image builds it for size.

pub mod config;
pub mod console;
pub mod crash;
pub mod log_ring;
pub mod refused;
pub mod report;
mod suggestion;
