//! RLNH: how a link comes up, and what its ends tell each other of names.

use super::addresses::Local;
use super::link::{Carrier, Control, Link, Phase, Remote, Who};
use super::{Event, Name, Node, PeerId};
use crate::riocm::{Down, Fault, Message, SendError};
use crate::wire::rlnh::{self, LONGEST, MOST};
use drivers::hal::Instant;

impl Node {
    /// A link has a connection.
    pub(super) fn handle_connected(&mut self, place: u16) {
        let Some(Some(link)) = self.links.get_mut(usize::from(place)) else { return };
        link.phase = Phase::AwaitInit;
        link.control.clear();
        link.control.push_back(Control::Init(link.our_version));
        self.say(place);
    }

    /// A link has no connection any more: nothing of the peer's is known.
    pub(super) fn handle_disconnected(
        &mut self,
        place: u16,
        why: Down,
        unsent: usize,
        now: Instant,
    ) {
        let Node { links, endpoints, pool, events, .. } = self;
        let Some(Some(link)) = links.get_mut(usize::from(place)) else { return };
        let was_up = link.phase == Phase::Up;
        link.phase = Phase::Down;
        (link.why, link.unsent) = (Some(why), unsent);
        for endpoint in link.local.endpoints() {
            if let Some(endpoint) = endpoints.get_mut(endpoint as usize) {
                endpoint.addresses[usize::from(place)] = 0;
            }
        }
        link.local.clear();
        if link.remote_count > 0 {
            for (address, remote) in link.remote.iter_mut().enumerate() {
                let Some(remote) = remote.take() else { continue };
                if remote.is_told && !remote.is_gone {
                    let address = address as u32;
                    let peer = PeerId { link: link.id, address, generation: remote.generation };
                    events.push_back(Event::Gone(peer));
                    link.gone_untold += 1;
                }
            }
        }
        link.remote_count = 0;
        link.remote_names.clear();
        link.wanted.clear();
        link.control.clear();
        link.wants_room = false;
        link.unclaimed.drain(..).for_each(|(_, _, chain)| pool.free(chain));
        let begins_anew = link.gone_untold == 0;
        if was_up {
            self.tell_link(place);
        }
        if begins_anew {
            self.connect(place, now);
        }
    }

    /// Our user knows that an endpoint of a peer's is no more.
    pub(super) fn was_told(&mut self, peer: PeerId, now: Instant) {
        let Some(link) = self.link_by_id(peer.link) else { return };
        link.gone_untold = link.gone_untold.saturating_sub(1);
        let slot = link.remote.get_mut(peer.address as usize);
        if let Some(slot) = slot
            && slot.as_ref().is_some_and(|it| it.is_gone && it.generation == peer.generation)
        {
            link.control.push_back(Control::UnpublishAck(peer.address));
            self.say(peer.link.place);
        } else if link.phase == Phase::Down && link.gone_untold == 0 {
            self.connect(peer.link.place, now);
        }
        self.pump(now);
    }

    /// Says what is to be said, as far as there is room.
    pub(super) fn say(&mut self, place: u16) {
        let mut bytes = [0; LONGEST];
        loop {
            let Some(Some(link)) = self.links.get_mut(usize::from(place)) else { return };
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
                    if let Some(Some(link)) = self.links.get_mut(usize::from(place))
                        && let Some(Control::UnpublishAck(address)) = link.control.pop_front()
                    {
                        // From now on, and not before, it may stand for somebody else.
                        link.remote[address as usize] = None;
                        link.remote_count -= 1;
                    }
                }
                // There is news when there is room, or when it is over.
                Err(SendError::Full | SendError::NotConnected | SendError::TooLong) => break,
            }
        }
    }

    /// A message has arrived: of RLNH, or a signal.
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
        let mut bytes = [0; MOST];
        let length = self.pool.read(&message.chain, 0, &mut bytes);
        let is_long = message.chain.len() > MOST;
        self.pool.free(message.chain);
        let told = match rlnh::Message::parse(&bytes[..length]) {
            _ if is_long => Err(Fault::Link),
            Ok(told) => self.handle_control(place, told),
            Err(rlnh::Malformed::Type(_)) if self.is_up(place) => {
                self.ignored(place);
                Ok(())
            }
            Err(_) => Err(Fault::Link),
        };
        match told {
            Ok(()) => self.say(place),
            Err(fault) => self.end_link(place, Down::Fault(fault)),
        }
    }

    fn handle_control(&mut self, place: u16, message: rlnh::Message<'_>) -> Result<(), Fault> {
        let Some(Some(link)) = self.links.get_mut(usize::from(place)) else { return Ok(()) };
        match (link.phase, message) {
            (Phase::AwaitInit, rlnh::Message::Init { version }) => {
                if version == 0 {
                    return Err(Fault::Link);
                }
                link.version = version.min(link.our_version);
                link.control.push_back(Control::Reply(u32::from(version > link.our_version)));
                link.phase = Phase::AwaitReply;
            }
            (Phase::AwaitReply, rlnh::Message::InitReply { .. }) => {
                // A peer that does not speak our version says so, and speaks its own, as we do then.
                link.phase = Phase::Up;
                link.counters.ups += 1;
                self.tell_link(place);
                self.resume_hunts(place);
            }
            (Phase::Up, message) => return self.handle_names(place, message),
            _ => return Err(Fault::Link),
        }
        Ok(())
    }

    fn handle_names(&mut self, place: u16, message: rlnh::Message<'_>) -> Result<(), Fault> {
        let generation = self.next_number();
        let Some(Some(link)) = self.links.get_mut(usize::from(place)) else { return Ok(()) };
        let valid = |address| link.is_address(address).then_some(address).ok_or(Fault::Link);
        match message {
            rlnh::Message::Init { .. } | rlnh::Message::InitReply { .. } => {
                return Err(Fault::Link);
            }
            rlnh::Message::QueryName { hunter, name } => {
                valid(hunter)?;
                self.handle_query(place, hunter, name);
            }
            rlnh::Message::Publish { address, name } => {
                valid(address)?;
                match &link.remote[address as usize] {
                    None => (),
                    Some(Remote { who: Who::Name(known), is_gone: false, .. })
                        if **known == *name =>
                    {
                        return Ok(());
                    }
                    // An address that we have not said to be free.
                    Some(_) => return Err(Fault::Link),
                }
                let who = Who::Name(name.into());
                link.learn(address, generation, who);
                link.remote_names.insert((name.into(), address));
                self.resolve_hunts(place, name, address);
                self.claim(place, address);
            }
            rlnh::Message::PublishPeer { address, peer } => {
                valid(address)?;
                valid(peer)?;
                if link.version < 2 || link.remote[address as usize].is_some() {
                    return Err(Fault::Link);
                }
                let Some(Local::Endpoint(endpoint)) = link.local.get(peer) else {
                    link.counters.ignored += 1;
                    return Ok(());
                };
                let Some(own) = self.endpoints.get(endpoint as usize) else { return Ok(()) };
                link.learn(address, generation, Who::Own(endpoint, own.id.generation));
                self.claim(place, address);
            }
            rlnh::Message::Unpublish { address } => {
                valid(address)?;
                self.handle_unpublish(place, address);
            }
            rlnh::Message::UnpublishAck { address } => {
                valid(address)?;
                if !link.local.release(address) {
                    link.counters.ignored += 1;
                }
            }
        }
        Ok(())
    }

    /// An endpoint of the peer's is no more.
    fn handle_unpublish(&mut self, place: u16, address: u32) {
        let Node { links, events, .. } = self;
        let Some(Some(link)) = links.get_mut(usize::from(place)) else { return };
        let Some(remote) = link.remote(address) else {
            // Its address was given back already, and may be in use again: it is not given back twice.
            link.counters.ignored += 1;
            return;
        };
        remote.is_gone = true;
        let (is_told, generation, hunts, local) =
            (remote.is_told, remote.generation, remote.hunts, remote.local);
        if let Who::Name(name) = &mut remote.who {
            let name = core::mem::take(name);
            link.remote_names.remove(&(name, address));
        }
        if hunts > 0 {
            link.forget_hunts(address);
        }
        if is_told {
            link.gone_untold += 1;
            events.push_back(Event::Gone(PeerId { link: link.id, address, generation }));
        } else {
            link.control.push_back(Control::UnpublishAck(address));
        }
        if local != 0 {
            self.leave(place, local);
        }
    }

    /// A link address of ours stands for nobody any more.
    pub(super) fn leave(&mut self, place: u16, address: u32) {
        let Some(Some(link)) = self.links.get_mut(usize::from(place)) else { return };
        link.local.leave(address);
        link.control.push_back(Control::Unpublish(address));
        self.say(place);
    }

    /// The link address of an endpoint of ours on a link, under which it is published.
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

    /// Signals that came before their sender was known.
    fn claim(&mut self, place: u16, address: u32) {
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

impl Link {
    fn learn(&mut self, address: u32, generation: u32, who: Who) {
        let remote = Remote { generation, who, is_told: false, is_gone: false, hunts: 0, local: 0 };
        self.remote[address as usize] = Some(remote);
        self.remote_count += 1;
    }
}

impl Node {
    /// After something was done to a link's TCP connection: its orders, its events, its deadline.
    pub(super) fn settle(&mut self, place: u16) {
        let Node { links, orders, timers, .. } = self;
        let Some(Some(link)) = links.get_mut(usize::from(place)) else { return };
        let id = link.id;
        let Carrier::Tcp(tcp) = &mut link.carrier else { return };
        orders.extend(tcp.orders.drain(..).map(|order| (id, order)));
        timers.set(place.into(), tcp.deadline);
    }
}

/// What a name is in the tables.
pub(super) fn first_with<'a>(
    names: &'a alloc::collections::BTreeSet<(Name, u32)>,
    name: &[u8],
) -> impl Iterator<Item = u32> + 'a {
    let from = (Name::from(name), 0);
    let to = (Name::from(name), u32::MAX);
    names.range(from..=to).map(|entry| entry.1)
}
