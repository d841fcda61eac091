//! Who has connections: listeners and connectors, and the news that they are told.

use super::*;

impl Connections {
    /// A new owner.
    pub fn open_owner(&mut self, limits: Limits) -> Owner {
        Owner(self.owners.insert(OwnerState {
            limits,
            connections: 0,
            arrived: VecDeque::new(),
            news: VecDeque::new(),
            leaving: VecDeque::new(),
            spare: Vec::new(),
            ready: None,
            over: false,
            turned_away: VecDeque::new(),
            more_turned_away: 0,
        }))
    }

    /// Ends an owner: its connections are reset.
    pub fn close_owner(&mut self, owner: Owner, now: Instant) {
        let of_it = self.connections.iter().filter(|(_, c)| c.owner == owner.0);
        let names: Vec<Name> = of_it.map(|(key, c)| Name { key, turn: c.turn }).collect();
        for name in names {
            self.leave(name, true, now);
        }
        if let Some(state) = self.owners.get_mut(owner.0) {
            state.arrived.clear();
            state.news.clear();
            state.over = true;
        }
        self.is_done(owner);
        if self.owners.get(owner.0).is_some_and(|state| state.connections == 0) {
            self.owners.remove(owner.0);
        }
    }

    /// Gives an owner other limits. Connections that there are keep their buffers, and stay though there be too many.
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

    /// Whether a port is listened on.
    pub fn is_listened_on(&self, port: u16) -> bool {
        self.listening.get(port).is_some()
    }

    /// Listens no more.
    pub fn close_port(&mut self, port: u16, owner: Owner) {
        self.listening.close(port, owner.0);
    }

    /// Says whether SMC is offered on a port.
    pub fn offer_smc(&mut self, port: u16, owner: Owner, on: bool) {
        self.listening.offer_smc(port, owner.0, on);
    }

    /// Whether an owner has no place for another connection, and whether a place will be free because a
    /// connection is being closed.
    pub fn is_full(&self, owner: Owner) -> bool {
        let state = self.owners.get(owner.0);
        state.is_none_or(|state| state.connections >= state.limits.connections)
    }

    /// Whether a connection of an owner is being closed, so that its place will be free.
    pub fn is_closing_one(&self, owner: Owner) -> bool {
        let state = self.owners.get(owner.0);
        state.is_some_and(|state| state.leaving.iter().any(|&name| self.get(name).is_some()))
    }

    /// The next connection that a peer has opened.
    pub fn accept(&mut self, owner: Owner) -> Option<Name> {
        let name = self.owners.get_mut(owner.0)?.arrived.pop_front();
        self.is_done(owner);
        name
    }

    /// The next connection that has news, if its user has not given it up. Whoever reads and writes until
    /// there is no more to read and no room to write is told when there is again.
    pub fn next_news(&mut self, owner: Owner) -> Option<Name> {
        let name = loop {
            let Some(name) = self.owners.get_mut(owner.0)?.news.pop_front() else { break None };
            let connection = self.connections.get_mut(name.key).filter(|c| c.turn == name.turn);
            if let Some(connection) = connection.filter(|c| c.life == Life::Used) {
                connection.news = false;
                break Some(name);
            }
        };
        self.is_done(owner);
        name
    }

    /// Notes that an owner had no place for a connection of a host's, and tells it.
    pub(super) fn turn_away(&mut self, owner: usize, host: IpAddr) {
        let Some(state) = self.owners.get_mut(owner) else { return };
        if state.turned_away.len() < TURNED_AWAY {
            state.turned_away.push_back(host);
        } else {
            state.more_turned_away += 1;
        }
        self.tell(owner);
    }

    /// A host for whose connection an owner had no place, as its frame has it.
    pub fn next_turned_away(&mut self, owner: Owner) -> Option<IpAddr> {
        self.owners.get_mut(owner.0)?.turned_away.pop_front()
    }

    /// How many more there were, since this was asked last, than [`Connections::next_turned_away`] tells.
    pub fn more_turned_away(&mut self, owner: Owner) -> u64 {
        let state = self.owners.get_mut(owner.0);
        state.map_or(0, |state| core::mem::take(&mut state.more_turned_away))
    }

    /// Whether an owner is among [`Connections::ready`].
    pub fn is_ready(&self, owner: Owner) -> bool {
        self.owners.get(owner.0).is_some_and(|state| state.ready.is_some())
    }

    /// Takes an owner from the list if it has no news any more.
    pub(super) fn is_done(&mut self, owner: Owner) {
        let Some(state) = self.owners.get_mut(owner.0) else { return };
        if !state.arrived.is_empty() || !state.news.is_empty() {
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

    /// Tells the user of a connection if it would see anything else than before.
    pub(super) fn note(&mut self, key: usize, before: &Seen) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.life != Life::Used || connection.seen() == *before {
            return;
        }
        let (owner, name) = (connection.owner, Name { key, turn: connection.turn });
        let known = core::mem::replace(&mut connection.news, true);
        if let Some(state) = self.owners.get_mut(owner).filter(|_| !known) {
            state.news.push_back(name);
        }
        self.tell(owner);
    }

    pub(super) fn tell(&mut self, owner: usize) {
        self.activity += 1;
        if let Some(state) = self.owners.get_mut(owner)
            && state.ready.is_none()
        {
            state.ready = Some(self.ready.len());
            self.ready.push(Owner(owner));
        }
    }
}
