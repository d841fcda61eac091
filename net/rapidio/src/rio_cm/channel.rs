//! A channel and its states.

use super::Error;
use super::flow::Flow;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
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
    /// It offers what our own have.
    pub offers: bool,
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
    pub received: VecDeque<Vec<u8>>,
    /// It stands in the list of news.
    pub has_news: bool,
    /// Its user would have senders wait, and not lose what they send.
    pub holds_up: bool,
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
            flow: None,
            tick: Instant::ZERO,
        }
    }
}
