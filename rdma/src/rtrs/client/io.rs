//! Requests and answers.

use super::table::{Call, PathState, WorkId};
use super::{Client, Context, DownReason, Event, Outcome, Permit};
use crate::rtrs::Errno;
use crate::rtrs::wire::{Descriptor, Immediate, IoHeader, RkeyResponse};
use crate::verbs::{
    Fabric, Payload, RecvRequest, RemoteAddress, SendOperation, SendRequest, SendWith,
};
use drivers::hal::Window;

/// A request: which way its data goes, and how much there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

impl Client {
    /// A permit, if one is free. Give it back with [`Client::put_permit`].
    pub fn get_permit(&mut self) -> Option<Permit> {
        self.pool.as_mut()?.free.pop().map(Permit)
    }

    /// Gives a permit back, once its request has ended.
    pub fn put_permit(&mut self, permit: Permit) {
        if let Some(pool) = &mut self.pool {
            assert!(pool.calls[usize::from(permit.0)] == Call::Idle, "the request is outstanding");
            pool.free.push(permit.0);
        }
    }

    /// Where the data of a permit's request lies: what is written, or where reads go.
    pub fn data(&self, permit: Permit) -> Option<Window> {
        let pool = self.pool.as_ref()?;
        let at = usize::from(permit.0) * pool.shape.chunk_size() as usize;
        pool.memory.slice(at, pool.shape.max_io_size as usize)
    }

    /// Asks for `length` bytes (none: there is no answer but its error) into [`Client::data`].
    /// `connection` is 0 for the service connection.
    #[allow(clippy::too_many_arguments)]
    pub fn read<P: Fabric + ?Sized>(
        &mut self,
        permit: Permit,
        user: &[u8],
        length: u32,
        path: usize,
        connection: usize,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), Errno> {
        self.submit(Way::Read, permit, user, length, path, connection, ctx)
    }

    /// Sends `length` bytes of [`Client::data`].
    #[allow(clippy::too_many_arguments)]
    pub fn write<P: Fabric + ?Sized>(
        &mut self,
        permit: Permit,
        user: &[u8],
        length: u32,
        path: usize,
        connection: usize,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), Errno> {
        self.submit(Way::Write, permit, user, length, path, connection, ctx)
    }

    #[allow(clippy::too_many_arguments)]
    fn submit<P: Fabric + ?Sized>(
        &mut self,
        way: Way,
        permit: Permit,
        user: &[u8],
        length: u32,
        path_key: usize,
        connection: usize,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), Errno> {
        let data = self.data(permit).ok_or(Errno::ENOTCONN)?;
        let pool = self.pool.as_mut().ok_or(Errno::ENOTCONN)?;
        let path = self.paths.get(path_key).ok_or(Errno::ENOTCONN)?;
        if path.state != PathState::Connected {
            return Err(Errno::ENOTCONN);
        }
        let n = usize::from(permit.0);
        let chunk = *path.chunks.get(n).ok_or(Errno::ENOTCONN)?;
        let user_len = u16::try_from(user.len()).map_err(|_| Errno::EINVAL)?;
        let data = data.slice(0, length as usize).ok_or(Errno::EINVAL)?;
        let header = match way {
            Way::Write => IoHeader::Write { user_len },
            Way::Read if length == 0 => {
                IoHeader::Read { user_len, need_invalidate: false, into: None }
            }
            Way::Read => {
                let (region, address) = pool.regions[n];
                let key = ctx.provider.rotate_key(region, ctx.rng).map_err(|_| Errno::ENOMEM)?;
                let into = Some(Descriptor { address, key, length });
                IoHeader::Read { user_len, need_invalidate: true, into }
            }
        };
        let (header, header_len) = header.emit();
        let chunk_size = pool.shape.chunk_size() as usize;
        let staging = pool
            .memory
            .slice(n * chunk_size + pool.shape.max_io_size as usize, user.len() + header_len)
            .filter(|staging| staging.len() <= pool.shape.max_header as usize)
            .ok_or(Errno::EINVAL)?;
        let staged = staging.write(0, user).is_ok()
            && staging.write(user.len(), &header[..header_len]).is_ok();
        if !staged {
            return Err(Errno::EINVAL);
        }
        let windows = [data, staging];
        let (payload, skipped) = match way {
            Way::Write if length > 0 => (&windows[..], 0),
            _ => (&windows[1..], length),
        };
        let place = pool.addressing.join(permit.0, length + u32::from(user_len));
        pool.calls[n] = Call::Outstanding { path: path_key, read: way == Way::Read };
        let operation = SendOperation::Write {
            payload: Payload::Windows(payload),
            to: RemoteAddress {
                address: chunk.address.wrapping_add(u64::from(skipped)),
                rkey: chunk.key,
            },
            immediate: Some(Immediate::Request { place }.emit()),
        };
        if let Err(reason) = self.post(path_key, connection, operation, ctx) {
            self.end_path(path_key, reason, ctx);
        }
        Ok(())
    }

    /// Posts a send on a connection of a path.
    pub(super) fn post<P: Fabric + ?Sized>(
        &mut self,
        path: usize,
        cid: usize,
        operation: SendOperation<'_>,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), DownReason> {
        let number = *self.paths[path].connections.get(cid).ok_or(DownReason::Resources)?;
        let connection = &mut self.connections[number];
        if connection.posted.wrapping_sub(connection.completed) >= connection.send_room {
            return Err(DownReason::Resources);
        }
        connection.posted = connection.posted.wrapping_add(1);
        let every = (connection.send_room / 4).max(1);
        let request = SendRequest {
            id: WorkId::new(number, connection.posted).to_bits(),
            operation,
            signaled: connection.posted.is_multiple_of(every),
            solicited: false,
            datagram: None,
        };
        ctx.provider.post_send(connection.qp, &request).map_err(|_| DownReason::Resources)
    }

    pub(super) fn post_receive<P: Fabric + ?Sized>(
        &mut self,
        number: usize,
        n: u32,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), DownReason> {
        let connection = &self.connections[number];
        let at = n as usize * RkeyResponse::SIZE;
        let into = connection.receives.slice(at, RkeyResponse::SIZE).unwrap_or(Window::empty());
        let id = WorkId::new(number, n).to_bits();
        ctx.provider
            .post_recv(connection.qp, &RecvRequest { id, into: &[into] })
            .map_err(|_| DownReason::Resources)
    }

    pub(super) fn send_heartbeat<P: Fabric + ?Sized>(
        &mut self,
        path: usize,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), DownReason> {
        self.post_bare(path, Immediate::Heartbeat, ctx)
    }

    fn post_bare<P: Fabric + ?Sized>(
        &mut self,
        path: usize,
        immediate: Immediate,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), DownReason> {
        let operation = SendOperation::Write {
            payload: Payload::Windows(&[]),
            to: RemoteAddress { address: 0, rkey: 0 },
            immediate: Some(immediate.emit()),
        };
        self.post(path, 0, operation, ctx)
    }

    /// A SEND arrived: INFO_RSP, an invalidation, or an answer with a new key.
    pub(super) fn handle_message<P: Fabric + ?Sized>(
        &mut self,
        work: WorkId,
        length: u32,
        with: SendWith,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), DownReason> {
        let connection = &self.connections[work.connection()];
        let path = connection.path;
        if work.number() == u32::MAX {
            return self.handle_info(path, length, ctx);
        }
        match with {
            SendWith::Invalidate(_) => {
                self.paths[path].heartbeat.heard();
                self.post_receive(work.connection(), work.number(), ctx)
            }
            SendWith::Nothing => Err(DownReason::Protocol("a message without meaning")),
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

    /// An immediate arrived, perhaps with a new key.
    pub(super) fn handle_immediate<P: Fabric + ?Sized>(
        &mut self,
        work: WorkId,
        immediate: u32,
        rkey: Option<RkeyResponse>,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), DownReason> {
        let key = self.connections[work.connection()].path;
        self.paths[key].heartbeat.heard();
        self.post_receive(work.connection(), work.number(), ctx)?;
        match Immediate::parse(immediate) {
            Immediate::Response { message, result, .. } => {
                self.handle_response(key, message, result, rkey, ctx)
            }
            Immediate::Heartbeat => self.post_bare(key, Immediate::HeartbeatAck, ctx),
            _ => Ok(()),
        }
    }

    fn handle_response<P: Fabric + ?Sized>(
        &mut self,
        key: usize,
        message: u32,
        result: Result<(), Errno>,
        rkey: Option<RkeyResponse>,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), DownReason> {
        const BAD: DownReason = DownReason::Protocol("an answer to no request");
        let pool = self.pool.as_mut().ok_or(BAD)?;
        let path = &mut self.paths[key];
        let n = message as usize;
        let (Some(call), Some(chunk)) = (pool.calls.get_mut(n), path.chunks.get_mut(n)) else {
            return Err(BAD);
        };
        match (rkey, pool.shape.new_rkey) {
            (Some(new), true) if u32::from(new.buffer) == message => chunk.key = new.rkey,
            (None, false) => {}
            _ => return Err(DownReason::Protocol("an answer without its key, or with one")),
        }
        let Call::Outstanding { path, read } = *call else { return Err(BAD) };
        if path != key {
            return Err(BAD);
        }
        *call = Call::Idle;
        if read {
            let (region, _) = pool.regions[n];
            ctx.provider.revoke_key(region).map_err(|_| DownReason::Resources)?;
        }
        self.events.push_back(Event::Done(Permit(n as u16), Outcome::Answered(result)));
        Ok(())
    }
}
