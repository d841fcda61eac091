//! Hunts: local hunts for names of peers, and hunts of peers for local names.

use super::link::{Control, Phase};
use super::{EndpointId, Event, HuntId, LinkId, Name, Node, PeerId, Refused, is_name};
use drivers::hal::Instant;

/// A local hunt.
#[derive(Debug)]
pub(super) struct Hunt {
    id: HuntId,
    hunter: EndpointId,
    link: LinkId,
    name: Name,
}

impl Node {
    /// Hunts for a name of a link's peer, on behalf of a local endpoint. The hunt continues, also across restarts of
    /// the link, until the name is found ([`Event::Found`]) or the hunt is ended.
    pub fn hunt(
        &mut self,
        hunter: EndpointId,
        link: LinkId,
        name: &[u8],
        now: Instant,
    ) -> Result<HuntId, Refused> {
        if !is_name(name) {
            return Err(Refused::Name);
        }
        if self.endpoint(hunter).is_none() || self.link_by_id(link).is_none() {
            return Err(Refused::Unknown);
        }
        if self.hunts.len() >= self.config.hunts {
            return Err(Refused::Full);
        }
        let number = self.next_number();
        let entry = self.hunts.vacant_entry();
        let id = HuntId { place: entry.key() as u32, number };
        entry.insert(Hunt { id, hunter, link, name: name.into() });
        self.hunts_by_name.insert((link.place, name.into(), id.place));
        let known = self.links[usize::from(link.place)]
            .as_ref()
            .and_then(|link| link.remotes.with_name(name));
        match known {
            Some(address) => self.found(id.place, address),
            None => self.send_query(id.place),
        }
        self.pump(now);
        Ok(id)
    }

    /// Ends a hunt. RLNH cannot withdraw a query: a later PUBLISH for it is stored and not used.
    pub fn end_hunt(&mut self, id: HuntId) {
        if self.hunts.get(id.place as usize).is_some_and(|hunt| hunt.id == id) {
            self.forget_hunt(id.place);
        }
    }

    fn forget_hunt(&mut self, place: u32) {
        if let Some(hunt) = self.hunts.try_remove(place as usize) {
            self.hunts_by_name.remove(&(hunt.link.place, hunt.name, place));
        }
    }

    /// Sends the query of a hunt to the peer, if the link is up.
    fn send_query(&mut self, hunt: u32) {
        let Some(Hunt { hunter, link, name, .. }) = self.hunts.get(hunt as usize) else { return };
        let (hunter, place, name) = (hunter.place, link.place, name.clone());
        let link = self.links.get(usize::from(place)).and_then(Option::as_ref);
        if link.is_none_or(|link| link.phase != Phase::Up) {
            return;
        }
        let Some(address) = self.publish(place, hunter) else { return };
        if let Some(Some(link)) = self.links.get_mut(usize::from(place)) {
            link.control.push_back(Control::Query(address, name));
        }
        self.send_control(place);
    }

    /// A link is up: sends the queries of its hunts.
    pub(super) fn resume_hunts(&mut self, place: u16) {
        let first = (place, Name::default(), 0);
        let hunts = self.hunts_by_name.range(first..).take_while(|entry| entry.0 == place);
        let hunts: alloc::vec::Vec<u32> = hunts.map(|entry| entry.2).collect();
        hunts.into_iter().for_each(|hunt| self.send_query(hunt));
    }

    /// Completes hunts for a name that the peer has published.
    pub(super) fn resolve_hunts(&mut self, place: u16, name: &[u8], address: u32) {
        loop {
            let range = (place, Name::from(name), 0)..=(place, Name::from(name), u32::MAX);
            let Some(hunt) = self.hunts_by_name.range(range).next().map(|entry| entry.2) else {
                return;
            };
            self.found(hunt, address);
        }
    }

    /// Completes a hunt.
    fn found(&mut self, hunt: u32, address: u32) {
        let Some(Hunt { id, link, .. }) = self.hunts.get(hunt as usize) else { return };
        let (id, link_id) = (*id, *link);
        self.forget_hunt(hunt);
        let Some(link) = self.link_by_id(link_id) else { return };
        let Some(remote) = link.remote(address) else { return };
        remote.is_reported = true;
        let peer = PeerId { link: link_id, address, generation: remote.generation };
        self.events.push_back(Event::Found { hunt: id, peer });
    }

    pub(super) fn forget_endpoint_hunts(&mut self, id: EndpointId) {
        let hunts = self.hunts.iter().filter(|(_, hunt)| hunt.hunter == id);
        let hunts: alloc::vec::Vec<u32> = hunts.map(|(place, _)| place as u32).collect();
        hunts.into_iter().for_each(|hunt| self.forget_hunt(hunt));
    }

    pub(super) fn forget_link_hunts(&mut self, place: u16) {
        let hunts = self.hunts.iter().filter(|(_, hunt)| hunt.link.place == place);
        let hunts: alloc::vec::Vec<u32> = hunts.map(|(place, _)| place as u32).collect();
        hunts.into_iter().for_each(|hunt| self.forget_hunt(hunt));
    }

    /// Handles a hunt of the peer for a local name.
    pub(super) fn handle_query(&mut self, place: u16, hunter: u32, name: &[u8]) {
        let Some(Some(link)) = self.links.get_mut(usize::from(place)) else { return };
        let most = link.max_hunts;
        let (is_full, is_known) = (link.wanted.len() >= most, link.remote(hunter).is_some());
        if !is_known {
            link.counters.hunts_refused += 1;
            return;
        }
        if let Some(&endpoint) = self.by_name.get(name) {
            // An endpoint that is published already is not published again.
            self.publish(place, endpoint);
            return;
        }
        // No local endpoint can have such a name.
        if !is_name(name) {
            link.counters.hunts_refused += 1;
            return;
        }
        let name = Name::from(name);
        if link.wanted.contains(hunter, &name) {
            return;
        }
        if is_full {
            link.counters.hunts_refused += 1;
            return;
        }
        link.wanted.insert(hunter, name);
        if let Some(remote) = link.remote(hunter) {
            remote.hunts += 1;
        }
    }

    /// Publishes a new endpoint on links whose peers hunt for its name.
    pub(super) fn answer_hunts(&mut self, name: &[u8], endpoint: u32) {
        for place in 0..self.links.len() as u16 {
            let Some(Some(link)) = self.links.get_mut(usize::from(place)) else { continue };
            let hunters = link.wanted.take_name(name);
            if hunters.is_empty() {
                continue;
            }
            for hunter in hunters {
                if let Some(remote) = link.remote(hunter) {
                    remote.hunts = remote.hunts.saturating_sub(1);
                }
            }
            self.publish(place, endpoint);
            self.send_control(place);
        }
    }
}
