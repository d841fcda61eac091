//! Events for the node's user.

use super::{EndpointId, HuntId, LinkId, Node, PeerId};
use drivers::hal::Instant;

/// An event. It is reported once, and again if its cause recurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A link came up or went down: see [`Node::link`].
    Link(LinkId),
    /// A hunt has found its name, and is over.
    Found {
        /// The hunt.
        hunt: HuntId,
        /// The endpoint found.
        peer: PeerId,
    },
    /// A peer's endpoint that was found, or that sent a signal, has ended. Inboxes may still have signals from it.
    Gone(PeerId),
    /// The inbox has signals: take them until it is empty.
    Signals(EndpointId),
    /// Signals were dropped, because the inbox is full.
    Dropped(EndpointId),
    /// There is room to send over a link again, after [`SendError::Full`](crate::SendError::Full).
    Room(LinkId),
    /// Memory passed to [`Node::send_windows`] is no longer in use.
    Sent {
        /// The user's name for it.
        cookie: u64,
        /// It was sent; if not, the link went down first.
        done: bool,
    },
}

impl Node {
    /// The next event.
    #[inline]
    pub fn next_event(&mut self, now: Instant) -> Option<Event> {
        if let Some(&Event::Signals(id)) = self.events.front() {
            self.events.pop_front();
            if let Some(endpoint) = self.endpoint_mut(id) {
                endpoint.has_event = false;
            }
            return Some(Event::Signals(id));
        }
        let event = self.events.pop_front()?;
        self.event_delivered(event, now);
        Some(event)
    }

    /// An event is being delivered to the user.
    #[inline(never)]
    fn event_delivered(&mut self, event: Event, now: Instant) {
        match event {
            Event::Link(id) => {
                if let Some(link) = self.link_by_id(id) {
                    link.has_event = false;
                }
            }
            Event::Gone(peer) => self.gone_delivered(peer, now),
            Event::Dropped(id) => {
                if let Some(endpoint) = self.endpoint_mut(id) {
                    endpoint.dropped_reported = false;
                }
            }
            Event::Signals(_) | Event::Found { .. } | Event::Room(_) | Event::Sent { .. } => (),
        }
    }

    /// Queues an event for a link that went up or down.
    pub(super) fn queue_link_event(&mut self, place: u16) {
        let Node { links, events, .. } = self;
        if let Some(Some(link)) = links.get_mut(usize::from(place))
            && !core::mem::replace(&mut link.has_event, true)
        {
            events.push_back(Event::Link(link.id));
        }
    }
}
