//! Services that stand between the data plane of the first loop, whose providers and engines carry their bytes, and the
//! IP interfaces, whose TCP connections carry their handshakes. The loop goes through the list of them once a round and
//! knows none by name: a new one is a line in `State::with_services`, and one in `State::services_timeout`
//! (`stages.rs`).

use super::network::Network;
use super::plane::DataPlane;
use super::ports::PortSlot;
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
