//! The console under uhyve, which has output only.

use super::hypercalls::{Ports, with_console_memory, with_crash_memory};
pub use crate::platform::printer::Printer;

/// The console. There is one. [`print`] uses uhyve's output beside its owner for a last message.
#[derive(Debug)]
pub struct Uart(());

impl Uart {
    /// Returns the console, which needs no set-up.
    pub fn take(_: Option<u16>) -> Self {
        Uart(())
    }

    /// False: there is no input.
    pub fn has_rung(&self) -> bool {
        false
    }

    /// Reads nothing: uhyve's calls that read block, and none reports whether input waits.
    pub fn read(&mut self, _: &mut [u8]) -> usize {
        0
    }

    /// Sends as many bytes as fit into one call. Returns their number.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        with_console_memory(|uhyve| uhyve.print(&mut Ports, bytes))
    }
}

/// Prints at once: for bring-up and fatal errors.
pub fn print(text: &str) {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let printed = with_crash_memory(|uhyve| uhyve.print(&mut Ports, rest));
        if printed == 0 {
            return;
        }
        rest = &rest[printed..];
    }
}
