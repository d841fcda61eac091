//! What is kept of a connection.

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

/// Packets that may come early: this one less.
pub const REORDER: u16 = 64;
/// Packets that are kept before the connection is up, as LINX for Linux 2.6.9 does: the peer's INIT and INIT_REPLY.
pub const EARLY: usize = 2;
/// Messages in parts at a time.
pub const ASSEMBLIES: usize = 32;
/// Timers that pass without a sign of life until the peer is dead.
pub const ALIVE: u8 = 3;

/// States of the connection's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody wants it, or its end has to be heard of first.
    Disconnected,
    /// CONN_REQs go out.
    Connecting,
    /// Messages can be sent, and are delivered.
    Connected,
}

/// What both ends agreed upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Longest packet in bytes.
    pub mtu: u16,
    /// Pause between heartbeats in units of 100 ms.
    pub heartbeat: u8,
}

impl Agreed {
    /// Bytes of payload that fit into SINGLE and FRAG_START.
    #[inline]
    pub(super) fn start_len(self) -> usize {
        usize::from(self.mtu).saturating_sub(FRAME + START)
    }

    /// … into FRAG and PATCH.
    #[inline]
    pub(super) fn fragment_len(self) -> usize {
        usize::from(self.mtu).saturating_sub(FRAME + FRAG)
    }

    /// … into PATCH_START.
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

/// CONN and HEARTBEAT packets that are to be sent.
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
    /// The RapidIO port, unless it is an orphan.
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
    /// It has ended, and hears nothing for a whole pause; and whether it is wanted again behind that.
    pub rests: bool,
    pub is_wanted: bool,
    /// It goes when its CONN_RESET is sent.
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
    /// Messages that wait to be sent: first and last, how many, how many there may be.
    pub queue: (u32, u32),
    pub queued: usize,
    pub sends: usize,
    pub send_account: AccountId,
    pub wants_room: bool,
    /// It stands among those with something to send; packets of its turn.
    pub is_ready: bool,
    pub turn: u32,

    /// Sequence number that is expected.
    pub expected: u16,
    pub parked: Box<[Option<Parked>]>,
    pub parked_count: u16,
    pub gap_since: Option<Instant>,
    /// The packets of sequence number 0 and 1 that came before the connection was up, and the peer's generation by then.
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
            rests: false,
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

    /// Ends of a packet that goes out.
    #[inline]
    pub fn ends(&self) -> Ends {
        Ends { to_port: self.peer_port, sender: self.my_id, from_port: self.my_port }
    }

    /// Whether there is something to send.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.owed.any() || (self.queue.0 != NONE && self.state == State::Connected)
    }

    /// Puts it among those with something to send, if it has.
    #[inline]
    pub fn make_ready(&mut self, ready: &mut Ready) {
        if self.has_work() {
            self.stand_ready(ready);
        }
    }

    /// Puts it among those with something to send: it has.
    #[inline]
    pub fn stand_ready(&mut self, ready: &mut Ready) {
        if !self.is_ready {
            self.is_ready = true;
            ready.push(self.id.cid);
        }
    }

    /// Whether a packet of data with this sequence number is the one that counts now.
    #[inline]
    pub fn is_next(&self, sequence: u16) -> bool {
        self.state == State::Connected && self.expected == sequence
    }

    /// It has come.
    #[inline]
    pub fn advance(&mut self) {
        self.alive = ALIVE;
        self.expected = self.expected.wrapping_add(1);
    }

    /// Forgets what came before the connection was up.
    pub fn forget_early(&mut self, pool: &mut Pool) {
        let early = self.early.iter_mut().filter_map(Option::take);
        early.for_each(|(_, early)| pool.free(early.payload));
    }

    /// Forgets all that has arrived and was not delivered.
    pub fn forget_arrivals(&mut self, pool: &mut Pool) {
        self.forget_early(pool);
        self.parked.iter_mut().filter_map(Option::take).for_each(|it| pool.free(it.payload));
        self.assemblies.drain(..).for_each(|it| pool.free(it.chain));
        self.parked_count = 0;
        self.gap_since = None;
        self.expected = 0;
    }
}
