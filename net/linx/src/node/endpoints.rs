//! Local endpoints, and names of peers' endpoints.

use super::remotes::Owner;
use super::{EndpointId, NONE, Name, Node, PeerId, Refused, is_name};
use alloc::boxed::Box;
use drivers::hal::Instant;

/// A local endpoint.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) id: EndpointId,
    pub(super) name: Name,
    /// Its link address on each link; 0 if it has none.
    pub(super) addresses: Box<[u32]>,
    pub(super) inbox: (u32, u32),
    pub(super) held: usize,
    pub(super) has_event: bool,
    pub(super) dropped_reported: bool,
}

impl Node {
    /// Opens an endpoint. Peers can hunt for its name.
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
            has_event: false,
            dropped_reported: false,
        });
        self.by_name.insert(name.into(), id.place);
        self.answer_hunts(name, id.place);
        self.pump(now);
        Ok(id)
    }

    /// Closes an endpoint: queued signals are dropped, its hunts end, and it is unpublished on all links.
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
            self.unpublish(place as u16, address);
        }
        self.pump(now);
    }

    /// Whether a local endpoint has this name.
    pub fn has_endpoint(&self, name: &[u8]) -> bool {
        self.by_name.contains_key(name)
    }

    /// Name of a local endpoint.
    pub fn name(&self, id: EndpointId) -> Option<&[u8]> {
        self.endpoint(id).map(|it| &*it.name)
    }

    /// Name of a peer's endpoint, as published by the peer. None if it was not stored.
    pub fn peer_name(&self, peer: PeerId) -> Option<&[u8]> {
        let link = self.links.get(usize::from(peer.link.place))?.as_ref();
        let link = link.filter(|link| link.id == peer.link)?;
        let remote = link.remotes.get(peer.address)?;
        match &remote.owner {
            Owner::Name(name) if remote.generation == peer.generation && !name.is_empty() => {
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
