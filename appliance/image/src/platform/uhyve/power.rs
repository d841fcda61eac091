//! Ends uhyve with an exit code. uhyve cannot restart a machine, so a restart has an exit code of its own.

use super::hypercalls;
use boot::acpi::Tables;

/// Requests a restart from the operator or supervisor of uhyve.
const RESTART: i32 = 8;

/// Does nothing: uhyve has no ACPI tables.
pub fn set_acpi(_: Option<Tables>) {}

/// Does nothing: uhyve has no such device.
pub fn debug_exit(_: u8) {}

/// Ends the machine: uhyve exits with `code`.
pub fn off(code: u8) -> ! {
    hypercalls::exit(code.into())
}

/// Ends the machine: uhyve exits with [`RESTART`].
pub fn reset(_: Option<&Tables>) -> ! {
    hypercalls::exit(RESTART)
}

/// There is no power button.
#[derive(Debug)]
pub enum Button {}

impl Button {
    /// None.
    pub fn take(_: Option<&Tables>) -> Option<Button> {
        None
    }

    /// Never called.
    pub fn was_pressed(&mut self) -> bool {
        match *self {}
    }
}
