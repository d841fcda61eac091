//! Datagrams of engines over UDP at a port of another loop. The engines are the first loop's, with their peers, rules and
//! whatever else an operator asks of them. So that loop has a port beside its own for each such interface, by which these
//! frames go to and fro, by two rings; everything else at the interface is the other loop's, or goes the control plane's
//! way.

use super::loop_waker::LoopWaker;
use super::ports::PlanePort;
use super::punt::{self, PuntQueue};
use crate::config::Config;
use net::{Class, classify};

/// Bytes of the rings: what an engine sends and receives in one go.
const RING: usize = 1 << 20;

/// The end of the port's loop.
pub(super) struct Forwarded {
    /// UDP ports that engines have there.
    ports: Vec<u16>,
    pub queue: PuntQueue,
}

/// What engines want of a port with this MAC address and MTU, which is number `net` of the configuration and called
/// `name`: the port of the first loop for that, and the other loop's end. None if they want nothing.
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
