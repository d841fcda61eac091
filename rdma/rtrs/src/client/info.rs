//! The INFO exchange, the last step of a path's set-up.

use super::path::WorkId;
use super::{Client, Continuity, Ctx, DownReason, Event, Input, PathId};
use crate::Heartbeat;
use crate::wire::{Descriptor, InfoRequest, InfoResponse};
use drivers::hal::Window;
use verbs::{Payload, RdmaDevice, RecvRequest, SendOperation, SendWith};

const BAD: DownReason = DownReason::Protocol("INFO_RSP");

impl Client {
    /// Sends INFO_REQ, after all connections are established.
    pub(super) fn send_info<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), DownReason> {
        let depth = self.shape().ok_or(BAD)?.queue_depth;
        let size = InfoResponse::message_size(depth);
        let info = ctx.arena.alloc(size + InfoRequest::SIZE, 64).ok_or(DownReason::Resources)?;
        self.paths[key].info = info;
        let number = *self.paths[key].connections.first().ok_or(DownReason::Resources)?;
        let into = info.slice(0, size).unwrap_or(Window::empty());
        let id = WorkId::new(number, WorkId::INFO).to_bits();
        let qp = self.connections[number].qp;
        // INFO_RSP is the server's first message, so it consumes the first receive.
        ctx.provider
            .post_recv(qp, &RecvRequest { id, into: &[into] })
            .map_err(DownReason::from_verbs)?;
        self.post_receives(number, ctx)?;
        let request = InfoRequest { name: self.name }.emit();
        let message = info
            .slice(size, request.len())
            .filter(|message| message.write(0, &request).is_ok())
            .ok_or(DownReason::Resources)?;
        let payload = Payload::Windows(&[message]);
        self.post(number, SendOperation::Send { payload, with: SendWith::Nothing }, false, ctx)
    }

    /// Handles INFO_RSP with the server's chunks, and brings the path up.
    pub(super) fn handle_info<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        length: u32,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), DownReason> {
        let (Some(path), Some(pool)) = (self.paths.get_mut(key), &self.pool) else {
            return Err(BAD);
        };
        let Some(next) = path.state.next(Input::InfoAccepted) else { return Err(BAD) };
        let mut message = alloc::vec![0; (length as usize).min(path.info.len())];
        path.info.read(0, &mut message).map_err(|_| BAD)?;
        let count = InfoResponse::parse(&message).map_err(|_| BAD)?.count;
        let chunk_size = pool.shape.chunk_size();
        let mut chunks = 0;
        path.chunks.clear();
        path.chunks.reserve_exact(pool.calls.len());
        for descriptor in InfoResponse::descriptors(&message).take(count.into()) {
            let end = descriptor.address.checked_add(u64::from(descriptor.length));
            let whole = descriptor.length > 0 && descriptor.length.is_multiple_of(chunk_size);
            if end.is_none() || !whole {
                return Err(BAD);
            }
            let pieces = descriptor.length / chunk_size;
            chunks += u64::from(pieces);
            // Chunks without a permit are never used.
            let wanted = (pool.calls.len() - path.chunks.len()).min(pieces as usize);
            path.chunks.extend((0..wanted as u64).map(|n| Descriptor {
                address: descriptor.address.wrapping_add(n * u64::from(chunk_size)),
                key: descriptor.key,
                length: chunk_size,
            }));
        }
        if chunks != u64::from(pool.shape.queue_depth) {
            return Err(BAD);
        }
        path.state = next;
        path.last_rx = ctx.now;
        path.heartbeat =
            Heartbeat::new(self.config.heartbeat_interval, self.config.heartbeat_misses, ctx.now);
        path.stats.reconnects += u64::from(path.was_up);
        path.was_up = true;
        path.attempts = 0;
        path.last_failure = None;
        // The path keeps the memory of both messages: INFO_REQ may be retransmitted from there until it is
        // acknowledged.
        let deadline = path.heartbeat.deadline();
        self.wake_at(deadline);
        self.events.push_back(Event::PathUp(PathId(key as u32)));
        if !self.link_up {
            self.link_up = true;
            let server = core::mem::replace(&mut self.continuity, Continuity::Same);
            let fresh = core::mem::replace(&mut self.fresh, false);
            self.events.push_back(Event::LinkUp { fresh, server });
            self.restart_session_creators(ctx);
        }
        Ok(())
    }
}
