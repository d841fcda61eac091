//! Sessions, paths, connections and request slots.

use super::{PathState, PathStats, RequestKind};
use crate::wire::{Addressing, Uuid};
use crate::{Heartbeat, Name};
use alloc::vec::Vec;
use core::net::IpAddr;
use drivers::hal::{Instant, Window};
use verbs::{ConnectionId, MrId, PdId, QpId};

/// The id of a work request: which connection, receive or send, and the send's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkId(u64);

impl WorkId {
    const INFO: u64 = 1 << 63;

    pub fn receive(connection: usize) -> Self {
        WorkId((connection as u64) << 32)
    }
    /// The receive that INFO_REQ goes into.
    pub fn info(connection: usize) -> Self {
        WorkId(Self::INFO | (connection as u64) << 32)
    }
    pub fn send(connection: usize, sequence: u32) -> Self {
        WorkId((connection as u64) << 32 | u64::from(sequence))
    }
    /// A change of the key of a chunk.
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

/// How far a session's chunks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunks {
    /// Nobody has asked for them yet: they have no memory.
    Wanting,
    /// Their memory is zeroed up to here.
    Zeroing(usize),
    /// They can be shown to the client.
    Ready,
}

/// A session: the chunks, and the paths that share them.
#[derive(Debug)]
pub(super) struct Session {
    pub uuid: Uuid,
    /// Address of the host that made it.
    pub host: IpAddr,
    /// Whether that host has shown that it receives what is sent to that address.
    pub heard: bool,
    pub since: Instant,
    /// Empty until the first INFO_REQ.
    pub name: Name,
    pub pd: PdId,
    /// Memory of the chunks; without it they have memory on demand, once they are ready.
    pub chunks: Option<Window>,
    pub standing: Chunks,
    pub chunk_size: u32,
    pub queue_depth: u16,
    pub addressing: Addressing,
    pub paths: Vec<usize>,
    /// Whether the user knows of it.
    pub up: bool,
    /// Whether a chunk is being worked on, for whichever path.
    pub executing: Vec<bool>,
    /// What the session's clients write is copied when it is handed out, see [`super::Server::copies_at_once`].
    pub copies_at_once: bool,
    /// Some of that was handed out though the client could still change it.
    pub was_promised: bool,
}

impl Session {
    /// Bytes that it was promised: none before it has asked for its chunks.
    pub fn promise(&self) -> u64 {
        match self.standing {
            Chunks::Wanting => 0,
            _ => u64::from(self.queue_depth) * u64::from(self.chunk_size),
        }
    }
}

/// What is known of a chunk's bytes: they lie in a window, from an offset in the chunk on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contents {
    pub start: usize,
    pub window: Window,
}

impl Contents {
    /// `length` bytes at `offset` in the chunk.
    #[inline]
    pub fn part(&self, offset: usize, length: usize) -> Option<Window> {
        if length == 0 {
            return Some(Window::empty());
        }
        self.window.slice(offset.checked_sub(self.start)?, length)
    }
}

/// A path: its connections, and what is outstanding on them.
#[derive(Debug)]
pub(super) struct Path {
    pub session: usize,
    pub uuid: Uuid,
    pub from: IpAddr,
    pub to: IpAddr,
    pub recon_cnt: u16,
    pub state: PathState,
    pub connections: Vec<Option<usize>>,
    /// The chunks as this path reaches them; none before INFO_REQ.
    pub region: Option<MrId>,
    pub requests: Vec<Slot>,
    /// Requests that are being worked on.
    pub in_flight: u32,
    /// Its INFO_REQ was accepted, and is answered once the chunks are ready.
    pub asked: bool,
    /// INFO_REQ, then INFO_RSP until the client has it.
    pub info: Option<Window>,
    /// Number of the send that carries INFO_RSP.
    pub info_sent: u32,
    pub heartbeat: Heartbeat,
    /// When its timer runs, if ever.
    pub timer: Option<Instant>,
    /// Times that memory on demand was short until its last heartbeat.
    pub shortages: u64,
    /// Time from the last heartbeat to its answer, in nanoseconds.
    pub latency_nanos: u64,
    pub stats: PathStats,
}

/// A connection: a queue pair and its books.
#[derive(Debug)]
pub(super) struct Connection {
    pub path: usize,
    pub cid: u16,
    pub qp: QpId,
    pub id: ConnectionId,
    /// Receives that were consumed and not posted again, and how many are at once.
    pub consumed: u32,
    pub posted_at_once: u32,
    pub send_room: u32,
    pub signal_interval: u32,
    /// Send work requests posted so far, and how many of them are known to be completed.
    pub posted: u32,
    pub completed: u32,
    pub signaled: u32,
    /// Sends that are kept for the answers of requests that were started.
    pub reserved: u32,
    /// Chunks whose request waits for room, linked through their slots.
    pub queued: Option<(u16, u16)>,
}

impl Connection {
    /// Whether `n` more send work requests fit.
    pub fn has_room(&self, n: u32) -> bool {
        self.posted.wrapping_sub(self.completed) + self.reserved + n <= self.send_room
    }

    /// Whether so few send work requests are under way that nobody waits for the end of one.
    pub fn is_roomy(&self) -> bool {
        2 * (self.posted.wrapping_sub(self.completed) + self.reserved) <= self.send_room
    }

    /// The next send work request is to be signaled.
    pub fn signal_next(&mut self) {
        self.signaled = self.posted.wrapping_sub(self.signal_interval);
    }

    /// Numbers the next send work request; whether it has to be signaled.
    pub fn number_send(&mut self) -> (u32, bool) {
        self.posted = self.posted.wrapping_add(1);
        let signaled = self.posted.wrapping_sub(self.signaled) >= self.signal_interval;
        if signaled {
            self.signaled = self.posted;
        }
        (self.posted, signaled)
    }
}

/// Where the request in a chunk stands, on one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// There is none.
    Idle,
    /// It is not looked at before the client has lost its key of the chunk. Its offset is in `address`.
    AwaitsKey,
    /// It waits for room for its answer in the send queue.
    AwaitsSendCredit,
    /// So does its answer, that it makes no sense.
    Malformed,
    /// It waits for the chunk, which is worked on for another path.
    AwaitsChunk,
    /// It waits for memory for what it reads.
    AwaitsBuffer,
    /// The user works on it.
    Executing,
}

/// The request in a chunk, on one path. There is one for every chunk, so that they are small.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// Where the data of a read goes.
    pub address: u64,
    pub key: u32,
    /// The chunk's next key.
    pub rkey: u32,
    /// When it arrived, in ticks of 1024 ns, modulo 2^32.
    pub arrived: u32,
    /// Bytes of data, which lie before the user's header.
    pub data_len: u32,
    pub user_len: u16,
    /// The queued request behind this one.
    pub next: u16,
    /// The connection that it came by.
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

    /// The present, as slots keep it.
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

    /// What is on its way and what is kept for answers count together; numbers of sends wrap.
    #[test]
    fn there_is_room_for_as_many_sends_as_the_queue_holds() {
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

    /// Every second send is signaled here, and whichever is asked to be.
    #[test]
    fn sends_are_signaled_often_enough_to_make_room() {
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
    fn work_ids_keep_what_they_are_made_of() {
        let id = WorkId::from_bits(WorkId::send(0x7fff_ffff, u32::MAX).to_bits());
        assert_eq!((id.connection(), id.sequence(), id.is_info()), (0x7fff_ffff, u32::MAX, false));
        let id = WorkId::from_bits(WorkId::info(5).to_bits());
        assert_eq!((id.connection(), id.is_info()), (5, true));
        assert_eq!(WorkId::receive(9).connection(), 9);
    }
}
