//! Rings with generation bits, and the queues that consist of them.

use super::{Fault, Vmxnet3};
use crate::Machine;
use crate::offload::{self, IPV4, IPV6, Layers};

/// A ring of 16-byte entries. Each has a generation bit that changes with every lap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ring {
    address: u64,
    entries: u32,
    /// Number of entries processed so far.
    passed: u32,
}

impl Ring {
    pub fn new(address: u64, entries: u32) -> Self {
        Ring { address, entries, passed: 0 }
    }

    fn index(&self) -> u32 {
        self.passed % self.entries.max(1)
    }

    fn generation(&self) -> bool {
        (self.passed / self.entries.max(1)).is_multiple_of(2)
    }

    fn entry(&self) -> u64 {
        self.address + 16 * u64::from(self.index())
    }
}

/// A transmit and a receive queue with their completion rings.
#[derive(Clone, Debug, Default)]
pub struct Pair {
    pub transmit: Ring,
    pub transmitted: Ring,
    pub receive: Ring,
    pub received: Ring,
    /// Interrupts of the receive and the transmit queue.
    pub interrupts: [u8; 2],
    pub missed: u64,
    /// Data of a packet whose last descriptor was not fetched yet.
    pub partial: Vec<u8>,
    /// The transmit queue hangs.
    pub is_stuck: bool,
}

/// A parsed descriptor.
struct Descriptor {
    address: u64,
    len: usize,
    last: bool,
}

impl Vmxnet3 {
    /// The next descriptor of a ring. Bit `bit` of its third word is the generation.
    fn descriptor(
        &mut self,
        ring: Ring,
        bit: u32,
        machine: &mut dyn Machine,
    ) -> Option<Descriptor> {
        let address = self.load::<8>(ring.entry(), machine);
        let word = self.load::<4>(ring.entry() + 8, machine) as u32;
        let upper = self.load::<4>(ring.entry() + 12, machine) as u32;
        let len = match word & 0x3fff {
            0 => 1 << 14,
            len => len as usize,
        };
        let ours = (word & 1 << bit != 0) == ring.generation() && ring.entries > 0;
        ours.then_some(Descriptor { address, len, last: upper & 1 << 12 != 0 })
    }

    /// Writes a completion: first, third and fourth word.
    fn complete(&mut self, ring: Ring, words: [u32; 2], machine: &mut dyn Machine) {
        let generation = u64::from(ring.generation()) << 63;
        _ = machine.write(ring.entry(), &u64::from(words[0]).to_le_bytes());
        let upper = generation | u64::from(words[1]);
        _ = machine.write(ring.entry() + 8, &upper.to_le_bytes());
    }

    /// Sends all posted packets of a pair.
    pub fn send(&mut self, pair: usize, machine: &mut dyn Machine) {
        if self.once(|fault| (fault == Fault::QueueHangs(pair)).then_some(())).is_some() {
            self.pairs[pair].is_stuck = true;
        }
        if self.pairs[pair].is_stuck {
            return;
        }
        let mut completed = false;
        while let Some(descriptor) = self.descriptor(self.pairs[pair].transmit, 14, machine) {
            let mut piece = vec![0; descriptor.len];
            if machine.read(descriptor.address, &mut piece).is_err() {
                self.complain(format!("a packet at {:#x} cannot be reached", descriptor.address));
            }
            self.pairs[pair].partial.extend_from_slice(&piece);
            let index = self.pairs[pair].transmit.index();
            self.pairs[pair].transmit.passed += 1;
            if !descriptor.last {
                continue;
            }
            let packet = core::mem::take(&mut self.pairs[pair].partial);
            if packet.len() < 60 {
                self.complain("a frame is shorter than 60 bytes");
            }
            self.sent.push(packet);
            if self.once(|fault| (fault == Fault::NeverCompletes).then_some(())).is_some() {
                self.hung = true;
                return;
            }
            let another = |fault| match fault {
                Fault::CompletesAnother(by) => Some(by),
                _ => None,
            };
            let by = self.once(another).unwrap_or(0);
            let twice = self.once(|fault| (fault == Fault::CompletesTwice).then_some(())).is_some();
            for _ in 0..=u32::from(twice) {
                self.complete(self.pairs[pair].transmitted, [index + by, 0], machine);
                self.pairs[pair].transmitted.passed += 1;
            }
            completed = true;
        }
        if completed {
            self.raise(pair, 1, machine);
        }
    }

    /// The queue pair of a frame.
    fn pair_of(&self, frame: &[u8]) -> usize {
        let Some((key, table)) = &self.hash else { return 0 };
        match Layers::of(frame).ethertype {
            IPV4 | IPV6 => table[(offload::toeplitz(key, frame, 3) & 0x7f) as usize].into(),
            _ => 0,
        }
    }

    /// Receives arrived frames while queues have room.
    pub fn take_in(&mut self, machine: &mut dyn Machine) {
        let mut received = 0u32;
        while let Some(frame) = self.arriving.pop_front() {
            let pair = self.pair_of(&frame);
            let Some(descriptor) = self.descriptor(self.pairs[pair].receive, 31, machine) else {
                self.pairs[pair].missed += 1;
                continue;
            };
            let length = |fault| match fault {
                Fault::Length(length) => Some(length),
                _ => None,
            };
            let skew = |fault| match fault {
                Fault::ReceivesAt(by) => Some(by),
                _ => None,
            };
            let whole = frame.len() <= descriptor.len;
            let copied = &frame[..frame.len().min(descriptor.len)];
            if machine.write(descriptor.address, copied).is_err() {
                self.complain(format!("a buffer at {:#x} cannot be reached", descriptor.address));
            }
            let len = self.once(length).map_or(copied.len() as u32, u32::from);
            let damaged = self.once(|fault| (fault == Fault::Damaged).then_some(())).is_some();
            let by = self.once(skew).unwrap_or(0);
            let index = (self.pairs[pair].receive.index() + by) % self.pairs[pair].receive.entries;
            let error = u32::from(damaged || !whole) << 14;
            // The completion has the queue's number beside the descriptor's.
            let name = index | (pair as u32) << 16 | 3 << 14;
            self.complete(self.pairs[pair].received, [name, len & 0x3fff | error], machine);
            self.pairs[pair].receive.passed += 1;
            self.pairs[pair].received.passed += 1;
            received |= 1 << pair;
        }
        for pair in (0..self.pairs.len()).filter(|pair| received >> pair & 1 == 1) {
            self.raise(pair, 0, machine);
        }
    }
}
