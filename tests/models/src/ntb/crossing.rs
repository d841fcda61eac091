//! Accesses that cross a bridge to one machine, in order: to its memory and to its registers.

use crate::{ConfigSpace, Memory, Nanoseconds};
use std::collections::VecDeque;
use std::sync::Arc;

/// Duration of link training.
pub const TRAINING: Nanoseconds = 100_000_000;

/// Counters of a machine's accesses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Writes through windows.
    pub window_writes: u64,
    /// Accesses through a window outside its translation.
    pub missed: u64,
    /// Accesses translated to addresses without memory.
    pub unreachable: u64,
    /// Doorbells rung.
    pub rung: u64,
    /// Interrupts raised in this machine.
    pub interrupts: u64,
}

impl Counts {
    /// Names and numbers.
    pub fn list(&self) -> Vec<(String, u64)> {
        let all = [
            ("window_writes", self.window_writes),
            ("missed", self.missed),
            ("unreachable", self.unreachable),
            ("rung", self.rung),
            ("interrupts", self.interrupts),
        ];
        all.map(|(name, count)| (name.to_string(), count)).to_vec()
    }
}

/// A posted access. `R` is an access to registers.
#[derive(Clone, Debug)]
enum Posted<R> {
    Write(u64, Vec<u8>),
    Register(R),
}

/// Posted accesses to a machine, and its memory.
pub struct Crossing<R> {
    arriving: VecDeque<Posted<R>>,
    memory: Option<Arc<dyn Memory>>,
    /// Bus mastering of the machine's function is enabled.
    master: bool,
    /// Accesses to addresses without memory.
    pub unreachable: u64,
}

impl<R> Crossing<R> {
    pub fn new() -> Self {
        Crossing { arriving: VecDeque::new(), memory: None, master: false, unreachable: 0 }
    }

    /// Sets the access to the machine's memory.
    pub fn attach(&mut self, memory: Arc<dyn Memory>) {
        self.memory = Some(memory);
    }

    /// Reads the bus master enable from the function's configuration space.
    pub fn update_master(&mut self, config: &ConfigSpace) {
        self.master = config.is_bus_master();
    }

    pub fn is_master(&self) -> bool {
        self.master
    }

    pub fn post_write(&mut self, address: u64, bytes: &[u8]) {
        self.arriving.push_back(Posted::Write(address, bytes.to_vec()));
    }

    pub fn post(&mut self, register: R) {
        self.arriving.push_back(Posted::Register(register));
    }

    /// Drops all posted accesses.
    pub fn clear(&mut self) {
        self.arriving.clear();
    }

    /// Executes all posted accesses.
    pub fn deliver(&mut self, mut register: impl FnMut(R)) {
        while let Some(posted) = self.arriving.pop_front() {
            match posted {
                Posted::Write(address, bytes) => {
                    let memory = self.memory.as_ref().filter(|_| self.master);
                    if memory.is_none_or(|memory| memory.write(address, &bytes).is_err()) {
                        self.unreachable += 1;
                    }
                }
                Posted::Register(one) => register(one),
            }
        }
    }

    /// Loads from the machine's memory. Fills `into` with ones and returns false if the address is not memory.
    pub fn load(&mut self, address: u64, into: &mut [u8]) -> bool {
        let memory = self.memory.as_ref().filter(|_| self.master);
        let loaded = memory.is_some_and(|memory| memory.read(address, into).is_ok());
        if !loaded {
            into.fill(0xff);
            self.unreachable += 1;
        }
        loaded
    }
}
