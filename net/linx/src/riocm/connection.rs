//! State of a connection.

use super::assembly::Assembly;
use super::config::{Config, ConnectionConfig, DEFAULT_HEARTBEAT, Fragmentation};
use super::counters::Counters;
use super::ready::Ready;
use super::{ConnectionId, NONE};
use crate::pool::{AccountId, Chain, Pool};
use crate::wire::riocm::{Ends, FRAG, FRAME, PATCH_START, Part, START};
use alloc::boxed::Box;
use alloc::vec::Vec;
use drivers::hal::Instant;

/// Size of the reorder window: a packet may be at most this number less one ahead.
pub const REORDER: u16 = 64;
/// Packets that are kept before the connection is established, as in LINX for Linux 2.6.9: the peer's INIT and
/// INIT_REPLY.
pub const EARLY: usize = 2;
/// Messages in reassembly at a time.
pub const ASSEMBLIES: usize = 32;
/// Heartbeat intervals without a packet after which the peer is considered dead.
pub const ALIVE: u8 = 3;

/// State of the connection's state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not wanted, or waiting for the pause after its end.
    Disconnected,
    /// CONN_REQs are sent.
    Connecting,
    /// Messages can be sent, and are delivered.
    Connected,
}

/// Parameters negotiated by both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Longest packet in bytes.
    pub mtu: u16,
    /// Interval of heartbeats in units of 100 ms.
    pub heartbeat: u8,
}

impl Agreed {
    /// Maximum payload of SINGLE and FRAG_START in bytes.
    #[inline]
    pub(super) fn start_len(self) -> usize {
        usize::from(self.mtu).saturating_sub(FRAME + START)
    }

    /// Maximum payload of FRAG and PATCH in bytes.
    #[inline]
    pub(super) fn fragment_len(self) -> usize {
        usize::from(self.mtu).saturating_sub(FRAME + FRAG)
    }

    /// Maximum payload of PATCH_START in bytes.
    pub(super) fn patch_start_len(self) -> usize {
        usize::from(self.mtu).saturating_sub(FRAME + PATCH_START)
    }
}

/// A packet that came early.
#[derive(Debug)]
pub(super) struct Parked {
    pub id: u8,
    pub part: Part,
    pub payload: Chain,
}

/// CONN and HEARTBEAT packets that are pending.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Owed {
    pub reset: bool,
    pub request: bool,
    pub ack: bool,
    pub heartbeat: bool,
}

impl Owed {
    #[inline]
    pub fn any(self) -> bool {
        self.reset | self.request | self.ack | self.heartbeat
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub id: ConnectionId,
    pub port_name: Box<str>,
    /// The RapidIO port; None if there is none of that name.
    pub port: Option<usize>,
    pub my_id: u16,
    pub my_port: u16,
    pub peer_id: u16,
    pub peer_mailbox: u8,
    pub peer_port: u16,
    pub fragmentation: Fragmentation,
    pub user_mtu: u16,
    pub user_heartbeat: u8,
    pub max_message: u32,

    pub state: State,
    /// It has ended, and ignores packets for a whole pause.
    pub is_pausing: bool,
    /// It connects again after the pause.
    pub is_wanted: bool,
    /// It is removed when its CONN_RESET is sent.
    pub is_dying: bool,
    pub generation: u8,
    pub peer_generation: u8,
    pub peer_cid: u16,
    pub wanted_mtu: u16,
    pub agreed: Agreed,
    pub alive: u8,
    pub owed: Owed,
    pub counters: Counters,

    /// Sequence number of the next packet of data, and id of the last message.
    pub sequence: u16,
    pub message_id: u8,
    /// First and last queued message.
    pub queue: (u32, u32),
    pub queued: usize,
    /// Limit of `queued`.
    pub sends: usize,
    pub send_account: AccountId,
    pub wants_room: bool,
    /// It is in the ready list.
    pub is_ready: bool,
    /// Packets sent in its present turn.
    pub turn: u32,

    /// Next expected sequence number.
    pub expected: u16,
    pub parked: Box<[Option<Parked>]>,
    pub parked_count: u16,
    pub gap_since: Option<Instant>,
    /// Packets of sequence number 0 and 1 that came before the connection was established, with the peer's generation.
    pub early: [Option<(u8, Parked)>; EARLY],
    pub assemblies: Vec<Assembly>,
    pub receive_account: AccountId,
}

impl Connection {
    pub fn new(
        id: ConnectionId,
        config: &ConnectionConfig<'_>,
        accounts: (AccountId, AccountId),
        engine: &Config,
    ) -> Self {
        let heartbeat = if config.heartbeat == 0 { DEFAULT_HEARTBEAT } else { config.heartbeat };
        Connection {
            id,
            port_name: config.port.into(),
            port: None,
            my_id: 0,
            my_port: config.my_port,
            peer_id: config.peer_id,
            peer_mailbox: config.peer_mailbox,
            peer_port: config.peer_port,
            fragmentation: config.fragmentation,
            user_mtu: config.mtu,
            user_heartbeat: heartbeat,
            max_message: config.max_message,
            state: State::Disconnected,
            is_pausing: false,
            is_wanted: false,
            is_dying: false,
            generation: 0,
            peer_generation: 0,
            peer_cid: 0,
            wanted_mtu: 0,
            agreed: Agreed { mtu: 0, heartbeat },
            alive: 0,
            owed: Owed::default(),
            counters: Counters::default(),
            sequence: 0,
            message_id: 0,
            queue: (NONE, NONE),
            queued: 0,
            sends: config.sends.min(engine.sends),
            send_account: accounts.1,
            wants_room: false,
            is_ready: false,
            turn: 0,
            expected: 0,
            parked: (0..REORDER).map(|_| None).collect(),
            parked_count: 0,
            gap_since: None,
            early: [const { None }; EARLY],
            assemblies: Vec::with_capacity(ASSEMBLIES),
            receive_account: accounts.0,
        }
    }

    /// Addresses of a packet to be sent.
    #[inline]
    pub fn ends(&self) -> Ends {
        Ends { to_port: self.peer_port, sender: self.my_id, from_port: self.my_port }
    }

    /// Whether a packet can be sent.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.owed.any() || (self.queue.0 != NONE && self.state == State::Connected)
    }

    /// Adds it to the ready list, if a packet can be sent.
    #[inline]
    pub fn make_ready(&mut self, ready: &mut Ready) {
        if self.has_work() {
            self.push_ready(ready);
        }
    }

    /// Adds it to the ready list. The caller knows that a packet can be sent.
    #[inline]
    pub fn push_ready(&mut self, ready: &mut Ready) {
        if !self.is_ready {
            self.is_ready = true;
            ready.push(self.id.cid);
        }
    }

    /// Whether a data packet with this sequence number is the next in order.
    #[inline]
    pub fn is_next(&self, sequence: u16) -> bool {
        self.state == State::Connected && self.expected == sequence
    }

    /// Accepts the next data packet.
    #[inline]
    pub fn advance(&mut self) {
        self.alive = ALIVE;
        self.expected = self.expected.wrapping_add(1);
    }

    /// Drops packets that came before the connection was established.
    pub fn drop_early(&mut self, pool: &mut Pool) {
        let early = self.early.iter_mut().filter_map(Option::take);
        early.for_each(|(_, early)| pool.free(early.payload));
    }

    /// Drops everything that was received and not delivered.
    pub fn drop_received(&mut self, pool: &mut Pool) {
        self.drop_early(pool);
        self.parked.iter_mut().filter_map(Option::take).for_each(|it| pool.free(it.payload));
        self.assemblies.drain(..).for_each(|it| pool.free(it.chain));
        self.parked_count = 0;
        self.gap_since = None;
        self.expected = 0;
    }
}
