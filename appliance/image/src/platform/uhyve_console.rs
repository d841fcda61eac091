//! The console under uhyve: its output, in place of a serial port. There is no input.

pub use super::printer::Printer;
use super::uhyve;

/// The console. There is one; whoever prints a last message may use uhyve's output beside its owner.
#[derive(Debug)]
pub struct Uart(());

impl Uart {
    /// There is nothing to be set up.
    pub fn take(_: Option<u16>) -> Self {
        Uart(())
    }

    /// Nothing ever arrives.
    pub fn has_rung(&self) -> bool {
        false
    }

    /// Nothing ever arrives: uhyve has no call that tells whether something has, and those that read wait.
    pub fn read(&mut self, _: &mut [u8]) -> usize {
        0
    }

    /// Sends as much as fits into one call; returns how many bytes.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        uhyve::of_the_console(|uhyve| uhyve.print(&mut uhyve::Ports, bytes))
    }
}

/// Prints at once: for bring-up and last words.
pub fn print(text: &str) {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let printed = uhyve::of_last_words(|uhyve| uhyve.print(&mut uhyve::Ports, rest));
        if printed == 0 {
            return;
        }
        rest = &rest[printed..];
    }
}
