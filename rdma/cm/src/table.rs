//! The connections: found by what messages say of them, counted by host, and in the order in which they give
//! way when there is no room.
//!
//! What a host has asked for is bounded by `per_host`, and by half of the table, so that one address keeps
//! nobody else out; over IPv6 a host is a /64 for that ([`accountable`]). Where that or the table is full, what is of least use gives way to a new request, the
//! oldest of it first ([`Rank`]): of the host that has its share, or of all. What stands never does.

use super::Limits;
use super::connection::{Connection, State};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::IpAddr;
use drivers::hal::Instant;
use net::hosts::accountable;
use rand_chacha::ChaCha12Rng;
use rand_core::RngCore;
use softverbs::handle_table::HandleTable;
use softverbs::timers::Timers;
use verbs::ConnectionId;

/// A host: the port that it is reached through, and its address.
pub type Host = (usize, IpAddr);

/// The host that is accountable for one.
fn owner((port, host): Host) -> Host {
    (port, accountable(host))
}

/// Of what use a connection is, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Over; kept so that late messages are recognised.
    TimeWait,
    /// Its end is being said.
    Closing,
    /// Asked for by a peer, not answered by our user.
    Asked,
    /// Granted by our user; the peer has not shown that it receives.
    Granted,
}

impl Rank {
    const fn of(state: State) -> Option<Rank> {
        match state {
            State::TimeWait => Some(Rank::TimeWait),
            State::DreqSent => Some(Rank::Closing),
            State::ReqReceived => Some(Rank::Asked),
            State::RepSent => Some(Rank::Granted),
            State::ReqSent | State::Established | State::Refused => None,
        }
    }

    fn is_half_open(self) -> bool {
        self >= Rank::Asked
    }
}

/// What a host has asked for.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    connections: usize,
    half_open: usize,
}

/// Why there is no room for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The host has as many connections as it may have.
    Host,
    /// The table is full.
    Table,
}

/// The connections.
#[derive(Debug)]
pub struct Table {
    slots: HandleTable<Connection>,
    pub limit: usize,
    pub per_host: usize,
    half_open_limit: usize,
    half_open: usize,
    /// Names on the wire are places in the table, scrambled with this, and random bits above them: who is
    /// not told one cannot guess it.
    wire_mask: u32,
    wire_places: u32,
    random: ChaCha12Rng,
    /// Those that peers asked for, by host and the peer's names for connection and adapter.
    asked: BTreeMap<(Host, u32, u64), ConnectionId>,
    /// Those that hold a queue pair of the peer's: by host, and the names of adapter and queue pair.
    held: BTreeMap<(Host, u64, u32), ConnectionId>,
    /// By who is accountable; so is `order_of_host`.
    hosts: BTreeMap<Host, Share>,
    /// Those that may give way, numbered as they came to their rank.
    order: BTreeMap<(Rank, u64), ConnectionId>,
    order_of_host: BTreeMap<(Host, Rank, u64), ConnectionId>,
    number: u64,
    pub timers: Timers,
}

impl Table {
    pub fn new(limits: &Limits, mut random: ChaCha12Rng) -> Self {
        let limit = limits.connections.clamp(2, softverbs::handle_table::MAX);
        Table {
            slots: HandleTable::new(limit),
            limit,
            per_host: limits.connections_per_host.clamp(1, limit / 2),
            half_open_limit: limits.half_open.max(2),
            half_open: 0,
            wire_mask: random.next_u32(),
            wire_places: limit.next_power_of_two() as u32 - 1,
            random,
            asked: BTreeMap::new(),
            held: BTreeMap::new(),
            hosts: BTreeMap::new(),
            order: BTreeMap::new(),
            order_of_host: BTreeMap::new(),
            number: 0,
            timers: Timers::default(),
        }
    }

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// The names of all.
    pub fn names(&self) -> Vec<ConnectionId> {
        let places = 0..self.slots.places();
        places.filter_map(|place| self.slots.name_at(place).map(ConnectionId)).collect()
    }

    /// All of them.
    pub fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.slots.iter()
    }

    pub fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.slots.get(id.0)
    }

    /// A connection, to be changed: but for its state ([`Table::set_state`]) and what names it.
    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.slots.get_mut(id.0)
    }

    /// The connection with that name on the wire.
    pub fn by_wire_id(&self, wire_id: u32) -> Option<&Connection> {
        let place = (wire_id ^ self.wire_mask) & self.wire_places;
        self.slots.at(place as usize).filter(|connection| connection.wire_id == wire_id)
    }

    /// The connection that a host asked for under these names of its own.
    pub fn asked(&self, host: Host, remote_id: u32, guid: u64) -> Option<ConnectionId> {
        self.asked.get(&(host, remote_id, guid)).copied()
    }

    /// The connections that a host asked for under that name, whichever its adapter.
    pub fn asked_by_any(&self, host: Host, remote_id: u32) -> Option<ConnectionId> {
        let all = (host, remote_id, 0)..=(host, remote_id, u64::MAX);
        self.asked.range(all).next().map(|(_, &id)| id)
    }

    /// The connection that has to give way before a host can have one more, if any. `Err` if there is no
    /// room and none that gives way.
    pub fn in_the_way(&self, host: Host) -> Result<Option<ConnectionId>, Full> {
        let host = owner(host);
        let share = self.hosts.get(&host).copied().unwrap_or_default();
        let own = |least: Rank| {
            let range = (host, least, 0)..=(host, Rank::Granted, u64::MAX);
            self.order_of_host.range(range).next().map(|(_, &id)| id)
        };
        let any = |least: Rank| {
            let range = (least, 0)..=(Rank::Granted, u64::MAX);
            self.order.range(range).next().map(|(_, &id)| id)
        };
        if share.connections >= self.per_host {
            return own(Rank::TimeWait).map(Some).ok_or(Full::Host);
        }
        if self.slots.len() >= self.limit {
            return any(Rank::TimeWait).map(Some).ok_or(Full::Table);
        }
        if share.half_open >= self.half_open_limit / 2 {
            return Ok(own(Rank::Asked));
        }
        Ok(if self.half_open >= self.half_open_limit { any(Rank::Asked) } else { None })
    }

    /// Adds a connection; `make` is told its names here and on the wire.
    pub fn insert(
        &mut self,
        make: impl FnOnce(ConnectionId, u32) -> Connection,
    ) -> Option<ConnectionId> {
        let (mask, places, random) = (self.wire_mask, self.wire_places, &mut self.random);
        let name = self.slots.insert(|name| {
            let place = HandleTable::<Connection>::index(name) as u32;
            let wire_id = loop {
                let wire_id = (random.next_u32() & !places | place) ^ mask;
                // 0 stands for none.
                if wire_id != 0 {
                    break wire_id;
                }
            };
            make(ConnectionId(name), wire_id)
        })?;
        self.timers.make_room(HandleTable::<Connection>::index(name));
        let id = ConnectionId(name);
        if let Some(connection) = self.slots.get(name)
            && !connection.active
        {
            let host = connection.host();
            self.asked.insert((host, connection.remote_id, connection.remote_guid), id);
            self.hosts.entry(owner(host)).or_default().connections += 1;
        }
        self.hold(id);
        self.enter_order(id);
        Some(id)
    }

    /// Takes a connection out.
    pub fn remove(&mut self, id: ConnectionId) -> Option<Connection> {
        self.leave_order(id);
        self.let_go(id);
        let gone = self.slots.remove(id.0)?;
        self.timers.forget(HandleTable::<Connection>::index(id.0));
        if !gone.active {
            let host = gone.host();
            self.asked.remove(&(host, gone.remote_id, gone.remote_guid));
            let host = owner(host);
            if let Some(share) = self.hosts.get_mut(&host) {
                share.connections -= 1;
                if share.connections == 0 {
                    self.hosts.remove(&host);
                }
            }
        }
        Some(gone)
    }

    /// Changes the state of a connection.
    pub fn set_state(&mut self, id: ConnectionId, state: State) {
        self.leave_order(id);
        let Some(connection) = self.slots.get_mut(id.0) else { return };
        connection.state = state;
        match state {
            State::Established => self.hold(id),
            State::DreqSent | State::TimeWait | State::Refused => self.let_go(id),
            State::ReqSent | State::ReqReceived | State::RepSent => (),
        }
        self.enter_order(id);
    }

    /// Sets a connection's timer: there is one, and what it was set to before does not count.
    pub fn arm(&mut self, id: ConnectionId, at: Instant) {
        if let Some(connection) = self.slots.get_mut(id.0) {
            connection.deadline = Some(at);
            self.timers.put(HandleTable::<Connection>::index(id.0), at);
        }
    }

    /// The connection whose timer may have expired.
    pub fn take_due(&mut self, now: Instant) -> Option<ConnectionId> {
        let place = self.timers.take_due(now)?;
        self.slots.name_at(place).map(ConnectionId)
    }

    /// Notes whose queue pair of the peer's it is, unless another connection has it.
    fn hold(&mut self, id: ConnectionId) {
        let Some(connection) = self.slots.get(id.0) else { return };
        if connection.state != State::ReqSent {
            self.held.entry(connection.holds()).or_insert(id);
        }
    }

    /// A connection has the queue pair of the peer's that it names; the connection that had it before.
    pub fn supersede(&mut self, id: ConnectionId) -> Option<ConnectionId> {
        let key = self.slots.get(id.0)?.holds();
        let old = self.held.insert(key, id).filter(|old| *old != id)?;
        self.slots.get_mut(old.0)?.superseded = true;
        Some(old)
    }

    /// The connections with a host that have a queue pair of its.
    pub fn with(&self, host: Host) -> Vec<ConnectionId> {
        let all = (host, 0, 0)..=(host, u64::MAX, u32::MAX);
        self.held.range(all).map(|(_, &id)| id).collect()
    }

    fn let_go(&mut self, id: ConnectionId) {
        let Some(connection) = self.slots.get(id.0) else { return };
        let key = connection.holds();
        if self.held.get(&key) == Some(&id) {
            self.held.remove(&key);
        }
    }

    fn enter_order(&mut self, id: ConnectionId) {
        let Some(connection) = self.slots.get_mut(id.0) else { return };
        let Some(rank) = Rank::of(connection.state) else { return };
        self.number += 1;
        let place = (rank, self.number);
        connection.order = Some(place);
        let host = owner(connection.host());
        self.order.insert(place, id);
        self.order_of_host.insert((host, rank, self.number), id);
        if rank.is_half_open() {
            self.half_open += 1;
            self.hosts.entry(host).or_default().half_open += 1;
        }
    }

    fn leave_order(&mut self, id: ConnectionId) {
        let Some(connection) = self.slots.get_mut(id.0) else { return };
        let Some((rank, number)) = connection.order.take() else { return };
        let host = owner(connection.host());
        self.order.remove(&(rank, number));
        self.order_of_host.remove(&(host, rank, number));
        if rank.is_half_open() {
            self.half_open -= 1;
            if let Some(share) = self.hosts.get_mut(&host) {
                share.half_open -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use rand_core::SeedableRng;
    use verbs::{AddressVector, ConnectionParameters, GidType, PathMtu, PrivateData};

    /// A request of a host, under the name `n`.
    fn ask(table: &mut Table, host: &str, n: u32, state: State) -> Option<ConnectionId> {
        let remote: IpAddr = host.parse().unwrap();
        table.insert(|id, wire_id| Connection {
            id,
            wire_id,
            active: false,
            state,
            remote_id: n,
            remote_guid: 1,
            remote_qpn: n,
            transaction: n.into(),
            qp: None,
            address: AddressVector {
                local: "2001:db8::ffff".parse().unwrap(),
                remote,
                gid_type: GidType::RoceV2,
                remote_mac: [2; 6],
                source_port: 1,
                traffic_class: 0,
                hop_limit: 64,
            },
            place: 0,
            port: 1234,
            from: (remote, 1).into(),
            parameters: ConnectionParameters {
                responder_resources: 0,
                initiator_depth: 0,
                retry_count: 7,
                rnr_retry_count: 7,
                min_rnr_timer: 12,
            },
            path_mtu: PathMtu::Mtu1024,
            sq_psn: 0,
            ack_timeout: 14,
            peer_data: PrivateData::new(b"").unwrap(),
            told: false,
            message: None,
            interval: Duration::ZERO,
            retries_left: 0,
            prolonged: false,
            superseded: false,
            deadline: None,
            order: None,
        })
    }

    /// A host with a /64 has as many addresses as it likes, and not more connections for that.
    #[test]
    fn a_64_is_one_host() {
        let limits = Limits { connections: 16, connections_per_host: 3, half_open: 16 };
        let mut table = Table::new(&limits, ChaCha12Rng::seed_from_u64(1));
        let host = |text: &str| (0, text.parse::<IpAddr>().unwrap());
        for (n, from) in ["2001:db8::1", "2001:db8::2", "2001:db8::3:3:3:3"].into_iter().enumerate()
        {
            assert_eq!(table.in_the_way(host(from)), Ok(None));
            ask(&mut table, from, n as u32, State::Established).unwrap();
        }
        assert_eq!(table.in_the_way(host("2001:db8::9")), Err(Full::Host));
        assert_eq!(table.in_the_way(host("2001:db8:0:1::9")), Ok(None));
        assert_eq!(table.in_the_way(host("10.0.0.9")), Ok(None));
        // What it names stays known by the address that asked.
        let first = table.asked(host("2001:db8::1"), 0, 1).unwrap();
        assert_eq!(table.asked(host("2001:db8::2"), 0, 1), None);
        // What is over gives way to any address of the same /64.
        table.set_state(first, State::TimeWait);
        assert_eq!(table.in_the_way(host("2001:db8::9")), Ok(Some(first)));
        for id in table.names() {
            table.remove(id);
        }
        assert!(table.hosts.is_empty() && table.order_of_host.is_empty());
    }
}
