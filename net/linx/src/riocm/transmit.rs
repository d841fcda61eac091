//! What is to be sent now, one packet at a time.

use super::connection::Connection;
use super::send::{Outgoing, Plan};
use super::{NONE, Riocm};
use crate::pool::Pool;
use crate::wire::riocm::{FRAG_PATCH, HEAD_PATCH, Header, LARGEST, LONGEST, Packet, Part};
use drivers::hal::{Instant, Window};

/// Packets that a connection sends before another has its turn.
const TURN: u32 = 16;
/// Pieces in which a packet's payload may lie.
const PIECES: usize = 8;

/// A RapidIO message to send: `header`, and behind it the payload. It is to be filled up to a multiple of 8 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// At which RapidIO port.
    pub port: usize,
    /// Device id of the receiver.
    pub destination: u16,
    /// Mailbox of the receiver.
    pub mailbox: u8,
    /// The first bytes.
    pub header: &'a [u8],
    /// The rest, where it lies: to be read before anything else is asked of the engine.
    pub payload: &'a [Window],
}

impl Transmit<'_> {
    /// Bytes of the message.
    pub fn len(&self) -> usize {
        self.header.len() + self.payload.iter().map(Window::len).sum::<usize>()
    }

    /// Whether it has none, which is never so.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the message; its length.
    #[inline]
    pub fn write(&self, into: &mut [u8]) -> usize {
        let mut at = self.header.len();
        into[..at].copy_from_slice(self.header);
        for window in self.payload {
            let end = at + window.len();
            // It is as long.
            let _ = window.read(0, &mut into[at..end]);
            at = end;
        }
        at
    }
}

/// A packet while it is made.
#[derive(Debug)]
pub(super) struct Out {
    /// The header, and the payload of a PATCH.
    header: [u8; LARGEST],
    length: usize,
    payload: [Window; PIECES],
    windows: usize,
    /// Bytes in them.
    behind: usize,
}

impl Out {
    pub fn new() -> Out {
        Out {
            header: [0; LARGEST],
            length: 0,
            payload: [Window::empty(); PIECES],
            windows: 0,
            behind: 0,
        }
    }

    /// Writes a header in front of so many bytes.
    #[inline(always)]
    fn set(&mut self, connection: &Connection, header: Header, payload: usize) {
        let packet = Packet { ends: connection.ends(), header };
        let Some(into) = self.header.first_chunk_mut::<LONGEST>() else { return };
        self.length = packet.emit(payload, into);
        (self.windows, self.behind) = (0, 0);
    }

    /// Puts bytes of a message behind the header, where they lie.
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
    fn transmit(&self, port: usize, destination: u16, mailbox: u8) -> Transmit<'_> {
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
    /// The next packet to send, if there is one; what is due at `now` is done first. Ask when it can be sent: what
    /// comes out counts as sent.
    pub fn poll_transmit(&mut self, pool: &mut Pool, now: Instant) -> Option<Transmit<'_>> {
        self.poll(pool, now);
        self.next_packet(pool)
    }

    /// As [`Riocm::poll_transmit`], for who has called [`Riocm::poll`].
    #[inline]
    pub(crate) fn next_packet(&mut self, pool: &mut Pool) -> Option<Transmit<'_>> {
        if self.ready.front().is_none() {
            return None;
        }
        self.make_packet(pool)
    }

    #[inline(never)]
    fn make_packet(&mut self, pool: &mut Pool) -> Option<Transmit<'_>> {
        while let Some(cid) = self.ready.front() {
            let Riocm { connections, outgoing, out, last, ready, .. } = self;
            let Some(Some(connection)) = connections.get_mut(usize::from(cid)) else {
                ready.pop();
                continue;
            };
            let made = match connection.port {
                None => {
                    // An orphan: its CONN_REQs go nowhere.
                    connection.owed = Default::default();
                    None
                }
                Some(port) => connection.poll(pool, outgoing, out, last).then_some(port),
            };
            let Some(port) = made else {
                if connection.is_dying {
                    self.bury(pool, cid);
                } else {
                    connection.is_ready = false;
                    connection.turn = 0;
                    ready.pop();
                }
                continue;
            };
            connection.counters.sent_packets += 1;
            connection.counters.sent_bytes += (out.length + out.behind) as u64;
            connection.turn += 1;
            // One that is dying is buried when its turn comes again.
            if !connection.has_work() && !connection.is_dying {
                connection.is_ready = false;
                connection.turn = 0;
                ready.pop();
            } else if connection.turn >= TURN {
                connection.turn = 0;
                ready.rotate();
            }
            let (destination, mailbox) = (connection.peer_id, connection.peer_mailbox);
            return Some(self.out.transmit(port, destination, mailbox));
        }
        None
    }
}

impl Connection {
    /// Makes the next packet; false if there is none.
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
            let (id, cid, part) = (message.id, self.peer_cid, Part::Single(message.told()));
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

    /// Makes the next packet of a message in parts; whether it is the last.
    #[inline(never)]
    fn make_part(&self, pool: &Pool, message: &mut Outgoing, sequence: u16, out: &mut Out) -> bool {
        let (id, cid) = (message.id, self.peer_cid);
        let header = |part| Header::Data { id, sequence, cid, part };
        if message.packets == 0 {
            message.plan = Plan::new(message.size, self.agreed, self.fragmentation);
        }
        let number = message.packets;
        message.packets += 1;
        let Plan { head, fragments, patches, .. } = message.plan;
        if patches > 0 {
            self.make_patched(pool, message, sequence, out);
        } else if number > 0 {
            let (start, length) = message.plan.fragment(number - 1, message.size);
            out.set(self, header(Part::Fragment), length);
            out.show(pool, message, start, length);
        } else {
            out.set(self, header(Part::Start(message.told())), head);
            out.show(pool, message, 0, head);
        }
        message.packets == 1 + fragments + patches
    }

    /// Makes the next packet of a message that is patched.
    #[inline(never)]
    fn make_patched(&self, pool: &Pool, message: &mut Outgoing, sequence: u16, out: &mut Out) {
        let (id, cid, plan) = (message.id, self.peer_cid, message.plan);
        let header = |part| Header::Data { id, sequence, cid, part };
        let number = message.packets - 1;
        if number > plan.fragments {
            let length = self.make_patch(pool, message, out);
            out.set(self, header(Part::Patch), length);
            out.length += length;
        } else if number > 0 {
            let (start, length) = plan.fragment(number - 1, message.size);
            out.set(self, header(Part::Fragment), length - FRAG_PATCH);
            out.show(pool, message, start + FRAG_PATCH, length - FRAG_PATCH);
        } else {
            let (fragments, patches) = (plan.fragments as u16, plan.patches as u16);
            let part = Part::PatchStart { message: message.told(), fragments, patches };
            out.set(self, header(part), plan.head - HEAD_PATCH);
            out.show(pool, message, HEAD_PATCH, plan.head - HEAD_PATCH);
        }
    }

    /// Makes the payload of the next PATCH behind where its header will be; its length.
    #[inline(never)]
    fn make_patch(&self, pool: &Pool, message: &mut Outgoing, out: &mut Out) -> usize {
        let start = crate::wire::riocm::FRAME + crate::wire::riocm::FRAG;
        let capacity = self.agreed.fragment_len();
        let plan = message.plan;
        let mut length = 0;
        let mut put = |message: &mut Outgoing, mut from: usize, mut count: usize| {
            while count > 0 {
                let window = message.patch(pool, from, count);
                let at = start + length;
                // Sixteen bytes, as most are, without a call.
                if window.len() == FRAG_PATCH
                    && let Some(into) = out.header.get_mut(at..)
                    && let Some(into) = into.first_chunk_mut::<FRAG_PATCH>()
                {
                    *into = window.read_array(0).unwrap_or_default();
                    length += FRAG_PATCH;
                    from += FRAG_PATCH;
                    count -= FRAG_PATCH;
                    continue;
                }
                let Some(into) = out.header.get_mut(at..at + window.len()) else { return };
                if window.is_empty() || window.read(0, into).is_err() {
                    return;
                }
                length += window.len();
                from += window.len();
                count -= window.len();
            }
        };
        let mut used = 0;
        let is_first = message.packets == 2 + plan.fragments;
        if is_first {
            put(message, 0, HEAD_PATCH);
            used += HEAD_PATCH;
        }
        while message.patched < plan.fragments && used + FRAG_PATCH <= capacity {
            let from = plan.head + message.patched * plan.span;
            put(message, from, FRAG_PATCH);
            message.patched += 1;
            used += FRAG_PATCH;
        }
        let is_last = message.packets == 1 + plan.fragments + plan.patches;
        if is_last {
            put(message, message.size - plan.rest, plan.rest);
        }
        length
    }

    /// Makes the CONN or HEARTBEAT packet that is to be sent first.
    #[inline(never)]
    fn make_owed(&mut self, out: &mut Out) {
        let header = self.take_owed();
        out.set(self, header, 0);
    }

    /// The CONN or HEARTBEAT packet that is to be sent first.
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
