//! A channel and its states.

use super::Error;
use super::flow::Flow;
use super::wire::{HEADER, MOST};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::fmt;
use drivers::hal::Instant;
use drivers::rapidio::{Destination, Source};

/// A channel at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Id of the device.
    pub device: Destination,
    /// Number of the channel there.
    pub channel: u16,
}

/// A request that waits to be accepted.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub from: Source,
    pub channel: u16,
    pub at: Instant,
    /// It offers what our own have: so many messages at first.
    pub offers: Option<u16>,
}

/// What a channel is in.
#[derive(Debug)]
pub enum State {
    /// It takes requests.
    Listening(VecDeque<Request>),
    /// It has asked to be connected, and waits until then.
    Connecting(Peer, Instant),
    /// Data goes both ways.
    Connected(Peer),
    /// The other end has closed it; what had arrived can be read.
    ClosedByPeer,
    /// Nobody has answered.
    TimedOut,
    /// It has ended, and what the other end sent may not have arrived.
    Broken(Error),
}

/// A channel.
#[derive(Debug)]
pub struct Channel {
    pub state: State,
    /// Data that has arrived, without headers.
    pub received: VecDeque<Data>,
    /// It stands in the list of news.
    pub has_news: bool,
    /// Its user would have senders wait, and not lose what they send.
    pub holds_up: bool,
    /// Its user says back what is said.
    pub goes_back: bool,
    /// Of one whose other end is ours, and that of one which offers that.
    pub flow: Option<Box<Flow>>,
    /// The next tick of that.
    pub tick: Instant,
}

impl Channel {
    /// One in a state.
    pub fn new(state: State) -> Self {
        Channel {
            state,
            received: VecDeque::new(),
            has_news: false,
            holds_up: false,
            goes_back: false,
            flow: None,
            tick: Instant::ZERO,
        }
    }
    /// Whether the other end may be sent data.
    pub fn can_send(&self) -> bool {
        self.flow.as_ref().is_none_or(|flow| !flow.finished && flow.has_credit())
    }
}

/// Data of a message, in memory that is used again and again.
pub struct Data {
    bytes: Box<[u8; MOST - HEADER]>,
    len: usize,
}

impl Default for Data {
    fn default() -> Self {
        Data { bytes: Box::new([0; MOST - HEADER]), len: 0 }
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

impl Data {
    /// Has `copy` put `len` bytes in; false if there is no room for so many, or `copy` says so.
    pub fn fill(&mut self, len: usize, copy: impl FnOnce(&mut [u8]) -> bool) -> bool {
        self.len = len;
        self.bytes.get_mut(..len).is_some_and(copy)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}
