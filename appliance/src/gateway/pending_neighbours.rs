//! Hosts that have sent RDMA packets and whose MAC address is not resolved yet. Their packets are ignored until the
//! neighbour table of their port has an entry (see `cm`).

use super::network::Network;
use super::ports::{PortSlot, QueueSlot};
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use net::Resolution;
use provider_set::ProviderSet;

/// Most hosts without a lookup yet. Further hosts are recorded when they send again.
const MOST_NEW: usize = 256;
/// Most hosts that are resolved by ARP or neighbour discovery at a time. It limits requests caused by forged source
/// addresses, per [`PATIENCE`]. A host that has resolved our address is in the table already.
const MOST_RESOLVING: usize = 256;
/// Time for a host to answer.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct PendingNeighbour {
    /// The core that needs the address, and the index of the port there.
    core: usize,
    place: usize,
    host: IpAddr,
    /// Deadline of its answer, once a request was sent.
    until: Option<Instant>,
}

/// What the neighbour table knows of a host, for the providers of the loop that has asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resolved {
    /// Index of the port on that loop.
    place: usize,
    host: IpAddr,
    /// The MAC address, and whether it is a router's. None if the host has not answered.
    mac: Option<([u8; 6], bool)>,
}

impl Resolved {
    /// Passes it to the providers.
    pub fn apply(self, providers: &mut ProviderSet, now: Instant) {
        let Resolved { place, host, mac } = self;
        match mac {
            Some((mac, routed)) => providers.learn_neighbour_at(place, host, mac, routed),
            None => providers.lose_neighbour_at(place, host, now),
        }
    }
}

/// Hosts whose MAC address is not resolved yet.
#[derive(Debug, Default)]
pub(super) struct PendingNeighbours {
    list: Vec<PendingNeighbour>,
    /// Hosts were added since the control plane last checked.
    has_new: bool,
}

impl PendingNeighbours {
    /// Adds a host of the port with index `place` of core `core`.
    pub fn add(&mut self, core: usize, place: usize, host: IpAddr) {
        let is_it = |one: &PendingNeighbour| (one.core, one.place, one.host) == (core, place, host);
        if self.list.iter().any(is_it) || self.list.len() >= MOST_NEW + MOST_RESOLVING {
            return;
        }
        self.list.push(PendingNeighbour { core, place, host, until: None });
        self.has_new = true;
    }

    /// Whether hosts were added since the last call.
    pub fn take_new(&mut self) -> bool {
        core::mem::take(&mut self.has_new)
    }

    /// Removes all hosts, with the indices of their ports, to pass them to the control plane on another loop.
    pub fn drain(&mut self) -> impl Iterator<Item = (usize, IpAddr)> {
        self.has_new = false;
        self.list.drain(..).map(|one| (one.place, one.host))
    }

    /// Looks up the hosts of this loop and of others. Resolves those without a table entry. `send` passes a result to
    /// the loop of a core; false if it cannot take it now.
    pub fn resolve(
        &mut self,
        (ports, queues): (&mut [PortSlot], &mut [QueueSlot]),
        networks: &mut [Network],
        now: Instant,
        mut send: impl FnMut(usize, Resolved) -> bool,
    ) {
        for slot in ports.iter_mut() {
            let (core, place) = (slot.core, slot.place);
            let Some(punt_port) = &mut slot.punt_port else { continue };
            punt_port.take_requests().for_each(|host| self.add(core, place, host));
        }
        for QueueSlot { core, place, punt_port, .. } in queues.iter_mut() {
            punt_port.take_requests().for_each(|host| self.add(*core, *place, host));
        }
        self.has_new = false;
        let mut resolving = self.list.iter().filter(|one| one.until.is_some()).count();
        self.list.retain_mut(|one| {
            let (core, place, host) = (one.core, one.place, one.host);
            let of_port = ports.iter().position(|slot| (slot.core, slot.place) == (core, place));
            let of_queue = || queues.iter().find(|slot| (slot.core, slot.place) == (core, place));
            let number = of_port.or_else(|| of_queue().map(|slot| slot.port));
            let Some(network) = number.and_then(|number| networks.get_mut(number)) else {
                return false;
            };
            if one.until.is_none() && network.interface.neighbour(host, now).is_none() {
                if resolving == MOST_RESOLVING {
                    return false;
                }
                resolving += 1;
                one.until = Some(now + PATIENCE);
            }
            let mac = match network.interface.resolve(host, now) {
                Resolution::Known(mac) => Some((mac, network.interface.is_routed(host))),
                // The answer is a frame for the control plane, which then calls this again.
                Resolution::Pending if one.until.is_some_and(|until| now < until) => return true,
                _ => None,
            };
            let sent = send(core, Resolved { place, host, mac });
            // If the loop cannot take it, try again later.
            !sent && *one.until.get_or_insert(now + PATIENCE) > now
        });
    }
}
