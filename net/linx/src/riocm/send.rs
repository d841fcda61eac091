//! Send queue of a connection: messages, in order.

use super::config::Fragmentation;
use super::connection::{Agreed, Connection, State};
use super::{ConnectionId, Event, NONE, Riocm};
use crate::pool::{Chain, Cursor, Pool};
use crate::wire::riocm::{FRAG_PATCH, HEAD_PATCH, Message};
use core::fmt;
use drivers::hal::Window;
use slab::Slab;

/// Why a message cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// Not connected.
    NotConnected,
    /// No room at present; an event follows when there is.
    Full,
    /// Longer than the connection's maximum.
    TooLong,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendError::NotConnected => "the link is down",
            SendError::Full => "the link has no room for another message",
            SendError::TooLong => "the message is longer than max_message",
        })
    }
}

impl core::error::Error for SendError {}

/// Bytes of a message.
#[derive(Debug)]
pub(super) enum Body {
    /// Copied to the connection's memory, with cursors for the next data and for the next patch.
    Copied { chain: Chain, data: Cursor, patch: Cursor },
    /// In the user's memory.
    Windows { windows: [Window; 2], cookie: u64 },
}

/// Division of a message into packets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plan {
    /// Bytes of the message in the first packet, and in each fragment but the last.
    pub head: u32,
    pub span: u32,
    /// Numbers of fragments and PATCHes. PATCHes carry `ahead` bytes before each fragment, and `rest` bytes at the end.
    pub fragments: u32,
    pub patches: u32,
    pub ahead: u32,
    pub rest: u32,
    /// Total number of packets.
    pub packets: u32,
}

/// A queued message, or the one being sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub next: u32,
    pub source: u32,
    pub destination: u32,
    pub size: usize,
    pub body: Body,
    pub id: u8,
    /// Packets sent, and offset of the next fragment.
    pub packets: u32,
    pub at: u32,
    /// Fragments whose patches were sent.
    pub patched: u32,
    /// Computed with the first packet of a message in parts.
    pub plan: Plan,
}

impl Plan {
    /// Plan of a message of `size` bytes that does not fit into SINGLE.
    pub fn new(size: usize, agreed: Agreed, how: Fragmentation) -> Plan {
        if how == Fragmentation::Simple {
            let (head, span) = (agreed.start_len(), agreed.fragment_len());
            let fragments = (size - head).div_ceil(span);
            return Plan::of([head, span, fragments, 0, 0, 0]);
        }
        // The length of RapidIO messages is a multiple of 8 bytes. A padded packet cannot be distinguished from a
        // longer one, so all packets except the last, whose end follows from the size of the message, have multiples of
        // 8.
        let whole = usize::from(agreed.mtu) & !7;
        let head = size.min(whole);
        let (full, over) = ((size - head) / whole, (size - head) % whole);
        let last = if over >= FRAG_PATCH + 8 { over & !7 } else { 0 };
        let (fragments, rest) = (full + usize::from(last > 0), over - last);
        let capacity = agreed.fragment_len();
        let first = (capacity - HEAD_PATCH) / FRAG_PATCH;
        let others = capacity / FRAG_PATCH;
        let (mut patches, mut used) = (1, HEAD_PATCH + FRAG_PATCH * fragments.min(first));
        if fragments > first {
            let more = fragments - first;
            patches += more.div_ceil(others);
            used = FRAG_PATCH * ((more - 1) % others + 1);
        }
        if rest > capacity - used {
            patches += 1;
        }
        Plan::of([head, whole, fragments, patches, FRAG_PATCH, rest])
    }

    /// All numbers are bounded by the size of a message, which has 32 bits.
    fn of(parts: [usize; 6]) -> Plan {
        let [head, span, fragments, patches, ahead, rest] = parts.map(|part| part as u32);
        Plan { head, span, fragments, patches, ahead, rest, packets: 1 + fragments + patches }
    }
}

impl Outgoing {
    /// Message fields of its first packet.
    #[inline]
    pub fn fields(&self) -> Message {
        let Outgoing { source, destination, size, .. } = *self;
        Message { source, destination, size: size as u32 }
    }

    /// Up to `len` bytes at `offset`, in one window.
    // Inlined with the rest of the path of a message: 1,038 instructions for 64 bytes instead of 1,131 (`bench riocm`).
    #[inline(always)]
    pub fn data(&mut self, pool: &Pool, offset: usize, len: usize) -> Window {
        match &mut self.body {
            Body::Copied { chain: _, data, .. } => pool.next_window(data, offset, len),
            Body::Windows { windows, .. } => match windows[0].slice(offset, len) {
                Some(whole) => whole,
                None => part(windows, offset, len),
            },
        }
    }

    /// Copies bytes for a patch from `offset`. False if there are too few.
    #[inline]
    pub fn copy<const N: usize>(&mut self, pool: &Pool, offset: usize, into: &mut [u8; N]) -> bool {
        // Fast path: one window of the user's memory.
        if let Body::Windows { windows: [first, _], .. } = &self.body
            && let Ok(bytes) = first.read_array(offset)
        {
            *into = bytes;
            return true;
        }
        self.copy_parts(pool, offset, into)
    }

    /// As `copy`, for any memory.
    #[inline(never)]
    pub fn copy_parts(&mut self, pool: &Pool, mut offset: usize, mut into: &mut [u8]) -> bool {
        while !into.is_empty() {
            let window = self.patch(pool, offset, into.len());
            let (here, rest) = into.split_at_mut(window.len());
            if here.is_empty() || window.read(0, here).is_err() {
                return false;
            }
            (offset, into) = (offset + here.len(), rest);
        }
        true
    }

    /// As `data`, with the cursor for patches.
    fn patch(&mut self, pool: &Pool, offset: usize, len: usize) -> Window {
        match &mut self.body {
            Body::Copied { patch, .. } => pool.next_window(patch, offset, len),
            Body::Windows { windows, .. } => part(windows, offset, len),
        }
    }
}

#[inline(never)]
fn part(windows: &[Window; 2], offset: usize, len: usize) -> Window {
    let [first, second] = windows;
    let (window, at) =
        if offset < first.len() { (first, offset) } else { (second, offset - first.len()) };
    window.slice(at, len.min(window.len().saturating_sub(at))).unwrap_or(Window::empty())
}

/// The connection, if it can send a message of `size` bytes now.
#[inline]
fn may_send(
    connections: &mut [Option<Connection>],
    id: ConnectionId,
    size: usize,
    is_full: bool,
) -> Result<&mut Connection, SendError> {
    let connection = connections.get_mut(usize::from(id.cid)).and_then(Option::as_mut);
    let is_it = |it: &&mut Connection| it.id.number == id.number && it.state == State::Connected;
    let connection = connection.filter(is_it);
    let connection = connection.ok_or(SendError::NotConnected)?;
    // More packets than PATCH_START can count.
    let is_countless = size > connection.agreed.start_len()
        && size / usize::from(connection.agreed.mtu & !7) >= usize::from(u16::MAX);
    if size > connection.max_message as usize || is_countless {
        return Err(SendError::TooLong);
    }
    if is_full || connection.queued >= connection.sends {
        connection.wants_room = true;
        return Err(SendError::Full);
    }
    Ok(connection)
}

impl Connection {
    /// Appends a message to the queue.
    #[inline]
    fn enqueue(
        &mut self,
        outgoing: &mut Slab<Outgoing>,
        addresses: (u32, u32),
        size: usize,
        body: Body,
    ) {
        self.message_id = self.message_id.wrapping_add(1);
        let place = outgoing.insert(Outgoing {
            next: NONE,
            source: addresses.0,
            destination: addresses.1,
            size,
            body,
            id: self.message_id,
            packets: 0,
            at: 0,
            patched: 0,
            plan: Plan::default(),
        }) as u32;
        match outgoing.get_mut(self.queue.1 as usize) {
            Some(last) => last.next = place,
            None => self.queue.0 = place,
        }
        self.queue.1 = place;
        self.queued += 1;
    }
}

impl Riocm {
    /// Sends a message of `head` followed by `bytes`, which are copied.
    #[inline]
    pub fn send<const N: usize>(
        &mut self,
        pool: &mut Pool,
        id: ConnectionId,
        addresses: (u32, u32),
        head: &[u8; N],
        bytes: &[u8],
    ) -> Result<(), SendError> {
        self.reap(pool);
        let size = N + bytes.len();
        let Riocm { connections, outgoing, ready, config, .. } = self;
        let connection = may_send(connections, id, size, outgoing.len() >= config.sends)?;
        let Some(chain) = pool.begin(connection.send_account, head, bytes) else {
            connection.wants_room = true;
            return Err(SendError::Full);
        };
        let (data, patch) = (pool.start(&chain), pool.start(&chain));
        connection.enqueue(outgoing, addresses, size, Body::Copied { chain, data, patch });
        connection.push_ready(ready);
        Ok(())
    }

    /// Sends a message from the user's memory, which is in use until [`Event::Sent`].
    pub fn send_windows(
        &mut self,
        pool: &mut Pool,
        id: ConnectionId,
        addresses: (u32, u32),
        windows: [Window; 2],
        cookie: u64,
    ) -> Result<(), SendError> {
        self.reap(pool);
        let size = windows[0].len().checked_add(windows[1].len()).ok_or(SendError::TooLong)?;
        let Riocm { connections, outgoing, ready, config, .. } = self;
        let connection = may_send(connections, id, size, outgoing.len() >= config.sends)?;
        connection.enqueue(outgoing, addresses, size, Body::Windows { windows, cookie });
        connection.push_ready(ready);
        Ok(())
    }

    /// Frees the message whose last packet was returned to the caller.
    // Inlined with the rest of the path of a message: 1,038 instructions for 64 bytes instead of 1,131 (`bench riocm`).
    #[inline(always)]
    pub(super) fn reap(&mut self, pool: &mut Pool) {
        if let Some((cid, place)) = self.last.take() {
            self.reap_sent(pool, cid, place);
        }
    }

    #[inline(never)]
    fn reap_sent(&mut self, pool: &mut Pool, cid: u8, place: u32) {
        let Some(outgoing) = self.outgoing.try_remove(place as usize) else { return };
        let Some(connection) = self.at(cid) else { return };
        connection.queued -= 1;
        connection.counters.sent_messages += 1;
        let (id, wants_room) = (connection.id, core::mem::take(&mut connection.wants_room));
        match outgoing.body {
            Body::Copied { chain, .. } => pool.free(chain),
            Body::Windows { cookie, .. } => {
                self.events.push_back(Event::Sent { connection: id, cookie, done: true });
            }
        }
        if wants_room {
            self.events.push_back(Event::Room(id));
        }
    }

    /// Drops all queued messages. Returns their number.
    pub(super) fn drop_queue(&mut self, pool: &mut Pool, cid: u8) -> usize {
        if self.last.is_some_and(|last| last.0 == cid) {
            self.reap(pool);
        }
        let Riocm { connections, outgoing, events, .. } = self;
        let Some(Some(connection)) = connections.get_mut(usize::from(cid)) else { return 0 };
        let (mut next, _) = core::mem::replace(&mut connection.queue, (NONE, NONE));
        let mut count = 0;
        while let Some(message) = outgoing.try_remove(next as usize) {
            next = message.next;
            count += 1;
            match message.body {
                Body::Copied { chain, .. } => pool.free(chain),
                Body::Windows { cookie, .. } => {
                    events.push_back(Event::Sent {
                        connection: connection.id,
                        cookie,
                        done: false,
                    });
                }
            }
        }
        connection.queued = 0;
        connection.wants_room = false;
        connection.counters.unsent_messages += count as u64;
        count
    }
}
