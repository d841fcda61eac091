//! Connects the mirror to the engine. Messages are not copied.

use super::header;
use super::limits::{Budget, Counters, Limits, Refused, Turn};
use super::mirror::{Mark, Mirror, Out};
use crate::{Delivery, EndpointConfig, EndpointId, Engine, Received, SendError, Stripe, Timing};
use alloc::vec::Vec;
use core::time::Duration;
use drivers::hal::{Instant, Window};

/// The longest message in bytes.
pub const LONGEST: u64 = 64 << 20;
/// Memory that an engine needs for a message of that length, which takes 110 MiB in parts of 150 KiB.
pub const MEMORY: usize = 160 << 20;
/// Most messages of a peer in memory, including parts.
const MESSAGES: usize = 1024;
/// Most messages of a peer in parts.
const RENDEZVOUS: usize = 512;
/// Retransmissions, finally each 500 ms, before a peer counts as failed. A rank that computes may not poll for
/// minutes.
const RETRIES: u32 = 1200;

/// The budget for messages in parts of an engine with so many bytes of memory.
pub fn budget(memory: usize) -> Budget {
    Budget::new(memory as u64 / 4 * 3)
}

/// Configuration of a peer's endpoint, for an engine with so much memory. Messages are delivered in order, so that they
/// wait for memory in the order of sending, because the peer takes them back only in that order.
pub fn endpoint(config: EndpointConfig, memory: usize) -> EndpointConfig {
    EndpointConfig {
        tag: None,
        delivery: Delivery::InOrder,
        messages: MESSAGES,
        receive_bytes: memory / 4 * 3,
        sends: MESSAGES,
        // The budget divides the memory among peers.
        leaves_room: false,
        timing: Timing {
            retries: RETRIES,
            retransmit_most: Duration::from_millis(500),
            ..config.timing
        },
        ..config
    }
}

/// The mirror rank of one peer, over one or several interfaces.
#[derive(Debug)]
pub struct Rank {
    mirror: Mirror<Received>,
    /// By cookie: messages being returned, and their endpoints.
    sent: Vec<Option<(EndpointId, Received, Mark)>>,
    free: Vec<u16>,
}

impl Rank {
    /// A rank with the number in `sender` (job << 32 + rank).
    pub fn new(sender: u64, budget: &Budget) -> Self {
        let longest = LONGEST.min(budget.longest());
        let limits = Limits { rendezvous: RENDEZVOUS, parts: MESSAGES, longest };
        Rank {
            mirror: Mirror::new(sender as i32, limits),
            sent: (0..MESSAGES).map(|_| None).collect(),
            free: (0..MESSAGES as u16).rev().collect(),
        }
    }

    /// Sets that the peer sends over several interfaces.
    pub fn set_several(&mut self) {
        self.mirror.set_several();
    }

    /// Handles a message; an error if it is refused.
    pub fn take(
        &mut self,
        engine: &mut Engine,
        message: Received,
        budget: &mut Budget,
    ) -> Result<(), Refused> {
        let mut head = [0; header::LONGEST];
        let length = message.bytes.len();
        let head = head.get_mut(..length.min(header::LONGEST)).unwrap_or_default();
        // `head` is not longer than the message.
        let _ = message.bytes.read(0, head);
        let size = (length, message.takes());
        self.mirror.receive(message.tag, head, size, message, budget).map_err(|(why, message)| {
            engine.release(message);
            why
        })
    }

    /// Requests the rest of waiting messages, as far as there is memory.
    pub fn admit(&mut self, budget: &mut Budget) -> Turn {
        self.mirror.admit_in_turn(budget)
    }

    /// Drops overdue messages, because other peers wait for memory; returns their number.
    pub fn give_up_overdue(&mut self, budget: &mut Budget) -> usize {
        self.mirror.give_up_overdue(budget)
    }

    /// Handles the completions of an endpoint that has news; returns their number.
    pub fn hear(
        &mut self,
        engine: &mut Engine,
        endpoint: EndpointId,
        budget: &mut Budget,
    ) -> usize {
        let mut done = 0;
        while let Some(end) = engine.next_completion(endpoint) {
            let sent = self.sent.get_mut(end.cookie as usize).and_then(Option::take);
            if let Some((_, message, mark)) = sent {
                self.free.push(end.cookie as u16);
                engine.release(message);
                self.mirror.sent(mark, budget);
            }
            done += 1;
        }
        done
    }

    /// Carries out actions of the mirror, each over the endpoint that finishes it first; returns their number.
    pub fn send(&mut self, engine: &mut Engine, paths: &mut Stripe, now: Instant) -> usize {
        let mut done = 0;
        while let Some(out) = self.mirror.next_out() {
            done += 1;
            if let Err(out) = self.carry_out(engine, paths, out, now) {
                // The endpoint has news when there is room.
                self.mirror.put_back(out);
                break;
            }
        }
        done
    }

    /// Carries out an action of the mirror; returns it if there is no room now.
    fn carry_out(
        &mut self,
        engine: &mut Engine,
        paths: &mut Stripe,
        out: Out<Received>,
        now: Instant,
    ) -> Result<(), Out<Received>> {
        match out {
            Out::Drop(message) => engine.release(message),
            Out::Control(header) => {
                let bytes = header.emit();
                let bytes = bytes.get(..header.length()).unwrap_or_default();
                // Without an open endpoint, or on an error other than `Full`, the endpoint ends, for which there is
                // news.
                let Some(endpoint) = paths.choose(engine, bytes.len()) else { return Ok(()) };
                if engine.send(endpoint, header.tag(), bytes, now) == Err(SendError::Full) {
                    return Err(out);
                }
            }
            Out::Back(header, message, mark) => {
                let Some(endpoint) = paths.choose(engine, message.bytes.len()) else {
                    engine.release(message);
                    return Ok(());
                };
                let Some(place) = self.free.pop() else { return Err(out) };
                let bytes = header.emit();
                // The message began with a header of that length.
                let _ = message.bytes.write(0, bytes.get(..header.length()).unwrap_or_default());
                let (tag, windows) = (header.tag(), [message.bytes, Window::empty()]);
                match engine.send_windows(endpoint, tag, windows, place.into(), now) {
                    Ok(()) => {
                        if let Some(slot) = self.sent.get_mut(usize::from(place)) {
                            *slot = Some((endpoint, message, mark));
                        }
                    }
                    Err(SendError::Full) => {
                        self.free.push(place);
                        return Err(Out::Back(header, message, mark));
                    }
                    Err(_) => {
                        self.free.push(place);
                        engine.release(message);
                    }
                }
            }
        }
        Ok(())
    }

    /// Handles the failure or removal of an endpoint. All messages are released to the engine, except those in flight
    /// over other endpoints. Messages in progress may have lost a part, so they cannot complete; later messages can.
    pub fn give_up(&mut self, engine: &mut Engine, endpoint: EndpointId, budget: &mut Budget) {
        self.mirror.clear(budget, |message| engine.release(message));
        for (place, slot) in self.sent.iter_mut().enumerate() {
            if let Some((_, message, _)) = slot.take_if(|(over, ..)| *over == endpoint) {
                self.free.push(place as u16);
                engine.release(message);
            }
        }
    }

    /// Counters.
    pub fn counters(&self) -> &Counters {
        self.mirror.counters()
    }

    /// Number of messages in parts, and how many of them wait for memory.
    pub fn under_way(&self) -> (usize, usize) {
        self.mirror.under_way()
    }
}
