//! What crosses a bridge to one of its machines: accesses to memory there, and what is done to registers, in order.

use crate::{ConfigSpace, Memory, Nanoseconds};
use std::collections::VecDeque;
use std::sync::Arc;

/// How long a link takes to be trained.
pub const TRAINING: Nanoseconds = 100_000_000;

/// What a machine's accesses came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Writes through windows.
    pub window_writes: u64,
    /// Accesses through a window that led nowhere.
    pub missed: u64,
    /// Such as led to where there is no memory.
    pub unreachable: u64,
    /// Bells that were rung.
    pub rung: u64,
    /// Interrupts that were raised in this machine.
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

/// What is under way. `R` is what is done to registers.
#[derive(Clone, Debug)]
enum Posted<R> {
    Write(u64, Vec<u8>),
    Register(R),
}

/// The way to a machine.
pub struct Crossing<R> {
    arriving: VecDeque<Posted<R>>,
    memory: Option<Arc<dyn Memory>>,
    /// The machine lets its function reach memory.
    master: bool,
    /// Accesses that led to where there is no memory.
    pub unreachable: u64,
}

impl<R> Crossing<R> {
    pub fn new() -> Self {
        Crossing { arriving: VecDeque::new(), memory: None, master: false, unreachable: 0 }
    }

    /// What reaches the machine's memory.
    pub fn attach(&mut self, memory: Arc<dyn Memory>) {
        self.memory = Some(memory);
    }

    /// Takes note of what the machine's driver lets the function do.
    pub fn see(&mut self, config: &ConfigSpace) {
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

    /// What is under way is lost.
    pub fn clear(&mut self) {
        self.arriving.clear();
    }

    /// Everything arrives.
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

    /// Loads from memory there, behind all that has arrived; ones where there is none. Whether there was.
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
