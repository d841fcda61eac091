//! RLNH: the handshake of a link, and the exchange of names between its ends.

use super::addresses::Local;
use super::link::{Carrier, Control, Link, Phase};
use super::remotes::{Owner, Remote};
use super::{Event, Name, Node, PeerId};
use crate::riocm::{Down, Fault, Message, SendError};
use crate::wire::rlnh::{self, LONGEST};
use alloc::vec::Vec;
use drivers::hal::Instant;

impl Node {
    /// Handles the connection of a link: starts RLNH's handshake.
    pub(super) fn handle_connected(&mut self, place: u16, now: Instant) {
        let Some(Some(link)) = self.links.get_mut(usize::from(place)) else { return };
        link.phase = Phase::AwaitInit;
        link.control.clear();
        (link.owes_reply, link.expects_reply) = (false, false);
        link.control.push_back(Control::Init(link.our_version));
        link.watch.connected(now);
        self.rearm(place);
        self.send_control(place);
    }

    /// Handles the end of a link's connection: all state of the peer is dropped.
    pub(super) fn handle_disconnected(
        &mut self,
        place: u16,
        why: Down,
        unsent: usize,
        now: Instant,
    ) {
        let Node { links, endpoints, pool, events, rng, .. } = self;
        let Some(Some(link)) = links.get_mut(usize::from(place)) else { return };
        let was_up = link.phase == Phase::Up;
        link.phase = Phase::Down;
        (link.why, link.unsent) = (Some(why), unsent);
        link.watch.disconnected(why, rng, now);
        for endpoint in link.local.endpoints() {
            if let Some(endpoint) = endpoints.get_mut(endpoint as usize) {
                endpoint.addresses[usize::from(place)] = 0;
            }
        }
        link.local.clear();
        for (address, remote) in link.remotes.clear() {
            if remote.is_reported && !remote.is_gone {
                let peer = PeerId { link: link.id, address, generation: remote.generation };
                events.push_back(Event::Gone(peer));
                link.gone_pending += 1;
            }
        }
        link.wanted.clear();
        link.control.clear();
        link.wants_room = false;
        link.unclaimed.drain(..).for_each(|(_, _, chain)| pool.free(chain));
        self.rearm(place);
        if was_up {
            self.queue_link_event(place);
        }
        self.reconnect(place, now);
    }

    /// Reconnects a link, if all its [`Event::Gone`] were delivered and the pause is over.
    pub(super) fn reconnect(&mut self, place: u16, now: Instant) {
        let link = self.links.get(usize::from(place)).and_then(Option::as_ref);
        let is_ready = |link: &Link| {
            link.phase == Phase::Down && link.gone_pending == 0 && !link.watch.is_pausing()
        };
        if link.is_some_and(is_ready) {
            self.connect(place, now);
        }
    }

    /// An [`Event::Gone`] was delivered: sends the pending UNPUBLISH_ACK, or reconnects the link after the last one.
    pub(super) fn gone_delivered(&mut self, peer: PeerId, now: Instant) {
        let Some(link) = self.link_by_id(peer.link) else { return };
        link.gone_pending = link.gone_pending.saturating_sub(1);
        let known = link.remotes.get(peer.address);
        if known.is_some_and(|it| it.is_gone && it.generation == peer.generation) {
            link.acknowledge(peer.address);
            self.send_control(peer.link.place);
        } else {
            self.reconnect(peer.link.place, now);
        }
        self.pump(now);
    }

    /// Sends queued RLNH messages while there is room.
    pub(super) fn send_control(&mut self, place: u16) {
        let mut bytes = [0; LONGEST];
        loop {
            let Some(Some(link)) = self.links.get_mut(usize::from(place)) else { return };
            if link.is_held() {
                return;
            }
            let Some(control) = link.control.front() else { break };
            let message = match control {
                Control::Init(version) => rlnh::Message::Init { version: *version },
                Control::Reply(status) => {
                    rlnh::Message::InitReply { status: *status, features: &[] }
                }
                Control::Query(hunter, name) => rlnh::Message::QueryName { hunter: *hunter, name },
                Control::Publish(address, name) => {
                    rlnh::Message::Publish { address: *address, name }
                }
                Control::PublishPeer(address, peer) => {
                    rlnh::Message::PublishPeer { address: *address, peer: *peer }
                }
                Control::Unpublish(address) => rlnh::Message::Unpublish { address: *address },
                Control::UnpublishAck(address) => rlnh::Message::UnpublishAck { address: *address },
            };
            let length = message.emit(&mut bytes);
            match self.send_over(place, (0, 0), &bytes[..length]) {
                Ok(()) => {
                    let Some(Some(link)) = self.links.get_mut(usize::from(place)) else { return };
                    match link.control.pop_front() {
                        Some(Control::UnpublishAck(address)) => link.acknowledged(address),
                        Some(Control::Reply(_)) => link.owes_reply = false,
                        _ => (),
                    }
                }
                // An event follows when there is room, or when the connection ends.
                Err(SendError::Full | SendError::NotConnected | SendError::TooLong) => break,
            }
        }
    }

    /// Handles a message: RLNH's, or a signal.
    #[inline(never)]
    pub(super) fn handle_message(&mut self, place: u16, message: Message) {
        if message.destination != 0 {
            let number = self.number(&message.chain);
            return self.handle_signal(place, message, number);
        }
        self.handle_rlnh(place, message);
    }

    #[inline(never)]
    pub(super) fn handle_rlnh(&mut self, place: u16, message: Message) {
        // Nearly all messages fit; memory for a longer one is bounded by the link's longest message.
        let mut short = [0; LONGEST];
        let mut long = Vec::new();
        let size = message.chain.len();
        let bytes = match short.get_mut(..size) {
            Some(short) => short,
            None => {
                long.resize(size, 0);
                &mut long[..]
            }
        };
        self.pool.read(&message.chain, 0, bytes);
        self.pool.free(message.chain);
        let result = match rlnh::Message::parse(bytes) {
            Ok(message) => self.handle_control(place, message),
            Err(rlnh::Malformed::Type(_)) if self.is_up(place) => {
                self.ignored(place);
                Ok(())
            }
            Err(_) => Err(Fault::Link),
        };
        match result {
            Ok(()) => {
                self.rearm(place);
                self.send_control(place);
            }
            Err(fault) => self.end_link(place, Down::Fault(fault)),
        }
    }

    fn handle_control(&mut self, place: u16, message: rlnh::Message<'_>) -> Result<(), Fault> {
        let now = self.now;
        let Some(Some(link)) = self.links.get_mut(usize::from(place)) else { return Ok(()) };
        link.watch.has_received = true;
        match (link.phase, message) {
            (Phase::AwaitInit, rlnh::Message::Init { version }) => {
                link.accept_init(version);
                link.phase = Phase::AwaitReply;
                if let Carrier::Riocm(_) = link.carrier {
                    link.watch.init_received(now);
                }
            }
            (Phase::AwaitReply, rlnh::Message::InitReply { features, .. }) => {
                link.note_features(features);
                // A peer that does not support our version reports it in `status`. Both ends then use the lower
                // version.
                link.phase = Phase::Up;
                link.watch.up(Node::probes_peer(link), now);
                link.counters.ups += 1;
                self.queue_link_event(place);
                self.resume_hunts(place);
            }
            // LINX for Linux answers another INIT while the link is up, and accepts only INIT_REPLY after it.
            (Phase::Up, rlnh::Message::InitReply { features, .. }) => {
                link.note_features(features);
                link.expects_reply = false;
            }
            (Phase::Up, _) if link.expects_reply => return Err(Fault::Link),
            (Phase::Up, rlnh::Message::Init { version }) => {
                link.accept_init(version);
                link.expects_reply = true;
            }
            (Phase::Up, message) => return self.handle_names(place, message),
            _ => return Err(Fault::Link),
        }
        Ok(())
    }

    fn handle_names(&mut self, place: u16, message: rlnh::Message<'_>) -> Result<(), Fault> {
        let generation = self.next_number();
        let Some(Some(link)) = self.links.get_mut(usize::from(place)) else { return Ok(()) };
        // As in LINX for Linux: an address above the highest ends the link, address 0 is ignored.
        let most = link.remotes.most();
        let (address, peer) = match message {
            rlnh::Message::QueryName { hunter, .. } => (hunter, None),
            rlnh::Message::PublishPeer { address, peer } => (address, Some(peer)),
            rlnh::Message::Publish { address, .. }
            | rlnh::Message::Unpublish { address }
            | rlnh::Message::UnpublishAck { address } => (address, None),
            rlnh::Message::Init { .. } | rlnh::Message::InitReply { .. } => return Ok(()),
        };
        if address > most || peer.is_some_and(|peer| peer > most) {
            return Err(Fault::Link);
        }
        if address == 0 {
            link.counters.ignored += 1;
            return Ok(());
        }
        match message {
            rlnh::Message::QueryName { name, .. } => self.handle_query(place, address, name),
            rlnh::Message::Publish { name, .. } => {
                self.handle_publish(place, address, generation, name);
            }
            rlnh::Message::PublishPeer { peer, .. } => {
                let Some(Local::Endpoint(endpoint)) = link.local.get(peer) else {
                    link.counters.ignored += 1;
                    return Ok(());
                };
                let Some(own) = self.endpoints.get(endpoint as usize) else { return Ok(()) };
                let owner = Owner::Own(endpoint, own.id.generation);
                self.learn(place, address, generation, owner);
            }
            rlnh::Message::Unpublish { .. } => self.handle_unpublish(place, address),
            rlnh::Message::UnpublishAck { .. } => {
                if !link.local.release(address) {
                    link.counters.ignored += 1;
                }
            }
            rlnh::Message::Init { .. } | rlnh::Message::InitReply { .. } => (),
        }
        Ok(())
    }

    /// Handles a PUBLISH. The address may be in use: LINX for Linux reuses addresses of PUBLISH_PEER without an
    /// UNPUBLISH.
    fn handle_publish(&mut self, place: u16, address: u32, generation: u32, name: &[u8]) {
        let Some(Some(link)) = self.links.get_mut(usize::from(place)) else { return };
        let is_known = |it: &Remote| matches!(&it.owner, Owner::Name(known) if **known == *name);
        if !name.is_empty() && link.remote(address).is_some_and(|it| is_known(it)) {
            return;
        }
        // A longer name is not stored, so it is not copied either.
        let kept = if name.len() > rlnh::MAX_NAME { &[] } else { name };
        let is_kept = self.learn(place, address, generation, Owner::Name(kept.into()));
        if let Some(Some(link)) = self.links.get_mut(usize::from(place)) {
            link.counters.unnamed += u64::from(!is_kept || kept.is_empty());
        }
        self.resolve_hunts(place, kept, address);
    }

    /// Assigns an address of the peer to another endpoint. False if its name was not stored.
    fn learn(&mut self, place: u16, address: u32, generation: u32, owner: Owner) -> bool {
        let _ = self.end_remote(place, address);
        let Some(Some(link)) = self.links.get_mut(usize::from(place)) else { return true };
        let is_kept = link.remotes.learn(address, generation, owner);
        self.deliver_unclaimed(place, address);
        is_kept
    }

    /// Handles an UNPUBLISH.
    fn handle_unpublish(&mut self, place: u16, address: u32) {
        let is_reported = self.end_remote(place, address);
        let Some(Some(link)) = self.links.get_mut(usize::from(place)) else { return };
        match is_reported {
            // The ACK follows when the user has received `Event::Gone`.
            Some(true) => (),
            Some(false) => link.acknowledge(address),
            // The ACK was sent already, and the peer may use the address again: no second ACK.
            None => link.counters.ignored += 1,
        }
    }

    /// Ends an endpoint of the peer. Returns whether the user gets [`Event::Gone`]; None without such an endpoint.
    fn end_remote(&mut self, place: u16, address: u32) -> Option<bool> {
        let Node { links, events, .. } = self;
        let Some(Some(link)) = links.get_mut(usize::from(place)) else { return None };
        let remote = link.remote(address)?;
        remote.is_gone = true;
        let Remote { is_reported, generation, hunts, local, .. } = *remote;
        link.remotes.forget_name(address);
        if hunts > 0 {
            link.wanted.forget_hunter(address);
        }
        if is_reported {
            link.gone_pending += 1;
            events.push_back(Event::Gone(PeerId { link: link.id, address, generation }));
        }
        if local != 0 {
            self.unpublish(place, local);
        }
        Some(is_reported)
    }

    /// Unpublishes a link address of ours.
    pub(super) fn unpublish(&mut self, place: u16, address: u32) {
        let Some(Some(link)) = self.links.get_mut(usize::from(place)) else { return };
        link.local.unpublish(address);
        link.control.push_back(Control::Unpublish(address));
        self.send_control(place);
    }

    /// The link address of an endpoint of ours on a link. Publishes the endpoint if it has none.
    pub(super) fn publish(&mut self, place: u16, endpoint: u32) -> Option<u32> {
        let Node { links, endpoints, .. } = self;
        let Some(Some(link)) = links.get_mut(usize::from(place)) else { return None };
        let own = endpoints.get_mut(endpoint as usize)?;
        let address = own.addresses.get_mut(usize::from(place))?;
        if *address == 0 {
            let Some(free) = link.local.take(Local::Endpoint(endpoint)) else {
                link.counters.no_address += 1;
                return None;
            };
            *address = free;
            link.control.push_back(Control::Publish(free, own.name.clone()));
        }
        Some(*address)
    }

    fn is_up(&self, place: u16) -> bool {
        let link = self.links.get(usize::from(place)).and_then(Option::as_ref);
        link.is_some_and(|link| link.phase == Phase::Up)
    }

    fn ignored(&mut self, place: u16) {
        if let Some(Some(link)) = self.links.get_mut(usize::from(place)) {
            link.counters.ignored += 1;
        }
    }

    /// Delivers signals that arrived before their sender was published.
    fn deliver_unclaimed(&mut self, place: u16, address: u32) {
        for _ in 0..self.links[usize::from(place)].as_ref().map_or(0, |it| it.unclaimed.len()) {
            let Some(Some(link)) = self.links.get_mut(usize::from(place)) else { return };
            let Some((source, destination, chain)) = link.unclaimed.pop_front() else { return };
            if source == address {
                self.handle_message(place, Message { source, destination, chain });
            } else {
                link.unclaimed.push_back((source, destination, chain));
            }
        }
    }
}

impl Node {
    /// Collects the orders and the deadline of a link's TCP connection, after a call that may have changed them.
    pub(super) fn settle(&mut self, place: u16) {
        let Node { links, orders, timers, .. } = self;
        let Some(Some(link)) = links.get_mut(usize::from(place)) else { return };
        let id = link.id;
        let Carrier::Tcp(tcp) = &mut link.carrier else { return };
        orders.extend(tcp.orders.drain(..).map(|order| (id, order)));
        timers.set(place.into(), tcp.deadline);
    }
}

/// The entries of a name in a table by name.
pub(super) fn entries_named<'a>(
    names: &'a alloc::collections::BTreeSet<(Name, u32)>,
    name: &[u8],
) -> impl Iterator<Item = u32> + 'a {
    let from = (Name::from(name), 0);
    let to = (Name::from(name), u32::MAX);
    names.range(from..=to).map(|entry| entry.1)
}
