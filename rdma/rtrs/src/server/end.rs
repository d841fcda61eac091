//! Ends: of connections, paths and sessions.

use super::table::SlotState;
use super::{
    CloseReason, EngineContext, Event, Input, Notice, PathId, PathState, Server, SessionId,
};
use core::time::Duration;
use drivers::hal::Window;
use verbs::{PdId, RdmaDevice, Status, VerbsError};

/// How long the provider has to let go of what was given up, before it is asked again.
const PAUSE: Duration = Duration::from_millis(1);

/// What is left of a session that is no more.
#[derive(Debug)]
pub(super) struct Left {
    pd: PdId,
    chunks: Option<Window>,
}

impl Server {
    /// Ends a path, as the operator wishes; false if there is none of that name.
    pub fn disconnect<P: RdmaDevice + ?Sized>(
        &mut self,
        path: PathId,
        ctx: &mut EngineContext<'_, P>,
    ) -> bool {
        let known = self.paths.contains(path.0 as usize);
        if known {
            self.close_path(path.0 as usize, CloseReason::Operator, ctx);
        }
        known
    }

    /// Ends the paths of connections that have ended. What their completions said of the cause came first:
    /// of these it is known only who ended them. It need not have been this one of a path's connections.
    pub(super) fn close_ended<P: RdmaDevice + ?Sized>(&mut self, ctx: &mut EngineContext<'_, P>) {
        while let Some(id) = self.ended.pop_front() {
            let Some(connection) = self.by_id.get(&id).and_then(|&key| self.connections.get(key))
            else {
                continue;
            };
            let path = connection.path;
            let mut all = self.paths[path].connections.iter().flatten();
            let reason =
                match all.any(|&key| ctx.provider.failed_by_itself(self.connections[key].qp)) {
                    true => CloseReason::Refused,
                    false => CloseReason::Peer,
                };
            self.close_path(path, reason, ctx);
        }
    }

    /// Ends a path: peers reach its memory no more, its connections are disconnected, answers
    /// that wait are dropped. What is being worked on finishes.
    pub(super) fn close_path<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        reason: CloseReason,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let path = &mut self.paths[key];
        let Some(next) = path.state.next(Input::End) else { return };
        if reason == CloseReason::Transport(Status::Flushed) {
            // Its queue pair has failed. Completions that nobody has looked at yet may say why.
            let ended = path.connections.iter().flatten().map(|&key| self.connections[key].id);
            self.ended.extend(ended);
            return;
        }
        path.state = next;
        self.set_timer(key, None);
        let path = &mut self.paths[key];
        if let Some(region) = path.region {
            // Ours alone, so that it exists. Its memory stays until what is worked on is finished.
            let _ = ctx.provider.revoke_key(region);
        }
        let session = path.session;
        let executing = &mut self.sessions[session].executing;
        for (slot, executing) in path.requests.iter_mut().zip(executing) {
            if slot.state == SlotState::AwaitsBuffer {
                *executing = false;
            }
            if slot.state != SlotState::Executing {
                slot.state = SlotState::Idle;
            }
        }
        self.ready.retain(|id| id.path as usize != key);
        self.awaiting_buffer.retain(|id| id.path as usize != key);
        let depth = path.requests.len() as u16;
        for connection in path.connections.drain(..).flatten() {
            let connection = self.connections.remove(connection);
            self.by_id.remove(&connection.id);
            // Disconnects, too. Fails only if the provider has dropped the queue pair already.
            let _ = ctx.provider.destroy_qp(connection.qp);
        }
        self.counters.paths_closed += 1;
        let notice = Notice::PathDown {
            session: self.sessions[session].name,
            from: path.from,
            to: path.to,
            reason,
        };
        self.notice(notice);
        // It may have been the path whose turn it was to use a chunk.
        for chunk in 0..depth {
            self.wake_chunk(session, chunk);
        }
        self.link_down(session);
        self.reap_path(key, ctx);
    }

    /// Tells the user if no path of the session is left.
    fn link_down(&mut self, key: usize) {
        let session = &mut self.sessions[key];
        let connected =
            session.paths.iter().any(|&path| self.paths[path].state == PathState::Connected);
        if session.up && !connected {
            session.up = false;
            self.links.push_back(Event::LinkDown(SessionId(key as u32)));
        }
    }

    /// Removes a path that has ended, if nothing is left to wait for.
    pub(super) fn reap_path<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let path = &self.paths[key];
        if path.in_flight > 0 || path.state.next(Input::Drained).is_none() {
            return;
        }
        self.set_timer(key, None);
        let path = self.paths.remove(key);
        path.info.into_iter().for_each(|info| ctx.arena.free(info));
        if let Some(region) = path.region {
            // As above.
            let _ = ctx.provider.deregister(region);
        }
        self.sessions[path.session].paths.retain(|&other| other != key);
        self.note_session(path.session);
        self.reap_session(path.session, ctx);
    }

    /// Removes a session that has no path.
    pub(super) fn reap_session<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut EngineContext<'_, P>,
    ) {
        if self.sessions.get(key).is_some_and(|session| session.paths.is_empty()) {
            let session = self.sessions.remove(key);
            self.uuids.remove(&session.uuid);
            if let Some((directory, core)) = &self.directory {
                directory.leave(*core, session.uuid);
            }
            self.zeroing.retain(|&other| other != key);
            self.left.push(Left { pd: session.pd, chunks: session.chunks });
            self.free_left(ctx);
        }
    }

    /// Frees the memory of sessions that are no more, once nothing of theirs is left at the provider: hardware may
    /// take a moment to let go of regions and queue pairs.
    pub(super) fn free_left<P: RdmaDevice + ?Sized>(&mut self, ctx: &mut EngineContext<'_, P>) {
        self.left.retain(|left| {
            if ctx.provider.dealloc_pd(left.pd) == Err(VerbsError::Busy) {
                return true;
            }
            if let Some(chunks) = left.chunks
                && !ctx.provider.take_back(chunks)
            {
                ctx.arena.free(chunks);
            }
            false
        });
        self.look_again = (!self.left.is_empty()).then(|| ctx.now + PAUSE);
    }
}
