//! Builds the packets to be sent, one at a time.

use super::connection::Connection;
use super::send::{Outgoing, Plan};
use super::{NONE, Riocm};
use crate::pool::Pool;
use crate::wire::riocm::{
    FRAG, FRAG_PATCH, FRAME, HEAD_PATCH, Header, LARGEST, LONGEST, Packet, Part,
};
use drivers::hal::{Instant, Window};

/// Packets that a connection sends in one turn.
const TURN: u32 = 16;
/// Maximum number of windows of a packet's payload.
const PIECES: usize = 8;

/// A RapidIO message to send: `header` followed by the payload. The caller must pad it to a multiple of 8 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// RapidIO port.
    pub port: usize,
    /// Device id of the receiver.
    pub destination: u16,
    /// Mailbox of the receiver.
    pub mailbox: u8,
    /// Header bytes.
    pub header: &'a [u8],
    /// Windows of the payload. They must be read before the next call of the engine.
    pub payload: &'a [Window],
}

impl Transmit<'_> {
    /// Bytes of the message.
    pub fn len(&self) -> usize {
        self.header.len() + self.payload.iter().map(Window::len).sum::<usize>()
    }

    /// Always false.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the message. Returns its length.
    #[inline]
    pub fn write(&self, into: &mut [u8]) -> usize {
        let mut at = self.header.len();
        into[..at].copy_from_slice(self.header);
        for window in self.payload {
            let end = at + window.len();
            // The range has the window's length.
            let _ = window.read(0, &mut into[at..end]);
            at = end;
        }
        at
    }
}

/// The packet that is being built.
#[derive(Debug)]
pub(super) struct Out {
    /// The header, and the payload of a PATCH.
    header: [u8; LARGEST],
    length: usize,
    payload: [Window; PIECES],
    windows: usize,
    /// Bytes in the windows.
    behind: usize,
    /// Port, and the receiver's device and mailbox.
    to: (usize, u16, u8),
}

impl Out {
    pub fn new() -> Out {
        Out {
            header: [0; LARGEST],
            length: 0,
            payload: [Window::empty(); PIECES],
            windows: 0,
            behind: 0,
            to: (0, 0, 0),
        }
    }

    /// Writes a header for a payload of `payload` bytes, which [`Out::show`] adds.
    // Inlined with the rest of the path of a message: 1,038 instructions for 64 bytes instead of 1,131 (`bench riocm`).
    #[inline(always)]
    fn set(&mut self, connection: &Connection, header: Header, payload: usize) {
        let packet = Packet { ends: connection.ends(), header };
        let Some(into) = self.header.first_chunk_mut::<LONGEST>() else { return };
        self.length = packet.emit(payload, into);
    }

    /// As [`Out::set`], without windows of a message.
    fn set_bare(&mut self, connection: &Connection, header: Header, payload: usize) {
        self.set(connection, header, payload);
        (self.windows, self.behind) = (0, 0);
    }

    /// Adds windows of a message's bytes after the header.
    // Inlined with the rest of the path of a message: 1,038 instructions for 64 bytes instead of 1,131 (`bench riocm`).
    #[inline(always)]
    fn show(&mut self, pool: &Pool, message: &mut Outgoing, start: usize, length: usize) {
        self.behind = length;
        let window = message.data(pool, start, length);
        self.payload[0] = window;
        self.windows = usize::from(!window.is_empty());
        if window.len() < length {
            self.show_rest(pool, message, start + window.len(), start + length);
        }
    }

    #[inline(never)]
    fn show_rest(&mut self, pool: &Pool, message: &mut Outgoing, mut at: usize, end: usize) {
        while at < end {
            let window = message.data(pool, at, end - at);
            let Some(slot) = self.payload.get_mut(self.windows) else { break };
            if window.is_empty() {
                break;
            }
            *slot = window;
            self.windows += 1;
            at += window.len();
        }
    }

    #[inline]
    fn transmit(&self) -> Transmit<'_> {
        let (port, destination, mailbox) = self.to;
        Transmit {
            port,
            destination,
            mailbox,
            header: self.header.get(..self.length).unwrap_or_default(),
            payload: self.payload.get(..self.windows).unwrap_or_default(),
        }
    }
}

impl Riocm {
    /// The next packet to send, if there is one. Handles timers that are due at `now` first. Call it only when a packet
    /// can be sent: the returned packet counts as sent.
    pub fn poll_transmit(&mut self, pool: &mut Pool, now: Instant) -> Option<Transmit<'_>> {
        self.poll(pool, now);
        self.next_packet(pool)
    }

    /// As [`Riocm::poll_transmit`], for callers that have called [`Riocm::poll`].
    #[inline]
    pub(crate) fn next_packet(&mut self, pool: &mut Pool) -> Option<Transmit<'_>> {
        while let Some(cid) = self.ready.front() {
            if self.make_packet(pool, cid) {
                return Some(self.out.transmit());
            }
        }
        None
    }

    /// Builds the next packet of the connection whose turn it is. False if it has none; then it is another's turn.
    #[inline(never)]
    fn make_packet(&mut self, pool: &mut Pool, cid: u8) -> bool {
        let Riocm { connections, outgoing, out, last, ready, .. } = self;
        let Some(Some(connection)) = connections.get_mut(usize::from(cid)) else {
            ready.pop();
            return false;
        };
        let made = match connection.port {
            None => {
                // Without a port, pending packets are dropped.
                connection.owed = Default::default();
                None
            }
            Some(port) => connection.poll(pool, outgoing, out, last).then_some(port),
        };
        let Some(port) = made else {
            self.pass_over(pool, cid);
            return false;
        };
        connection.counters.sent_packets += 1;
        connection.counters.sent_bytes += (out.length + out.behind) as u64;
        out.to = (port, connection.peer_id, connection.peer_mailbox);
        // A connection that is being removed is freed at its next turn.
        if !connection.has_work() && !connection.is_dying {
            connection.is_ready = false;
            connection.turn = 0;
            ready.advance();
            return true;
        }
        connection.turn += 1;
        if connection.turn >= TURN {
            connection.turn = 0;
            ready.rotate();
        }
        true
    }

    /// Removes a connection without packets from the ready list, or frees it if it is being removed.
    #[cold]
    fn pass_over(&mut self, pool: &mut Pool, cid: u8) {
        let Some(connection) = self.at(cid) else { return };
        if connection.is_dying {
            return self.free_connection(pool, cid);
        }
        connection.is_ready = false;
        connection.turn = 0;
        self.ready.pop();
    }
}

impl Connection {
    /// Builds the next packet. False if there is none.
    // Inlined with the rest of the path of a message: 1,038 instructions for 64 bytes instead of 1,131 (`bench riocm`).
    #[inline(always)]
    fn poll(
        &mut self,
        pool: &Pool,
        messages: &mut slab::Slab<Outgoing>,
        out: &mut Out,
        last: &mut Option<(u8, u32)>,
    ) -> bool {
        if self.owed.any() {
            self.make_owed(out);
            return true;
        }
        let place = self.queue.0;
        let Some(message) = messages.get_mut(place as usize) else { return false };
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1);
        let is_last = if message.size <= self.agreed.start_len() {
            let (id, cid, part) = (message.id, self.peer_cid, Part::Single(message.fields()));
            out.set(self, Header::Data { id, sequence, cid, part }, message.size);
            out.show(pool, message, 0, message.size);
            true
        } else {
            self.make_part(pool, message, sequence, out)
        };
        if is_last {
            self.queue.0 = message.next;
            if self.queue.0 == NONE {
                self.queue.1 = NONE;
            }
            *last = Some((self.id.cid, place));
        }
        true
    }

    /// Builds the next packet of a message in parts. Returns whether it is the last.
    #[inline(never)]
    fn make_part(&self, pool: &Pool, message: &mut Outgoing, sequence: u16, out: &mut Out) -> bool {
        let number = message.packets;
        if number == 0 {
            self.make_first(pool, message, sequence, out);
            return false;
        }
        message.packets = number + 1;
        let is_last = number + 1 == message.plan.packets;
        let (id, cid) = (message.id, self.peer_cid);
        let header = |part| Header::Data { id, sequence, cid, part };
        if number > message.plan.fragments {
            let length = self.make_patch(pool, message, is_last, out);
            out.set_bare(self, header(Part::Patch), length);
            out.length += length;
            return is_last;
        }
        let Plan { span, ahead, rest, .. } = message.plan;
        let start = message.at;
        let length = span.min(message.size as u32 - rest - start);
        message.at = start + length;
        let (start, length) = ((start + ahead) as usize, (length - ahead) as usize);
        out.set(self, header(Part::Fragment), length);
        out.show(pool, message, start, length);
        is_last
    }

    /// Builds the first packet of a message in parts.
    #[inline(never)]
    fn make_first(&self, pool: &Pool, message: &mut Outgoing, sequence: u16, out: &mut Out) {
        let plan = Plan::new(message.size, self.agreed, self.fragmentation);
        (message.plan, message.packets, message.at) = (plan, 1, plan.head);
        let fields = message.fields();
        let (part, ahead) = match plan.patches {
            0 => (Part::Start(fields), 0),
            patches => {
                let (fragments, patches) = (plan.fragments as u16, patches as u16);
                (Part::PatchStart { message: fields, fragments, patches }, HEAD_PATCH)
            }
        };
        let (id, cid, length) = (message.id, self.peer_cid, plan.head as usize - ahead);
        out.set(self, Header::Data { id, sequence, cid, part }, length);
        out.show(pool, message, ahead, length);
    }

    /// Builds the payload of the next PATCH after the space for its header. Returns its length.
    #[inline(never)]
    fn make_patch(
        &self,
        pool: &Pool,
        message: &mut Outgoing,
        is_last: bool,
        out: &mut Out,
    ) -> usize {
        let Plan { head, span, fragments, rest, .. } = message.plan;
        let capacity = self.agreed.fragment_len();
        let room = out.header.get_mut(FRAME + FRAG..).and_then(|it| it.get_mut(..capacity));
        let Some(room) = room else { return 0 };
        let mut length = 0;
        if message.packets == 2 + fragments
            && let Some(first) = room.first_chunk_mut::<HEAD_PATCH>()
        {
            message.copy(pool, 0, first);
            length = HEAD_PATCH;
        }
        let mut from = head + message.patched * span;
        while message.patched < fragments
            && let Some(next) = room.get_mut(length..).and_then(|it| it.first_chunk_mut())
        {
            message.copy::<FRAG_PATCH>(pool, from as usize, next);
            message.patched += 1;
            from += span;
            length += FRAG_PATCH;
        }
        let rest = rest as usize;
        if is_last && let Some(last) = room.get_mut(length..length + rest) {
            message.copy_parts(pool, message.size - rest, last);
            length += rest;
        }
        length
    }

    /// Builds the next pending CONN or HEARTBEAT packet.
    #[inline(never)]
    fn make_owed(&mut self, out: &mut Out) {
        let header = self.take_owed();
        out.set_bare(self, header, 0);
    }

    /// Takes the next pending CONN or HEARTBEAT packet.
    fn take_owed(&mut self) -> Header {
        let owed = &mut self.owed;
        if core::mem::take(&mut owed.reset) {
            Header::Reset { generation: self.generation }
        } else if core::mem::take(&mut owed.request) {
            Header::Request {
                generation: self.generation,
                mtu: self.wanted_mtu,
                heartbeat: self.user_heartbeat,
            }
        } else if core::mem::take(&mut owed.ack) {
            Header::Ack {
                generation: self.generation,
                mtu: self.agreed.mtu,
                acknowledged: self.peer_generation,
                heartbeat: self.agreed.heartbeat,
                cid: self.id.cid.into(),
            }
        } else {
            owed.heartbeat = false;
            Header::Heartbeat { cid: self.peer_cid }
        }
    }
}
