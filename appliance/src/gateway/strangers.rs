//! Hosts that have sent RDMA packets and whose MAC address is not resolved yet. Their packets are ignored until the
//! neighbour table of their port has an entry (see `cm`).

use super::network::Network;
use super::ports::{PortSlot, QueueSlot};
use super::worker::Worker;
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

    /// Looks up the hosts of this loop and of others. Resolves those without a table entry.
    pub fn resolve(
        &mut self,
        providers: &mut ProviderSet,
        (ports, queues): (&mut [PortSlot], &mut [QueueSlot]),
        workers: &mut [Worker],
        networks: &mut [Network],
        now: Instant,
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
            let answer = match network.interface.resolve(host, now) {
                Resolution::Known(mac) => Some((mac, network.interface.is_routed(host))),
                // The answer is a frame for the control plane, which then calls this again.
                Resolution::Pending if one.until.is_some_and(|until| now < until) => return true,
                _ => None,
            };
            let apply = move |providers: &mut ProviderSet, now| match answer {
                Some((mac, routed)) => providers.learn_neighbour_at(place, host, mac, routed),
                None => providers.lose_neighbour_at(place, host, now),
            };
            let Some(worker) = workers.iter_mut().find(|one| one.core == core) else {
                apply(providers, now);
                return false;
            };
            let sent = worker.send_order(move |plane| {
                if let Some(stack) = &mut plane.rdma_stack {
                    apply(&mut stack.providers, plane.now);
                }
            });
            // If the ring of orders is full, try again later.
            !sent && *one.until.get_or_insert(now + PATIENCE) > now
        });
    }
}
