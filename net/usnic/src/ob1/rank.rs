//! The mirror as a user of the engine: messages go in and out of it without being copied.

use super::header;
use super::limits::{Budget, Counters, Limits, Refused, Turn};
use super::mirror::{Mark, Mirror, Out};
use crate::{Delivery, EndpointConfig, EndpointId, Engine, Received, SendError, Stripe, Timing};
use alloc::vec::Vec;
use core::time::Duration;
use drivers::hal::{Instant, Window};

/// The longest message in bytes.
pub const LONGEST: u64 = 64 << 20;
/// Memory that an engine needs for one of that length: in parts of 150 KiB it takes 110 MiB.
pub const MEMORY: usize = 160 << 20;
/// Messages of a peer that are here at a time, those in parts among them.
const MESSAGES: usize = 1024;
const RENDEZVOUS: usize = 512;
/// How often something is sent again, each 500 ms at last, until a peer has failed: a rank that computes hears
/// nothing for minutes.
const RETRIES: u32 = 1200;

/// What is set aside for messages in parts, of an engine with so many bytes of memory.
pub fn budget(memory: usize) -> Budget {
    Budget::new(memory as u64 / 4 * 3)
}

/// A peer's endpoint, of an engine with so much memory. Messages come in the order in which they were sent, so that
/// those which wait for memory do so in that order, too: the peer takes them back in no other.
pub fn endpoint(config: EndpointConfig, memory: usize) -> EndpointConfig {
    EndpointConfig {
        tag: None,
        delivery: Delivery::InOrder,
        messages: MESSAGES,
        receive_bytes: memory / 4 * 3,
        sends: MESSAGES,
        // The budget is there for that.
        leaves_room: false,
        timing: Timing {
            retries: RETRIES,
            retransmit_most: Duration::from_millis(500),
            ..config.timing
        },
        ..config
    }
}

/// The rank that we are towards one peer, over one interface or several.
#[derive(Debug)]
pub struct Rank {
    mirror: Mirror<Received>,
    /// Messages that are on their way back, by cookie, and over which endpoint.
    sent: Vec<Option<(EndpointId, Received, Mark)>>,
    free: Vec<u16>,
}

impl Rank {
    /// As the rank that `sender` (job << 32 + rank) is.
    pub fn new(sender: u64, budget: &Budget) -> Self {
        let longest = LONGEST.min(budget.longest());
        let limits = Limits { rendezvous: RENDEZVOUS, parts: MESSAGES, longest };
        Rank {
            mirror: Mirror::new(sender as i32, limits),
            sent: (0..MESSAGES).map(|_| None).collect(),
            free: (0..MESSAGES as u16).rev().collect(),
        }
    }

    /// The peer sends over several interfaces.
    pub fn set_several(&mut self) {
        self.mirror.set_several();
    }

    /// Takes a message; an error if it is none that such a rank can take.
    pub fn take(
        &mut self,
        engine: &mut Engine,
        message: Received,
        budget: &mut Budget,
    ) -> Result<(), Refused> {
        let mut head = [0; header::LONGEST];
        let length = message.bytes.len();
        let head = head.get_mut(..length.min(header::LONGEST)).unwrap_or_default();
        // It is no longer than the message.
        let _ = message.bytes.read(0, head);
        let size = (length, message.takes());
        self.mirror.receive(message.tag, head, size, message, budget).map_err(|(why, message)| {
            engine.release(message);
            why
        })
    }

    /// Asks for what there is memory for now.
    pub fn admit(&mut self, budget: &mut Budget) -> Turn {
        self.mirror.admit_in_turn(budget)
    }

    /// Gives up what does not go on, because other peers wait for memory; how many messages that were.
    pub fn give_up_overdue(&mut self, budget: &mut Budget) -> usize {
        self.mirror.give_up_overdue(budget)
    }

    /// Hears what has arrived at the peer over an endpoint that has news; how much that was.
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

    /// Sends what can be sent, each over the endpoint where it is done first; how much was done.
    pub fn send(&mut self, engine: &mut Engine, paths: &mut Stripe, now: Instant) -> usize {
        let mut done = 0;
        while let Some(out) = self.mirror.next_out() {
            done += 1;
            if let Err(out) = self.carry_out(engine, paths, out, now) {
                // There is news when there is room.
                self.mirror.put_back(out);
                break;
            }
        }
        done
    }

    /// Does what the mirror wants; gives it back if there is no room for it now.
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
                // Any other error is the endpoint's end, of which there is news, as where none is open.
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
                // It began with a header as long.
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

    /// An endpoint has failed, or is about to be removed: everything is given back to the engine but what is still on its
    /// way over others. What was under way has lost a part, so that the peer waits for it in vain; what begins now does
    /// not.
    pub fn give_up(&mut self, engine: &mut Engine, endpoint: EndpointId, budget: &mut Budget) {
        self.mirror.clear(budget, |message| engine.release(message));
        for (place, slot) in self.sent.iter_mut().enumerate() {
            if let Some((_, message, _)) = slot.take_if(|(over, ..)| *over == endpoint) {
                self.free.push(place as u16);
                engine.release(message);
            }
        }
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        self.mirror.counters()
    }

    /// Messages in parts that are under way, and how many of them wait for memory.
    pub fn under_way(&self) -> (usize, usize) {
        self.mirror.under_way()
    }
}
