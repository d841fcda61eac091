//! The I/O ports of x86 machines.

/// I/O ports (or a model of them in tests).
pub trait IoPorts {
    /// Reads 8 bits of a port.
    fn read8(&mut self, port: u16) -> u8;
    /// Writes 16 bits to a port.
    fn write16(&mut self, port: u16, value: u16);
}
