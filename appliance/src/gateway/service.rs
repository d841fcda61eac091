//! Services between the data plane of the first loop, whose providers and engines carry their bytes, and the IP
//! interfaces, whose TCP connections carry their handshakes. The loop polls the list of services ([`super::services`])
//! once a round.

use super::network::Network;
use super::plane::DataPlane;
use super::ports::PortSlot;
use crate::config::Config;
use crate::refused::Refused;
use drivers::hal::Instant;
use net::dns::Resolver;

/// Context of a service.
pub(super) struct ServiceContext<'a> {
    pub networks: &'a mut [Network],
    pub plane: &'a mut DataPlane,
    /// The ports in the control plane.
    pub ports: &'a [PortSlot],
    /// Numbers of this loop's ports, by their indices in its plane.
    pub own_ports: &'a [usize],
    pub config: &'a Config,
    /// The DNS client.
    pub resolver: &'a mut Resolver,
    /// Record of refusals.
    pub refused: &'a mut Refused,
    pub now: Instant,
}

/// A service.
pub(super) trait Service {
    /// Handles arrivals and timers, and sends pending messages. Returns the amount of work.
    fn poll(&mut self, around: &mut ServiceContext<'_>) -> usize;

    /// When the next timer expires.
    fn deadline(&self, plane: &DataPlane) -> Option<Instant>;

    /// Whether brief rounds (`brief.rs`), which do not poll it, may run: it takes part in them, or can wait for the
    /// next round.
    fn allows_brief_rounds(&self) -> bool {
        false
    }

    /// Disconnects all peers, before the machine ends.
    fn shut_down(&mut self, _around: &mut ServiceContext<'_>) {}

    /// Whether all peers are disconnected.
    fn is_shut_down(&self) -> bool {
        true
    }
}
