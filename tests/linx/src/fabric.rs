//! A network of RapidIO messages in virtual time: messages take a while, are lost, come twice, and overtake each other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use netsim::Rng;

use crate::peer::Frame;

/// How often what happens, in thousandths of messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// It is lost.
    pub loss: u32,
    /// It comes twice.
    pub twice: u32,
    /// It takes some milliseconds more, and others overtake it.
    pub late: u32,
}

/// Microseconds that a message takes.
const LATENCY: u64 = 5;
/// Most microseconds that one which is late takes more.
const LATE: u64 = 20_000;

/// A message under way: when it arrives, how many were sent before, and what it is.
type UnderWay = (u64, u64, u16, u16, u8, Vec<u8>);

/// The network.
#[derive(Debug)]
pub struct Fabric {
    /// What happens from now on.
    pub rates: Rates,
    rng: Rng,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    count: u64,
}

impl Fabric {
    /// From a seed.
    pub fn new(rates: Rates, rng: Rng) -> Fabric {
        Fabric { rates, rng, under_way: BinaryHeap::new(), count: 0 }
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
            self.under_way.push(Reverse((at, self.count, source, destination, mailbox, bytes)));
            self.count += 1;
        }
    }

    /// When the next one arrives.
    pub fn next_at(&self) -> Option<u64> {
        self.under_way.peek().map(|next| next.0.0)
    }

    /// One that has arrived.
    pub fn arrived(&mut self, now: u64) -> Option<Frame> {
        if self.next_at()? > now {
            return None;
        }
        let Reverse((_, _, source, destination, mailbox, bytes)) = self.under_way.pop()?;
        Some(Frame { source, destination, mailbox, bytes })
    }
}
