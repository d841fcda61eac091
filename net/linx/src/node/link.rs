//! What is kept of a link.

use super::addresses::Addresses;
use super::{LinkId, Name};
use crate::pool::Chain;
use crate::riocm::{ConnectionConfig, ConnectionId, Down, SendError};
use crate::tcpcm::{TcpCm, TcpConfig};
use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

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
    /// Highest link address, of either side: so many names of ours and of the peer's can be known at a time.
    pub max_addresses: u32,
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
            max_hunts: 256,
            max_unclaimed: 16,
            version: crate::wire::rlnh::VERSION,
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
    /// UNPUBLISH, UNPUBLISH_ACK and PUBLISH_PEER of what is not known, and messages of no known type.
    pub ignored: u64,
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

/// For whom a link address of the peer's stands.
#[derive(Debug)]
pub(super) enum Who {
    /// A name of the peer's.
    Name(Name),
    /// An endpoint of ours, in whose name the peer passes signals on: by its place and generation.
    Own(u32, u32),
}

/// A link address of the peer's.
#[derive(Debug)]
pub(super) struct Remote {
    pub generation: u32,
    pub who: Who,
    /// Our user has heard of it, and will hear of its end.
    pub is_told: bool,
    /// It has ended; the peer hears that it is forgotten when our user knows.
    pub is_gone: bool,
    /// Names that it hunts for.
    pub hunts: u32,
    /// The address of ours under which signals are sent on its behalf; 0 if there is none.
    pub local: u32,
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
    /// By link address.
    pub remote: Vec<Option<Remote>>,
    pub remote_count: usize,
    pub remote_names: BTreeSet<(Name, u32)>,
    /// What the peer hunts for, and who of its.
    pub wanted: BTreeSet<(Name, u32)>,
    pub control: VecDeque<Control>,
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
            remote: (0..=config.max_addresses).map(|_| None).collect(),
            remote_count: 0,
            remote_names: BTreeSet::new(),
            wanted: BTreeSet::new(),
            control: VecDeque::new(),
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
        self.remote.get_mut(address as usize)?.as_mut().filter(|it| !it.is_gone)
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

    /// Whether there can be such an address.
    #[inline]
    pub fn is_address(&self, address: u32) -> bool {
        address != 0 && (address as usize) < self.remote.len()
    }

    /// Forgets what the peer hunts for on behalf of one of its own.
    pub fn forget_hunts(&mut self, hunter: u32) {
        self.wanted.retain(|wanted| wanted.1 != hunter);
    }
}
