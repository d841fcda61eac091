//! Paths, connections and outstanding requests.

use crate::rtrs::Heartbeat;
use crate::rtrs::wire::{Descriptor, Uuid};
use crate::verbs::{ConnectionId, QpId};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use drivers::hal::{Instant, Window};

/// The id of a work request: which connection, and its number or receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkId(u64);

impl WorkId {
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathState {
    /// Connection `cid` is being made; past the last one, INFO_RSP is awaited.
    Connecting {
        cid: u16,
    },
    Connected,
    Down,
}

#[derive(Debug)]
pub(super) struct Path {
    pub uuid: Uuid,
    pub from: IpAddr,
    pub to: SocketAddr,
    pub recon_cnt: u16,
    /// Whether the server may make the session.
    pub first: bool,
    pub state: PathState,
    pub deadline: Instant,
    /// Of `connections`, from the service connection on.
    pub connections: Vec<usize>,
    /// The server's chunks on this path.
    pub chunks: Vec<Descriptor>,
    /// INFO_RSP goes here.
    pub info: Window,
    pub heartbeat: Heartbeat,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub path: usize,
    pub qp: QpId,
    /// None once it has ended.
    pub id: Option<ConnectionId>,
    pub send_room: u32,
    pub posted: u32,
    pub completed: u32,
    /// 8 bytes for each receive, for RKEY_RSP.
    pub receives: Window,
}

/// An outstanding request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Idle,
    Outstanding { path: usize, read: bool },
}
