//! What driver and device tell each other in memory (Linux: `drivers/net/vmxnet3/vmxnet3_defs.h`): one block for the
//! device, and one for each of its two queues. Little-endian.

use crate::hal::Window;

/// Bytes of the block for the device, and of each of the two for queues behind it, which begin on 128 bytes.
const DEVICE: usize = 768;
const QUEUE: usize = 256;
/// Bytes of all of it.
pub const BYTES: usize = DEVICE + 2 * QUEUE;

// Of the block for the device.
const MAGIC: (usize, u32) = (0, 0xbabe_fee1);
const DRIVER_VERSION: usize = 8;
/// 64 bits, Linux.
const SYSTEM: (usize, u32) = (12, 2 | 1 << 2);
const REVISIONS: [usize; 2] = [16, 20];
const QUEUES_ADDRESS: usize = 40;
const QUEUES_BYTES: usize = 52;
const MTU: usize = 56;
/// Buffers of a frame (16 bits), queues of each kind (8 bits each).
const COUNTS: (usize, u32) = (60, 1 | 1 << 16 | 1 << 24);
/// Masked by itself when raised (8 bits), number of interrupts, the one for events.
const INTERRUPTS: usize = 80;
const RECEIVE_MODE: usize = 120;
/// Own address, multicast, broadcast, all of multicast.
const MODE: u32 = 1 | 2 | 4 | 8;
/// A bit for each VLAN.
const VLANS: usize = 136;
const VLAN_BYTES: usize = 512;

// Of those for queues.
const UPDATE_PRODUCER: usize = 0;
const RING: usize = 16;
const COMPLETIONS: usize = 32;
const RING_ENTRIES: usize = 56;
const COMPLETION_ENTRIES: usize = 64;
const INTERRUPT: usize = 72;
const STOPPED: usize = 80;
/// Of the receive queue: frames that found no buffer, that were wrong (64 bits each).
const MISSED: [usize; 2] = [152, 160];

/// A ring and its completions: bus addresses, number of entries.
#[derive(Clone, Copy, Debug)]
pub struct Rings {
    pub ring: u64,
    pub completions: u64,
    pub entries: u32,
}

/// The memory.
pub struct Shared(Window);

impl Shared {
    /// In memory of [`BYTES`] that begins on a page.
    pub fn new(memory: Window) -> Self {
        Shared(memory)
    }

    pub fn address(&self) -> u64 {
        self.0.bus_address()
    }

    /// Writes all that the device reads when it is activated. `interrupts`: how many, and those of receive and transmit.
    pub fn fill(&self, mtu: u16, receive: Rings, transmit: Rings, interrupts: [u8; 3]) {
        let put = |(at, value): (usize, u32)| self.0.store32(at, value);
        self.0.fill(0);
        put(MAGIC);
        put((DRIVER_VERSION, 1));
        put(SYSTEM);
        REVISIONS.into_iter().for_each(|at| put((at, 1)));
        self.0.store64(QUEUES_ADDRESS, self.address() + DEVICE as u64);
        put((QUEUES_BYTES, 2 * QUEUE as u32));
        put((MTU, mtu.into()));
        put(COUNTS);
        let [count, received, sent] = interrupts;
        put((INTERRUPTS, u32::from_le_bytes([0, count, 0, 0])));
        put((RECEIVE_MODE, MODE));
        (0..VLAN_BYTES / 4).for_each(|n| put((VLANS + 4 * n, u32::MAX)));
        for (queue, rings, interrupt) in [(0, transmit, sent), (1, receive, received)] {
            let at = DEVICE + queue * QUEUE;
            self.0.store64(at + RING, rings.ring);
            self.0.store64(at + COMPLETIONS, rings.completions);
            put((at + RING_ENTRIES, rings.entries));
            put((at + COMPLETION_ENTRIES, rings.entries));
            put((at + INTERRUPT, interrupt.into()));
        }
    }

    /// Whether the device wants to be told of receive buffers.
    pub fn wants_producer(&self) -> bool {
        self.0.load32(DEVICE + QUEUE + UPDATE_PRODUCER) & 0xff != 0
    }

    /// Whether a queue was stopped by the device, which found a mistake.
    pub fn is_stopped(&self) -> bool {
        (0..2).any(|queue| self.0.load32(DEVICE + queue * QUEUE + STOPPED) & 0xff != 0)
    }

    /// Frames that were not received since it was activated.
    pub fn missed(&self) -> u64 {
        let count = |at| self.0.load64(DEVICE + QUEUE + at);
        MISSED.into_iter().map(count).fold(0, u64::wrapping_add)
    }
}
