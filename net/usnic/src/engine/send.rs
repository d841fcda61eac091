//! The send queue: fragments in order, each sent in one packet (FRAG) or in several (CHUNKs).

use super::endpoint::{Endpoint, State};
use super::shared::{Block, Shared};
use super::{EndpointId, Engine, NONE};
use crate::wire::header::PUT_TAG;
use core::fmt;
use drivers::hal::{Instant, Window};

/// A fragment in the send queue, or one whose completion the user has not polled.
#[derive(Debug)]
pub(super) struct Fragment {
    /// The next fragment in the list.
    pub next: u32,
    /// Sequence number of its first packet, set when that is sent.
    pub start: u64,
    /// When its last packet so far was sent, without retransmissions.
    pub sent: Instant,
    /// Number of its packets.
    pub segments: u32,
    /// Bytes of payload in each packet except the last.
    pub segment: u32,
    pub size: u32,
    /// Its name, if it needs several packets; otherwise 0.
    pub id: u32,
    pub put_address: u64,
    pub tag: u8,
    /// Its bytes.
    pub windows: [Window; 2],
    /// Memory of the copy, if it was copied.
    pub block: Option<Block>,
    /// The user's cookie, if its completion is to be reported.
    pub cookie: Option<u64>,
    pub acknowledged: bool,
}

impl Default for Fragment {
    fn default() -> Self {
        Fragment {
            next: NONE,
            start: 0,
            sent: Instant::ZERO,
            segments: 0,
            segment: 0,
            size: 0,
            id: 0,
            put_address: 0,
            tag: 0,
            windows: [Window::empty(); 2],
            block: None,
            cookie: None,
            acknowledged: false,
        }
    }
}

impl Fragment {
    /// Length of the payload of the packet at `offset`.
    #[inline]
    pub fn part(&self, offset: u32) -> u32 {
        (self.size - offset).min(self.segment)
    }

    /// The payload at `offset`, which may span both windows.
    pub fn pieces(&self, offset: u32, length: u32) -> [Window; 2] {
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
    /// The user's cookie.
    pub cookie: u64,
    /// Whether the peer acknowledged all of it. If not, the endpoint failed before.
    pub acknowledged: bool,
}

/// Why a send was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The endpoint does not exist, or no longer sends.
    Closed,
    /// No room now; the endpoint has news when there is room.
    Full,
    /// The message is longer than the limit.
    TooLong,
    /// The peer has no handler for the tag.
    Tag(u8),
    /// The peer has not permitted PUTs to that address.
    NotPermitted,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendError::Closed => f.write_str("the endpoint is closed or has failed"),
            SendError::Full => f.write_str("the endpoint's queue is full"),
            SendError::TooLong => f.write_str("the message is longer than the limit"),
            SendError::Tag(tag) => write!(f, "the peer has no handler for tag {tag}"),
            SendError::NotPermitted => {
                f.write_str("the peer has not permitted writes to that address")
            }
        }
    }
}

impl core::error::Error for SendError {}

/// A fragment to queue.
struct Order {
    windows: [Window; 2],
    block: Option<Block>,
    size: u32,
    tag: u8,
    put_address: u64,
    cookie: Option<u64>,
}

impl Engine {
    /// Sends a message. Its bytes are copied.
    #[inline]
    pub fn send(
        &mut self,
        id: EndpointId,
        tag: u8,
        message: &[u8],
        now: Instant,
    ) -> Result<(), SendError> {
        let Engine { endpoints, shared, .. } = self;
        let endpoint = super::find(endpoints, id).ok_or(SendError::Closed)?;
        endpoint.may_send(shared, Some(tag), message.len(), true)?;
        let Some(block) = shared.blocks.alloc(message.len()) else {
            endpoint.wants_room = true;
            return Err(SendError::Full);
        };
        let window = shared.blocks.front(block, message.len());
        // The block is at least as long as the message.
        let _ = window.write(0, message);
        let order = Order {
            windows: [window, Window::empty()],
            block: Some(block),
            size: message.len() as u32,
            tag,
            put_address: 0,
            cookie: None,
        };
        let agent = endpoint.enqueue(shared, order);
        self.check_once(agent, now);
        Ok(())
    }

    /// Sends a message in one or two windows without a copy. The engine owns them until
    /// [`Engine::next_completion`] returns `cookie`. (A device may still hold a retransmitted packet of the message
    /// then. If the memory changes, the peer may receive the changed packet, and drops it as a duplicate.)
    pub fn send_windows(
        &mut self,
        id: EndpointId,
        tag: u8,
        windows: [Window; 2],
        cookie: u64,
        now: Instant,
    ) -> Result<(), SendError> {
        let size = length(&windows)?;
        let Engine { endpoints, shared, .. } = self;
        let endpoint = super::find(endpoints, id).ok_or(SendError::Closed)?;
        endpoint.may_send(shared, Some(tag), size, false)?;
        let (size, cookie) = (size as u32, Some(cookie));
        let order = Order { windows, block: None, size, tag, put_address: 0, cookie };
        let agent = endpoint.enqueue(shared, order);
        self.check_once(agent, now);
        Ok(())
    }

    /// Writes to the peer's memory at `address`. The windows are handled as in [`Engine::send_windows`], and must not
    /// be empty.
    pub fn put(
        &mut self,
        id: EndpointId,
        address: u64,
        windows: [Window; 2],
        cookie: u64,
        now: Instant,
    ) -> Result<(), SendError> {
        let size = length(&windows)?;
        let Engine { endpoints, shared, .. } = self;
        let endpoint = super::find(endpoints, id).ok_or(SendError::Closed)?;
        let (base, room) = endpoint.permitted.ok_or(SendError::NotPermitted)?;
        let at = address.checked_sub(base).ok_or(SendError::NotPermitted)?;
        let inside = at <= room && size as u64 <= room - at && size > 0 && address != 0;
        if !inside {
            return Err(SendError::NotPermitted);
        }
        endpoint.may_send(shared, None, size, false)?;
        let (size, cookie) = (size as u32, Some(cookie));
        let put_address = address;
        let order = Order { windows, block: None, size, tag: PUT_TAG, put_address, cookie };
        let agent = endpoint.enqueue(shared, order);
        self.check_once(agent, now);
        Ok(())
    }

    /// Permits PUTs to `length` bytes of the peer's memory from `base` on, which the peer has announced. (The stock
    /// peer crashes on a PUT to unmapped memory.)
    pub fn permit_put(&mut self, id: EndpointId, base: u64, length: u64) {
        if let Some(endpoint) = self.endpoint_mut(id) {
            endpoint.permitted = base.checked_add(length).map(|_| (base, length));
        }
    }

    /// The next fragment with a cookie that has ended.
    #[inline]
    pub fn next_completion(&mut self, id: EndpointId) -> Option<Completion> {
        let Engine { endpoints, shared, .. } = self;
        let endpoint = super::find(endpoints, id)?;
        let first = endpoint.completed.0;
        let fragment = shared.fragments.get(first)?;
        endpoint.completed.0 = fragment.next;
        if fragment.next == NONE {
            endpoint.completed.1 = NONE;
        }
        let (cookie, acknowledged) = (fragment.cookie, fragment.acknowledged);
        shared.fragments.give_back(first);
        Some(Completion { cookie: cookie?, acknowledged })
    }

    #[inline]
    fn check_once(&mut self, agent: Option<u32>, now: Instant) {
        if let Some(agent) = agent {
            self.start_check(agent, now);
        }
    }
}

impl Endpoint {
    /// Checks whether `size` bytes can be queued now; `tag` is None for a PUT.
    #[inline]
    fn may_send(
        &mut self,
        shared: &Shared,
        tag: Option<u8>,
        size: usize,
        copied: bool,
    ) -> Result<(), SendError> {
        if let (Some(known), Some(tag)) = (self.config.tag, tag)
            && known != tag
        {
            return Err(SendError::Tag(tag));
        }
        if size > shared.config.max_message || u32::try_from(size).is_err() {
            return Err(SendError::TooLong);
        }
        if self.state != State::Open {
            return Err(SendError::Closed);
        }
        let bytes = if copied { self.send.copied.saturating_add(size) } else { 0 };
        // With no copied bytes queued, a message may exceed the limit, and may use the parts reserved for other
        // endpoints.
        let is_bound = copied && self.send.copied > 0;
        let too_many = is_bound
            && (bytes > self.config.send_bytes
                || self.config.leaves_room
                    && !shared.reserve.leaves(shared.blocks.available(), size));
        let full = shared.fragments.is_full() || self.send.fragments >= self.config.sends;
        if full || too_many {
            self.wants_room = true;
            return Err(SendError::Full);
        }
        Ok(())
    }

    /// Queues a fragment that passed the checks; returns the agent for the connectivity check.
    #[inline]
    fn enqueue(&mut self, shared: &mut Shared, order: Order) -> Option<u32> {
        let Shared { fragments, .. } = shared;
        let (place, fragment) = fragments.take()?;
        let send = &mut self.send;
        let (mut id, mut segments, mut segment) = (0, 1, self.max_fragment);
        if order.size > self.max_fragment {
            segment = self.max_chunk;
            segments = order.size.div_ceil(segment.max(1));
            id = send.fragment_id;
            // 0 is not a valid name.
            send.fragment_id = id.wrapping_add(1).max(1);
        }
        *fragment = Fragment {
            next: NONE,
            start: 0,
            sent: Instant::ZERO,
            segments,
            segment,
            size: order.size,
            id,
            put_address: order.put_address,
            tag: order.tag,
            windows: order.windows,
            block: order.block,
            cookie: order.cookie,
            acknowledged: false,
        };
        send.fragments += 1;
        send.backlog += u64::from(order.size);
        if order.block.is_some() {
            send.copied += order.size as usize;
        }
        match fragments.get_mut(send.last) {
            Some(last) => last.next = place,
            None => send.first = place,
        }
        send.last = place;
        if send.unsent == NONE {
            send.unsent = place;
            send.unsent_offset = 0;
        }
        shared.make_ready(self);
        self.agent
    }

    /// Removes completely acknowledged fragments from the queue.
    #[inline]
    pub(super) fn retire(&mut self, shared: &mut Shared) {
        let mut news = false;
        while self.send.first != self.send.unsent
            && let Some(fragment) = shared.fragments.get_mut(self.send.first)
            && fragment.start + u64::from(fragment.segments) <= self.send.acknowledged + 1
        {
            let first = self.send.first;
            if self.recovery.fragment == Some(first) {
                self.recovery.fragment = None;
            }
            self.send.first = fragment.next;
            if fragment.next == NONE {
                self.send.last = NONE;
            }
            self.counters.fragments_sent += 1;
            fragment.acknowledged = true;
            news |= fragment.cookie.is_some();
            self.finish(shared, first);
        }
        if news || core::mem::take(&mut self.wants_room) {
            shared.notify_user(self);
        }
        shared.close_if_drained(self);
    }

    /// Drops all fragments in the queue.
    pub(super) fn abandon_fragments(&mut self, shared: &mut Shared) {
        while let Some(fragment) = shared.fragments.get(self.send.first) {
            let first = core::mem::replace(&mut self.send.first, fragment.next);
            self.finish(shared, first);
        }
        self.send.last = NONE;
        self.send.unsent = NONE;
        self.send.backlog = 0;
        self.recovery.fragment = None;
    }

    /// Ends a fragment: releases its memory, and queues its completion if it has a cookie.
    #[inline]
    fn finish(&mut self, shared: &mut Shared, place: u32) {
        let Shared { fragments, blocks, .. } = shared;
        let Some(fragment) = fragments.get_mut(place) else { return };
        self.send.fragments -= 1;
        if let Some(block) = fragment.block.take() {
            self.send.copied -= fragment.size as usize;
            blocks.free_unmerged(block);
        }
        fragment.next = NONE;
        if fragment.cookie.is_none() {
            return fragments.give_back(place);
        }
        match fragments.get_mut(self.completed.1) {
            Some(last) => last.next = place,
            None => self.completed.0 = place,
        }
        self.completed.1 = place;
    }

    /// Drops completions of a removed endpoint.
    pub(super) fn drop_completions(&mut self, shared: &mut Shared) {
        let (mut next, _) = core::mem::replace(&mut self.completed, (NONE, NONE));
        while let Some(fragment) = shared.fragments.get(next) {
            let place = core::mem::replace(&mut next, fragment.next);
            shared.fragments.give_back(place);
        }
    }
}

fn length(windows: &[Window; 2]) -> Result<usize, SendError> {
    let [first, second] = windows;
    first.len().checked_add(second.len()).ok_or(SendError::TooLong)
}
