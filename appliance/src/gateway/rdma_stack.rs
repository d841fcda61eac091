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

#[cfg(test)]
mod tests {
    use crate::config;
    use crate::gateway::plane::{DataPlane, Devices, Settings};
    use crate::gateway::ports::PlanePort;
    use crate::gateway::test_cable::{Cable, Ends};
    use crate::randomness::EntropySources;
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use core::time::Duration;
    use drivers::hal::{Arena, Instant};
    use net::PortAddresses;
    use std::sync::{Arc, Mutex};
    use verbs::{PathMtu, Provider as _};

    const OURS: (Ipv4Addr, Ipv6Addr) =
        (Ipv4Addr::new(10, 9, 0, 1), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));
    const HOST: (Ipv4Addr, Ipv6Addr) =
        (Ipv4Addr::new(10, 9, 0, 2), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));

    /// What DHCP, routers and path MTU discovery say, at a card of 1,500 bytes.
    #[test]
    fn mtus_of_the_network_and_of_paths_reach_the_provider() {
        let now = Instant::ZERO + Duration::from_secs(1);
        let mac = [2, 0, 0, 0, 0, 1];
        let cable = Cable::new(mac, Arc::new(Mutex::new(Ends::default())));
        let settings = Settings {
            config: config::check(b"[[net]]\naddress = \"10.9.0.1/24\"\n").unwrap(),
            arena: Arena::on_heap(64 << 20),
            seed: [7; 32],
            entropy: EntropySources::NONE,
            storage: None,
        };
        let port = PlanePort::new("net0".into(), Box::new(cable), false);
        let devices = Devices { ports: vec![port], ..Devices::default() };
        let mut plane = DataPlane::of_core(settings, devices, now);
        let local = PortAddresses { mac, v4: [OURS.0].into(), v6: [OURS.1].into() };
        let passes = |plane: &DataPlane, now| {
            let providers = &plane.rdma_stack.as_ref().unwrap().providers;
            let [v4, v6]: [[IpAddr; 2]; 2] =
                [[OURS.0.into(), HOST.0.into()], [OURS.1.into(), HOST.1.into()]];
            [v4, v6].map(|[from, to]| providers.path_mtu_to(from, to, now))
        };
        let (large, small) = (PathMtu::Mtu1024, PathMtu::Mtu512);
        for (mtus, expected) in [
            ([1500, 1500], [large; 2]),
            ([700, 1500], [small, large]),
            ([1500, 700], [large, small]),
            ([9000, 9000], [large; 2]),
        ] {
            plane.set_addresses(0, &local, mtus);
            assert_eq!(passes(&plane, now), expected, "{mtus:?}");
        }
        let until = now + Duration::from_secs(600);
        plane.limit_paths(&[(HOST.0.into(), 700, until), (HOST.1.into(), 1280, until)]);
        assert_eq!(passes(&plane, now), [small, large]);
        assert_eq!(passes(&plane, until), [large; 2]);
    }
}
