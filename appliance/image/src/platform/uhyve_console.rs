//! The console under uhyve, which has output only.

pub use super::printer::Printer;
use super::uhyve;

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
        uhyve::with_console_memory(|uhyve| uhyve.print(&mut uhyve::Ports, bytes))
    }
}

/// Prints at once: for bring-up and fatal errors.
pub fn print(text: &str) {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let printed = uhyve::with_crash_memory(|uhyve| uhyve.print(&mut uhyve::Ports, rest));
        if printed == 0 {
            return;
        }
        rest = &rest[printed..];
    }
}
