//! State of paths and connections.

use super::{DownReason, PathState, PathStats};
use crate::Heartbeat;
use crate::wire::{Descriptor, Uuid};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::{Instant, Window};
use verbs::{ConnectionId, QpId};

/// ID of a work request: the connection, and the number of the send or receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkId(u64);

impl WorkId {
    /// Number of the receive buffer for INFO_RSP.
    pub const INFO: u32 = u32::MAX;

    pub fn new(connection: usize, number: u32) -> Self {
        WorkId((connection as u64) << 32 | u64::from(number))
    }
    pub fn from_bits(bits: u64) -> Self {
        WorkId(bits)
    }
    pub fn to_bits(self) -> u64 {
        self.0
    }
    pub fn connection(self) -> usize {
        (self.0 >> 32) as usize
    }
    pub fn number(self) -> u32 {
        self.0 as u32
    }
}

#[derive(Debug)]
pub(super) struct Path {
    pub uuid: Uuid,
    pub from: IpAddr,
    pub to: SocketAddr,
    pub state: PathState,
    pub recon_cnt: u16,
    /// The path was up before.
    pub was_up: bool,
    /// `first_conn` of this attempt: the server may create the session.
    pub may_create_session: bool,
    /// Attempts since the path was last up.
    pub attempts: u16,
    /// While connecting: the timeout. While reconnecting: time of the next attempt.
    pub deadline: Instant,
    /// Established connections. After the last one, INFO_RSP is awaited.
    pub established: u16,
    /// Keys in `Client::connections`, from the service connection on.
    pub connections: Vec<usize>,
    /// The server's chunks on this path.
    pub chunks: Vec<Descriptor>,
    /// INFO_RSP, and INFO_REQ behind it. Kept as long as the queue pair, which may retransmit INFO_REQ.
    pub info: Window,
    pub heartbeat: Heartbeat,
    /// Time from the last heartbeat to its answer.
    pub latency: Duration,
    /// Requests outstanding.
    pub in_flight: u32,
    /// When the last message was received, or the path became busy.
    pub last_rx: Instant,
    /// When the silent server was probed.
    pub probed: Option<Instant>,
    pub last_failure: Option<DownReason>,
    pub stats: PathStats,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub path: usize,
    pub qp: QpId,
    /// None once it has ended.
    pub id: Option<ConnectionId>,
    pub send_room: u32,
    /// Number of the last posted send work request.
    pub posted: u32,
    /// Number of the last completed send work request.
    pub completed: u32,
    /// Outstanding requests.
    pub in_flight: u32,
    /// Most outstanding requests: a response consumes up to two receives.
    pub max_in_flight: u32,
    /// 8 bytes for each receive, for RKEY_RSP.
    pub receives: Window,
}

impl Connection {
    /// Whether there is room for one more send work request.
    pub fn has_room(&self) -> bool {
        self.posted.wrapping_sub(self.completed) < self.send_room
    }

    /// Whether a send is completed, so that it is not retransmitted.
    pub fn has_completed(&self, number: u32) -> bool {
        self.completed.wrapping_sub(number) < 1 << 31
    }

    /// Whether one more request can be sent.
    pub fn takes_requests(&self) -> bool {
        self.has_room() && self.in_flight < self.max_in_flight
    }
}
