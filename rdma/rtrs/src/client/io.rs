//! Data path: requests and responses.

use super::path::WorkId;
use super::policy::Candidate;
use super::pool::CallState;
use super::{Channel, Client, Ctx, DownReason, Event, Outcome, PathState, Permit};
use crate::Errno;
use crate::server::RequestKind;
use crate::wire::{Descriptor, Immediate, IoHeader, RkeyResponse};
use drivers::hal::Window;
use verbs::{
    KeyChange, KeyRequest, Payload, RdmaDevice, RemoteAddress, SendOperation, SendRequest,
    SendWith, VerbsError,
};

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Direction of its data.
    pub kind: RequestKind,
    /// The user's header; copied.
    pub user: &'a [u8],
    /// Data of a write, or destination of a read; owned by the client until the request has ended.
    pub data: Window,
    /// Connection to use.
    pub channel: Channel,
}

/// Result of an attempt to send a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Yes,
    /// No connected path has room now.
    NoRoom,
    /// No path is up.
    NoPath,
}

impl DownReason {
    /// Reason of a failed verb that should succeed.
    pub(super) fn from_verbs(error: VerbsError) -> Self {
        match error {
            // The queue pair failed, and its flushed work requests have not been polled yet.
            VerbsError::WrongState => DownReason::Transport(verbs::Status::Flushed),
            _ => DownReason::Resources,
        }
    }
}

impl Client {
    /// Takes a permit, if one is free. Return it with [`Client::put_permit`].
    #[inline]
    pub fn get_permit(&mut self) -> Option<Permit> {
        self.pool.as_mut()?.take()
    }

    /// Returns a permit, once its request has ended. Returns false if the permit is void, or the request has not ended.
    #[inline]
    pub fn put_permit(&mut self, permit: Permit) -> bool {
        self.pool.as_mut().is_some_and(|pool| pool.put(permit))
    }

    /// Number of free permits.
    pub fn available_permits(&self) -> usize {
        self.pool.as_ref().map_or(0, super::Pool::available)
    }

    /// Sends a request. ENOTCONN if no path is up, or the permit is void; EINVAL if the request does not fit into a
    /// chunk. Otherwise [`Event::Done`] follows.
    pub fn submit<P: RdmaDevice + ?Sized>(
        &mut self,
        permit: Permit,
        request: &Request<'_>,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), Errno> {
        let pool = self.pool.as_mut().ok_or(Errno::ENOTCONN)?;
        pool.check(request.kind, request.user.len(), request.data.len())?;
        let call = pool.call(permit).ok_or(Errno::ENOTCONN)?;
        if call.state != CallState::Held {
            return Err(Errno::EINVAL);
        }
        call.headers.write(0, request.user).map_err(|_| Errno::EINVAL)?;
        call.user_len = request.user.len() as u16;
        call.kind = request.kind;
        call.channel = request.channel;
        call.data = request.data;
        call.sent = ctx.now;
        let queued = !self.queued.is_empty();
        let sent = if queued { Sent::NoRoom } else { self.send(permit.index, false, ctx) };
        match sent {
            Sent::Yes => Ok(()),
            Sent::NoRoom => {
                self.queue(permit.index);
                Ok(())
            }
            Sent::NoPath => Err(Errno::ENOTCONN),
        }
    }

    fn queue(&mut self, index: u16) {
        let call = self.pool.as_mut().and_then(|pool| pool.calls.get_mut(usize::from(index)));
        if let Some(call) = call {
            call.state = CallState::Queued { failover: false };
            self.queued.push_back(index);
        }
    }

    /// Sends requests that waited for a path, or for room on one.
    #[inline]
    pub(super) fn send_queued<P: RdmaDevice + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) {
        while let Some(&index) = self.queued.front() {
            let call = self.pool.as_ref().and_then(|pool| pool.calls.get(usize::from(index)));
            let failover =
                call.is_some_and(|call| call.state == CallState::Queued { failover: true });
            match self.send(index, failover, ctx) {
                // Without a path, the queue was emptied when the last one went down.
                Sent::NoRoom | Sent::NoPath => return,
                Sent::Yes => drop(self.queued.pop_front()),
            }
        }
    }

    /// Sends the request of a permit on the path that the policy chooses.
    fn send<P: RdmaDevice + ?Sized>(
        &mut self,
        index: u16,
        failover: bool,
        ctx: &mut Ctx<'_, P>,
    ) -> Sent {
        loop {
            let Some(pool) = &mut self.pool else { return Sent::NoPath };
            let Some(call) = pool.calls.get_mut(usize::from(index)) else { return Sent::NoPath };
            let cid = match call.channel {
                Channel::Service => 0,
                Channel::Io(n) => 1 + usize::from(n) % usize::from(self.config.connections).max(1),
            };
            let connections = &self.connections;
            let candidates = self.paths.iter().filter_map(|(key, path)| {
                let number = *path.connections.get(cid)?;
                let takes = connections.get(number)?.takes_requests();
                (path.state == PathState::Connected && takes).then_some(Candidate {
                    path: key,
                    in_flight: path.in_flight,
                    latency: path.latency,
                })
            });
            let Some(key) = self.config.policy.choose(candidates, self.last_path) else {
                return if self.is_up() { Sent::NoRoom } else { Sent::NoPath };
            };
            self.last_path = key;
            match self.send_on(key, cid, index, failover, ctx) {
                Ok(()) => return Sent::Yes,
                // The path is down now: try another one.
                Err(reason) => self.fail_path(key, reason, ctx),
            }
        }
    }

    /// Sends the request of a permit on a connection of a path.
    fn send_on<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        cid: usize,
        index: u16,
        failover: bool,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), DownReason> {
        const OURS: DownReason = DownReason::Resources;
        let pool = self.pool.as_mut().ok_or(OURS)?;
        let call = pool.calls.get_mut(usize::from(index)).ok_or(OURS)?;
        let path = &mut self.paths[key];
        let number = *path.connections.get(cid).ok_or(OURS)?;
        let chunk = *path.chunks.get(usize::from(index)).ok_or(OURS)?;
        let (user_len, length) = (call.user_len, call.data.len() as u32);
        let header = match call.kind {
            RequestKind::Write => IoHeader::Write { user_len },
            RequestKind::Read if length == 0 => {
                IoHeader::Read { user_len, need_invalidate: false, into: None }
            }
            RequestKind::Read => {
                let region =
                    ctx.provider.remap(call.region, call.data, ctx.rng).map_err(|_| OURS)?;
                let into = Descriptor { address: region.address, key: region.rkey, length };
                IoHeader::Read { user_len, need_invalidate: true, into: Some(into) }
            }
        };
        let (header, header_len) = header.emit();
        let header = header.get(..header_len).unwrap_or_default();
        call.headers.write(usize::from(user_len), header).map_err(|_| OURS)?;
        let headers = call.headers.slice(0, usize::from(user_len) + header_len).ok_or(OURS)?;
        let windows = [call.data, headers];
        let writes = call.kind == RequestKind::Write && length > 0;
        let (payload, skipped) = if writes { (&windows[..], 0) } else { (&windows[1..], length) };
        let place = pool.addressing.join(index, length + u32::from(user_len));
        let operation = SendOperation::Write {
            payload: Payload::Windows(payload),
            to: RemoteAddress {
                address: chunk.address.wrapping_add(u64::from(skipped)),
                rkey: chunk.key,
            },
            immediate: Some(Immediate::Request { place }.emit()),
        };
        #[cfg(any(test, feature = "testing"))]
        let operation = self.mischief.change(operation);
        call.state = CallState::Sent { path: key, connection: number };
        call.number = self.connections[number].posted.wrapping_add(1);
        if path.in_flight == 0 {
            path.last_rx = ctx.now;
        }
        path.in_flight += 1;
        path.stats.failovers += u64::from(failover);
        match call.kind {
            RequestKind::Read => {
                path.stats.reads += 1;
                path.stats.read_bytes += u64::from(length);
            }
            RequestKind::Write => {
                path.stats.writes += 1;
                path.stats.write_bytes += u64::from(length);
            }
        }
        self.connections[number].in_flight += 1;
        self.wake_at(ctx.now + self.config.probe_after);
        // The user gets the data back only when it cannot be retransmitted any more.
        self.post(number, operation, writes, ctx)
    }

    /// Posts a send on a connection, which has room; `signaled`: with a completion in any case.
    pub(super) fn post<P: RdmaDevice + ?Sized>(
        &mut self,
        number: usize,
        operation: SendOperation<'_>,
        signaled: bool,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), DownReason> {
        let connection = &mut self.connections[number];
        connection.posted = connection.posted.wrapping_add(1);
        let every = (connection.send_room / 4).max(1);
        let request = SendRequest {
            id: WorkId::new(number, connection.posted).to_bits(),
            operation,
            signaled: signaled || connection.posted.is_multiple_of(every),
            solicited: false,
            datagram: None,
            carries: None,
            ack_lazily: false,
        };
        ctx.provider.post_send(connection.qp, &request).map_err(DownReason::from_verbs)
    }

    /// Sends a heartbeat.
    pub(super) fn send_heartbeat<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), DownReason> {
        self.post_bare(key, Immediate::Heartbeat, ctx)
    }

    /// Posts an immediate on the service connection if there is room, otherwise drops it (heartbeats are repeated).
    fn post_bare<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        immediate: Immediate,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), DownReason> {
        let Some(&number) = self.paths[key].connections.first() else { return Ok(()) };
        if !self.connections[number].has_room() {
            return Ok(());
        }
        let operation = SendOperation::Write {
            payload: Payload::Windows(&[]),
            to: RemoteAddress { address: 0, rkey: 0 },
            immediate: Some(immediate.emit()),
        };
        self.post(number, operation, false, ctx)
    }

    /// Handles a received SEND: INFO_RSP, an invalidation, or a response with a new key.
    pub(super) fn handle_message<P: RdmaDevice + ?Sized>(
        &mut self,
        work: WorkId,
        length: u32,
        with: SendWith,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), DownReason> {
        let connection = &self.connections[work.connection()];
        let key = connection.path;
        if work.number() == WorkId::INFO {
            return self.handle_info(key, length, ctx);
        }
        match with {
            SendWith::Invalidate(_) => {
                self.record_rx(key, ctx);
                self.post_receive(work.connection(), work.number(), ctx)
            }
            SendWith::Nothing => Err(DownReason::Protocol("unexpected SEND")),
            SendWith::Immediate(immediate) => {
                let mut bytes = [0; RkeyResponse::SIZE];
                let at = work.number() as usize * RkeyResponse::SIZE;
                let read = connection.receives.read(at, &mut bytes);
                let rkey = RkeyResponse::parse(&bytes).ok().filter(|_| read.is_ok());
                let rkey = rkey.filter(|_| length as usize == RkeyResponse::SIZE);
                let rkey = rkey.ok_or(DownReason::Protocol("RKEY_RSP"))?;
                self.handle_immediate(work, immediate, Some(rkey), ctx)
            }
        }
    }

    fn record_rx<P: ?Sized>(&mut self, key: usize, ctx: &Ctx<'_, P>) {
        let path = &mut self.paths[key];
        path.heartbeat.record_rx(ctx.now);
        path.last_rx = ctx.now;
        path.probed = None;
    }

    /// Handles a received immediate; `rkey`: the new key that came with it.
    pub(super) fn handle_immediate<P: RdmaDevice + ?Sized>(
        &mut self,
        work: WorkId,
        immediate: u32,
        rkey: Option<RkeyResponse>,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), DownReason> {
        let key = self.connections[work.connection()].path;
        if self.paths[key].state != PathState::Connected {
            return Err(DownReason::Protocol("response before INFO_RSP"));
        }
        self.record_rx(key, ctx);
        self.post_receive(work.connection(), work.number(), ctx)?;
        match Immediate::parse(immediate) {
            Immediate::Response { message, result, .. } => {
                self.handle_response(work.connection(), message, result, rkey, ctx)
            }
            Immediate::Heartbeat => self.post_bare(key, Immediate::HeartbeatAck, ctx),
            Immediate::HeartbeatAck => {
                let path = &mut self.paths[key];
                path.latency = path.heartbeat.latency(ctx.now);
                Ok(())
            }
            // Ignored, as in Linux.
            Immediate::Request { .. } | Immediate::Unknown(_) => Ok(()),
        }
    }

    fn handle_response<P: RdmaDevice + ?Sized>(
        &mut self,
        number: usize,
        message: u32,
        result: Result<(), Errno>,
        rkey: Option<RkeyResponse>,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), DownReason> {
        const BAD: DownReason = DownReason::Protocol("response without a request");
        let pool = self.pool.as_mut().ok_or(BAD)?;
        let key = self.connections[number].path;
        let path = &mut self.paths[key];
        let n = message as usize;
        let (Some(call), Some(chunk)) = (pool.calls.get_mut(n), path.chunks.get_mut(n)) else {
            return Err(BAD);
        };
        match (rkey, pool.shape.new_rkey) {
            (Some(new), true) if u32::from(new.buffer) == message => chunk.key = new.rkey,
            (None, false) => {}
            _ => return Err(DownReason::Protocol("RKEY_RSP missing or unexpected")),
        }
        if call.state != (CallState::Sent { path: key, connection: number }) {
            return Err(BAD);
        }
        let connection = &mut self.connections[number];
        let ended = call.kind == RequestKind::Read
            || call.data.is_empty()
            || connection.has_completed(call.number);
        let nanos = ctx.now.nanos_since(call.sent);
        let mut revoked = true;
        match call.kind {
            RequestKind::Read => {
                path.stats.read_latency.record(nanos);
                // Revokes the key regardless of whether the server claims to have invalidated it.
                let id = WorkId::new(number, message).to_bits();
                let request = KeyRequest { qp: connection.qp, id, signaled: true };
                let change = ctx.provider.revoke_key_by(call.region, request);
                revoked = change.map_err(|_| DownReason::Resources)? == KeyChange::Done(());
            }
            RequestKind::Write => path.stats.write_latency.record(nanos),
        }
        call.state = match ended && revoked {
            true => CallState::Held,
            false => CallState::Answered { path: key, connection: number, result },
        };
        path.stats.errors += u64::from(result.is_err());
        path.in_flight -= 1;
        connection.in_flight -= 1;
        if ended && revoked {
            let permit = pool.permit(message as u16);
            self.events.push_back(Event::Done(permit, Outcome::Answered(result)));
        } else if !ended {
            self.unacknowledged.push_back(message as u16);
        }
        Ok(())
    }

    /// Ends a read whose key is revoked: the user gets the data.
    #[cold]
    pub(super) fn end_revoked(&mut self, work: WorkId) {
        let Some(pool) = &mut self.pool else { return };
        let index = work.number() as u16;
        let Some(call) = pool.calls.get_mut(usize::from(index)) else { return };
        let CallState::Answered { connection, result, .. } = call.state else { return };
        if connection == work.connection() && call.kind == RequestKind::Read {
            call.state = CallState::Held;
            let permit = pool.permit(index);
            self.events.push_back(Event::Done(permit, Outcome::Answered(result)));
        }
    }

    /// Ends answered requests whose sends cannot be retransmitted any more.
    #[cold]
    pub(super) fn end_acknowledged(&mut self) {
        let Client { pool: Some(pool), connections, events, .. } = self else { return };
        self.unacknowledged.retain(|&index| {
            let Some(call) = pool.calls.get_mut(usize::from(index)) else { return false };
            let CallState::Answered { connection, result, .. } = call.state else { return false };
            let open = connections.get(connection).is_some_and(|it| !it.has_completed(call.number));
            if !open {
                call.state = CallState::Held;
                events.push_back(Event::Done(pool.permit(index), Outcome::Answered(result)));
            }
            open
        });
    }
}

#[cfg(any(test, feature = "testing"))]
impl super::Mischief {
    fn change(self, operation: SendOperation<'_>) -> SendOperation<'_> {
        match (self, operation) {
            (Self::ForgesKeys, SendOperation::Write { payload, to, immediate }) => {
                let to = RemoteAddress { rkey: !to.rkey, ..to };
                SendOperation::Write { payload, to, immediate }
            }
            (Self::Hoards, SendOperation::Write { payload, to, .. }) => {
                SendOperation::Write { payload, to, immediate: None }
            }
            (_, operation) => operation,
        }
    }
}
