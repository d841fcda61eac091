//! Flow control of channels between two appliances: credits, so that every message finds room; a finish after the last
//! message, with the number of messages, so that the receiver can tell whether all have arrived; and keepalives.
//!
//! The requester offers flow control in two bytes of the request that Linux sends as 0 and does not read. The
//! acknowledging side accepts in the same bytes. Without both, none of these messages is sent: a stock peer never gets
//! one.
//!
//! A credit is the total number of messages that the peer may have sent since the begin. Memory is reserved for each of
//! them until the user has taken it ([`super::memory`]). A channel begins with few credits, and gets one more for each
//! message that is taken, as long as there is memory.

use super::Error;
use super::memory::Memory;

/// Offer in the last two bytes of a request, and its acceptance in those of the acknowledgement. The initial credit, 1
/// to [`WINDOW`], is added to it.
const OFFER: u16 = 0x4a00;
/// Maximum number of messages that were sent but not taken by the peer's user.
pub const WINDOW: u16 = 64;
/// Initial credit.
const FIRST: u16 = 8;
/// Number of new credits that are advertised at once.
const ADVERTISE: u16 = WINDOW / 4;
/// Number of ticks without a message after which the peer times out.
const SILENT_TICKS: u8 = 10;

/// Counters of a channel, all modulo 2^16.
#[derive(Debug, Default)]
pub struct Flow {
    sent: u16,
    /// Total of messages that the peer has granted.
    may_send: u16,
    received: u16,
    taken: u16,
    /// Total of messages that are granted to the peer.
    granted: u16,
    /// `granted` as last advertised to the peer.
    advertised: u16,
    /// Total of messages from the peer's finish: no more follow.
    end: Option<u16>,
    /// A finish was sent: no more data is sent.
    pub finished: bool,
    /// The user wants to send, but found no credit.
    pub wants_credit: bool,
    /// A credit is queued.
    pub is_queued: bool,
    /// A message with a credit was sent since the last tick.
    has_sent: bool,
    /// A message with a credit was received since the last tick.
    has_received: bool,
    silent_ticks: u8,
}

/// Action after a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tick {
    /// Nothing to send.
    Idle,
    /// Send a credit as keepalive.
    Keepalive,
    /// The peer has timed out.
    TimedOut,
}

/// The initial credit in the last word of a request or an acknowledgement; None without flow control.
pub fn offered(word: u16) -> Option<u16> {
    let first = word.wrapping_sub(OFFER);
    (1..=WINDOW).contains(&first).then_some(first)
}

impl Flow {
    /// Begins with an initial credit for the peer.
    pub fn new(memory: &mut Memory) -> Self {
        let granted = memory.grant(0, FIRST);
        Flow { granted, advertised: granted, ..Flow::default() }
    }

    /// The word for a request or an acknowledgement.
    pub fn offer(&self) -> u16 {
        OFFER + self.granted.wrapping_sub(self.taken)
    }

    /// Sets the initial credit that the peer has granted.
    pub fn begin(&mut self, may_send: u16) {
        self.may_send = may_send;
    }

    /// Whether a message may be sent.
    pub fn has_credit(&self) -> bool {
        self.sent != self.may_send
    }

    /// Number of messages for which memory is reserved: granted, and not taken yet.
    pub fn held(&self) -> u16 {
        self.granted.wrapping_sub(self.taken)
    }

    /// Counts a sent message; the credit for its header.
    pub fn send(&mut self) -> u16 {
        self.sent = self.sent.wrapping_add(1);
        self.advertise()
    }

    /// Counts a received message that is sent back at once: it is taken, and a message is sent. The credit for its
    /// header.
    pub fn send_back(&mut self, memory: &mut Memory) -> u16 {
        self.take(memory);
        self.replenish(memory);
        self.send()
    }

    /// Notes that a message with the current credit is sent; that credit.
    pub fn advertise(&mut self) -> u16 {
        self.has_sent = true;
        self.advertised = self.granted;
        self.granted
    }

    /// Total of messages that are granted to the peer.
    pub fn granted(&self) -> u16 {
        self.granted
    }

    /// Total of messages sent.
    pub fn sent(&self) -> u16 {
        self.sent
    }

    /// Takes a credit of the peer. True if the user has been waiting for it.
    pub fn update_credit(&mut self, may_send: u16) -> Result<bool, Error> {
        self.has_received = true;
        // An older count may follow a newer one: that of a credit whose channel the peer closed before it was sent.
        if may_send.wrapping_sub(self.may_send) < 0x8000 {
            if may_send.wrapping_sub(self.sent) > WINDOW {
                return Err(Error::Incomplete);
            }
            self.may_send = may_send;
        }
        Ok(self.has_credit() && core::mem::take(&mut self.wants_credit))
    }

    /// Keeps the peer from timing out while the mailbox is not read.
    pub fn suspend_timeout(&mut self) {
        self.has_received = true;
    }

    /// Counts a received message; false if the peer had no credit for it, or had finished.
    pub fn receive(&mut self) -> bool {
        if self.end.is_some() || self.received == self.granted {
            return false;
        }
        self.received = self.received.wrapping_add(1);
        true
    }

    /// Counts a message that the user has taken.
    pub fn take(&mut self, memory: &mut Memory) {
        memory.release(self.held(), 1);
        self.taken = self.taken.wrapping_add(1);
    }

    /// Grants a credit for a message that was taken, and one more.
    fn replenish(&mut self, memory: &mut Memory) {
        self.granted = self.granted.wrapping_add(memory.grant(self.held(), 2));
    }

    /// Grants credits as [`Flow::replenish`]. True if the caller must queue a credit message.
    pub fn grant(&mut self, memory: &mut Memory) -> bool {
        if self.end.is_some() {
            return false;
        }
        self.replenish(memory);
        let unadvertised = self.granted.wrapping_sub(self.advertised);
        let left = self.advertised.wrapping_sub(self.received);
        unadvertised >= ADVERTISE.min(left).max(1) && !core::mem::replace(&mut self.is_queued, true)
    }

    /// Takes the peer's finish, with its total of messages.
    pub fn end(&mut self, sent: u16) -> Result<(), Error> {
        if sent != self.received || self.end.is_some() {
            return Err(Error::Incomplete);
        }
        self.end = Some(sent);
        Ok(())
    }

    /// Whether the peer has finished, and all its messages have arrived.
    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Called once a second.
    pub fn tick(&mut self) -> Tick {
        match core::mem::take(&mut self.has_received) {
            true => self.silent_ticks = 0,
            false => self.silent_ticks += 1,
        }
        if self.silent_ticks >= SILENT_TICKS {
            return Tick::TimedOut;
        }
        match core::mem::take(&mut self.has_sent) || core::mem::replace(&mut self.is_queued, true) {
            true => Tick::Idle,
            false => Tick::Keepalive,
        }
    }
}
