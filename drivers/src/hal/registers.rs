//! Device registers behind a memory BAR (or a model of them in tests).

/// A block of device registers. Offsets are in bytes from its start, values in the CPU's byte order. A read past the
/// end or misaligned returns all ones, such a write has no effect, as on PCI.
pub trait Registers: Send {
    /// Size in bytes.
    fn len(&self) -> usize;
    /// Whether the block has no registers.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Reads 8 bits.
    fn read8(&self, offset: usize) -> u8;
    /// Reads 16 bits.
    fn read16(&self, offset: usize) -> u16;
    /// Reads 32 bits.
    fn read32(&self, offset: usize) -> u32;
    /// Reads 64 bits.
    fn read64(&self, offset: usize) -> u64;
    /// Writes 8 bits.
    fn write8(&self, offset: usize, value: u8);
    /// Writes 16 bits.
    fn write16(&self, offset: usize, value: u16);
    /// Writes 32 bits.
    fn write32(&self, offset: usize, value: u32);
    /// Writes 64 bits.
    fn write64(&self, offset: usize, value: u64);
    /// Whether the machine can write 64 bytes at once.
    fn writes_64_bytes(&self) -> bool {
        false
    }
    /// Writes 64 bytes, in the CPU's byte order, as one write that cannot be torn, after all earlier writes to memory.
    /// The offset is a multiple of 64. No effect on a machine without such writes.
    fn write_64_bytes(&self, _offset: usize, _words: &[u64; 8]) {}
}
