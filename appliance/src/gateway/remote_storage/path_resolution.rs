//! The ways to servers: who is at the other end of a path that is not up is asked for by ARP or
//! neighbour discovery, on the interface that has the path's own address.

use super::RemoteStorage;
use crate::gateway::network::Network;
use crate::gateway::plane::DataPlane;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use net::Resolution;
use rtrs::client::{DownReason, PathId, PathState};
use verbs::EngineContext;

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

impl RemoteStorage {
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

impl DataPlane {
    /// Looks for the ways of paths that are down, once in a while.
    pub(in crate::gateway) fn find_ways_of_remotes(
        &mut self,
        networks: &mut [Network],
        now: Instant,
    ) {
        let DataPlane { storage, rdma_stack: Some(rdma_stack), arena, rng, .. } = self else {
            return;
        };
        let Some(remote_storage) = &mut storage.remote_storage else { return };
        if remote_storage.ways_due.is_none_or(|due| now < due) {
            return;
        }
        let wanted = remote_storage.wanted();
        // A path that connects may fail, and is looked after then.
        remote_storage.ways_due = (!wanted.is_empty()).then_some(now + INTERVAL);
        for Wanted { session, path, from, to, blocked } in wanted {
            // The way over a bridge is its link.
            let ntrdma = rdma_stack.providers.bridges().find(|ntrdma| ntrdma.local() == from);
            if let Some(ntrdma) = ntrdma {
                if blocked && ntrdma.link() == ntrdma::State::Up {
                    let provider = &mut rdma_stack.providers;
                    let mut ctx = EngineContext { provider, arena, now, rng: &mut **rng };
                    remote_storage.sessions[session].client.transport_mut().retry(path, &mut ctx);
                }
                continue;
            }
            let has = |n: &Network| {
                n.interface.addresses().iter().any(|cidr| IpAddr::from(cidr.address()) == from)
            };
            let Some(network) = networks.iter_mut().find(|network| has(network)) else { continue };
            if let Resolution::Known(mac) = network.interface.resolve(to, now) {
                let routed = network.interface.is_routed(to);
                rdma_stack.providers.learn_neighbour(from, to, mac, routed);
                let mut ctx = EngineContext {
                    provider: &mut rdma_stack.providers,
                    arena,
                    now,
                    rng: &mut **rng,
                };
                if blocked {
                    remote_storage.sessions[session].client.transport_mut().retry(path, &mut ctx);
                }
            }
        }
    }
}
