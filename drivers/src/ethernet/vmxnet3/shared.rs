//! Memory shared by driver and device (Linux: `drivers/net/vmxnet3/vmxnet3_defs.h`): one block for the device, one for
//! each of its queues, and one for the hash that chooses a receive queue. Little-endian.

use crate::ethernet::owners::{ENTRIES, queue_of};
use crate::hal::{HashKey, Window};

/// Bytes of the device's block.
const DEVICE: usize = 768;
/// Bytes of a queue's block. These follow the device's, aligned to 128 bytes.
const QUEUE: usize = 256;
/// Bytes of the hash's block.
const HASH: usize = 8 + 40 + ENTRIES;

/// Bytes of all blocks, for `pairs` pairs of queues.
pub const fn bytes(pairs: usize) -> usize {
    DEVICE + 2 * pairs * QUEUE + HASH
}

// Offsets in the device's block.
const MAGIC: (usize, u32) = (0, 0xbabe_fee1);
const DRIVER_VERSION: usize = 8;
/// 64 bits, Linux.
const SYSTEM: (usize, u32) = (12, 2 | 1 << 2);
const REVISIONS: [usize; 2] = [16, 20];
/// Feature: a hash chooses a receive queue.
const FEATURES: (usize, u32) = (24, 2);
const QUEUES_ADDRESS: usize = 40;
const QUEUES_BYTES: usize = 52;
const MTU: usize = 56;
/// Buffers of a frame (16 bits), queues of each kind (8 bits each).
const COUNTS: usize = 60;
/// Automatic masking (8 bits), number of interrupts, number of the event interrupt.
const INTERRUPTS: usize = 80;
const RECEIVE_MODE: usize = 120;
/// Receive mode: own address, multicast, broadcast, all multicast.
const MODE: u32 = 1 | 2 | 4 | 8;
/// A bit for each VLAN.
const VLANS: usize = 136;
const VLAN_BYTES: usize = 512;
/// Version, length and address of the hash's block.
const HASH_PLACE: [usize; 3] = [648, 652, 656];

// Hash's block: IPv4 and IPv6 addresses, Toeplitz; bytes of the key, entries of the table (16 bits each).
const HASH_OF: [u32; 2] = [1 | 1 << 2 | 1 << 16, 40 | (ENTRIES as u32) << 16];

// Offsets in a queue's block.
const UPDATE_PRODUCER: usize = 0;
const RING: usize = 16;
const COMPLETIONS: usize = 32;
const RING_ENTRIES: usize = 56;
const COMPLETION_ENTRIES: usize = 64;
const INTERRUPT: usize = 72;
const STOPPED: usize = 80;
/// Receive queue: counters of frames without a buffer, and of bad frames (64 bits each).
const MISSED: [usize; 2] = [152, 160];

/// A ring and its completions: bus addresses, number of entries.
#[derive(Clone, Copy, Debug)]
pub struct Rings {
    pub ring: u64,
    pub completions: u64,
    pub entries: u32,
}

impl Rings {
    /// A ring of `entries` descriptors of `len` bytes, and behind it as many completions.
    pub fn of(ring: &Window, entries: u32, len: usize) -> Self {
        let ring = ring.bus_address();
        Rings { ring, completions: ring + (entries as usize * len) as u64, entries }
    }
}

/// The memory, and its number of pairs of queues.
pub struct Shared {
    memory: Window,
    pairs: usize,
}

impl Shared {
    /// Uses memory of [`bytes`] bytes that begins on a page.
    pub fn new(memory: Window, pairs: usize) -> Self {
        Shared { memory, pairs }
    }

    pub fn memory(&self) -> Window {
        self.memory
    }

    pub fn address(&self) -> u64 {
        self.memory.bus_address()
    }

    /// Offset of a receive queue's block. Those of the transmit queues come first.
    fn receive(&self, pair: usize) -> usize {
        DEVICE + (self.pairs + pair) * QUEUE
    }

    /// Writes the configuration that the device reads when it is activated. `rings`: receive and transmit rings of each
    /// pair. Each pair has two interrupts, or all share one without MSI-X (`messages`).
    pub fn fill(&self, mtu: u16, rings: &[[Rings; 2]], key: &HashKey, messages: bool) {
        self.memory.fill(0);
        let queues = self.address() + DEVICE as u64;
        let pairs = self.pairs as u32;
        let count = if messages { 2 * pairs } else { 1 };
        self.put(&[
            MAGIC,
            (DRIVER_VERSION, 1),
            SYSTEM,
            (REVISIONS[0], 1),
            (REVISIONS[1], 1),
            (QUEUES_ADDRESS, queues as u32),
            (QUEUES_ADDRESS + 4, (queues >> 32) as u32),
            (QUEUES_BYTES, 2 * pairs * QUEUE as u32),
            (MTU, mtu.into()),
            (COUNTS, 1 | pairs << 16 | pairs << 24),
            (INTERRUPTS, count << 8),
            (RECEIVE_MODE, MODE),
        ]);
        (0..VLAN_BYTES / 4).for_each(|n| self.put(&[(VLANS + 4 * n, u32::MAX)]));
        for (pair, [receive, transmit]) in rings.iter().enumerate() {
            let interrupt = if messages { 2 * pair as u32 } else { 0 };
            let sent = interrupt + u32::from(messages);
            let transmitter = (DEVICE + pair * QUEUE, transmit, sent);
            for (at, rings, interrupt) in [transmitter, (self.receive(pair), receive, interrupt)] {
                self.put(&[
                    (at + RING, rings.ring as u32),
                    (at + RING + 4, (rings.ring >> 32) as u32),
                    (at + COMPLETIONS, rings.completions as u32),
                    (at + COMPLETIONS + 4, (rings.completions >> 32) as u32),
                    (at + RING_ENTRIES, rings.entries),
                    (at + COMPLETION_ENTRIES, rings.entries),
                    (at + INTERRUPT, interrupt),
                ]);
            }
        }
        if self.pairs > 1 {
            self.fill_hash(key);
        }
    }

    /// Writes the hash's block.
    fn fill_hash(&self, key: &HashKey) {
        let at = self.receive(self.pairs);
        let address = self.address() + at as u64;
        let [version, len, place] = HASH_PLACE;
        self.put(&[
            FEATURES,
            (version, 1),
            (len, HASH as u32),
            (place, address as u32),
            (place + 4, (address >> 32) as u32),
        ]);
        let table = (0..ENTRIES / 4).map(|n| {
            u32::from_le_bytes(core::array::from_fn(|i| queue_of(4 * n + i, self.pairs) as u8))
        });
        let words = HASH_OF.into_iter().chain(*key).chain(table);
        (at..).step_by(4).zip(words).for_each(|word| self.put(&[word]));
    }

    #[inline(never)]
    fn put(&self, words: &[(usize, u32)]) {
        words.iter().for_each(|&(at, word)| self.memory.store32(at, word));
    }

    /// Whether the device requests updates of the receive producer index.
    pub fn wants_producer(&self, pair: usize) -> bool {
        self.memory.load32(self.receive(pair) + UPDATE_PRODUCER) & 0xff != 0
    }

    /// Whether the device has stopped a queue because of an error.
    pub fn is_stopped(&self) -> bool {
        let stopped = |queue| self.memory.load32(DEVICE + queue * QUEUE + STOPPED) & 0xff != 0;
        (0..2 * self.pairs).any(stopped)
    }

    /// Number of frames missed since the device was activated.
    pub fn missed(&self) -> u64 {
        let count = |at| self.memory.load64(at);
        let all = (0..self.pairs).flat_map(|pair| MISSED.map(|at| self.receive(pair) + at));
        all.map(count).fold(0, u64::wrapping_add)
    }
}
