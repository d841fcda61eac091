//! Hosts that have sent something over RDMA, until the neighbour table of their port has said where they are. Nothing that
//! they have sent counts before (see `cm`).

use super::network::Network;
use super::ports::{PortSlot, QueueSlot};
use super::worker::Worker;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use net::Resolution;
use provider_set::ProviderSet;

/// Hosts that were not looked at yet. Further ones are noted when they send again.
const MOST_NOTED: usize = 256;
/// Hosts that are asked for by ARP or neighbour discovery at a time: frames from made-up addresses draw no more questions
/// than this in the time of [`PATIENCE`]. A host that has asked for us is in the table already.
const MOST_ASKED: usize = 256;
/// How long a host may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct Stranger {
    /// The core that wants to know, and the place of the port there.
    core: usize,
    place: usize,
    host: IpAddr,
    /// Until when it may answer, once it was asked for.
    until: Option<Instant>,
}

/// The hosts.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    list: Vec<Stranger>,
    is_news: bool,
}

impl Strangers {
    /// Notes a host of a port at a place of a core's.
    pub fn add(&mut self, core: usize, place: usize, host: IpAddr) {
        let is_it = |one: &Stranger| (one.core, one.place, one.host) == (core, place, host);
        if self.list.iter().any(is_it) || self.list.len() >= MOST_NOTED + MOST_ASKED {
            return;
        }
        self.list.push(Stranger { core, place, host, until: None });
        self.is_news = true;
    }

    /// Whether the control plane is to look.
    pub fn take_news(&mut self) -> bool {
        core::mem::take(&mut self.is_news)
    }

    /// The hosts that were noted, with the places of the ports, for another loop's control plane.
    pub fn drain(&mut self) -> impl Iterator<Item = (usize, IpAddr)> {
        self.is_news = false;
        self.list.drain(..).map(|one| (one.place, one.host))
    }

    /// Looks the hosts of this loop and of others up, and has those asked for that no table knows.
    pub fn find(
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
            punt_port.strangers().for_each(|host| self.add(core, place, host));
        }
        for QueueSlot { core, place, punt_port, .. } in queues.iter_mut() {
            punt_port.strangers().for_each(|host| self.add(*core, *place, host));
        }
        self.is_news = false;
        let mut asked = self.list.iter().filter(|one| one.until.is_some()).count();
        self.list.retain_mut(|one| {
            let (core, place, host) = (one.core, one.place, one.host);
            let of_port = ports.iter().position(|slot| (slot.core, slot.place) == (core, place));
            let of_queue = || queues.iter().find(|slot| (slot.core, slot.place) == (core, place));
            let number = of_port.or_else(|| of_queue().map(|slot| slot.port));
            let Some(network) = number.and_then(|number| networks.get_mut(number)) else {
                return false;
            };
            if one.until.is_none() && network.interface.neighbour(host, now).is_none() {
                if asked == MOST_ASKED {
                    return false;
                }
                asked += 1;
                one.until = Some(now + PATIENCE);
            }
            let answer = match network.interface.resolve(host, now) {
                Resolution::Known(mac) => Some((mac, network.interface.is_routed(host))),
                // The answer is a frame for the control plane, which looks here again.
                Resolution::Pending if one.until.is_some_and(|until| now < until) => return true,
                _ => None,
            };
            let tell = move |providers: &mut ProviderSet, now| match answer {
                Some((mac, routed)) => providers.learn_neighbour_at(place, host, mac, routed),
                None => providers.lose_neighbour_at(place, host, now),
            };
            let Some(worker) = workers.iter_mut().find(|one| one.core == core) else {
                tell(providers, now);
                return false;
            };
            let told = worker.tell(move |plane| {
                if let Some(stack) = &mut plane.rdma_stack {
                    tell(&mut stack.providers, plane.now);
                }
            });
            // Too many orders wait there.
            !told && *one.until.get_or_insert(now + PATIENCE) > now
        });
    }
}
