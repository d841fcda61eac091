//! News for the node's user.

use super::{EndpointId, HuntId, LinkId, Node, PeerId};
use drivers::hal::Instant;

/// News. Each is told once, and again when there is more of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A link came up or went down: see [`Node::link`].
    Link(LinkId),
    /// A hunt has found what it is for, and is over.
    Found {
        /// The hunt.
        hunt: HuntId,
        /// What it has found.
        peer: PeerId,
    },
    /// An endpoint of a peer's that was found, or that a signal came from, is no more. Signals of it may still wait to
    /// be taken.
    Gone(PeerId),
    /// Signals wait to be taken: take them until there are none.
    Signals(EndpointId),
    /// Signals were dropped, because as many as may be wait to be taken.
    Dropped(EndpointId),
    /// There is room to send over a link again, after there was none.
    Room(LinkId),
    /// Memory of a user's own is out of use.
    Sent {
        /// By which its user knows it.
        cookie: u64,
        /// It was handed to the link; else that went down first.
        done: bool,
    },
}

impl Node {
    /// What is new.
    #[inline]
    pub fn next_event(&mut self, now: Instant) -> Option<Event> {
        if let Some(&Event::Signals(id)) = self.events.front() {
            self.events.pop_front();
            if let Some(endpoint) = self.endpoint_mut(id) {
                endpoint.has_news = false;
            }
            return Some(Event::Signals(id));
        }
        let event = self.events.pop_front()?;
        self.was_heard(event, now);
        Some(event)
    }

    /// The user hears of an event.
    #[inline(never)]
    fn was_heard(&mut self, event: Event, now: Instant) {
        match event {
            Event::Link(id) => {
                if let Some(link) = self.link_by_id(id) {
                    link.has_news = false;
                }
            }
            Event::Gone(peer) => self.was_told(peer, now),
            Event::Dropped(id) => {
                if let Some(endpoint) = self.endpoint_mut(id) {
                    endpoint.told_dropped = false;
                }
            }
            Event::Signals(_) | Event::Found { .. } | Event::Room(_) | Event::Sent { .. } => (),
        }
    }

    /// The link's user is told that it is up or down.
    pub(super) fn tell_link(&mut self, place: u16) {
        let Node { links, events, .. } = self;
        if let Some(Some(link)) = links.get_mut(usize::from(place))
            && !core::mem::replace(&mut link.has_news, true)
        {
            events.push_back(Event::Link(link.id));
        }
    }
}
