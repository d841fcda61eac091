//! Shutdown, close and abort of sockets, and removal of closed ones.

use super::{CloseStatus, Ctx, Engine, Flag, Input, Ready, Role, SocketId, State};
use crate::SmcDevice;
use crate::wire::cdc::End;
use crate::wire::llc::DeleteReason;

impl Engine {
    /// Ends our side once all data is sent; reading remains possible.
    pub fn shutdown<P: SmcDevice + ?Sized>(&mut self, id: SocketId, ctx: &mut Ctx<'_, P>) {
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

    /// Closes a socket: accepted data is still sent, then the socket is removed. With unread data the close becomes an
    /// abort. The user gets no more events.
    pub fn close<P: SmcDevice + ?Sized>(&mut self, id: SocketId, ctx: &mut Ctx<'_, P>) {
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

    /// Charges a closed socket to the share of its host, because the peer determines how long it remains.
    fn pin(&mut self, id: SocketId) {
        let Some(socket) = self.socket_mut(id).filter(|socket| socket.role == Role::Server) else {
            return;
        };
        if !core::mem::replace(&mut socket.pinned, true) {
            let remote = socket.remote;
            self.admission.pin(remote);
        }
    }

    /// Ends all link groups with DELETE_LINK, and refuses new sockets: the machine is about to shut down.
    pub fn shut_down<P: SmcDevice + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) {
        self.closing = true;
        for key in 0..self.groups.capacity() {
            if self.groups.contains(key) {
                self.end_group(key, DeleteReason::OPERATOR, false, ctx);
            }
        }
    }

    /// Whether all link groups are removed. Ended groups remain for a short time, to acknowledge the peers' responses.
    pub fn is_shut_down(&self) -> bool {
        self.groups.is_empty()
    }

    /// Aborts a socket, and discards unsent data.
    pub fn abort<P: SmcDevice + ?Sized>(&mut self, id: SocketId, ctx: &mut Ctx<'_, P>) {
        let Some(socket) = self.socket_mut(id) else { return };
        if socket.established {
            socket.released = true;
            self.abort_socket(id.key(), ctx);
            self.pin(id);
        } else {
            self.close(id, ctx);
        }
    }

    pub(super) fn abort_socket<P: SmcDevice + ?Sized>(&mut self, key: usize, ctx: &mut Ctx<'_, P>) {
        let socket = &mut self.sockets[key];
        // Discards unsent data.
        socket.accepted = socket.sent;
        socket.wants_close = true;
        socket.aborts = true;
        self.touch(key);
        self.reap(key, ctx);
    }

    /// Performs the pending close or shutdown of a socket whose data is sent.
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

    /// Applies an input to a socket's state, and queues the resulting end flag.
    pub(super) fn apply(&mut self, key: usize, input: Input) {
        let socket = &mut self.sockets[key];
        let status = CloseStatus {
            closed_here: socket.tx_end.is_closed(),
            closed_there: socket.rx_end.is_closed(),
        };
        let (next, flag) = socket.state.next(input, status);
        socket.state = next;
        let unread = socket.produced > socket.consumed;
        let end = match flag {
            None => return,
            Some(Flag::Done) => End::SENDING_DONE,
            Some(Flag::Closed) if !unread && !socket.aborts => End::CLOSED,
            Some(Flag::Closed | Flag::Abort) => End::ABORT,
        };
        socket.tx_end |= end;
        socket.cdc_due = true;
        self.touch(key);
    }

    /// Removes a socket if both sides have closed, all messages are sent, and its user has closed.
    #[inline]
    pub(super) fn reap<P: SmcDevice + ?Sized>(&mut self, key: usize, ctx: &mut Ctx<'_, P>) {
        if self.sockets.get(key).is_some_and(|socket| socket.state == State::Closed) {
            self.reap_closed(key, ctx);
        }
    }

    fn reap_closed<P: SmcDevice + ?Sized>(&mut self, key: usize, ctx: &mut Ctx<'_, P>) {
        let Some(socket) = self.sockets.get(key) else { return };
        if socket.in_flight > 0 {
            return;
        }
        if socket.cdc_due && socket.group.is_some() && socket.established {
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
        } else if !self.sockets[key].close_reported {
            self.sockets[key].close_reported = true;
            self.announce(key, Ready::CLOSED);
        }
    }
}
