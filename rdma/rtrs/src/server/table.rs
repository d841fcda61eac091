//! Tables of the server: sessions, paths, connections and request slots.

use super::ServerDevice;
use super::{Ctx, PathState, PathStats, RequestKind};
use crate::wire::{Addressing, Uuid};
use crate::{Heartbeat, Name};
use alloc::vec::Vec;
use core::net::IpAddr;
use drivers::hal::{Instant, Window};
use verbs::{ConnectionId, MrId, PdId, QpId};

/// ID of a work request: the connection, receive or send, and the number of the send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkId(u64);

impl WorkId {
    const INFO: u64 = 1 << 63;

    pub fn receive(connection: usize) -> Self {
        WorkId((connection as u64) << 32)
    }
    /// The receive for INFO_REQ.
    pub fn info(connection: usize) -> Self {
        WorkId(Self::INFO | (connection as u64) << 32)
    }
    pub fn send(connection: usize, sequence: u32) -> Self {
        WorkId((connection as u64) << 32 | u64::from(sequence))
    }
    /// A key change of a chunk.
    pub fn key(connection: usize, chunk: u16) -> Self {
        WorkId((connection as u64) << 32 | u64::from(chunk))
    }
    pub fn from_bits(bits: u64) -> Self {
        WorkId(bits)
    }
    pub fn to_bits(self) -> u64 {
        self.0
    }
    pub fn connection(self) -> u32 {
        (self.0 >> 32) as u32 & 0x7fff_ffff
    }
    pub fn sequence(self) -> u32 {
        self.0 as u32
    }
    pub fn is_info(self) -> bool {
        self.0 & Self::INFO != 0
    }
}

/// State of a session's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkState {
    /// Not requested yet, without memory.
    Unrequested,
    /// Zeroed up to here.
    Zeroing(usize),
    /// Accessible to the client.
    Ready,
}

/// A session: the chunks, and the paths that share them.
#[derive(Debug)]
pub(super) struct Session {
    pub uuid: Uuid,
    /// Address of the host that created it.
    pub host: IpAddr,
    /// Whether that host has shown that it receives messages at this address.
    pub validated: bool,
    pub since: Instant,
    /// Empty until the first INFO_REQ.
    pub name: Name,
    pub pd: PdId,
    /// Memory of the chunks; None for memory on demand, once they are ready.
    pub chunks: Option<Window>,
    pub chunk_state: ChunkState,
    pub chunk_size: u32,
    pub queue_depth: u16,
    pub addressing: Addressing,
    pub paths: Vec<usize>,
    /// Whether `LinkUp` was reported.
    pub up: bool,
    /// Whether a chunk's request is executing, on any path.
    pub executing: Vec<bool>,
    /// Written data is copied at once, see [`super::Server::copies_at_once`].
    pub copies_at_once: bool,
    /// A write has started while the client could still change its data.
    pub has_unsettled: bool,
}

impl Session {
    /// Bytes promised: none before its chunks are requested.
    pub fn promise(&self) -> u64 {
        match self.chunk_state {
            ChunkState::Unrequested => 0,
            _ => u64::from(self.queue_depth) * u64::from(self.chunk_size),
        }
    }

    /// The contents of a chunk that a path's client has written. `region`: the path's registration of the chunks.
    #[inline]
    pub fn contents<P: ServerDevice + ?Sized>(
        &self,
        region: MrId,
        chunk: u16,
        ctx: &mut Ctx<'_, P>,
    ) -> Option<Contents> {
        let size = self.chunk_size as usize;
        match self.chunks {
            Some(chunks) => {
                let window = chunks.slice(usize::from(chunk) * size, size)?;
                Some(Contents { start: 0, window })
            }
            None => {
                let (start, window) = ctx.provider.take_chunk(region, chunk)?;
                Some(Contents { start, window })
            }
        }
    }
}

/// Written bytes of a chunk: a window that begins at an offset in the chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contents {
    pub start: usize,
    pub window: Window,
}

impl Contents {
    /// The `length` bytes at `offset` in the chunk.
    #[inline]
    pub fn part(&self, offset: usize, length: usize) -> Option<Window> {
        if length == 0 {
            return Some(Window::empty());
        }
        self.window.slice(offset.checked_sub(self.start)?, length)
    }
}

/// A path: its connections and requests.
#[derive(Debug)]
pub(super) struct Path {
    pub session: usize,
    pub uuid: Uuid,
    pub from: IpAddr,
    pub to: IpAddr,
    pub recon_cnt: u16,
    pub state: PathState,
    pub connections: Vec<Option<usize>>,
    /// Registration of the chunks for this path; None before INFO_REQ.
    pub region: Option<MrId>,
    pub requests: Vec<Slot>,
    /// Executing requests.
    pub in_flight: u32,
    /// INFO_REQ was accepted, and is answered once the chunks are ready.
    pub info_requested: bool,
    /// INFO_REQ, then INFO_RSP until the client has received it.
    pub info: Option<Window>,
    /// Number of the send of INFO_RSP.
    pub info_sent: u32,
    pub heartbeat: Heartbeat,
    /// When its timer expires.
    pub timer: Option<Instant>,
    /// The provider's shortage count at the last heartbeat.
    pub shortages: u64,
    /// Time from the last heartbeat to its answer, in nanoseconds.
    pub latency_nanos: u64,
    pub stats: PathStats,
}

/// A connection: a queue pair, and counters of its work requests.
#[derive(Debug)]
pub(super) struct Connection {
    pub path: usize,
    pub cid: u16,
    pub qp: QpId,
    pub id: ConnectionId,
    /// Consumed receives that are not reposted yet.
    pub consumed: u32,
    /// Number of receives that are reposted together.
    pub posted_at_once: u32,
    pub send_room: u32,
    pub signal_interval: u32,
    /// Number of the last posted send work request.
    pub posted: u32,
    /// Number of the last completed send work request.
    pub completed: u32,
    pub signaled: u32,
    /// Sends reserved for the responses of started requests.
    pub reserved: u32,
    /// First and last chunk whose request waits for room, linked through their slots.
    pub queued: Option<(u16, u16)>,
}

impl Connection {
    /// Whether there is room for `n` more send work requests.
    pub fn has_room(&self, n: u32) -> bool {
        self.posted.wrapping_sub(self.completed) + self.reserved + n <= self.send_room
    }

    /// Whether at most half of the send queue is in use, so that no request waits for a completion.
    pub fn is_roomy(&self) -> bool {
        2 * (self.posted.wrapping_sub(self.completed) + self.reserved) <= self.send_room
    }

    /// Makes the next send work request signaled.
    pub fn signal_next(&mut self) {
        self.signaled = self.posted.wrapping_sub(self.signal_interval);
    }

    /// Numbers the next send work request, and returns whether it must be signaled.
    pub fn number_send(&mut self) -> (u32, bool) {
        self.posted = self.posted.wrapping_add(1);
        let signaled = self.posted.wrapping_sub(self.signaled) >= self.signal_interval;
        if signaled {
            self.signaled = self.posted;
        }
        (self.posted, signaled)
    }
}

/// Where a request comes from: a connection of a path of a session.
pub(super) struct Origin<'a> {
    /// Key of the connection.
    pub key: usize,
    pub connection: &'a mut Connection,
    pub path: &'a mut Path,
    pub session: &'a mut Session,
    /// Whether each request gets a new key ([`super::Config::always_invalidate`]).
    pub new_keys: bool,
}

/// State of the request in a chunk, on one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// No request.
    Idle,
    /// Waits until the client's key of the chunk is revoked. The offset is in `address`.
    AwaitsKey,
    /// Waits for room for its response in the send queue.
    AwaitsSendCredit,
    /// Malformed; waits for room for the error response.
    Malformed,
    /// Waits for the chunk, in which another path's request executes.
    AwaitsChunk,
    /// Waits for memory for the data of a read.
    AwaitsBuffer,
    /// Executing.
    Executing,
}

/// The request in a chunk, on one path. Small, because each chunk has one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// Destination address of a read.
    pub address: u64,
    pub key: u32,
    /// The chunk's next key.
    pub rkey: u32,
    /// Time of arrival, in ticks of 1024 ns, modulo 2^32.
    pub arrived: u32,
    /// Bytes of data before the user's header.
    pub data_len: u32,
    pub user_len: u16,
    /// The next queued chunk.
    pub next: u16,
    /// The connection of the request.
    pub cid: u16,
    pub state: SlotState,
    pub kind: RequestKind,
}

impl Slot {
    pub const IDLE: Slot = Slot {
        address: 0,
        key: 0,
        rkey: 0,
        arrived: 0,
        data_len: 0,
        user_len: 0,
        next: 0,
        cid: 0,
        state: SlotState::Idle,
        kind: RequestKind::Write,
    };

    /// The current time in ticks.
    #[inline]
    pub fn tick(now: Instant) -> u32 {
        (now.as_nanos() >> 10) as u32
    }

    /// Time since the request arrived, in nanoseconds.
    #[inline]
    pub fn age_nanos(&self, now: Instant) -> u64 {
        u64::from(Self::tick(now).wrapping_sub(self.arrived)) << 10
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_stay_small() {
        assert_eq!(size_of::<Slot>(), 32);
    }

    /// Sends under way and reserved ones count together; send numbers wrap.
    #[test]
    fn send_queue_room_counts_reserved_sends() {
        for posted in [0u32, 20, u32::MAX - 2] {
            for (under_way, reserved, room, roomy) in [
                (0, 0, 8, true),
                (2, 2, 4, true),
                (3, 2, 3, false),
                (5, 3, 0, false),
                (0, 5, 3, false),
            ] {
                let completed = posted.wrapping_sub(under_way);
                let connection = Connection { posted, completed, reserved, ..connection(8) };
                let case = (posted, under_way, reserved);
                assert!(connection.has_room(room) && !connection.has_room(room + 1), "{case:?}");
                assert_eq!(connection.is_roomy(), roomy, "{case:?}");
            }
        }
    }

    /// Every second send is signaled here, and any after `signal_next`.
    #[test]
    fn sends_are_signaled_at_the_interval() {
        let mut connection = connection(8);
        connection.posted = u32::MAX - 1;
        connection.signaled = connection.posted;
        let numbers = [u32::MAX, 0, 1, 2].map(|n| (n, n % 2 == 0));
        assert_eq!(numbers.map(|_| connection.number_send()), numbers);
        connection.signal_next();
        assert_eq!([0; 3].map(|_| connection.number_send().1), [true, false, true]);
    }

    fn connection(send_room: u32) -> Connection {
        Connection {
            path: 0,
            cid: 1,
            qp: QpId(1),
            id: ConnectionId(1),
            consumed: 0,
            posted_at_once: 1,
            send_room,
            signal_interval: 2,
            posted: 0,
            completed: 0,
            signaled: 0,
            reserved: 0,
            queued: None,
        }
    }

    #[test]
    fn work_ids_round_trip() {
        let id = WorkId::from_bits(WorkId::send(0x7fff_ffff, u32::MAX).to_bits());
        assert_eq!((id.connection(), id.sequence(), id.is_info()), (0x7fff_ffff, u32::MAX, false));
        let id = WorkId::from_bits(WorkId::info(5).to_bits());
        assert_eq!((id.connection(), id.is_info()), (5, true));
        assert_eq!(WorkId::receive(9).connection(), 9);
    }
}
