//! What stands above a channel whose other end is ours, too: credits, so that nothing is sent that finds no room; an
//! end that is said after the last message, with their number, so that it is known whether all have arrived; and signs
//! of life.
//!
//! Whoever asks for such a channel says so in two bytes of the request that Linux sends as 0 and does not read, and who
//! acknowledges does the same there. Only then these are said: to a stock peer nothing of it ever is.
//!
//! What an end says is how many messages the other one may have sent in all. There is memory for each of them that was
//! not taken ([`super::memory`]). A channel begins with few, and has one more for each that is taken, as long as there is
//! memory for that.

use super::Error;
use super::memory::Memory;

/// What stands in the last two bytes of a request, and of its acknowledgement: this is offered, and taken. The lower
/// byte is how many messages may be sent at first, 1 to [`WINDOW`].
const OFFER: u16 = 0x4a00;
/// Messages at most that may be under way: sent, and not taken by the user of the other end.
pub const WINDOW: u16 = 64;
/// Those at first.
const FIRST: u16 = 8;
/// How many the other end may send more, of which it is told at once.
const TELL: u16 = WINDOW / 4;
/// How many ticks without a word an end is given up after.
const SILENT_TICKS: u8 = 10;

/// Counts of a channel. All are modulo 2^16.
#[derive(Debug, Default)]
pub struct Flow {
    sent: u16,
    /// How many may be sent.
    may_send: u16,
    received: u16,
    taken: u16,
    /// How many the other end may send, and what it was told of that.
    promised: u16,
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

/// What a request or an acknowledgement of such a channel offers: how many messages may be sent at first.
pub fn offered(word: u16) -> Option<u16> {
    let first = word.wrapping_sub(OFFER);
    (1..=WINDOW).contains(&first).then_some(first)
}

impl Flow {
    /// One that begins, with what is promised to the other end.
    pub fn new(memory: &mut Memory) -> Self {
        let promised = memory.promise(0, FIRST);
        Flow { promised, told: promised, ..Flow::default() }
    }

    /// What a request or an acknowledgement says of it.
    pub fn offer(&self) -> u16 {
        OFFER + self.promised.wrapping_sub(self.taken)
    }

    /// The other end has offered so many.
    pub fn begin(&mut self, may_send: u16) {
        self.may_send = may_send;
    }

    /// Whether a message may be sent.
    pub fn has_credit(&self) -> bool {
        self.sent != self.may_send
    }

    /// Messages for which there has to be memory: they may come, or have come and were not taken.
    pub fn held(&self) -> u16 {
        self.promised.wrapping_sub(self.taken)
    }

    /// One is sent; what its header says.
    pub fn send(&mut self) -> u16 {
        self.sent = self.sent.wrapping_add(1);
        self.say()
    }

    /// One that was received goes back at once: it is taken, and one is sent; what its header says.
    pub fn send_back(&mut self, memory: &mut Memory) -> u16 {
        self.take(memory);
        self.replenish(memory);
        self.send()
    }

    /// Something is said; how many the other end may send in all.
    pub fn say(&mut self) -> u16 {
        self.spoke = true;
        self.told = self.promised;
        self.promised
    }

    /// How many the other end may send in all.
    pub fn promised(&self) -> u16 {
        self.promised
    }

    /// How many were sent.
    pub fn sent(&self) -> u16 {
        self.sent
    }

    /// The other end says how many we may send in all: whether our user has been waiting for that.
    pub fn hear(&mut self, may_send: u16) -> Result<bool, Error> {
        self.heard = true;
        // An older word may come behind a younger one, of a channel that was closed before it was sent.
        if may_send.wrapping_sub(self.may_send) < 0x8000 {
            if may_send.wrapping_sub(self.sent) > WINDOW {
                return Err(Error::Incomplete);
            }
            self.may_send = may_send;
        }
        Ok(self.has_credit() && core::mem::take(&mut self.wants_credit))
    }

    /// It need not be heard of: we do not listen.
    pub fn excuse(&mut self) {
        self.heard = true;
    }

    /// A message has arrived; false if there was no credit for it, or its end was said already.
    pub fn receive(&mut self) -> bool {
        if self.end.is_some() || self.received == self.promised {
            return false;
        }
        self.received = self.received.wrapping_add(1);
        true
    }

    /// Our user has taken one.
    pub fn take(&mut self, memory: &mut Memory) {
        memory.release(self.held(), 1);
        self.taken = self.taken.wrapping_add(1);
    }

    /// Promises what one that was taken makes room for, and one more.
    fn replenish(&mut self, memory: &mut Memory) {
        self.promised = self.promised.wrapping_add(memory.promise(self.held(), 2));
    }

    /// The same; whether it is to be told.
    pub fn promise(&mut self, memory: &mut Memory) -> bool {
        if self.end.is_some() {
            return false;
        }
        self.replenish(memory);
        let untold = self.promised.wrapping_sub(self.told);
        let known = self.told.wrapping_sub(self.received);
        untold >= TELL.min(known).max(1) && !core::mem::replace(&mut self.is_queued, true)
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
