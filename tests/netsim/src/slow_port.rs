//! A transmit queue that reads payload in place some time after it was queued, as devices do.

use crate::{Rng, bytes};
use drivers::hal::{Instant, Packet, TransmitProgress, Window};
use std::collections::VecDeque;
use std::time::Duration;

/// Most queued frames.
const ROOM: usize = 64;

/// The transmit queue of a port that stalls at times, as with flow control.
#[derive(Debug, Default)]
pub struct SlowPort {
    /// Longest stall in milliseconds; 0: no stalls.
    most: u64,
    queue: VecDeque<(Vec<u8>, Vec<Window>, Vec<u8>)>,
    /// End of the current stall.
    until: Option<Instant>,
    queued: u64,
    sent: u64,
}

impl SlowPort {
    /// Creates a queue with stalls of up to `most` milliseconds.
    pub fn new(most: u64) -> Self {
        SlowPort { most, ..SlowPort::default() }
    }

    /// Whether the queue accepts another frame.
    pub fn has_room(&self) -> bool {
        self.queue.len() < ROOM
    }

    /// Queues a frame.
    pub fn queue(&mut self, packet: &Packet<'_>, now: Instant, rng: &mut Rng) {
        let Packet { header, payload, trailer } = packet;
        self.queue.push_back((header.to_vec(), payload.to_vec(), trailer.to_vec()));
        self.queued += 1;
        self.stall(now, rng);
    }

    fn stall(&mut self, now: Instant, rng: &mut Rng) {
        if self.most > 0 && self.until.is_none() && rng.chance(100) {
            self.until = Some(now + Duration::from_millis(rng.within(1..self.most)));
        }
    }

    /// Sends the next frame with the current contents of its memory, unless the port is stalled.
    pub fn send(&mut self, now: Instant, rng: &mut Rng) -> Option<Vec<u8>> {
        if self.until.is_some_and(|until| until > now) {
            return None;
        }
        self.until = None;
        let (header, payload, trailer) = self.queue.pop_front()?;
        self.sent += 1;
        self.stall(now, rng);
        Some(bytes(&Packet { header: &header, payload: &payload, trailer: &trailer }))
    }

    /// The end of the stall, if frames are queued.
    pub fn deadline(&self) -> Option<Instant> {
        self.until.filter(|_| !self.queue.is_empty())
    }

    /// Progress of transmission.
    pub fn progress(&self) -> TransmitProgress {
        TransmitProgress { queued: self.queued, sent: self.sent }
    }
}
