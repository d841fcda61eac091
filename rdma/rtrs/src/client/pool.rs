//! The server's parameters of the session, and the permits and requests based on them.

use super::event::Permit;
use super::{Config, DownReason};
use crate::Errno;
use crate::server::RequestKind;
use crate::wire::Addressing;
use alloc::vec::Vec;
use drivers::hal::{Instant, Window};
use verbs::{Access, Ctx, MrId, PdId, RdmaDevice};

/// Bytes for the headers of a request: the user's, and the transport's behind it.
const HEADERS: usize = 320;
/// Longest user header.
pub(super) const MAX_USER: usize = HEADERS - crate::wire::IoHeader::MAX_SIZE;

/// The server's parameters of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Most outstanding requests.
    pub queue_depth: u16,
    /// Most bytes of data in a request.
    pub max_io_size: u32,
    /// Bytes of a chunk beside its data.
    pub max_header: u32,
    /// Every response has the chunk's next key.
    pub new_rkey: bool,
}

impl Shape {
    /// Bytes of a chunk.
    pub fn chunk_size(&self) -> u32 {
        self.max_io_size + self.max_header
    }

    /// Whether requests are possible with these parameters.
    fn is_sane(&self) -> bool {
        self.queue_depth >= 2
            && self.max_header as usize >= HEADERS
            && self.max_io_size >= 512
            && self
                .max_io_size
                .checked_add(self.max_header)
                .is_some_and(|chunk| Addressing::new(self.queue_depth).reaches(chunk))
    }
}

/// The connection of a path that a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// The service connection.
    Service,
    /// An I/O connection, modulo their number.
    Io(u16),
}

/// State of a permit and its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallState {
    /// The permit is free.
    Free,
    /// The permit is held, without a request.
    Held,
    /// The request waits for a path, or for room on one; `failover`: it was on another path before.
    Queued { failover: bool },
    /// The request is sent on this path and connection.
    Sent { path: usize, connection: usize },
    /// The server has responded, but the data may be retransmitted or written to: the user does not get it yet.
    Answered { path: usize, connection: usize, result: Result<(), Errno> },
}

/// The request of a permit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub state: CallState,
    pub kind: RequestKind,
    pub channel: Channel,
    /// Data of a write, or destination of a read.
    pub data: Window,
    pub user_len: u16,
    /// User header and RTRS header.
    pub headers: Window,
    /// Registers `data` of reads.
    pub region: MrId,
    pub sent: Instant,
    /// Number of the send on its connection.
    pub number: u32,
}

/// Permits and their requests, created when the first path connects.
#[derive(Debug)]
pub(super) struct Pool {
    pub shape: Shape,
    pub addressing: Addressing,
    /// Protection domain of the device that the paths use.
    pub pd: PdId,
    pub generation: u16,
    pub calls: Vec<Call>,
    free: Vec<u16>,
    headers: Window,
}

impl Pool {
    /// Creates the pool for a server's parameters.
    pub fn new<P: RdmaDevice + ?Sized>(
        config: &Config,
        shape: Shape,
        generation: u16,
        pd: PdId,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<Self, DownReason> {
        if !shape.is_sane() {
            return Err(DownReason::Protocol("invalid queue depth or sizes in CON_RSP"));
        }
        let permits = shape.queue_depth.min(config.max_queue_depth.max(2));
        let headers =
            ctx.arena.alloc(usize::from(permits) * HEADERS, 64).ok_or(DownReason::Resources)?;
        let mut pool = Pool {
            shape,
            addressing: Addressing::new(shape.queue_depth),
            pd,
            generation,
            calls: Vec::with_capacity(usize::from(permits)),
            free: (0..permits).rev().collect(),
            headers,
        };
        for n in 0..usize::from(permits) {
            let memory = headers.slice(n * HEADERS, HEADERS).unwrap_or(Window::empty());
            let Ok(region) = ctx.provider.register(pd, memory, Access::REMOTE_WRITE, ctx.rng)
            else {
                pool.end(ctx);
                return Err(DownReason::Resources);
            };
            // The key is invalid until a read needs it.
            let revoked = ctx.provider.revoke_key(region.id);
            pool.calls.push(Call {
                state: CallState::Free,
                kind: RequestKind::Write,
                channel: Channel::Service,
                data: Window::empty(),
                user_len: 0,
                headers: memory,
                region: region.id,
                sent: Instant::ZERO,
                number: 0,
            });
            if revoked.is_err() {
                pool.end(ctx);
                return Err(DownReason::Resources);
            }
        }
        Ok(pool)
    }

    /// Frees the pool's resources.
    pub fn end<P: RdmaDevice + ?Sized>(self, ctx: &mut Ctx<'_, P>) {
        for call in &self.calls {
            // Cannot fail: the region exists until here.
            let _ = ctx.provider.deregister(call.region);
        }
        ctx.arena.free(self.headers);
    }

    /// Takes a permit.
    pub fn take(&mut self) -> Option<Permit> {
        let index = self.free.pop()?;
        self.calls.get_mut(usize::from(index))?.state = CallState::Held;
        Some(Permit { index, pool: self.generation })
    }

    /// The permit of a call.
    pub fn permit(&self, index: u16) -> Permit {
        Permit { index, pool: self.generation }
    }

    /// The call of a permit, if the permit is of this pool.
    pub fn call(&mut self, permit: Permit) -> Option<&mut Call> {
        match permit.pool == self.generation {
            true => self.calls.get_mut(permit.index()),
            false => None,
        }
    }

    /// Returns a permit. Returns false if the permit is void, or its request has not ended.
    pub fn put(&mut self, permit: Permit) -> bool {
        match self.call(permit) {
            Some(call) if call.state == CallState::Held => {
                call.state = CallState::Free;
                self.free.push(permit.index);
                true
            }
            _ => false,
        }
    }

    /// Number of free permits.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Checks whether a request of these lengths fits into a chunk.
    pub fn check(&self, kind: RequestKind, user: usize, data: usize) -> Result<(), Errno> {
        let header = match kind {
            RequestKind::Read => crate::wire::IoHeader::MAX_SIZE,
            RequestKind::Write => 4,
        };
        let all = user + data + header;
        let fits = user <= MAX_USER
            && data <= self.shape.max_io_size as usize
            && all <= self.shape.chunk_size() as usize;
        if fits { Ok(()) } else { Err(Errno::EINVAL) }
    }
}
