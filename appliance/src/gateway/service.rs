//! Services that stand between the data plane of the first loop, whose providers and engines carry their bytes, and the
//! IP interfaces, whose TCP connections carry their handshakes. The loop goes through the list of them once a round and
//! knows none by name: a new one is a line in [`State::with_services`], and one in [`State::services_timeout`].

use super::bridge::TcpCarrier;
use super::linx::LinxStage;
use super::network::Network;
use super::plane::DataPlane;
use super::ports::PortSlot;
use super::state::State;
use crate::config::Config;
use crate::refused::Refused;
use drivers::hal::Instant;

/// What a service works with.
pub(super) struct Surroundings<'a> {
    pub networks: &'a mut [Network],
    pub plane: &'a mut DataPlane,
    /// What the control plane knows of the ports, and the numbers of this loop's, by their places in its plane.
    pub ports: &'a [PortSlot],
    pub own_ports: &'a [usize],
    pub config: &'a Config,
    /// Where it is told what was refused.
    pub refused: &'a mut Refused,
    pub now: Instant,
}

/// A service.
pub(super) trait Service {
    /// Goes on with what has arrived, what is due and what is to be said; how much was done.
    fn poll(&mut self, around: &mut Surroundings<'_>) -> usize;

    /// When it has something to do though nothing arrives.
    fn deadline(&self, plane: &DataPlane) -> Option<Instant>;

    /// Ends all connections, and tells the peers: the machine ends.
    fn shut_down(&mut self, _around: &mut Surroundings<'_>) {}

    /// Whether all peers were told.
    fn is_shut_down(&self) -> bool {
        true
    }
}

impl State {
    /// Does something with each service that there is, in the order of a round.
    #[inline(always)]
    fn with_services(
        &mut self,
        networks: &mut [Network],
        now: Instant,
        mut act: impl FnMut(&mut dyn Service, &mut Surroundings<'_>),
    ) {
        let State { smc, rendezvous, upgrade, plane, ports, own_ports, document, refused, .. } =
            self;
        let config = document.config();
        let mut around = Surroundings { networks, plane, ports, own_ports, config, refused, now };
        if let Some(smc) = smc {
            act(&mut **smc, &mut around);
        }
        if !around.plane.bridges.is_empty() {
            act(&mut TcpCarrier, &mut around);
        }
        if around.plane.linx.is_some() {
            act(&mut LinxStage, &mut around);
        }
        if let Some(rendezvous) = rendezvous {
            act(&mut **rendezvous, &mut around);
        }
        if let Some(upgrade) = upgrade {
            act(&mut **upgrade, &mut around);
        }
    }

    /// Has all of them go on; how much was done.
    pub fn poll_services(&mut self, networks: &mut [Network], now: Instant) -> usize {
        let mut done = 0;
        self.with_services(networks, now, |service, around| done += service.poll(around));
        done
    }

    /// Has SMC-R go on, without the others; how much was done.
    pub fn poll_smc(&mut self, networks: &mut [Network], now: Instant) -> usize {
        let State { smc, plane, ports, own_ports, document, refused, .. } = self;
        let config = document.config();
        let Some(smc) = smc else { return 0 };
        smc.poll(&mut Surroundings { networks, plane, ports, own_ports, config, refused, now })
    }

    /// When one of them has something to do though nothing arrives.
    pub fn services_timeout(&self) -> Option<Instant> {
        let plane = &self.plane;
        let smc = self.smc.as_ref().and_then(|smc| smc.deadline(plane));
        let bridge = plane.bridges.first().and_then(|_| TcpCarrier.deadline(plane));
        let linx = plane.linx.as_ref().and_then(|_| LinxStage.deadline(plane));
        let rendezvous = self.rendezvous.as_ref().and_then(|one| one.deadline(plane));
        let upgrade = self.upgrade.as_ref().and_then(|one| one.deadline(plane));
        Instant::first([smc, bridge, linx, rendezvous, upgrade])
    }

    /// Has all of them end their connections.
    pub fn shut_down_services(&mut self, networks: &mut [Network], now: Instant) {
        self.with_services(networks, now, |service, around| service.shut_down(around));
    }

    /// Whether all their peers were told.
    pub fn services_are_shut_down(&self) -> bool {
        self.smc.as_ref().is_none_or(|smc| smc.is_shut_down())
            && self.rendezvous.as_ref().is_none_or(|one| one.is_shut_down())
            && TcpCarrier.is_shut_down()
            && LinxStage.is_shut_down()
    }
}
