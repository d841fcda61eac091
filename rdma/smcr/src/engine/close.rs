//! Ends of sockets: what users want, what the table says, and when all is given back.

use super::{Engine, EngineContext, Input, Ready, Role, Said, Say, SocketId, State};
use crate::wire::cdc::End;
use crate::wire::llc::DeleteReason;
use verbs::Provider;

impl Engine {
    /// Ends our side once everything is sent; reading goes on.
    pub fn shutdown<P: Provider + ?Sized>(&mut self, id: SocketId, ctx: &mut EngineContext<'_, P>) {
        let linger = ctx.now + self.config.linger;
        let Some(socket) = self.socket_mut(id) else { return };
        if !socket.established || socket.wants_close {
            return;
        }
        socket.wants_shutdown = true;
        socket.linger.get_or_insert(linger);
        self.arm_socket(id.key(), linger);
        self.touch(id.key());
    }

    /// Gives a socket up: what was taken is still sent, the rest goes by itself. Data that was not
    /// read makes it an abort. Nothing is heard of the socket any more.
    pub fn close<P: Provider + ?Sized>(&mut self, id: SocketId, ctx: &mut EngineContext<'_, P>) {
        let linger = ctx.now + self.config.linger;
        let Some(socket) = self.socket_mut(id) else { return };
        let key = id.key();
        socket.released = true;
        if !socket.established {
            if socket.state != State::Closed {
                self.fail(key, ctx);
            }
            self.reap(key, ctx);
            return;
        }
        if socket.state == State::Closed {
            self.reap(key, ctx);
            return;
        }
        socket.wants_close = true;
        socket.linger = Some(linger);
        self.arm_socket(key, linger);
        self.touch(key);
        self.pin(id);
    }

    /// Counts a socket that its user has given up against the share of its host: how long it stays is the peer's word.
    fn pin(&mut self, id: SocketId) {
        let Some(socket) = self.socket_mut(id).filter(|socket| socket.role == Role::Server) else {
            return;
        };
        if !core::mem::replace(&mut socket.pinned, true) {
            let remote = socket.remote;
            self.admission.pin(remote);
        }
    }

    /// Ends all link groups, says so to their peers (DELETE_LINK), and takes no socket any more: the machine is
    /// about to end.
    pub fn shut_down<P: Provider + ?Sized>(&mut self, ctx: &mut EngineContext<'_, P>) {
        self.closing = true;
        for key in 0..self.groups.capacity() {
            if self.groups.contains(key) {
                self.end_group(key, DeleteReason::OPERATOR, false, ctx);
            }
        }
    }

    /// Whether the peers of all link groups have been told that they are over. An answer to that is their word
    /// as well, and is waited for as long as a group that has ended is kept.
    pub fn is_shut_down(&self) -> bool {
        self.groups.is_empty()
    }

    /// Gives a socket up, and what was not sent with it.
    pub fn abort<P: Provider + ?Sized>(&mut self, id: SocketId, ctx: &mut EngineContext<'_, P>) {
        let Some(socket) = self.socket_mut(id) else { return };
        if socket.established {
            socket.released = true;
            self.abort_socket(id.key(), ctx);
            self.pin(id);
        } else {
            self.close(id, ctx);
        }
    }

    pub(super) fn abort_socket<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let socket = &mut self.sockets[key];
        // What was not sent never will be.
        socket.accepted = socket.sent;
        socket.wants_close = true;
        socket.aborts = true;
        self.touch(key);
        self.reap(key, ctx);
    }

    /// What a socket's user wanted is done, now that everything is sent.
    pub(super) fn settle(&mut self, key: usize) {
        let socket = &mut self.sockets[key];
        if socket.wants_close {
            socket.wants_close = false;
            socket.linger = None;
            self.apply(key, Input::Close);
        } else if socket.wants_shutdown {
            socket.wants_shutdown = false;
            socket.linger = None;
            self.apply(key, Input::Shutdown);
        }
    }

    /// Moves a socket on by the table.
    pub(super) fn apply(&mut self, key: usize, input: Input) {
        let socket = &mut self.sockets[key];
        let said = Said {
            closed_here: socket.tx_end.is_closed(),
            closed_there: socket.rx_end.is_closed(),
        };
        let (next, say) = socket.state.next(input, said);
        socket.state = next;
        let unread = socket.produced > socket.consumed;
        let end = match say {
            None => return,
            Some(Say::Done) => End::SENDING_DONE,
            Some(Say::Closed) if !unread && !socket.aborts => End::CLOSED,
            Some(Say::Closed | Say::Abort) => End::ABORT,
        };
        socket.tx_end |= end;
        socket.speak = true;
        self.touch(key);
    }

    /// Takes a socket away if both sides have closed, everything is said, and its user knows.
    #[inline]
    pub(super) fn reap<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut EngineContext<'_, P>,
    ) {
        if self.sockets.get(key).is_some_and(|socket| socket.state == State::Closed) {
            self.reap_closed(key, ctx);
        }
    }

    fn reap_closed<P: Provider + ?Sized>(&mut self, key: usize, ctx: &mut EngineContext<'_, P>) {
        let Some(socket) = self.sockets.get(key) else { return };
        if socket.in_flight > 0 {
            return;
        }
        if socket.speak && socket.group.is_some() && socket.established {
            return;
        }
        let released = socket.released;
        self.give_back(key, ctx);
        if released {
            let socket = self.sockets.remove(key);
            self.timers.sockets.forget(key);
            if socket.pinned {
                self.admission.unpin(socket.remote);
            }
        } else if !self.sockets[key].told_closed {
            self.sockets[key].told_closed = true;
            self.announce(key, Ready::CLOSED);
        }
    }
}
