//! The interface between operator and appliance: the configuration document, the console on the serial line, the log,
//! reports. None of it is on the data path, so the image has it built for size.

pub mod config;
pub mod console;
pub mod crash;
pub mod log_ring;
pub mod refused;
pub mod report;
mod suggestion;
