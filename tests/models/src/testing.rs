//! A machine for tests in one process: memory from address 0 on, and a record of interrupts.

use crate::{Interrupt, Machine, Memory, Unreachable};
use std::sync::{Arc, Mutex, PoisonError};

/// A machine with memory and a record of interrupts.
#[derive(Debug, Default)]
pub struct TestMachine {
    /// The memory, from address 0 on.
    pub memory: Vec<u8>,
    /// Raised interrupts.
    pub interrupts: Vec<Interrupt>,
}

impl TestMachine {
    /// Creates a machine with `size` zeroed bytes of memory.
    pub fn new(size: usize) -> Self {
        TestMachine { memory: vec![0; size], interrupts: Vec::new() }
    }

    fn place(&mut self, address: u64, length: usize) -> Result<&mut [u8], Unreachable> {
        let start = usize::try_from(address).map_err(|_| Unreachable(address))?;
        let end = start.checked_add(length).ok_or(Unreachable(address))?;
        self.memory.get_mut(start..end).ok_or(Unreachable(address))
    }
}

impl Machine for TestMachine {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreachable> {
        let place = self.place(address, into.len())?;
        into.copy_from_slice(place);
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Unreachable> {
        self.place(address, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    fn interrupt(&mut self, interrupt: Interrupt) -> bool {
        self.interrupts.push(interrupt);
        true
    }
}

/// Memory from address 0 on, for joined functions.
#[derive(Debug)]
pub struct TestMemory(pub Mutex<Vec<u8>>);

impl TestMemory {
    /// Creates a memory of `size` zeroed bytes.
    pub fn new(size: usize) -> Arc<Self> {
        Arc::new(TestMemory(Mutex::new(vec![0; size])))
    }

    fn with<T>(
        &self,
        address: u64,
        length: usize,
        access: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, Unreachable> {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = usize::try_from(address).map_err(|_| Unreachable(address))?;
        let end = start.checked_add(length).ok_or(Unreachable(address))?;
        memory.get_mut(start..end).map(access).ok_or(Unreachable(address))
    }
}

impl Memory for TestMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreachable> {
        self.with(address, into.len(), |place| into.copy_from_slice(place))
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Unreachable> {
        self.with(address, bytes.len(), |place| place.copy_from_slice(bytes))
    }
}
