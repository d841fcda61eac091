//! The table of connections, indexed by the identifiers in messages and by host, and ordered for eviction.
//!
//! The connections that a host requested are limited to `per_host`, and to half of the table, so that one address
//! cannot exclude others; in IPv6 a host is a /64 for that ([`accountable`]). If a host's share or the table is used
//! up, a new request evicts the connection with the lowest rank, the oldest of them first ([`Rank`]): of that host, or
//! of all. Established connections are never evicted.

use super::Limits;
use super::connection::{Connection, State};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::IpAddr;
use drivers::hal::{Instant, Timers};
use net::hosts::accountable;
use rand_chacha::ChaCha12Rng;
use rand_core::Rng;
use softverbs::handle_table::HandleTable;
use verbs::ConnectionId;

/// A host: the port that it is reached through, and its address.
pub type Host = (usize, IpAddr);

/// The host whose share an address uses.
fn accountable_host((port, host): Host) -> Host {
    (port, accountable(host))
}

/// Usefulness of a connection, the least useful first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Ended; kept to recognise late messages.
    TimeWait,
    /// Ending: a DREQ was sent.
    Closing,
    /// Requested by a peer, not answered by our user.
    Requested,
    /// Accepted by our user; the peer has not proved that it receives.
    Accepted,
}

impl Rank {
    const fn of(state: State) -> Option<Rank> {
        match state {
            State::TimeWait => Some(Rank::TimeWait),
            State::DreqSent => Some(Rank::Closing),
            State::ReqReceived => Some(Rank::Requested),
            State::RepSent => Some(Rank::Accepted),
            State::ReqSent | State::Established | State::Refused => None,
        }
    }

    fn is_half_open(self) -> bool {
        self >= Rank::Requested
    }
}

/// The connections that a host requested.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    connections: usize,
    half_open: usize,
}

/// Why a request is refused for lack of room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The host is at its limit.
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
    /// A communication ID is the place in the table, with random bits above it, XORed with this mask: a host that did
    /// not receive an ID cannot guess it.
    wire_mask: u32,
    wire_places: u32,
    random: ChaCha12Rng,
    /// Connections that peers requested, by host and the peer's identifiers of connection and adapter.
    requested: BTreeMap<(Host, u32, u64), ConnectionId>,
    /// Connections that own a queue pair of the peer, by host and the identifiers of adapter and queue pair.
    remote_qps: BTreeMap<(Host, u64, u32), ConnectionId>,
    /// Shares by accountable host, as is `order_of_host`.
    hosts: BTreeMap<Host, Share>,
    /// Connections that may be evicted, numbered in the order in which they got their rank.
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
            requested: BTreeMap::new(),
            remote_qps: BTreeMap::new(),
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

    /// The handles of all connections.
    pub fn names(&self) -> Vec<ConnectionId> {
        let places = 0..self.slots.places();
        places.filter_map(|place| self.slots.name_at(place).map(ConnectionId)).collect()
    }

    /// All connections.
    pub fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.slots.iter()
    }

    pub fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.slots.get(id.0)
    }

    /// A connection, mutable, except for its state ([`Table::set_state`]) and the keys of the indexes.
    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.slots.get_mut(id.0)
    }

    /// The connection with this communication ID of ours.
    pub fn by_wire_id(&self, wire_id: u32) -> Option<&Connection> {
        let place = (wire_id ^ self.wire_mask) & self.wire_places;
        self.slots.at(place as usize).filter(|connection| connection.wire_id == wire_id)
    }

    /// The connection that a host requested under these identifiers.
    pub fn requested(&self, host: Host, remote_id: u32, guid: u64) -> Option<ConnectionId> {
        self.requested.get(&(host, remote_id, guid)).copied()
    }

    /// A connection that a host requested under this communication ID, with any adapter.
    pub fn requested_by_any_adapter(&self, host: Host, remote_id: u32) -> Option<ConnectionId> {
        let all = (host, remote_id, 0)..=(host, remote_id, u64::MAX);
        self.requested.range(all).next().map(|(_, &id)| id)
    }

    /// The connection to be evicted before a host can have one more, if any. `Err` if there is no room, and no
    /// connection can be evicted.
    pub fn eviction_candidate(&self, host: Host) -> Result<Option<ConnectionId>, Full> {
        let host = accountable_host(host);
        let share = self.hosts.get(&host).copied().unwrap_or_default();
        let own = |least: Rank| {
            let range = (host, least, 0)..=(host, Rank::Accepted, u64::MAX);
            self.order_of_host.range(range).next().map(|(_, &id)| id)
        };
        let any = |least: Rank| {
            let range = (least, 0)..=(Rank::Accepted, u64::MAX);
            self.order.range(range).next().map(|(_, &id)| id)
        };
        if share.connections >= self.per_host {
            return own(Rank::TimeWait).map(Some).ok_or(Full::Host);
        }
        if self.slots.len() >= self.limit {
            return any(Rank::TimeWait).map(Some).ok_or(Full::Table);
        }
        if share.half_open >= self.half_open_limit / 2 {
            return Ok(own(Rank::Requested));
        }
        Ok(if self.half_open >= self.half_open_limit { any(Rank::Requested) } else { None })
    }

    /// Adds a connection; `make` gets its handle and its communication ID.
    pub fn insert(
        &mut self,
        make: impl FnOnce(ConnectionId, u32) -> Connection,
    ) -> Option<ConnectionId> {
        let (mask, places, random) = (self.wire_mask, self.wire_places, &mut self.random);
        let name = self.slots.insert(|name| {
            let place = HandleTable::<Connection>::index(name) as u32;
            let wire_id = loop {
                let wire_id = (random.next_u32() & !places | place) ^ mask;
                // 0 means none.
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
            self.requested.insert((host, connection.remote_id, connection.remote_guid), id);
            self.hosts.entry(accountable_host(host)).or_default().connections += 1;
        }
        self.claim_remote_qp(id);
        self.enter_order(id);
        Some(id)
    }

    /// Removes a connection.
    pub fn remove(&mut self, id: ConnectionId) -> Option<Connection> {
        self.leave_order(id);
        self.release_remote_qp(id);
        let gone = self.slots.remove(id.0)?;
        self.timers.forget(HandleTable::<Connection>::index(id.0));
        if !gone.active {
            let host = gone.host();
            self.requested.remove(&(host, gone.remote_id, gone.remote_guid));
            let host = accountable_host(host);
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
            State::Established => self.claim_remote_qp(id),
            State::DreqSent | State::TimeWait | State::Refused => self.release_remote_qp(id),
            State::ReqSent | State::ReqReceived | State::RepSent => (),
        }
        self.enter_order(id);
    }

    /// Sets a connection's timer, which replaces its former setting.
    pub fn arm(&mut self, id: ConnectionId, at: Instant) {
        if let Some(connection) = self.slots.get_mut(id.0) {
            connection.deadline = Some(at);
            self.timers.put(HandleTable::<Connection>::index(id.0), at);
        }
    }

    /// A connection whose timer may have expired.
    pub fn take_due(&mut self, now: Instant) -> Option<ConnectionId> {
        let place = self.timers.take_due(now)?;
        self.slots.name_at(place).map(ConnectionId)
    }

    /// Enters the connection as owner of its peer's queue pair, unless another connection owns it.
    fn claim_remote_qp(&mut self, id: ConnectionId) {
        let Some(connection) = self.slots.get(id.0) else { return };
        if connection.state != State::ReqSent {
            self.remote_qps.entry(connection.remote_qp()).or_insert(id);
        }
    }

    /// Makes a connection the owner of its peer's queue pair; returns the former owner.
    pub fn supersede(&mut self, id: ConnectionId) -> Option<ConnectionId> {
        let key = self.slots.get(id.0)?.remote_qp();
        let old = self.remote_qps.insert(key, id).filter(|old| *old != id)?;
        self.slots.get_mut(old.0)?.superseded = true;
        Some(old)
    }

    /// The connections that own a queue pair of a host.
    pub fn with_host(&self, host: Host) -> Vec<ConnectionId> {
        let all = (host, 0, 0)..=(host, u64::MAX, u32::MAX);
        self.remote_qps.range(all).map(|(_, &id)| id).collect()
    }

    fn release_remote_qp(&mut self, id: ConnectionId) {
        let Some(connection) = self.slots.get(id.0) else { return };
        let key = connection.remote_qp();
        if self.remote_qps.get(&key) == Some(&id) {
            self.remote_qps.remove(&key);
        }
    }

    fn enter_order(&mut self, id: ConnectionId) {
        let Some(connection) = self.slots.get_mut(id.0) else { return };
        let Some(rank) = Rank::of(connection.state) else { return };
        self.number += 1;
        let place = (rank, self.number);
        connection.order = Some(place);
        let host = accountable_host(connection.host());
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
        let host = accountable_host(connection.host());
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

    /// A request of a host with communication ID `n`.
    fn request(table: &mut Table, host: &str, n: u32, state: State) -> Option<ConnectionId> {
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
            reported: false,
            message: None,
            interval: Duration::ZERO,
            retries_left: 0,
            prolonged: false,
            superseded: false,
            deadline: None,
            order: None,
        })
    }

    /// A host with a /64 has any number of addresses, but not more connections.
    #[test]
    fn addresses_of_a_64_share_one_limit() {
        let limits = Limits { connections: 16, connections_per_host: 3, half_open: 16 };
        let mut table = Table::new(&limits, ChaCha12Rng::seed_from_u64(1));
        let host = |text: &str| (0, text.parse::<IpAddr>().unwrap());
        for (n, from) in ["2001:db8::1", "2001:db8::2", "2001:db8::3:3:3:3"].into_iter().enumerate()
        {
            assert_eq!(table.eviction_candidate(host(from)), Ok(None));
            request(&mut table, from, n as u32, State::Established).unwrap();
        }
        assert_eq!(table.eviction_candidate(host("2001:db8::9")), Err(Full::Host));
        assert_eq!(table.eviction_candidate(host("2001:db8:0:1::9")), Ok(None));
        assert_eq!(table.eviction_candidate(host("10.0.0.9")), Ok(None));
        // The identifiers belong to the requesting address only.
        let first = table.requested(host("2001:db8::1"), 0, 1).unwrap();
        assert_eq!(table.requested(host("2001:db8::2"), 0, 1), None);
        // An ended connection is evicted for any address of the same /64.
        table.set_state(first, State::TimeWait);
        assert_eq!(table.eviction_candidate(host("2001:db8::9")), Ok(Some(first)));
        for id in table.names() {
            table.remove(id);
        }
        assert!(table.hosts.is_empty() && table.order_of_host.is_empty());
    }
}
