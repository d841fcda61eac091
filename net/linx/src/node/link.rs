//! What is kept of a link.

use super::addresses::Addresses;
use super::remotes::{MOST_ADDRESSES, Remote, Remotes};
use super::wanted::Wanted;
use super::watch::Watch;
use super::{LinkId, Name};
use crate::pool::Chain;
use crate::riocm::{ConnectionConfig, ConnectionId, Down, SendError};
use crate::tcpcm::{TcpCm, TcpConfig};
use alloc::boxed::Box;
use alloc::collections::VecDeque;

/// What carries a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport<'a> {
    /// RapidIO messages.
    Riocm(ConnectionConfig<'a>),
    /// A TCP connection.
    Tcp(TcpConfig),
}

/// A link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig<'a> {
    /// Its name here. Names of the peer are `LINK/NAME`.
    pub name: &'a str,
    /// What carries it.
    pub transport: Transport<'a>,
    /// Highest link address of ours: so many names of ours can be published at a time. A peer ends the link at one that
    /// is higher than its own limit (LINX for Linux: `linx_max_sockets_per_link`, 1024 without a word).
    pub max_addresses: u32,
    /// Highest link address of the peer's. One above ends the link.
    pub max_peer_addresses: u32,
    /// Names that the peer may hunt for at a time.
    pub max_hunts: usize,
    /// Signals that are kept while their sender is not known.
    pub max_unclaimed: usize,
    /// Highest version of RLNH that is spoken: 1 or 2.
    pub version: u32,
}

impl<'a> LinkConfig<'a> {
    /// With defaults.
    pub fn new(name: &'a str, transport: Transport<'a>) -> Self {
        LinkConfig {
            name,
            transport,
            max_addresses: 1024,
            max_peer_addresses: MOST_ADDRESSES,
            max_hunts: 256,
            max_unclaimed: 16,
            version: crate::wire::rlnh::VERSION,
        }
    }
}

impl LinkConfig<'_> {
    /// Longest signal in bytes, its number included.
    pub(super) fn max_message(&self) -> usize {
        match &self.transport {
            Transport::Riocm(connection) => connection.max_message as usize,
            Transport::Tcp(connection) => connection.max_message as usize,
        }
    }
}

/// How far a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// There is no connection.
    Down,
    /// The peer's INIT is waited for.
    AwaitInit,
    /// Its INIT_REPLY is.
    AwaitReply,
    /// Signals can be sent.
    Up,
}

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Times that it came up.
    pub ups: u64,
    /// Signals sent and received.
    pub sent: u64,
    /// See `sent`.
    pub received: u64,
    /// Signals to a link address that stands for nobody.
    pub unknown_destination: u64,
    /// Signals of a sender that was not published, and found no place to wait.
    pub unknown_source: u64,
    /// Signals of less than four bytes, of link address 0, or of one beyond the highest.
    pub bad_signals: u64,
    /// Signals that found the inbox full.
    pub inbox_full: u64,
    /// Hunts of the peer that found no place, or no hunter.
    pub hunts_refused: u64,
    /// Names of ours that found no free link address.
    pub no_address: u64,
    /// UNPUBLISH, UNPUBLISH_ACK and PUBLISH_PEER of what is not known, messages of address 0, and of no known type.
    pub ignored: u64,
    /// Addresses of the peer's whose name was not kept: too long to be hunted for, or no memory left for names.
    pub unnamed: u64,
}

/// What of RLNH is to be said, in this order.
#[derive(Debug)]
pub(super) enum Control {
    Init(u32),
    Reply(u32),
    Query(u32, Name),
    Publish(u32, Name),
    PublishPeer(u32, u32),
    Unpublish(u32),
    UnpublishAck(u32),
}

/// What carries a link.
#[derive(Debug)]
pub(super) enum Carrier {
    Riocm(ConnectionId),
    Tcp(Box<TcpCm>),
}

/// A link.
#[derive(Debug)]
pub(super) struct Link {
    pub id: LinkId,
    pub name: Box<str>,
    pub carrier: Carrier,
    pub phase: Phase,
    pub our_version: u32,
    pub version: u32,
    pub max_hunts: usize,
    pub max_unclaimed: usize,
    pub local: Addresses,
    /// Addresses of the peer's.
    pub remotes: Remotes,
    /// What the peer hunts for.
    pub wanted: Wanted,
    pub control: VecDeque<Control>,
    /// An INIT_REPLY is in `control`.
    pub owes_reply: bool,
    /// The peer sent INIT though the link was up: INIT_REPLY has to follow.
    pub expects_reply: bool,
    /// Longest signal in bytes, its number included.
    pub max_signal: usize,
    pub watch: Watch,
    /// Signals whose sender is not known: source, destination.
    pub unclaimed: VecDeque<(u32, u32, Chain)>,
    /// News of ends that our user has not heard. Only then does it begin anew.
    pub gone_untold: usize,
    pub wants_room: bool,
    pub is_removed: bool,
    pub has_news: bool,
    pub why: Option<Down>,
    pub unsent: usize,
    pub counters: LinkCounters,
}

impl Link {
    pub fn new(id: LinkId, config: &LinkConfig<'_>, carrier: Carrier) -> Link {
        Link {
            id,
            name: config.name.into(),
            carrier,
            phase: Phase::Down,
            our_version: config.version,
            version: config.version,
            max_hunts: config.max_hunts,
            max_unclaimed: config.max_unclaimed,
            local: Addresses::new(config.max_addresses),
            remotes: Remotes::new(config.max_peer_addresses),
            wanted: Wanted::default(),
            control: VecDeque::new(),
            owes_reply: false,
            expects_reply: false,
            max_signal: config.max_message(),
            watch: Watch::default(),
            unclaimed: VecDeque::with_capacity(config.max_unclaimed),
            gone_untold: 0,
            wants_room: false,
            is_removed: false,
            has_news: false,
            why: None,
            unsent: 0,
            counters: LinkCounters::default(),
        }
    }

    /// A link address of the peer's that is in use.
    #[inline]
    pub fn remote(&mut self, address: u32) -> Option<&mut Remote> {
        self.remotes.get_mut(address).filter(|it| !it.is_gone)
    }

    /// Counts what was sent; who found no room is told when there is some.
    #[inline]
    pub fn count(&mut self, sent: Result<(), SendError>) -> Result<(), SendError> {
        match sent {
            Ok(()) => self.counters.sent += 1,
            Err(SendError::Full) => self.wants_room = true,
            Err(SendError::NotConnected | SendError::TooLong) => (),
        }
        sent
    }

    /// Whether there can be such an address of the peer's.
    #[inline]
    pub fn is_address(&self, address: u32) -> bool {
        address != 0 && address <= self.remotes.most()
    }

    /// The peer is to hear that an address of its own is forgotten.
    pub fn acknowledge(&mut self, address: u32) {
        if let Some(remote) = self.remotes.get_mut(address)
            && !core::mem::replace(&mut remote.owes_ack, true)
        {
            self.control.push_back(Control::UnpublishAck(address));
        }
    }

    /// The peer has heard that an address is forgotten: from now on, and not before, it may stand for somebody else.
    pub fn acknowledged(&mut self, address: u32) {
        if let Some(remote) = self.remotes.get_mut(address) {
            remote.owes_ack = false;
            if remote.is_gone {
                self.remotes.forget(address);
            }
        }
    }

    /// The peer's INIT has come: its version holds if it is lower than ours. Version 0 is none, and is taken.
    pub fn greet(&mut self, version: u32) {
        self.version = version.min(self.our_version);
        if !core::mem::replace(&mut self.owes_reply, true) {
            self.control.push_back(Control::Reply(u32::from(version > self.our_version)));
        }
    }
}
