//! Drivers of operator consoles other than the machine's serial port.

pub mod virtio_console;

/// A console line to the operator.
pub trait ConsoleLine {
    /// Whether input has arrived since the last read. Reads no device register.
    fn has_rung(&self) -> bool;

    /// Reads input; never blocks. Returns the number of bytes read.
    fn read(&mut self, into: &mut [u8]) -> usize;

    /// Writes output; never blocks. Returns the number of bytes accepted.
    fn write(&mut self, bytes: &[u8]) -> usize;
}
