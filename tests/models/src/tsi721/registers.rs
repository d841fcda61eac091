//! Storage of registers without side effects, by their offsets in BAR 0.

/// Bytes of BAR 0.
pub const SIZE: u64 = 0x80000;

/// Values of the registers.
#[derive(Debug)]
pub struct Kept(Vec<u32>);

impl Kept {
    /// Creates the registers with value 0.
    pub fn new() -> Self {
        Kept(vec![0; SIZE as usize / 4])
    }

    /// Reads a register; 0 outside BAR 0.
    pub fn get(&self, offset: u64) -> u32 {
        self.0.get(offset as usize / 4).copied().unwrap_or(0)
    }

    /// Writes a register.
    pub fn set(&mut self, offset: u64, value: u32) {
        if let Some(register) = self.0.get_mut(offset as usize / 4) {
            *register = value;
        }
    }

    /// Sets bits of a register.
    pub fn raise(&mut self, offset: u64, bits: u32) {
        self.set(offset, self.get(offset) | bits);
    }

    /// Clears bits of a register.
    pub fn clear(&mut self, offset: u64, bits: u32) {
        self.set(offset, self.get(offset) & !bits);
    }

    /// Reads an address from two registers.
    pub fn address(&self, low: u64, high: u64) -> u64 {
        u64::from(self.get(low)) | u64::from(self.get(high)) << 32
    }
}
