//! What is to be sent: fragments, each in one packet (FRAG) or in several (CHUNKs), in the order in which they
//! were given.

use super::endpoint::{Endpoint, State};
use super::{EndpointId, Engine, NONE};
use crate::blocks::Block;
use crate::wire::header::PUT_TAG;
use core::fmt;
use drivers::hal::{Instant, Window};

/// A fragment that is being sent, or whose end is to be told.
#[derive(Debug)]
pub(super) struct Fragment {
    /// The one behind it.
    pub next: u32,
    /// Sequence number of its first packet, once that was sent.
    pub start: u64,
    /// When the last of its packets so far was sent first.
    pub sent: Instant,
    /// Its packets, and bytes of payload in each but the last.
    pub segments: u32,
    pub segment: u32,
    pub size: u32,
    /// Its name, if it takes several packets.
    pub id: u32,
    pub put_address: u64,
    pub tag: u8,
    /// Where its bytes lie.
    pub windows: [Window; 2],
    /// The memory that they were copied to.
    pub block: Option<Block>,
    /// By which its user knows it, if its end is to be told.
    pub cookie: Option<u64>,
    pub acknowledged: bool,
}

impl Fragment {
    /// Offset and length of the payload of its packet number `segment`.
    #[inline]
    pub fn range(&self, segment: u32) -> (u32, u32) {
        let offset = segment.saturating_mul(self.segment).min(self.size);
        (offset, (self.size - offset).min(self.segment))
    }

    /// The payload at `offset`.
    #[inline]
    pub fn payload(&self, offset: u32, length: u32) -> [Window; 2] {
        let (offset, length) = (offset as usize, length as usize);
        let [first, second] = &self.windows;
        let part =
            |window: &Window, at, length| window.slice(at, length).unwrap_or(Window::empty());
        if offset >= first.len() {
            return [part(second, offset - first.len(), length), Window::empty()];
        }
        let here = length.min(first.len() - offset);
        [part(first, offset, here), part(second, 0, length - here)]
    }
}

/// A fragment that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// By which its user knows it.
    pub cookie: u64,
    /// The peer has all of it; else the endpoint failed first.
    pub acknowledged: bool,
}

/// Why something was not taken to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// There is no such endpoint, or it sends nothing any more.
    Closed,
    /// No room now: there is news when there is.
    Full,
    /// More bytes than a message may have.
    TooLong,
    /// The peer has no handler for the tag.
    Tag(u8),
    /// The peer has not said that it may be written there.
    NotPermitted,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendError::Closed => f.write_str("the endpoint is closed or has failed"),
            SendError::Full => f.write_str("the endpoint's queue is full"),
            SendError::TooLong => f.write_str("the message is longer than messages may be"),
            SendError::Tag(tag) => write!(f, "the peer has no handler for tag {tag}"),
            SendError::NotPermitted => {
                f.write_str("the peer has not said that it may be written at that address")
            }
        }
    }
}

impl core::error::Error for SendError {}

/// What is sent, and how.
struct Order {
    windows: [Window; 2],
    block: Option<Block>,
    size: usize,
    tag: u8,
    put_address: u64,
    cookie: Option<u64>,
}

impl Engine {
    /// Sends a message. Its bytes are copied, and are the user's again at once.
    pub fn send(
        &mut self,
        id: EndpointId,
        tag: u8,
        message: &[u8],
        now: Instant,
    ) -> Result<(), SendError> {
        self.may_send(id, tag, message.len(), true)?;
        let block = self.blocks.alloc(message.len()).ok_or(SendError::Full);
        let block = block.inspect_err(|_| self.wants_room(id))?;
        let window = self.blocks.window(block, message.len());
        // The block is as long as the message at least.
        let _ = window.write(0, message);
        let windows = [window, Window::empty()];
        let order = Order {
            windows,
            block: Some(block),
            size: message.len(),
            tag,
            put_address: 0,
            cookie: None,
        };
        self.enqueue(id, order, now);
        Ok(())
    }

    /// Sends a message that lies in one or two windows, from there. They are the engine's until
    /// [`Engine::next_completion`] gives `cookie`. (A device may still have a packet of it that was sent again:
    /// what is written there then may be seen by the peer, who drops it.)
    pub fn send_windows(
        &mut self,
        id: EndpointId,
        tag: u8,
        windows: [Window; 2],
        cookie: u64,
        now: Instant,
    ) -> Result<(), SendError> {
        let size = length(&windows)?;
        self.may_send(id, tag, size, false)?;
        let order = Order { windows, block: None, size, tag, put_address: 0, cookie: Some(cookie) };
        self.enqueue(id, order, now);
        Ok(())
    }

    /// Writes to the peer's memory at `address`; the windows as in [`Engine::send_windows`]. No bytes are no PUT.
    pub fn put(
        &mut self,
        id: EndpointId,
        address: u64,
        windows: [Window; 2],
        cookie: u64,
        now: Instant,
    ) -> Result<(), SendError> {
        let size = length(&windows)?;
        let endpoint = self.endpoint(id).ok_or(SendError::Closed)?;
        let (base, room) = endpoint.permitted.ok_or(SendError::NotPermitted)?;
        let at = address.checked_sub(base).ok_or(SendError::NotPermitted)?;
        let inside = at <= room && size as u64 <= room - at && size > 0 && address != 0;
        if !inside {
            return Err(SendError::NotPermitted);
        }
        self.check(id, size, false)?;
        let put_address = address;
        let order =
            Order { windows, block: None, size, tag: PUT_TAG, put_address, cookie: Some(cookie) };
        self.enqueue(id, order, now);
        Ok(())
    }

    /// Says that the peer may be written from `base` on, `length` bytes: it has told us so. (The stock peer dies of
    /// a PUT to memory that is not there.)
    pub fn permit_put(&mut self, id: EndpointId, base: u64, length: u64) {
        if let Some(endpoint) = self.endpoint_mut(id) {
            endpoint.permitted = base.checked_add(length).map(|_| (base, length));
        }
    }

    /// A fragment with a cookie that has ended.
    pub fn next_completion(&mut self, id: EndpointId) -> Option<Completion> {
        let first = self.endpoint(id)?.completed.0;
        let fragment = self.fragments.try_remove(first as usize)?;
        let endpoint = self.endpoint_mut(id)?;
        endpoint.completed.0 = fragment.next;
        if fragment.next == NONE {
            endpoint.completed.1 = NONE;
        }
        let cookie = fragment.cookie?;
        Some(Completion { cookie, acknowledged: fragment.acknowledged })
    }

    fn may_send(
        &mut self,
        id: EndpointId,
        tag: u8,
        size: usize,
        copied: bool,
    ) -> Result<(), SendError> {
        let endpoint = self.endpoint(id).ok_or(SendError::Closed)?;
        if endpoint.config.tag.is_some_and(|known| known != tag) {
            return Err(SendError::Tag(tag));
        }
        self.check(id, size, copied)
    }

    fn check(&mut self, id: EndpointId, size: usize, copied: bool) -> Result<(), SendError> {
        if size > self.config.max_message || u32::try_from(size).is_err() {
            return Err(SendError::TooLong);
        }
        let (full, most) = (self.fragments.len() >= self.config.sends, self.config.sends);
        let endpoint = self.endpoint_mut(id).ok_or(SendError::Closed)?;
        if endpoint.state != State::Open {
            return Err(SendError::Closed);
        }
        let bytes = if copied { endpoint.send.copied.saturating_add(size) } else { 0 };
        // One that is longer than all may be goes when nothing else waits.
        let too_many = bytes > endpoint.config.send_bytes && endpoint.send.copied > 0;
        if full || too_many || endpoint.send.fragments >= endpoint.config.sends.min(most) {
            endpoint.wants_room = true;
            return Err(SendError::Full);
        }
        Ok(())
    }

    fn wants_room(&mut self, id: EndpointId) {
        if let Some(endpoint) = self.endpoint_mut(id) {
            endpoint.wants_room = true;
        }
    }

    /// Queues what was found to be in order.
    fn enqueue(&mut self, id: EndpointId, order: Order, now: Instant) {
        let Engine { endpoints, fragments, .. } = self;
        let Some(Some(endpoint)) = endpoints.get_mut(id.place as usize) else { return };
        let whole = order.size <= endpoint.max_fragment as usize;
        let segment = if whole { endpoint.max_fragment } else { endpoint.max_chunk };
        let send = &mut endpoint.send;
        let segments = (order.size as u32).div_ceil(segment.max(1)).max(1);
        let fragment = Fragment {
            next: NONE,
            start: 0,
            sent: now,
            segments,
            segment,
            size: order.size as u32,
            id: if whole { 0 } else { send.fragment_id },
            put_address: order.put_address,
            tag: order.tag,
            windows: order.windows,
            block: order.block,
            cookie: order.cookie,
            acknowledged: false,
        };
        if !whole {
            // 0 is the name of none.
            send.fragment_id = send.fragment_id.wrapping_add(1).max(1);
        }
        send.fragments += 1;
        send.backlog += order.size as u64;
        if order.block.is_some() {
            send.copied += order.size;
        }
        let place = fragments.insert(fragment) as u32;
        match fragments.get_mut(send.last as usize) {
            Some(last) => last.next = place,
            None => send.first = place,
        }
        send.last = place;
        if send.unsent == NONE {
            send.unsent = place;
            send.unsent_segment = 0;
        }
        let agent = endpoint.agent;
        self.make_ready(id.place);
        if let Some(agent) = agent {
            self.begin_pings(agent, now);
        }
    }

    /// Takes fragments off the list that are wholly acknowledged.
    pub(super) fn retire(&mut self, place: u32) {
        let Engine { endpoints, fragments, blocks, .. } = self;
        let Some(Some(endpoint)) = endpoints.get_mut(place as usize) else { return };
        let mut news = false;
        while let Some(fragment) = fragments.get_mut(endpoint.send.first as usize)
            && endpoint.send.first != endpoint.send.unsent
            && fragment.start + u64::from(fragment.segments) <= endpoint.send.acknowledged + 1
        {
            let first = endpoint.send.first;
            if endpoint.recovery.fragment == Some(first) {
                endpoint.recovery.fragment = None;
            }
            endpoint.send.first = fragment.next;
            if fragment.next == NONE {
                endpoint.send.last = NONE;
            }
            endpoint.counters.fragments_sent += 1;
            fragment.acknowledged = true;
            news |= fragment.cookie.is_some();
            Self::finish(endpoint, fragments, blocks, first);
        }
        if news || core::mem::take(&mut endpoint.wants_room) {
            self.tell(place);
        }
        self.close_if_drained(place);
    }

    /// Gives up everything that is to be sent.
    pub(super) fn abandon_fragments(&mut self, place: u32) {
        let Engine { endpoints, fragments, blocks, .. } = self;
        let Some(Some(endpoint)) = endpoints.get_mut(place as usize) else { return };
        while let Some(fragment) = fragments.get_mut(endpoint.send.first as usize) {
            let first = core::mem::replace(&mut endpoint.send.first, fragment.next);
            Self::finish(endpoint, fragments, blocks, first);
        }
        endpoint.send.last = NONE;
        endpoint.send.unsent = NONE;
        endpoint.send.backlog = 0;
        endpoint.recovery.fragment = None;
    }

    /// A fragment has ended: its memory is given back, and its end is told if it has a cookie.
    fn finish(
        endpoint: &mut Endpoint,
        fragments: &mut slab::Slab<Fragment>,
        blocks: &mut crate::blocks::Blocks,
        place: u32,
    ) {
        let Some(fragment) = fragments.get_mut(place as usize) else { return };
        endpoint.send.fragments -= 1;
        if let Some(block) = fragment.block.take() {
            endpoint.send.copied -= fragment.size as usize;
            blocks.free(block);
        }
        fragment.next = NONE;
        if fragment.cookie.is_none() {
            fragments.remove(place as usize);
            return;
        }
        match fragments.get_mut(endpoint.completed.1 as usize) {
            Some(last) => last.next = place,
            None => endpoint.completed.0 = place,
        }
        endpoint.completed.1 = place;
    }

    /// Forgets ends that nobody will ask for.
    pub(super) fn drop_completions(&mut self, place: u32) {
        let Some(endpoint) = self.at(place) else { return };
        let (mut next, _) = core::mem::replace(&mut endpoint.completed, (NONE, NONE));
        while let Some(fragment) = self.fragments.try_remove(next as usize) {
            next = fragment.next;
        }
    }
}

fn length(windows: &[Window; 2]) -> Result<usize, SendError> {
    let [first, second] = windows;
    first.len().checked_add(second.len()).ok_or(SendError::TooLong)
}
