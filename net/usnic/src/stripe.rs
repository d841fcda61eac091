//! One peer over several interfaces: each fragment goes over the endpoint where it is done first.
//!
//! Endpoints have sequence numbers of their own, so that messages over different ones arrive in any order, as with
//! Open MPI. What needs an order keeps to one endpoint.

use crate::engine::{EndpointId, Engine, State};
use alloc::vec::Vec;

/// The endpoints of one peer.
#[derive(Clone, Debug, Default)]
pub struct Stripe {
    /// Each with the speed of its link in Mb/s.
    endpoints: Vec<(EndpointId, u32)>,
    /// Where the last one went.
    last: usize,
}

impl Stripe {
    /// Of endpoints with the speeds of their links in Mb/s.
    pub fn new(endpoints: &[(EndpointId, u32)]) -> Self {
        Stripe { endpoints: endpoints.to_vec(), last: 0 }
    }

    /// Adds an endpoint, with the speed of its link in Mb/s.
    pub fn add(&mut self, endpoint: EndpointId, speed: u32) {
        self.endpoints.push((endpoint, speed));
    }

    /// Takes an endpoint out. What was sent over it is not sent over others.
    pub fn remove(&mut self, endpoint: EndpointId) {
        self.endpoints.retain(|(other, _)| *other != endpoint);
        self.last = 0;
    }

    /// The endpoints.
    pub fn endpoints(&self) -> impl ExactSizeIterator<Item = EndpointId> + '_ {
        self.endpoints.iter().map(|(endpoint, _)| *endpoint)
    }

    /// The endpoint over which `bytes` bytes are sent first, of those that are open. Of equal ones, they take turns.
    pub fn choose(&mut self, engine: &Engine, bytes: usize) -> Option<EndpointId> {
        if let [(only, _)] = *self.endpoints {
            return Some(only).filter(|&only| engine.state(only) == Some(State::Open));
        }
        let count = self.endpoints.len();
        let ahead = (1..=count).map(|n| (self.last + n) % count);
        let times = ahead.filter_map(|number| {
            let &(endpoint, speed) = self.endpoints.get(number)?;
            if engine.state(endpoint) != Some(State::Open) {
                return None;
            }
            let (packets, waits) = engine.backlog(endpoint)?;
            let all =
                waits.saturating_add(bytes as u64).saturating_add(packets.saturating_mul(1500));
            // Microseconds, if the speed is known.
            Some((all.saturating_mul(8) / u64::from(speed.max(1)), number))
        });
        let (_, number) = times.min_by_key(|&(time, _)| time)?;
        self.last = number;
        self.endpoints.get(number).map(|&(endpoint, _)| endpoint)
    }
}
