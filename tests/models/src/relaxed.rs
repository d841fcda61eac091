//! Relaxed ordering (PCI Express Base 5.0, 2.4): while Device Control allows it, the last write of data is held back
//! until after the status that reports it.

use crate::{Interrupt, Machine, Unreachable};

/// Writes that are held back: address and bytes.
pub type Held = Vec<(u64, Vec<u8>)>;

/// A machine that holds writes back.
pub struct Relaxed<'a> {
    pub machine: &'a mut dyn Machine,
    pub held: &'a mut Held,
}

impl Machine for Relaxed<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreachable> {
        self.machine.read(address, into)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Unreachable> {
        // Whether memory is there is known at once.
        self.machine.read(address, &mut vec![0; bytes.len()])?;
        self.held.push((address, bytes.to_vec()));
        Ok(())
    }

    fn interrupt(&mut self, interrupt: Interrupt) -> bool {
        self.machine.interrupt(interrupt)
    }
}

/// Makes writes that were held back.
pub fn release(held: &mut Held, machine: &mut dyn Machine) {
    for (address, bytes) in held.drain(..) {
        let _ = machine.write(address, &bytes);
    }
}
