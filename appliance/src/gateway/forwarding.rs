//! Forwards datagrams of UDP engines to the first loop from ports that another loop owns. The engines, their peers,
//! rules and orders belong to the first loop. For each such interface it has an additional port, which exchanges these
//! frames with the owner's loop by two rings. All other frames stay with the owner, or go to the control plane.

use super::loop_waker::LoopWaker;
use super::ports::PlanePort;
use super::punt::{self, PuntQueue};
use crate::config::Config;
use net::{Class, classify};

/// Bytes of each ring: as much as an engine sends and receives in a burst.
const RING: usize = 1 << 20;

/// The owner's end of the rings.
pub(super) struct Forwarded {
    /// UDP ports of the engines.
    ports: Vec<u16>,
    pub queue: PuntQueue,
}

/// Connects the first loop to a port of another loop with this MAC address and MTU, number `net` of the configuration.
/// Returns the first loop's port, called `name`, and the owner's end. None if no engine uses the port.
pub(super) fn connect(
    config: &Config,
    net: Option<usize>,
    name: &str,
    (mac, mtu): ([u8; 6], usize),
    [first, other]: [&LoopWaker; 2],
) -> Option<(PlanePort, Forwarded)> {
    let net = net?;
    let all = config.usnic.iter().filter(|usnic| usize::from(usnic.net) == net);
    let ports: Vec<u16> = all.flat_map(|usnic| usnic.ports()).collect();
    if ports.is_empty() {
        return None;
    }
    let (port, queue) = punt::connect(mac, mtu, RING, first, other);
    Some((PlanePort::new(name.into(), Box::new(port), false), Forwarded { ports, queue }))
}

impl Forwarded {
    /// Whether a frame is for an engine.
    #[inline]
    pub fn takes(&self, frame: &[u8]) -> bool {
        matches!(classify(frame), Class::Udp(port) if self.ports.contains(&port))
    }
}
