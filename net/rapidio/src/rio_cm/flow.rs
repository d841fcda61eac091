//! What stands above a channel whose other end is ours, too: credits, so that nothing is sent that finds no room; an
//! end that is said after the last message, with their number, so that it is known whether all have arrived; and signs
//! of life.
//!
//! Whoever asks for such a channel says so in two bytes of the request that Linux sends as 0 and does not read, and who
//! acknowledges does the same there. Only then these are said: to a stock peer nothing of it ever is.

use super::Error;

/// What stands in the last two bytes of a request, and of its acknowledgement: this is offered, and taken.
pub const OFFER: u16 = 0x4931;
/// Messages that may be under way: sent, and not taken by the user of the other end.
pub const WINDOW: u16 = 64;
/// The other end is told after so many messages that were taken, if nothing else is said before.
const TELL: u16 = WINDOW / 4;
/// How many ticks without a word an end is given up after.
const SILENT_TICKS: u8 = 10;

/// Counts of a channel. All are modulo 2^16.
#[derive(Debug, Default)]
pub struct Flow {
    sent: u16,
    taken_there: u16,
    received: u16,
    taken: u16,
    told: u16,
    /// How many the other end has sent in all: nothing more comes.
    end: Option<u16>,
    /// Nothing more is sent.
    pub finished: bool,
    /// Our user found no credit.
    pub wants_credit: bool,
    /// What we have taken waits to be told.
    pub is_queued: bool,
    /// Something was said since the last tick, and heard.
    spoke: bool,
    heard: bool,
    silent_ticks: u8,
}

/// What a tick asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tick {
    /// Nothing.
    Rest,
    /// A sign of life.
    Speak,
    /// The other end is given up.
    Silent,
}

impl Flow {
    /// Whether a message may be sent.
    pub fn has_credit(&self) -> bool {
        self.sent.wrapping_sub(self.taken_there) < WINDOW
    }

    /// One is sent; what its header says.
    pub fn send(&mut self) -> u16 {
        self.sent = self.sent.wrapping_add(1);
        self.say()
    }

    /// One that was received goes back at once: it is taken, and one is sent; what its header says.
    pub fn send_back(&mut self) -> u16 {
        self.taken = self.taken.wrapping_add(1);
        self.send()
    }

    /// Something is said; how many were taken.
    pub fn say(&mut self) -> u16 {
        self.spoke = true;
        self.told = self.taken;
        self.taken
    }

    /// How many were taken.
    pub fn taken(&self) -> u16 {
        self.taken
    }

    /// How many were sent.
    pub fn sent(&self) -> u16 {
        self.sent
    }

    /// The other end says how many it has taken: whether our user has been waiting for that.
    pub fn hear(&mut self, taken: u16) -> Result<bool, Error> {
        self.heard = true;
        let under_way = self.sent.wrapping_sub(self.taken_there);
        if taken.wrapping_sub(self.taken_there) > under_way {
            return Err(Error::Incomplete);
        }
        self.taken_there = taken;
        Ok(self.has_credit() && core::mem::take(&mut self.wants_credit))
    }

    /// A message has arrived; false if there was no credit for it, or its end was said already.
    pub fn receive(&mut self) -> bool {
        if self.end.is_some() || self.received.wrapping_sub(self.taken) >= WINDOW {
            return false;
        }
        self.received = self.received.wrapping_add(1);
        true
    }

    /// Our user has taken one; whether that is to be told.
    pub fn take(&mut self) -> bool {
        self.taken = self.taken.wrapping_add(1);
        let untold = self.taken.wrapping_sub(self.told);
        untold >= TELL && !core::mem::replace(&mut self.is_queued, true)
    }

    /// The other end says that it has sent so many in all, and no more.
    pub fn end(&mut self, sent: u16) -> Result<(), Error> {
        if sent != self.received || self.end.is_some() {
            return Err(Error::Incomplete);
        }
        self.end = Some(sent);
        Ok(())
    }

    /// All that the other end has sent has arrived.
    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// A second has passed.
    pub fn tick(&mut self) -> Tick {
        match core::mem::take(&mut self.heard) {
            true => self.silent_ticks = 0,
            false => self.silent_ticks += 1,
        }
        if self.silent_ticks >= SILENT_TICKS {
            return Tick::Silent;
        }
        match core::mem::take(&mut self.spoke) || core::mem::replace(&mut self.is_queued, true) {
            true => Tick::Rest,
            false => Tick::Speak,
        }
    }
}
