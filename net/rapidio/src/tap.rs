//! Where messages are shown to a capture: what goes by is kept until the loop takes it, in the same round or the next.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use drivers::hal::Instant;
use drivers::rapidio::Mailbox;

/// Messages that wait to be taken: those of a round.
const MOST: usize = 1024;

/// A message that has gone by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tapped {
    /// When, as far as the loop knows.
    pub at: Instant,
    /// It was sent from here.
    pub is_sent: bool,
    /// Ids of the sender and of the receiver.
    pub ids: [u16; 2],
    /// Its mailbox.
    pub mailbox: Mailbox,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// All that has gone by, while somebody wants it. Off it costs a test for each message.
#[derive(Debug, Default)]
pub struct Tap {
    wanted: Cell<bool>,
    now: Cell<Instant>,
    own_id: Cell<u16>,
    messages: RefCell<VecDeque<Tapped>>,
}

impl Tap {
    /// Whether messages are wanted.
    #[inline]
    pub fn set_wanted(&self, wanted: bool) {
        self.wanted.set(wanted);
    }

    /// Whether they are.
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

    /// The next message, the oldest first.
    pub fn next(&self) -> Option<Tapped> {
        self.messages.borrow_mut().pop_front()
    }

    /// A message was given to the port.
    #[inline]
    pub fn sent(&self, to: u16, mailbox: Mailbox, bytes: &[u8]) {
        if self.wanted.get() {
            self.keep(true, [self.own_id.get(), to], mailbox, bytes);
        }
    }

    /// A message has arrived.
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
