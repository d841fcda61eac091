//! The state and configuration of a link.

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
use alloc::vec::Vec;

/// Transport of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport<'a> {
    /// RapidIO messages.
    Riocm(ConnectionConfig<'a>),
    /// A TCP connection.
    Tcp(TcpConfig),
}

/// Configuration of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig<'a> {
    /// Local name of the link. Names of the peer are written `LINK/NAME`.
    pub name: &'a str,
    /// Transport.
    pub transport: Transport<'a>,
    /// Highest local link address, which limits the names published at a time. A peer ends the link at an address above
    /// its own limit (LINX for Linux: `linx_max_sockets_per_link`, 1024 by default).
    pub max_addresses: u32,
    /// Highest link address of the peer. A higher one ends the link.
    pub max_peer_addresses: u32,
    /// Names that the peer may hunt for at a time.
    pub max_hunts: usize,
    /// Signals that are stored until their sender is published.
    pub max_unclaimed: usize,
    /// Highest supported version of RLNH: 1 or 2.
    pub version: u32,
}

impl<'a> LinkConfig<'a> {
    /// A configuration with defaults.
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
    /// Longest signal in bytes, including its number.
    pub(super) fn max_message(&self) -> usize {
        match &self.transport {
            Transport::Riocm(connection) => connection.max_message as usize,
            Transport::Tcp(connection) => connection.max_message as usize,
        }
    }
}

/// Most bytes of the peer's features that are kept.
pub const MOST_FEATURES: usize = 256;

/// Phase of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// There is no connection.
    Down,
    /// Waits for the peer's INIT.
    AwaitInit,
    /// Waits for the peer's INIT_REPLY.
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
    /// Signals to a link address without an endpoint.
    pub unknown_destination: u64,
    /// Signals of an unpublished sender that could not be stored.
    pub unknown_source: u64,
    /// Signals of less than four bytes, with link address 0, or with one above the highest.
    pub bad_signals: u64,
    /// Signals dropped because the inbox was full.
    pub inbox_full: u64,
    /// Hunts of the peer that were refused: too many, or an unpublished hunter.
    pub hunts_refused: u64,
    /// Local names that could not be published for want of a link address.
    pub no_address: u64,
    /// UNPUBLISH, UNPUBLISH_ACK and PUBLISH_PEER with an unknown address, messages with address 0 or an unknown type.
    pub ignored: u64,
    /// Addresses of the peer whose name was not stored: too long to be hunted for, or no memory left for names.
    pub unnamed: u64,
}

/// A queued RLNH message.
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

/// Connection manager of a link.
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
    /// Addresses of the peer.
    pub remotes: Remotes,
    /// Hunts of the peer.
    pub wanted: Wanted,
    pub control: VecDeque<Control>,
    /// An INIT_REPLY is in `control`.
    pub owes_reply: bool,
    /// The peer sent INIT while the link was up: its INIT_REPLY must follow.
    pub expects_reply: bool,
    /// Longest signal in bytes, including its number.
    pub max_signal: usize,
    pub watch: Watch,
    /// Signals of unpublished senders: source, destination, bytes.
    pub unclaimed: VecDeque<(u32, u32, Chain)>,
    /// [`Event::Gone`](super::Event::Gone) not delivered yet. The link reconnects only after the last.
    pub gone_pending: usize,
    pub wants_room: bool,
    pub is_removed: bool,
    pub has_event: bool,
    pub why: Option<Down>,
    pub unsent: usize,
    /// Features in the peer's last INIT_REPLY, up to [`MOST_FEATURES`] bytes.
    pub features: Vec<u8>,
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
            gone_pending: 0,
            wants_room: false,
            is_removed: false,
            has_event: false,
            why: None,
            unsent: 0,
            features: Vec::new(),
            counters: LinkCounters::default(),
        }
    }

    /// A link address of the peer that is in use.
    #[inline]
    pub fn remote(&mut self, address: u32) -> Option<&mut Remote> {
        self.remotes.get_mut(address).filter(|it| !it.is_gone)
    }

    /// Counts a sent signal. After `Full`, an event follows when there is room.
    #[inline]
    pub fn count(&mut self, sent: Result<(), SendError>) -> Result<(), SendError> {
        match sent {
            Ok(()) => self.counters.sent += 1,
            Err(SendError::Full) => self.wants_room = true,
            Err(SendError::NotConnected | SendError::TooLong) => (),
        }
        sent
    }

    /// Whether an address of the peer is valid.
    #[inline]
    pub fn is_address(&self, address: u32) -> bool {
        address != 0 && address <= self.remotes.most()
    }

    /// Queues an UNPUBLISH_ACK for an address of the peer, unless one is queued.
    pub fn acknowledge(&mut self, address: u32) {
        if let Some(remote) = self.remotes.get_mut(address)
            && !core::mem::replace(&mut remote.owes_ack, true)
        {
            self.control.push_back(Control::UnpublishAck(address));
        }
    }

    /// The UNPUBLISH_ACK of an address was sent: from now on the peer may reuse the address.
    pub fn acknowledged(&mut self, address: u32) {
        if let Some(remote) = self.remotes.get_mut(address) {
            remote.owes_ack = false;
            if remote.is_gone {
                self.remotes.forget(address);
            }
        }
    }

    /// Keeps the features of the peer's INIT_REPLY. None are defined, so none are in use.
    pub fn note_features(&mut self, features: &[u8]) {
        self.features.clear();
        self.features.extend_from_slice(&features[..features.len().min(MOST_FEATURES)]);
    }

    /// Handles the peer's INIT: the lower version is used, and INIT_REPLY queued. The invalid version 0 is accepted.
    pub fn accept_init(&mut self, version: u32) {
        self.version = version.min(self.our_version);
        if !core::mem::replace(&mut self.owes_reply, true) {
            self.control.push_back(Control::Reply(u32::from(version > self.our_version)));
        }
    }
}
