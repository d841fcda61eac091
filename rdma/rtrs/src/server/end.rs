//! End of connections, paths and sessions, and release of their memory.

use super::ServerDevice;
use super::table::SlotState;
use super::{CloseReason, Ctx, Event, Input, Notice, PathId, PathState, Server, SessionId};
use core::time::Duration;
use drivers::hal::Window;
use verbs::{PdId, Status, VerbsError};

/// Pause before the provider is asked again to release the resources of an ended session.
const PAUSE: Duration = Duration::from_millis(1);

/// Resources of an ended session that the provider still uses.
#[derive(Debug)]
pub(super) struct RetiredSession {
    pd: PdId,
    chunks: Option<Window>,
}

impl Server {
    /// Ends a path for the operator. Returns false if the path does not exist.
    pub fn disconnect<P: ServerDevice + ?Sized>(
        &mut self,
        path: PathId,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        let known = self.paths.contains(path.0 as usize);
        if known {
            self.close_path(path.0 as usize, CloseReason::Operator, ctx);
        }
        known
    }

    /// Ends the paths of connections that have ended. Their completions, which have the precise cause, were handled
    /// before. What remains is which side ended them, which may show at another connection of the path.
    pub(super) fn close_ended<P: ServerDevice + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) {
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

    /// Ends a path: revokes its keys, disconnects its connections, and drops waiting responses. Executing requests
    /// finish.
    pub(super) fn close_path<P: ServerDevice + ?Sized>(
        &mut self,
        key: usize,
        reason: CloseReason,
        ctx: &mut Ctx<'_, P>,
    ) {
        let path = &mut self.paths[key];
        let Some(next) = path.state.next(Input::End) else { return };
        if reason == CloseReason::Transport(Status::Flushed) {
            // The queue pair has failed: pending completions may have the cause.
            let ended = path.connections.iter().flatten().map(|&key| self.connections[key].id);
            self.ended.extend(ended);
            return;
        }
        path.state = next;
        self.set_timer(key, None);
        let path = &mut self.paths[key];
        if let Some(region) = path.region {
            // Cannot fail: the region exists until here. Its memory remains until executing requests finish.
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
            // Also disconnects. Fails only if the provider has dropped the queue pair already.
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
        // Requests of other paths may wait for chunks that this path used.
        for chunk in 0..depth {
            self.wake_chunk(session, chunk);
        }
        self.link_down(session);
        self.reap_path(key, ctx);
    }

    /// Reports `LinkDown` if no path of the session is connected.
    fn link_down(&mut self, key: usize) {
        let session = &mut self.sessions[key];
        let connected =
            session.paths.iter().any(|&path| self.paths[path].state == PathState::Connected);
        if session.up && !connected {
            session.up = false;
            self.links.push_back(Event::LinkDown(SessionId(key as u32)));
        }
    }

    /// Removes an ended path, once no request is executing.
    pub(super) fn reap_path<P: ServerDevice + ?Sized>(&mut self, key: usize, ctx: &mut Ctx<'_, P>) {
        let path = &self.paths[key];
        if path.in_flight > 0 || path.state.next(Input::Drained).is_none() {
            return;
        }
        self.set_timer(key, None);
        let path = self.paths.remove(key);
        path.info.into_iter().for_each(|info| ctx.arena.free(info));
        if let Some(region) = path.region {
            // Cannot fail: the region exists until here.
            let _ = ctx.provider.deregister(region);
        }
        self.sessions[path.session].paths.retain(|&other| other != key);
        self.publish_session(path.session);
        self.reap_session(path.session, ctx);
    }

    /// Removes a session without paths.
    pub(super) fn reap_session<P: ServerDevice + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut Ctx<'_, P>,
    ) {
        if self.sessions.get(key).is_some_and(|session| session.paths.is_empty()) {
            let session = self.sessions.remove(key);
            self.uuids.remove(&session.uuid);
            if let Some((directory, core)) = &self.directory {
                directory.leave(*core, session.uuid);
            }
            self.zeroing.retain(|&other| other != key);
            self.retired.push(RetiredSession { pd: session.pd, chunks: session.chunks });
            self.free_retired(ctx);
        }
    }

    /// Frees the memory of ended sessions once the provider has released it: hardware may take a moment to release
    /// regions and queue pairs.
    pub(super) fn free_retired<P: ServerDevice + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) {
        self.retired.retain(|retired| {
            if ctx.provider.dealloc_pd(retired.pd) == Err(VerbsError::Busy) {
                return true;
            }
            if let Some(chunks) = retired.chunks
                && !ctx.provider.lending().is_some_and(|lending| lending.take_back(chunks))
            {
                ctx.arena.free(chunks);
            }
            false
        });
        self.retry_free_at = (!self.retired.is_empty()).then(|| ctx.now + PAUSE);
    }
}
