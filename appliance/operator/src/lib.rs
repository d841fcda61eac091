//! What operator and appliance tell each other: the configuration document, the console on the serial
//! line, the log, reports. Nothing of it is on the data path, so that the image has it built small.

pub mod config;
pub mod console;
pub mod crash;
pub mod log_ring;
pub mod refused;
pub mod report;
mod suggestion;
