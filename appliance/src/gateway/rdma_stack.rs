//! RDMA over the ports of a plane: the providers, and the next packet for each port.

use super::pending_neighbours::PendingNeighbours;
use super::ports::PlanePort;
use crate::config::Config;
use ntrdma::Ntrdma;
use perf_responders::ntb_perf;
use provider_set::ProviderSet;
use rand_core::Rng;
use roce::{Limits, PortConfig, Roce, TxBuffer};
use verbs::ConnectionManager;

/// The providers over the ports of a plane. Their ports have the same indices as the plane's.
pub(super) struct RdmaStack {
    pub providers: ProviderSet,
    pub outgoing: Vec<Outgoing>,
    /// Hosts whose neighbour entries are requested.
    pub pending_neighbours: PendingNeighbours,
}

/// The next packet for a port.
pub(super) struct Outgoing {
    pub tx: TxBuffer,
    /// `tx` holds a packet that waits for room.
    pub waiting: bool,
}

impl RdmaStack {
    /// Creates the providers over `ports` and bridges. None if there are neither and it is not `wanted`. The first loop
    /// may want providers without ports, because the servers of other loops are modelled on its server.
    pub fn new(
        config: &Config,
        ports: &[PlanePort],
        ntrdma: Vec<Ntrdma>,
        wanted: bool,
        rng: &mut dyn Rng,
    ) -> Option<Self> {
        let mut configs = ports.iter().map(|slot| PortConfig {
            mac: slot.port.mac(),
            addresses: Vec::new(),
            mtu: slot.port.mtu(),
        });
        // A port without an address, which reaches no host.
        let nowhere = PortConfig { mac: [2, 0, 0, 0, 0, 0], addresses: Vec::new(), mtu: 1500 };
        let first = configs.next().or((wanted || !ntrdma.is_empty()).then_some(nowhere))?;
        let mut roce = Roce::new(first, limits(config), rng);
        for config in configs {
            roce.add_port(config);
        }
        let outgoing = ports.iter().map(|_| Outgoing { tx: TxBuffer::new(), waiting: false });
        let mut devices = ProviderSet::new(roce, ntrdma);
        for number in 0..ProviderSet::BRIDGES {
            let Some(ntrdma) = devices.ntrdma_mut(number) else { break };
            // Cannot fail: this is the first listener.
            let _ = ntrdma.listen(ntb_perf::PORT);
        }
        let (providers, outgoing) = (devices, outgoing.collect());
        let pending_neighbours = PendingNeighbours::default();
        Some(RdmaStack { providers, outgoing, pending_neighbours })
    }
}

/// The provider's limits. One host at its own limit leaves room for others.
fn limits(config: &Config) -> Limits {
    let per_host = config.limits.connections_per_host as usize;
    let default = Limits::default();
    Limits {
        connections_per_host: per_host,
        connections: default.connections.max(4 * per_host),
        qps: default.qps.max(4 * per_host),
        ..default
    }
}
