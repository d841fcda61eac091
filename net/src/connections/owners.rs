//! Owners of connections (listeners and connectors), their limits and their event queues.

use super::*;

impl Connections {
    /// Registers an owner.
    pub fn open_owner(&mut self, limits: Limits) -> Owner {
        Owner(self.owners.insert(OwnerState {
            limits,
            connections: 0,
            to_accept: VecDeque::new(),
            events: VecDeque::new(),
            closing: VecDeque::new(),
            spare: Vec::new(),
            ready: None,
            ended: false,
            turned_away: VecDeque::new(),
            more_turned_away: 0,
        }))
    }

    /// Closes an owner and resets its connections.
    pub fn close_owner(&mut self, owner: Owner, now: Instant) {
        let of_it = self.connections.iter().filter(|(_, c)| c.owner == owner.0);
        let names: Vec<Name> = of_it.map(|(key, c)| Name { key, turn: c.turn }).collect();
        for name in names {
            self.release(name, true, now);
        }
        if let Some(state) = self.owners.get_mut(owner.0) {
            state.to_accept.clear();
            state.events.clear();
            state.ended = true;
        }
        self.clear_ready_if_drained(owner);
        if self.owners.get(owner.0).is_some_and(|state| state.connections == 0) {
            self.owners.remove(owner.0);
        }
    }

    /// Changes an owner's limits. Existing connections keep their buffers, and stay even if they exceed the limit.
    pub fn set_limits(&mut self, owner: Owner, limits: Limits) {
        let Some(state) = self.owners.get_mut(owner.0) else { return };
        if (limits.receive, limits.transmit) != (state.limits.receive, state.limits.transmit) {
            state.spare.clear();
        }
        state.limits = limits;
        self.listening.set_receive(owner.0, limits.receive);
    }

    /// Listens on a port for an owner.
    pub fn listen(&mut self, port: u16, owner: Owner) {
        let Some(state) = self.owners.get(owner.0) else { return };
        self.listening
            .open(port, ListenEntry { owner: owner.0, receive: state.limits.receive, smc: false });
    }

    /// Whether an owner listens on a port.
    pub fn is_listened_on(&self, port: u16) -> bool {
        self.listening.get(port).is_some()
    }

    /// Stops listening on a port.
    pub fn close_port(&mut self, port: u16, owner: Owner) {
        self.listening.close(port, owner.0);
    }

    /// Sets whether SMC is offered on a port.
    pub fn offer_smc(&mut self, port: u16, owner: Owner, on: bool) {
        self.listening.offer_smc(port, owner.0, on);
    }

    /// Whether an owner has no free place for another connection.
    pub fn is_full(&self, owner: Owner) -> bool {
        let state = self.owners.get(owner.0);
        state.is_none_or(|state| state.connections >= state.limits.connections)
    }

    /// Whether a connection of an owner is being closed, so that its place becomes free.
    pub fn has_closing(&self, owner: Owner) -> bool {
        let state = self.owners.get(owner.0);
        state.is_some_and(|state| state.closing.iter().any(|&name| self.get(name).is_some()))
    }

    /// The next connection that a peer has opened.
    pub fn accept(&mut self, owner: Owner) -> Option<Name> {
        let name = self.owners.get_mut(owner.0)?.to_accept.pop_front();
        self.clear_ready_if_drained(owner);
        name
    }

    /// The next connection with an event that its user still holds. A user that reads and writes until both block gets
    /// an event when either is possible again.
    pub fn next_news(&mut self, owner: Owner) -> Option<Name> {
        let name = loop {
            let Some(name) = self.owners.get_mut(owner.0)?.events.pop_front() else { break None };
            let connection = self.connections.get_mut(name.key).filter(|c| c.turn == name.turn);
            if let Some(connection) = connection.filter(|c| c.life == Life::InUse) {
                connection.has_event = false;
                break Some(name);
            }
        };
        self.clear_ready_if_drained(owner);
        name
    }

    /// Records that an owner had no place for a connection from a host, and marks the owner ready.
    pub(super) fn turn_away(&mut self, owner: usize, host: IpAddr) {
        let Some(state) = self.owners.get_mut(owner) else { return };
        if state.turned_away.len() < TURNED_AWAY {
            state.turned_away.push_back(host);
        } else {
            state.more_turned_away += 1;
        }
        self.mark_ready(owner);
    }

    /// The source address of the next connection for which an owner had no place.
    pub fn next_turned_away(&mut self, owner: Owner) -> Option<IpAddr> {
        self.owners.get_mut(owner.0)?.turned_away.pop_front()
    }

    /// Number of further connections without a place, beyond [`Connections::next_turned_away`], since the last call.
    pub fn more_turned_away(&mut self, owner: Owner) -> u64 {
        let state = self.owners.get_mut(owner.0);
        state.map_or(0, |state| core::mem::take(&mut state.more_turned_away))
    }

    /// Whether an owner is among [`Connections::ready`].
    pub fn is_ready(&self, owner: Owner) -> bool {
        self.owners.get(owner.0).is_some_and(|state| state.ready.is_some())
    }

    /// Removes an owner from [`Connections::ready`] if it has neither events nor connections to accept.
    pub(super) fn clear_ready_if_drained(&mut self, owner: Owner) {
        let Some(state) = self.owners.get_mut(owner.0) else { return };
        if !state.to_accept.is_empty() || !state.events.is_empty() {
            return;
        }
        if let Some(place) = state.ready.take() {
            self.ready.swap_remove(place);
            let moved = self.ready.get(place).and_then(|other| self.owners.get_mut(other.0));
            if let Some(moved) = moved {
                moved.ready = Some(place);
            }
        }
    }

    /// Queues an event for the user of a connection if its visible state differs from `before`.
    pub(super) fn notify_user(&mut self, key: usize, before: &Seen) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.life != Life::InUse || connection.seen() == *before {
            return;
        }
        let (owner, name) = (connection.owner, Name { key, turn: connection.turn });
        let known = core::mem::replace(&mut connection.has_event, true);
        if let Some(state) = self.owners.get_mut(owner).filter(|_| !known) {
            state.events.push_back(name);
        }
        self.mark_ready(owner);
    }

    /// Adds an owner to [`Connections::ready`].
    pub(super) fn mark_ready(&mut self, owner: usize) {
        self.activity += 1;
        if let Some(state) = self.owners.get_mut(owner)
            && state.ready.is_none()
        {
            state.ready = Some(self.ready.len());
            self.ready.push(Owner(owner));
        }
    }
}
