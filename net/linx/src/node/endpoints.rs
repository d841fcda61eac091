//! Endpoints of ours, and what those of peers are called.

use super::remotes::Who;
use super::{EndpointId, NONE, Name, Node, PeerId, Refused, is_name};
use alloc::boxed::Box;
use drivers::hal::Instant;

/// An endpoint of ours.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) id: EndpointId,
    pub(super) name: Name,
    /// By link: its link address there, 0 if it has none.
    pub(super) addresses: Box<[u32]>,
    pub(super) inbox: (u32, u32),
    pub(super) held: usize,
    pub(super) has_news: bool,
    pub(super) told_dropped: bool,
}

impl Node {
    /// Opens an endpoint, whose name peers can hunt for from now on.
    pub fn open(&mut self, name: &[u8], now: Instant) -> Result<EndpointId, Refused> {
        if !is_name(name) {
            return Err(Refused::Name);
        }
        if self.by_name.contains_key(name) {
            return Err(Refused::Exists);
        }
        if self.endpoints.len() >= self.config.endpoints {
            return Err(Refused::Full);
        }
        let generation = self.next_number();
        let entry = self.endpoints.vacant_entry();
        let id = EndpointId { place: entry.key() as u32, generation };
        entry.insert(Endpoint {
            id,
            name: name.into(),
            addresses: alloc::vec![0; self.links.len()].into(),
            inbox: (NONE, NONE),
            held: 0,
            has_news: false,
            told_dropped: false,
        });
        self.by_name.insert(name.into(), id.place);
        self.answer_hunts(name, id.place);
        self.pump(now);
        Ok(id)
    }

    /// Closes an endpoint: signals that wait are dropped, its hunts are over, and peers that know it hear of it.
    pub fn close(&mut self, id: EndpointId, now: Instant) {
        if self.endpoint(id).is_none() {
            return;
        }
        while let Some(signal) = self.next_signal(id) {
            self.release(signal);
        }
        self.forget_endpoint_hunts(id);
        let endpoint = self.endpoints.remove(id.place as usize);
        self.by_name.remove(&endpoint.name);
        for (place, &address) in endpoint.addresses.iter().enumerate().filter(|it| *it.1 != 0) {
            self.leave(place as u16, address);
        }
        self.pump(now);
    }

    /// Whether an endpoint of ours has this name.
    pub fn has_endpoint(&self, name: &[u8]) -> bool {
        self.by_name.contains_key(name)
    }

    /// Name of an endpoint of ours.
    pub fn name(&self, id: EndpointId) -> Option<&[u8]> {
        self.endpoint(id).map(|it| &*it.name)
    }

    /// Name of an endpoint of a peer's, as the peer calls it. None if it is too long to be kept.
    pub fn peer_name(&self, peer: PeerId) -> Option<&[u8]> {
        let link = self.links.get(usize::from(peer.link.place))?.as_ref();
        let link = link.filter(|link| link.id == peer.link)?;
        let remote = link.remotes.get(peer.address)?;
        match &remote.who {
            Who::Name(name) if remote.generation == peer.generation && !name.is_empty() => {
                Some(name)
            }
            _ => None,
        }
    }

    #[inline]
    pub(super) fn endpoint(&self, id: EndpointId) -> Option<&Endpoint> {
        self.endpoints.get(id.place as usize).filter(|it| it.id.generation == id.generation)
    }

    #[inline]
    pub(super) fn endpoint_mut(&mut self, id: EndpointId) -> Option<&mut Endpoint> {
        self.endpoints.get_mut(id.place as usize).filter(|it| it.id.generation == id.generation)
    }
}
