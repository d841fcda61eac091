//! Memory of sessions: promised when their client has shown that it receives, and zeroed before it is shown
//! to it, a piece at a time, so that no round takes long.

use super::directory::Share;
use super::refuse::Refused;
use super::table::{Chunks, Session};
use super::{CloseReason, Directory, EngineContext, Server};
use crate::Errno;
use alloc::sync::Arc;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::{Instant, Window};
use net::hosts::accountable;
use verbs::RdmaDevice;

/// Bytes that are zeroed in a round.
const PIECE: usize = 128 << 10;
/// The next piece is zeroed in another round.
const PAUSE: Duration = Duration::from_nanos(1);

const NO_MEMORY: Refused = Refused {
    errno: Errno::ENOMEM,
    reason: "memory",
    advice: "there is no memory for a session (show memory); end others, lower rnbd.queue_depth or \
             rnbd.chunk_size, or give the machine more",
};
const TOO_MUCH: Refused = Refused {
    errno: Errno::ENOMEM,
    reason: "memory_per_host",
    advice: "its sessions have as much memory as limits.memory_per_host admits, which without it is three quarters of what \
             there is; set or raise it, or end others",
};

impl Server {
    /// What servers on other cores have of a host.
    pub(super) fn share_elsewhere(&self, host: IpAddr) -> Share {
        let share = |(directory, core): &(Arc<Directory>, usize)| directory.share(*core, host);
        self.directory.as_ref().map_or(Share::default(), share)
    }

    /// Tells servers on other cores what a session has by now.
    pub(super) fn note_session(&self, key: usize) {
        if let (Some((directory, core)), Some(session)) = (&self.directory, self.sessions.get(key))
        {
            let from = session.paths.iter().filter_map(|&path| Some(self.paths.get(path)?.from));
            directory.note(*core, session.uuid, from.collect(), session.promise());
        }
    }

    /// Ends sessions whose names went to other cores' sessions of the same hosts.
    pub(super) fn end_evicted<P: RdmaDevice + ?Sized>(&mut self, ctx: &mut EngineContext<'_, P>) {
        let evicted = |(directory, core): &(Arc<Directory>, usize)| directory.evicted(*core);
        let Some(evicted) = self.directory.as_ref().and_then(evicted) else { return };
        for uuid in evicted {
            let Some(&key) = self.uuids.get(&uuid) else { continue };
            for path in self.sessions[key].paths.clone() {
                self.close_path(path, CloseReason::Replaced, ctx);
            }
        }
    }

    /// Bytes of the chunks of a session.
    fn session_bytes(&self) -> u64 {
        u64::from(self.config.queue_depth) * u64::from(self.config.chunk_size)
    }

    /// Whether a host may have the memory of a further session.
    fn within_limit<P: RdmaDevice + ?Sized>(
        &self,
        host: IpAddr,
        ctx: &EngineContext<'_, P>,
    ) -> Result<(), Refused> {
        let owner = accountable(host);
        let of_host = self.sessions.iter().filter(|(_, s)| accountable(s.host) == owner);
        let taken: u64 = of_host.map(|(_, session)| session.promise()).sum();
        let allowed = match self.config.memory_per_host {
            Some(limit) => taken + self.share_elsewhere(host).bytes + self.session_bytes() <= limit,
            // Of this core's memory.
            None => {
                let free = || self.promised() + ctx.arena.available() as u64;
                let all = self.shared.unwrap_or_else(free);
                taken == 0 || taken + self.session_bytes() <= all / 4 * 3
            }
        };
        if allowed { Ok(()) } else { Err(TOO_MUCH) }
    }

    /// Whether a session has fallen silent on all its paths: its host may be back to replace it.
    fn is_silent(&self, session: &Session, now: Instant) -> bool {
        session.promise() > 0
            && session.paths.iter().all(|&path| self.paths[path].heartbeat.is_silent(now))
    }

    /// Whether there is memory for another session of a host, of which nothing is taken yet; or perhaps
    /// there will be, because it takes the place of one of the host's that is silent.
    pub(super) fn expect_memory<P: RdmaDevice + ?Sized>(
        &self,
        host: IpAddr,
        ctx: &mut EngineContext<'_, P>,
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

    /// Takes the memory of a session, unless it has it.
    pub(super) fn take_memory<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<(), Refused> {
        let session = &self.sessions[key];
        if session.standing != Chunks::Wanting {
            return Ok(());
        }
        self.within_limit(session.host, ctx)?;
        let bytes = self.session_bytes();
        match self.shared {
            Some(shared) if self.promised() + bytes <= shared => {
                // Chunks on demand are zeroed when they get their memory.
                self.sessions[key].standing = Chunks::Ready;
            }
            Some(_) => return Err(NO_MEMORY),
            None => {
                let memory = self.own_memory(key, bytes as usize, ctx).ok_or(NO_MEMORY)?;
                let session = &mut self.sessions[key];
                session.chunks = Some(memory);
                session.standing = Chunks::Zeroing(0);
                self.zeroing.push_back(key);
            }
        }
        self.note_session(key);
        let session = &mut self.sessions[key];
        session.executing = alloc::vec![false; usize::from(session.queue_depth)];
        Ok(())
    }

    /// Memory of a session alone. Where clients may change their chunks at any time, because keys are not revoked, it is
    /// such as the device lends to its peer, if that has so much: then nobody copies what is written.
    fn own_memory<P: RdmaDevice + ?Sized>(
        &self,
        key: usize,
        bytes: usize,
        ctx: &mut EngineContext<'_, P>,
    ) -> Option<Window> {
        let path = self.sessions[key].paths.first().and_then(|&path| self.paths.get(path));
        let path = path.filter(|_| !self.config.always_invalidate);
        let lent = path.and_then(|path| ctx.provider.lend(path.to, bytes));
        lent.or_else(|| ctx.arena.alloc(bytes, 4096))
    }

    /// When the next piece of memory is zeroed, if there is any.
    pub(super) fn next_piece(&self) -> Option<Instant> {
        (!self.zeroing.is_empty()).then(|| self.zeroed_at.map_or(Instant::ZERO, |at| at + PAUSE))
    }

    /// Zeroes a piece of the memory of the session that has waited longest: one in a round. True if a
    /// session became ready.
    pub(super) fn zero_piece<P: RdmaDevice + ?Sized>(
        &mut self,
        ctx: &mut EngineContext<'_, P>,
    ) -> bool {
        if self.next_piece().is_none_or(|at| ctx.now < at) {
            return false;
        }
        let Some(&key) = self.zeroing.front() else { return false };
        self.zeroed_at = Some(ctx.now);
        let session = &mut self.sessions[key];
        let (Chunks::Zeroing(from), Some(memory)) = (session.standing, session.chunks) else {
            self.zeroing.pop_front();
            return false;
        };
        let length = PIECE.min(memory.len() - from);
        if let Some(piece) = memory.slice(from, length) {
            piece.fill(0);
        }
        if from + length < memory.len() {
            session.standing = Chunks::Zeroing(from + length);
            return false;
        }
        session.standing = Chunks::Ready;
        self.zeroing.pop_front();
        self.answer_info(key, ctx);
        true
    }
}
