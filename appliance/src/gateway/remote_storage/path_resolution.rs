//! Resolves the servers of paths that are down, by ARP or neighbour discovery, on the interface with the path's own
//! address.

use super::RemoteStorage;
use crate::gateway::network::Network;
use core::net::IpAddr;
use core::time::Duration;
use net::Resolution;
use provider_set::ProviderSet;
use rtrs::client::{DownReason, PathId, PathState};
use verbs::Ctx;

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

    /// Resolves the paths that are down, when due.
    pub(super) fn resolve_paths(
        &mut self,
        networks: &mut [Network],
        ctx: &mut Ctx<'_, ProviderSet>,
    ) {
        let now = ctx.now;
        if self.resolve_due.is_none_or(|due| now < due) {
            return;
        }
        self.follow_names(ctx);
        let down = self.down_paths();
        // If all are up, a path that fails sets it again.
        self.resolve_due = (!down.is_empty()).then_some(now + INTERVAL);
        for DownPath { session, path, from, to, blocked } in down {
            // Over a bridge only its link counts.
            let ntrdma = ctx.provider.bridges().find(|ntrdma| ntrdma.local() == from);
            if let Some(ntrdma) = ntrdma {
                if blocked && ntrdma.link() == ntrdma::State::Up {
                    self.sessions[session].client.transport_mut().retry(path, ctx);
                }
                continue;
            }
            let has = |n: &Network| {
                n.interface.addresses().iter().any(|cidr| IpAddr::from(cidr.address()) == from)
            };
            let Some(network) = networks.iter_mut().find(|network| has(network)) else { continue };
            if let Resolution::Known(mac) = network.interface.resolve(to, now) {
                let routed = network.interface.is_routed(to);
                ctx.provider.learn_neighbour(from, to, mac, routed);
                if blocked {
                    self.sessions[session].client.transport_mut().retry(path, ctx);
                }
            }
        }
    }
}
