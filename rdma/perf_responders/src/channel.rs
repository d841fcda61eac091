//! The control connection of `perftest -R`: a queue pair that carries each control message as a SEND, one at a time.

use alloc::vec::Vec;
use drivers::hal::Window;
use verbs::{
    CompletedOperation, ConnectionId, ConnectionManager, ConnectionParameters, CqId, Ctx, Payload,
    PdId, Provider, QpId, QpInit, QpType, RecvRequest, SendOperation, SendRequest, SendWith,
    Status, VerbsError,
};

/// Bytes of the longest message.
const MESSAGE: usize = 64;
/// Receives kept posted.
const RECEIVES: u32 = 4;

/// The queue pair and its memory.
#[derive(Debug)]
pub struct Channel {
    pub connection: ConnectionId,
    qp: QpId,
    cq: CqId,
    memory: Window,
}

impl Channel {
    /// Accepts a connection.
    pub fn accept<P: Provider + ConnectionManager + ?Sized>(
        connection: ConnectionId,
        offered: &ConnectionParameters,
        pd: PdId,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<Self, VerbsError> {
        let cq = ctx.provider.create_cq(2 * RECEIVES)?;
        let (max_send_wr, max_recv_wr) = (RECEIVES, RECEIVES);
        let kind = QpType::Rc;
        let init = QpInit {
            kind,
            pd,
            send_cq: cq,
            recv_cq: cq,
            max_send_wr,
            max_recv_wr,
            max_send_sge: 0,
            max_recv_sge: 1,
            max_inline: MESSAGE,
        };
        let memory = ctx.arena.alloc(RECEIVES as usize * MESSAGE, 64).ok_or(VerbsError::NoRoom);
        let created = memory.and_then(|memory| {
            let qp = ctx.provider.create_qp(&init, ctx.rng);
            qp.map(|qp| (memory, qp)).inspect_err(|_| ctx.arena.free(memory))
        });
        let (memory, qp) = created.inspect_err(|_| {
            let _ = ctx.provider.destroy_cq(cq);
        })?;
        let channel = Channel { connection, qp, cq, memory };
        let accepted = (0..u64::from(RECEIVES))
            .try_for_each(|n| channel.post_receive(n, ctx.provider))
            .and_then(|()| ctx.provider.accept(connection, qp, offered, &[], ctx.now));
        match accepted {
            Ok(()) => Ok(channel),
            Err(error) => {
                channel.give_back(ctx);
                Err(error)
            }
        }
    }

    fn slot(&self, n: u64) -> Result<Window, VerbsError> {
        self.memory.slice(n as usize * MESSAGE, MESSAGE).ok_or(VerbsError::Invalid)
    }

    fn post_receive<P: Provider + ?Sized>(
        &self,
        n: u64,
        provider: &mut P,
    ) -> Result<(), VerbsError> {
        provider.post_recv(self.qp, &RecvRequest { id: n, into: &[self.slot(n)?] })
    }

    /// Appends the next received message to `into`; false if there is none.
    pub fn receive<P: Provider + ?Sized>(
        &self,
        into: &mut Vec<u8>,
        provider: &mut P,
    ) -> Result<bool, VerbsError> {
        while let Some(completion) = provider.poll_cq(self.cq) {
            if completion.status != Status::Success {
                return Err(VerbsError::WrongState);
            }
            let CompletedOperation::Recv { length, .. } = completion.operation else { continue };
            let mut bytes = [0; MESSAGE];
            let bytes = bytes.get_mut(..length as usize).ok_or(VerbsError::Invalid)?;
            let slot = self.slot(completion.id)?;
            slot.read(0, bytes).map_err(|_| VerbsError::Invalid)?;
            into.extend_from_slice(bytes);
            self.post_receive(completion.id, provider)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Sends a message.
    pub fn send<P: Provider + ?Sized>(
        &self,
        message: &[u8],
        provider: &mut P,
    ) -> Result<(), VerbsError> {
        let payload = Payload::Inline(message);
        let operation = SendOperation::Send { payload, with: SendWith::Nothing };
        let request = SendRequest {
            id: 0,
            operation,
            signaled: true,
            solicited: false,
            datagram: None,
            carries: None,
            ack_lazily: false,
        };
        provider.post_send(self.qp, &request)
    }

    /// Frees all resources; an established connection is disconnected.
    pub fn give_back<P: Provider + ?Sized>(&self, ctx: &mut Ctx<'_, P>) {
        // Cannot fail: only this channel uses them.
        let _ = ctx.provider.destroy_qp(self.qp);
        let _ = ctx.provider.destroy_cq(self.cq);
        ctx.arena.free(self.memory);
    }
}
