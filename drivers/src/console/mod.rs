//! The operator's console by other means than a serial port of the machine's.

pub mod virtio_console;

/// A line to the operator.
pub trait ConsoleLine {
    /// Whether something has arrived since it was read. Reads no device register.
    fn has_rung(&self) -> bool;

    /// Takes what has arrived; never blocks. Returns how many bytes.
    fn read(&mut self, into: &mut [u8]) -> usize;

    /// Gives bytes; never blocks. Returns how many it took.
    fn write(&mut self, bytes: &[u8]) -> usize;
}
