//! Model of a virtio device, for tests: registers (PCI and memory-mapped, versions 2 and 1) and split queues in the
//! driver's memory. It can violate the specification.

mod machine;
mod queue;
pub mod register_models;

pub use machine::{Machine, WallClock};
pub use queue::Chain;

use crate::hal::Window;
use queue::Queue;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// A device that is shared by its register models and the test that drives it.
#[derive(Clone)]
pub struct Model(Arc<Mutex<State>>);

/// State of the device.
pub struct State {
    pub device_type: u32,
    pub offered: u64,
    pub accepted: u64,
    pub status: u8,
    pub config: Vec<u8>,
    pub generation: u8,
    pub queues: Vec<Queue>,
    /// Interrupts raised, and notifications received.
    pub interrupts: u64,
    pub kicks: u64,
    /// The device accepts FEATURES_OK.
    pub agreeable: bool,
    /// The device comes out of reset.
    pub resets: bool,
    memory: Window,
    feature_select: u32,
    queue_select: u16,
    msix_vector: u16,
    /// Interrupt line: raised and not acknowledged (memory-mapped registers).
    line: bool,
    raised: Option<&'static core::sync::atomic::AtomicU64>,
}

impl Model {
    /// A device of `device_type` with queues of `queues` entries each, on a machine's memory.
    pub fn new(
        machine: &Machine,
        device_type: u32,
        offered: u64,
        config: &[u8],
        queues: &[u16],
    ) -> Model {
        Model(Arc::new(Mutex::new(State {
            device_type,
            offered,
            accepted: 0,
            status: 0,
            config: config.to_vec(),
            generation: 0,
            queues: queues.iter().map(|&max| Queue::new(max)).collect(),
            interrupts: 0,
            kicks: 0,
            agreeable: true,
            resets: true,
            memory: machine.memory(),
            feature_select: 0,
            queue_select: 0,
            msix_vector: 0xffff,
            line: false,
            raised: None,
        })))
    }

    /// The device's state, to check or to act as the device.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn event_index(&self) -> bool {
        self.accepted & 1 << 29 != 0
    }

    /// Whether the driver has set DRIVER_OK.
    pub fn live(&self) -> bool {
        self.status & 4 != 0
    }

    /// The next chain that the driver offered on queue `index`.
    pub fn pop(&mut self, index: usize) -> Option<Chain> {
        let event_index = self.event_index();
        let memory = self.memory;
        self.queues[index].pop(&memory, event_index)
    }

    /// Completes a chain, and interrupts if the driver requested it.
    pub fn push(&mut self, index: usize, head: u16, written: u32) {
        let event_index = self.event_index();
        let memory = self.memory;
        if self.queues[index].push(&memory, head.into(), written, event_index) {
            self.interrupt();
        }
    }

    /// Writes an arbitrary entry, and moves the used index by an arbitrary step.
    pub fn lie(&mut self, index: usize, id: u32, written: u32, step: u16) {
        let memory = self.memory;
        self.queues[index].lie(&memory, id, written, step);
    }

    fn interrupt(&mut self) {
        self.interrupts += 1;
        self.line = true;
        if let Some(raised) = self.raised {
            raised.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Bytes of memory at a bus address.
    pub fn read_memory(&self, address: u64, len: u32) -> Vec<u8> {
        let mut bytes = std::vec![0; len as usize];
        self.memory.read(self.offset(address), &mut bytes).expect("device reads outside of memory");
        bytes
    }

    /// Writes bytes of memory at a bus address.
    pub fn write_memory(&self, address: u64, bytes: &[u8]) {
        self.memory.write(self.offset(address), bytes).expect("device writes outside of memory");
    }

    fn offset(&self, address: u64) -> usize {
        (address - self.memory.bus_address()) as usize
    }

    /// Content of the chain's device-readable descriptors.
    pub fn gather(&self, chain: &Chain) -> Vec<u8> {
        chain.readable.iter().flat_map(|&(at, len)| self.read_memory(at, len)).collect()
    }

    /// Writes `bytes` to the chain's device-writable descriptors; returns how many fitted.
    pub fn scatter(&self, chain: &Chain, bytes: &[u8]) -> u32 {
        let mut rest = bytes;
        for &(at, len) in &chain.writable {
            let (now, later) = rest.split_at(rest.len().min(len as usize));
            self.write_memory(at, now);
            rest = later;
        }
        (bytes.len() - rest.len()) as u32
    }
}
