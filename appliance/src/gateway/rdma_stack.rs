//! RDMA over the ports: the provider, and the packets that it has next.

use super::ports::PlanePort;
use super::strangers::Strangers;
use crate::config::Config;
use ntrdma::Ntrdma;
use perf_responders::ntb_perf;
use provider_set::ProviderSet;
use rand_core::RngCore;
use roce::{Limits, PortConfig, Roce, TxBuffer};
use verbs::ConnectionManager;

/// The provider over the ports of a plane. Its ports have the same places as the plane's.
pub(super) struct RdmaStack {
    pub providers: ProviderSet,
    pub outgoing: Vec<Outgoing>,
    /// Hosts that the neighbour tables are to be asked for.
    pub strangers: Strangers,
}

/// The packet that a port is to take next.
pub(super) struct Outgoing {
    pub tx: TxBuffer,
    /// `tx` holds a packet that found no room.
    pub waiting: bool,
}

impl RdmaStack {
    /// A provider over `ports` and bridges. None if there are neither, and `wanted` says that nobody needs one all the
    /// same: the first loop has what the servers of other loops are made after.
    pub fn new(
        config: &Config,
        ports: &[PlanePort],
        ntrdma: Vec<Ntrdma>,
        wanted: bool,
        rng: &mut dyn RngCore,
    ) -> Option<Self> {
        let mut configs = ports.iter().map(|slot| PortConfig {
            mac: slot.port.mac(),
            addresses: Vec::new(),
            mtu: slot.port.mtu(),
        });
        // Without an address, a port reaches nobody.
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
            // Nobody listens yet: there is room.
            let _ = ntrdma.listen(ntb_perf::PORT);
        }
        let (providers, outgoing) = (devices, outgoing.collect());
        Some(RdmaStack { providers, outgoing, strangers: Strangers::default() })
    }
}

/// The provider's limits: one host, with all that it may have, leaves room for others.
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
