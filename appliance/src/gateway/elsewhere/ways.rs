//! The ways to servers: who is at the other end of a path that is not up is asked for by ARP or
//! neighbour discovery, on the interface that has the path's own address.

use super::Elsewhere;
use crate::gateway::network::Network;
use crate::gateway::plane::Plane;
use crate::gateway::state::State;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use net::Resolution;
use rdma::rtrs::Context;
use rdma::rtrs::client::{DownReason, PathId, PathState};

/// How often a way is looked for.
const INTERVAL: Duration = Duration::from_millis(100);

/// A path whose way is looked for.
struct Wanted {
    session: usize,
    path: PathId,
    from: IpAddr,
    to: IpAddr,
    /// The missing way, or the missing address, is why it is down.
    blocked: bool,
}

impl Elsewhere {
    fn wanted(&self) -> Vec<Wanted> {
        let mut wanted = Vec::new();
        for (session, one) in self.sessions.iter().enumerate() {
            for path in one.client.transport().paths() {
                if path.state == PathState::Reconnecting {
                    let why = path.last_failure;
                    wanted.push(Wanted {
                        session,
                        path: path.id,
                        from: path.from,
                        to: path.to.ip(),
                        blocked: why == Some(DownReason::Unreachable)
                            || why == Some(DownReason::NoAddress),
                    });
                }
            }
        }
        wanted
    }
}

impl State {
    /// Looks for the ways of paths that are down, once in a while.
    pub(in crate::gateway) fn find_ways_of_remotes(
        &mut self,
        networks: &mut [Network],
        now: Instant,
    ) {
        let Plane { storage, fabric: Some(fabric), arena, rng, .. } = &mut self.plane else {
            return;
        };
        let Some(elsewhere) = &mut storage.elsewhere else { return };
        if elsewhere.ways_due.is_none_or(|due| now < due) {
            return;
        }
        let wanted = elsewhere.wanted();
        // A path that connects may fail, and is looked after then.
        elsewhere.ways_due = (!wanted.is_empty()).then_some(now + INTERVAL);
        for Wanted { session, path, from, to, blocked } in wanted {
            // The way over a bridge is its link.
            let ntrdma = fabric.devices.ntrdma().filter(|ntrdma| ntrdma.local() == from);
            if let Some(ntrdma) = ntrdma {
                if blocked && ntrdma.link() == rdma::ntrdma::State::Up {
                    let provider = &mut fabric.devices;
                    let mut ctx = Context { provider, arena, now, rng: &mut **rng };
                    elsewhere.sessions[session].client.transport_mut().retry(path, &mut ctx);
                }
                continue;
            }
            let has = |n: &Network| {
                n.interface.addresses().iter().any(|cidr| IpAddr::from(cidr.address()) == from)
            };
            let Some(network) = networks.iter_mut().find(|network| has(network)) else { continue };
            if let Resolution::Known(mac) = network.interface.resolve(to, now) {
                fabric.devices.roce.learn_neighbour(to, mac);
                let mut ctx =
                    Context { provider: &mut fabric.devices, arena, now, rng: &mut **rng };
                if blocked {
                    elsewhere.sessions[session].client.transport_mut().retry(path, &mut ctx);
                }
            }
        }
    }
}
