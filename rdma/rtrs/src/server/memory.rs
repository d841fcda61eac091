//! Memory of sessions: allocated once the client has shown that it receives our messages, and zeroed before the client
//! gets access, in pieces, so that no round takes long.

use super::ServerDevice;
use super::directory::Share;
use super::refuse::Refused;
use super::table::{ChunkState, Session};
use super::{CloseReason, Ctx, Directory, Server};
use crate::Errno;
use alloc::sync::Arc;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::{Instant, Window};
use net::hosts::accountable;

/// Bytes zeroed per round.
const PIECE: usize = 128 << 10;
/// Pause until the next piece, so that it is zeroed in another round.
const PAUSE: Duration = Duration::from_nanos(1);

const NO_MEMORY: Refused = Refused {
    errno: Errno::ENOMEM,
    reason: "memory",
    advice: "no memory for a session (show memory); end other sessions, lower rnbd.queue_depth or \
             rnbd.chunk_size, or add memory",
};
const TOO_MUCH: Refused = Refused {
    errno: Errno::ENOMEM,
    reason: "memory_per_host",
    advice: "the host's sessions use all memory that limits.memory_per_host allows (default: three quarters of the memory \
             for sessions); raise it, or end sessions",
};

impl Server {
    /// The share of a host on other cores' servers.
    pub(super) fn share_elsewhere(&self, host: IpAddr) -> Share {
        let share = |(directory, core): &(Arc<Directory>, usize)| directory.share(*core, host);
        self.directory.as_ref().map_or(Share::default(), share)
    }

    /// Updates a session in the directory for other cores' servers.
    pub(super) fn publish_session(&self, key: usize) {
        if let (Some((directory, core)), Some(session)) = (&self.directory, self.sessions.get(key))
        {
            let from = session.paths.iter().filter_map(|&path| Some(self.paths.get(path)?.from));
            directory.note(*core, session.uuid, from.collect(), session.promise());
        }
    }

    /// Ends sessions whose names were taken by other cores' sessions of the same hosts.
    pub(super) fn end_evicted<P: ServerDevice + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) {
        let evicted = |(directory, core): &(Arc<Directory>, usize)| directory.evicted(*core);
        let Some(evicted) = self.directory.as_ref().and_then(evicted) else { return };
        for uuid in evicted {
            let Some(&key) = self.uuids.get(&uuid) else { continue };
            for path in self.sessions[key].paths.clone() {
                self.close_path(path, CloseReason::Replaced, ctx);
            }
        }
    }

    /// Bytes of one session's chunks.
    fn session_bytes(&self) -> u64 {
        u64::from(self.config.queue_depth) * u64::from(self.config.chunk_size)
    }

    /// Checks whether a host may have the memory of another session.
    fn within_limit<P: ServerDevice + ?Sized>(
        &self,
        host: IpAddr,
        ctx: &Ctx<'_, P>,
    ) -> Result<(), Refused> {
        let owner = accountable(host);
        let of_host = self.sessions.iter().filter(|(_, s)| accountable(s.host) == owner);
        let taken: u64 = of_host.map(|(_, session)| session.promise()).sum();
        let allowed = match self.config.memory_per_host {
            Some(limit) => taken + self.share_elsewhere(host).bytes + self.session_bytes() <= limit,
            // A share of this core's memory.
            None => {
                let free = || self.promised() + ctx.arena.available() as u64;
                let all = self.shared.unwrap_or_else(free);
                taken == 0 || taken + self.session_bytes() <= all / 4 * 3
            }
        };
        if allowed { Ok(()) } else { Err(TOO_MUCH) }
    }

    /// Whether a session is silent on all its paths, so that its host may have been restarted and may replace it.
    fn is_silent(&self, session: &Session, now: Instant) -> bool {
        session.promise() > 0
            && session.paths.iter().all(|&path| self.paths[path].heartbeat.is_silent(now))
    }

    /// Checks whether memory for another session of a host is available, without allocating it. Succeeds also if the
    /// host has a silent session that the new one may replace.
    pub(super) fn check_memory<P: ServerDevice + ?Sized>(
        &self,
        host: IpAddr,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), Refused> {
        let mut of_host = self.sessions.iter().filter(|(_, session)| session.host == host);
        if of_host.any(|(_, session)| self.is_silent(session, ctx.now)) {
            return Ok(());
        }
        self.within_limit(host, ctx)?;
        let bytes = self.session_bytes();
        let there = match self.shared {
            Some(shared) => self.promised() + bytes <= shared,
            None => ctx.arena.has_room(bytes as usize, 4096),
        };
        if there { Ok(()) } else { Err(NO_MEMORY) }
    }

    /// Allocates the memory of a session, unless it has it.
    pub(super) fn allocate_memory<P: ServerDevice + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), Refused> {
        let session = &self.sessions[key];
        if session.chunk_state != ChunkState::Unrequested {
            return Ok(());
        }
        self.within_limit(session.host, ctx)?;
        let bytes = self.session_bytes();
        match self.shared {
            Some(shared) if self.promised() + bytes <= shared => {
                // Chunks on demand are zeroed when they get memory.
                self.sessions[key].chunk_state = ChunkState::Ready;
            }
            Some(_) => return Err(NO_MEMORY),
            None => {
                let memory = self.own_memory(key, bytes as usize, ctx).ok_or(NO_MEMORY)?;
                let session = &mut self.sessions[key];
                session.chunks = Some(memory);
                session.chunk_state = ChunkState::Zeroing(0);
                self.zeroing.push_back(key);
            }
        }
        self.publish_session(key);
        let session = &mut self.sessions[key];
        session.executing = alloc::vec![false; usize::from(session.queue_depth)];
        Ok(())
    }

    /// Allocates a session's own memory. Without `always_invalidate`, clients may change their chunks at any time
    /// anyway: then memory that the device shares with its peer is preferred, which saves a copy of written data.
    fn own_memory<P: ServerDevice + ?Sized>(
        &self,
        key: usize,
        bytes: usize,
        ctx: &mut Ctx<'_, P>,
    ) -> Option<Window> {
        let path = self.sessions[key].paths.first().and_then(|&path| self.paths.get(path));
        let path = path.filter(|_| !self.config.always_invalidate);
        let lent = path.and_then(|path| ctx.provider.lending()?.lend(path.to, bytes));
        lent.or_else(|| ctx.arena.alloc(bytes, 4096))
    }

    /// When the next piece of memory is to be zeroed.
    pub(super) fn next_piece(&self) -> Option<Instant> {
        (!self.zeroing.is_empty()).then(|| self.zeroed_at.map_or(Instant::ZERO, |at| at + PAUSE))
    }

    /// Zeroes one piece per round, of the session that has waited longest. Returns true if a session became ready.
    pub(super) fn zero_piece<P: ServerDevice + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) -> bool {
        if self.next_piece().is_none_or(|at| ctx.now < at) {
            return false;
        }
        let Some(&key) = self.zeroing.front() else { return false };
        self.zeroed_at = Some(ctx.now);
        let session = &mut self.sessions[key];
        let (ChunkState::Zeroing(from), Some(memory)) = (session.chunk_state, session.chunks)
        else {
            self.zeroing.pop_front();
            return false;
        };
        let length = PIECE.min(memory.len() - from);
        if let Some(piece) = memory.slice(from, length) {
            piece.fill(0);
        }
        if from + length < memory.len() {
            session.chunk_state = ChunkState::Zeroing(from + length);
            return false;
        }
        session.chunk_state = ChunkState::Ready;
        self.zeroing.pop_front();
        self.answer_info(key, ctx);
        true
    }
}
