//! One peer over several interfaces: each fragment goes over the endpoint that will finish it first.
//!
//! Endpoints have separate sequence numbers, so messages over different endpoints arrive in any order, as with
//! Open MPI. Messages that need an order have to use one endpoint.

use crate::engine::{EndpointId, Engine, State};
use alloc::vec::Vec;

/// The endpoints of one peer.
#[derive(Clone, Debug, Default)]
pub struct Stripe {
    /// Endpoints, with the speeds of their links in Mb/s.
    endpoints: Vec<(EndpointId, u32)>,
    /// Number of the endpoint that was chosen last.
    last: usize,
}

impl Stripe {
    /// A stripe over endpoints, with the speeds of their links in Mb/s.
    pub fn new(endpoints: &[(EndpointId, u32)]) -> Self {
        Stripe { endpoints: endpoints.to_vec(), last: 0 }
    }

    /// Adds an endpoint, with the speed of its link in Mb/s.
    pub fn add(&mut self, endpoint: EndpointId, speed: u32) {
        self.endpoints.push((endpoint, speed));
    }

    /// Removes an endpoint. Messages in flight on it are not resent over others.
    pub fn remove(&mut self, endpoint: EndpointId) {
        self.endpoints.retain(|(other, _)| *other != endpoint);
        self.last = 0;
    }

    /// The endpoints.
    pub fn endpoints(&self) -> impl ExactSizeIterator<Item = EndpointId> + '_ {
        self.endpoints.iter().map(|(endpoint, _)| *endpoint)
    }

    /// The open endpoint that would finish `bytes` bytes first. Equal endpoints are used in turn.
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
            // Microseconds, if the speed is not 0.
            Some((all.saturating_mul(8) / u64::from(speed.max(1)), number))
        });
        let (_, number) = times.min_by_key(|&(time, _)| time)?;
        self.last = number;
        self.endpoints.get(number).map(|&(endpoint, _)| endpoint)
    }
}
