//! A channel and its states.

use super::Error;
use super::flow::Flow;
use super::wire::{HEADER, MOST};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::fmt;
use drivers::hal::Instant;
use drivers::rapidio::{Destination, Source};

/// The other end of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Id of the device.
    pub device: Destination,
    /// Number of the channel at that device.
    pub channel: u16,
}

/// A connect request that waits to be accepted.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub from: Source,
    pub channel: u16,
    pub at: Instant,
    /// Initial credit, if the requester offers flow control.
    pub offers: Option<u16>,
}

/// State of a channel.
#[derive(Debug)]
pub enum State {
    /// Accepts connect requests.
    Listening(VecDeque<Request>),
    /// A connect request was sent; times out at the given time.
    Connecting(Peer, Instant),
    /// Connected: data passes in both directions.
    Connected(Peer),
    /// The peer has closed the channel; received data can still be read.
    ClosedByPeer,
    /// The connect request was not acknowledged.
    TimedOut,
    /// Ended by an error; messages of the peer may be missing.
    Broken(Error),
}

/// A channel.
#[derive(Debug)]
pub struct Channel {
    pub state: State,
    /// Received data, without headers.
    pub received: VecDeque<Data>,
    /// The channel is in the list of events.
    pub has_news: bool,
    /// Senders must wait rather than lose messages ([`super::Engine::hold_up`]).
    pub holds_up: bool,
    /// Received data is sent back ([`super::Engine::send_back`]).
    pub sends_back: bool,
    /// Flow control with another appliance: agreed, or offered in the connect request.
    pub flow: Option<Box<Flow>>,
    /// Next tick of the flow control.
    pub tick: Instant,
}

impl Channel {
    /// A channel in `state`.
    pub fn new(state: State) -> Self {
        Channel {
            state,
            received: VecDeque::new(),
            has_news: false,
            holds_up: false,
            sends_back: false,
            flow: None,
            tick: Instant::ZERO,
        }
    }
    /// Whether data may be sent: the channel is not finished, and has credit.
    pub fn can_send(&self) -> bool {
        self.flow.as_ref().is_none_or(|flow| !flow.finished && flow.has_credit())
    }
}

/// Data of a message, in a reusable buffer.
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
    /// Fills the first `len` bytes by `copy`; false if the buffer is too small, or `copy` returns false.
    pub fn fill(&mut self, len: usize, copy: impl FnOnce(&mut [u8]) -> bool) -> bool {
        self.len = len;
        self.bytes.get_mut(..len).is_some_and(copy)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}
