//! Receives CDC messages: the peer's cursors and end flags (Linux 6.12, smc_cdc.c).

use super::ids::SocketId;
use super::{Ctx, Engine, Input, Ready, State};
use crate::SmcDevice;
use crate::wire::cdc::{Cdc, End, LEN, Producer};

impl Engine {
    /// Handles a CDC message received on a link of a group.
    #[inline]
    pub(super) fn handle_cdc_message<P: SmcDevice + ?Sized>(
        &mut self,
        group: usize,
        head: &[u8; LEN],
        ctx: &mut Ctx<'_, P>,
    ) {
        self.counters.cdc_received += 1;
        match Cdc::parse(head) {
            Some(cdc) => self.handle_cdc(group, &cdc, ctx),
            None => self.counters.malformed += 1,
        }
    }

    fn handle_cdc<P: SmcDevice + ?Sized>(&mut self, group: usize, cdc: &Cdc, ctx: &mut Ctx<'_, P>) {
        let id = SocketId(cdc.token);
        let Some(socket) = self.socket_mut(id).filter(|socket| socket.group == Some(group)) else {
            // A late message for a removed socket.
            self.counters.cdc_strays += 1;
            return self.handle_late_cdc(group, cdc, ctx);
        };
        let key = id.key();
        if cdc.producer.contains(Producer::FAILOVER) {
            self.handle_failover(key, cdc.seqno, ctx);
            return;
        }
        if (cdc.seqno.wrapping_sub(socket.rx_seqno) as i16) < 0 {
            self.counters.malformed += 1;
            return;
        }
        // Both cursors are checked before either is used. A cursor that goes back belongs to an older message.
        let room = u64::from(socket.rmb_size) - (socket.produced - socket.consumed);
        let produced = match cdc.produced.ahead_of(socket.produced, socket.rmb_size) {
            Some(ahead) if ahead <= room as i64 => ahead.max(0) as u64,
            _ => return self.violation(group, ctx),
        };
        if produced > 0 && !self.find_buffer(key, ctx) {
            if self.sockets[key].rewritten {
                // The peer announced the data so late that the buffer was freed as idle.
                self.abort_socket(key, ctx);
                return self.announce(key, Ready::ABORTED);
            }
            // The peer announces data without having written any.
            return self.violation(group, ctx);
        }
        let Engine { sockets, dirty, announced, counters, .. } = self;
        let Some(socket) = sockets.get_mut(key) else { return };
        let unconsumed = socket.furthest - socket.peer_consumed;
        let consumed = match cdc.consumed.ahead_of(socket.peer_consumed, socket.peer.size) {
            Some(ahead) if ahead <= unconsumed as i64 => ahead.max(0) as u64,
            // The Confirm with the size of the peer's buffer is still under way.
            None if socket.peer.size == 0 && cdc.consumed.count == 0 => 0,
            _ => return self.violation(group, ctx),
        };
        socket.rx_seqno = cdc.seqno;
        socket.produced += produced;
        socket.peer_consumed += consumed;
        if socket.sent < socket.peer_consumed {
            // These bytes had arrived over the lost link. A CDC message with the new cursor is due before they count as
            // completed.
            socket.sent = socket.peer_consumed.min(socket.accepted);
            socket.cdc_due = true;
        }
        socket.rx_producer = cdc.producer;
        if cdc.producer.contains(Producer::URGENT_PRESENT) && produced > 0 {
            socket.rx_urgent = Some(socket.produced);
        }
        let asked = Producer::UPDATE_REQUESTED.union(Producer::URGENT_PENDING);
        socket.cdc_due |= cdc.producer.intersects(asked);
        let more = consumed > 0 && socket.accepted > socket.sent;
        if socket.cdc_due || more {
            socket.touch(dirty);
        }
        counters.bytes_received += produced;
        let unread = socket.produced - socket.consumed;
        counters.rx.full += u64::from(produced > 0 && unread == u64::from(socket.rmb_size));
        socket.end_missed &= !cdc.end.is_closed();
        let news = cdc.end.difference(socket.rx_end);
        if !news.is_empty() {
            let ready = self.handle_end(key, news);
            self.announce(key, ready);
            self.reap(key, ctx);
        } else if produced > 0 {
            socket.announce(Ready::READABLE, announced);
        }
    }

    /// Applies end flags of the peer. Returns the events for the user.
    pub(super) fn handle_end(&mut self, key: usize, news: End) -> Ready {
        let mut ready = Ready::READABLE;
        self.sockets[key].rx_end |= news;
        if news.contains(End::SENDING_DONE) {
            self.apply(key, Input::PeerDone);
        }
        if news.contains(End::ABORT) {
            self.counters.aborted += 1;
            ready |= Ready::ABORTED;
            self.apply(key, Input::PeerAborted);
        } else if news.contains(End::CLOSED) {
            self.apply(key, Input::PeerClosed);
        }
        if self.sockets[key].state == State::Closed {
            ready |= Ready::CLOSED;
        }
        ready
    }

    /// The peer has acknowledged a CDC message of a socket, and the data before it.
    pub(super) fn cdc_arrived<P: SmcDevice + ?Sized>(
        &mut self,
        id: SocketId,
        sent: u64,
        seqno: u16,
        ctx: &mut Ctx<'_, P>,
    ) {
        let Engine { spare, dirty, .. } = self;
        let Some(socket) = self.sockets.get_mut(id.key()).filter(|socket| socket.id == id) else {
            return;
        };
        socket.in_flight = socket.in_flight.saturating_sub(1);
        socket.completed = socket.completed.max(sent);
        socket.completed_seqno = seqno;
        if socket.completed == socket.accepted
            && let Some(buffer) = socket.buffer.take()
        {
            spare.put(buffer, ctx);
        }
        if socket.returns.is_some() {
            socket.touch(dirty);
        }
        let room = core::mem::take(&mut socket.wants_room);
        let over = socket.state == State::Closed && socket.in_flight == 0;
        if room {
            self.announce(id.key(), Ready::WRITABLE);
        }
        if over {
            self.reap(id.key(), ctx);
        }
    }

    /// The peer has failed over to another link, and sends the sequence number up to which we must have received its
    /// messages. We choose our own link for sending independently.
    fn handle_failover<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        seqno: u16,
        ctx: &mut Ctx<'_, P>,
    ) {
        self.sockets[key].rewritten = true;
        self.sweep_soon(key, ctx.now);
        if (self.sockets[key].rx_seqno.wrapping_sub(seqno) as i16) < 0 {
            // A message that the peer counts as received is missing.
            self.abort_socket(key, ctx);
            self.announce(key, Ready::ABORTED);
        }
    }
}
