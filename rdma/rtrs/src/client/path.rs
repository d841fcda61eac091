//! Paths and connections.

use super::{DownReason, PathState, PathStats};
use crate::Heartbeat;
use crate::wire::{Descriptor, Uuid};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::{Instant, Window};
use verbs::{ConnectionId, QpId};

/// The id of a work request: which connection, and its number or receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkId(u64);

impl WorkId {
    /// Receive buffer that stands for INFO_RSP.
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
    /// It was up once.
    pub succeeded: bool,
    /// What the server is told in this attempt: it may make the session, which it does not know.
    pub may_make_session: bool,
    /// Attempts since it was last up.
    pub attempts: u16,
    /// While connecting: when patience ends. While reconnecting: when the next attempt begins.
    pub deadline: Instant,
    /// Connections that stand; past the last one, INFO_RSP is awaited.
    pub established: u16,
    /// Of `Client::connections`, from the service connection on.
    pub connections: Vec<usize>,
    /// The server's chunks on this path.
    pub chunks: Vec<Descriptor>,
    /// INFO_RSP, then INFO_REQ behind it; as long as the queue pair that may send the latter again.
    pub info: Window,
    pub heartbeat: Heartbeat,
    /// Time from the last heartbeat to its answer.
    pub latency: Duration,
    /// Requests outstanding.
    pub in_flight: u32,
    /// When something was last received, or the path was last idle.
    pub heard: Instant,
    /// When the silent server was asked for a sign of life.
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
    /// Send work requests posted so far, and how many of them are known to be completed.
    pub posted: u32,
    pub completed: u32,
    /// Requests outstanding, and how many may be: an answer takes up to two receives.
    pub in_flight: u32,
    pub max_in_flight: u32,
    /// 8 bytes for each receive, for RKEY_RSP.
    pub receives: Window,
}

impl Connection {
    /// Whether one more send work request fits.
    pub fn has_room(&self) -> bool {
        self.posted.wrapping_sub(self.completed) < self.send_room
    }

    /// Whether a send is known to have arrived, so that it is not sent again.
    pub fn has_completed(&self, number: u32) -> bool {
        self.completed.wrapping_sub(number) < 1 << 31
    }

    /// Whether one more request can be sent.
    pub fn takes_requests(&self) -> bool {
        self.has_room() && self.in_flight < self.max_in_flight
    }
}
