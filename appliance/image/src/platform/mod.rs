//! The machine under the appliance: Hermit, and PC hardware.

pub mod uart;
