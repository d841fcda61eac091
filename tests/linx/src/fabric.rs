//! A network of RapidIO messages in virtual time, with latency, loss, duplicates and reordering.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use netsim::Rng;

use crate::peer::Frame;

/// Rates of faults, in thousandths of messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// Lost.
    pub loss: u32,
    /// Duplicated.
    pub twice: u32,
    /// Delayed by some milliseconds, so that others overtake it.
    pub late: u32,
}

/// Latency of a message in microseconds.
const LATENCY: u64 = 5;
/// Longest additional delay of a late message in microseconds.
const LATE: u64 = 20_000;

/// A message in flight: time of arrival, sequence number, source, destination, mailbox, bytes.
type InFlight = (u64, u64, u16, u16, u8, Vec<u8>);

/// The network.
#[derive(Debug)]
pub struct Fabric {
    /// Faults from now on.
    pub rates: Rates,
    rng: Rng,
    in_flight: BinaryHeap<Reverse<InFlight>>,
    count: u64,
}

impl Fabric {
    /// A network with these rates, from a seed.
    pub fn new(rates: Rates, rng: Rng) -> Fabric {
        Fabric { rates, rng, in_flight: BinaryHeap::new(), count: 0 }
    }

    /// Sends a message at a time in microseconds.
    pub fn send(&mut self, now: u64, frame: Frame) {
        if self.rng.chance(self.rates.loss) {
            return;
        }
        let copies = 1 + u64::from(self.rng.chance(self.rates.twice));
        for _ in 0..copies {
            let late = if self.rng.chance(self.rates.late) { self.rng.within(0..LATE) } else { 0 };
            let Frame { source, destination, mailbox, bytes } = frame.clone();
            let at = now + LATENCY + late;
            self.in_flight.push(Reverse((at, self.count, source, destination, mailbox, bytes)));
            self.count += 1;
        }
    }

    /// When the next message arrives.
    pub fn next_at(&self) -> Option<u64> {
        self.in_flight.peek().map(|next| next.0.0)
    }

    /// Takes a message that has arrived.
    pub fn arrived(&mut self, now: u64) -> Option<Frame> {
        if self.next_at()? > now {
            return None;
        }
        let Reverse((_, _, source, destination, mailbox, bytes)) = self.in_flight.pop()?;
        Some(Frame { source, destination, mailbox, bytes })
    }
}
