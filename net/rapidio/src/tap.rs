//! Copies of sent and received messages for a capture. They are kept until the loop takes them, in the same round or
//! the next.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use drivers::hal::Instant;
use drivers::rapidio::Mailbox;

/// Maximum number of messages that are kept: those of a round.
const MOST: usize = 1024;

/// A message that was sent or received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tapped {
    /// Time of the loop's round.
    pub at: Instant,
    /// Sent by this port; else received.
    pub is_sent: bool,
    /// Ids of the sender and of the receiver.
    pub ids: [u16; 2],
    /// Mailbox of the message.
    pub mailbox: Mailbox,
    /// Bytes of the message.
    pub bytes: Vec<u8>,
}

/// Messages of a port, recorded while a capture runs. Disabled, it costs a test per message.
#[derive(Debug, Default)]
pub struct Tap {
    wanted: Cell<bool>,
    now: Cell<Instant>,
    own_id: Cell<u16>,
    messages: RefCell<VecDeque<Tapped>>,
}

impl Tap {
    /// Enables or disables recording.
    #[inline]
    pub fn set_wanted(&self, wanted: bool) {
        self.wanted.set(wanted);
    }

    /// Whether messages are recorded.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.wanted.get()
    }

    pub(crate) fn set_now(&self, now: Instant) {
        self.now.set(now);
    }

    pub(crate) fn set_own_id(&self, id: u16) {
        self.own_id.set(id);
    }

    /// The next message, oldest first.
    pub fn next(&self) -> Option<Tapped> {
        self.messages.borrow_mut().pop_front()
    }

    /// Records a message that was passed to the port.
    #[inline]
    pub fn sent(&self, to: u16, mailbox: Mailbox, bytes: &[u8]) {
        if self.wanted.get() {
            self.keep(true, [self.own_id.get(), to], mailbox, bytes);
        }
    }

    /// Records a message that has arrived.
    #[inline]
    pub fn received(&self, from: u16, mailbox: Mailbox, bytes: &[u8]) {
        if self.wanted.get() {
            self.keep(false, [from, self.own_id.get()], mailbox, bytes);
        }
    }

    #[cold]
    fn keep(&self, is_sent: bool, ids: [u16; 2], mailbox: Mailbox, bytes: &[u8]) {
        let (mut messages, at) = (self.messages.borrow_mut(), self.now.get());
        if messages.len() < MOST {
            messages.push_back(Tapped { at, is_sent, ids, mailbox, bytes: bytes.to_vec() });
        }
    }
}
