//! Resolves the servers of paths that are down, by ARP or neighbour discovery, on the interface with the path's own
//! address.

use super::RemoteStorage;
use crate::gateway::network::Network;
use crate::gateway::plane::DataPlane;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use net::Resolution;
use rtrs::client::{DownReason, PathId, PathState};
use verbs::EngineContext;

/// Interval of attempts.
const INTERVAL: Duration = Duration::from_millis(100);

/// A path to resolve.
struct DownPath {
    session: usize,
    path: PathId,
    from: IpAddr,
    to: IpAddr,
    /// The path is down because its server was not resolved, or its own address is missing.
    blocked: bool,
}

impl RemoteStorage {
    fn down_paths(&self) -> Vec<DownPath> {
        let mut down = Vec::new();
        for (session, one) in self.sessions.iter().enumerate() {
            for path in one.client.transport().paths() {
                if path.state == PathState::Reconnecting {
                    let why = path.last_failure;
                    down.push(DownPath {
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
        down
    }
}

impl DataPlane {
    /// Resolves the paths that are down, when due.
    pub(in crate::gateway) fn resolve_remote_paths(
        &mut self,
        networks: &mut [Network],
        now: Instant,
    ) {
        let DataPlane { remote_storage, rdma_stack: Some(rdma_stack), arena, rng, .. } = self
        else {
            return;
        };
        let Some(remote_storage) = remote_storage else { return };
        if remote_storage.resolve_due.is_none_or(|due| now < due) {
            return;
        }
        let down = remote_storage.down_paths();
        // If all are up, a path that fails sets it again.
        remote_storage.resolve_due = (!down.is_empty()).then_some(now + INTERVAL);
        for DownPath { session, path, from, to, blocked } in down {
            // Over a bridge only its link counts.
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
