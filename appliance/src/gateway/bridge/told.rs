//! What is told of bridges. The loop that has a bridge tells of it; another one than the first writes it down now and
//! then.

use super::Bridge;
use crate::families::OfNtb;
use crate::gateway::plane::DataPlane;
use core::time::Duration;
use drivers::hal::Instant;
use management::status::BridgeStatus;
use ntrdma::Ntrdma;
use std::sync::Arc;

/// How often a loop writes down what is told of its bridges.
const INTERVAL: Duration = Duration::from_millis(100);

/// When a loop tells of its bridges next.
#[derive(Debug, Default)]
pub(in crate::gateway) struct LoopBridges {
    due: Instant,
}

impl LoopBridges {
    /// What is told of those of core `core`, if it is time; nothing of a loop without any.
    pub fn news(
        &mut self,
        plane: &DataPlane,
        core: usize,
        now: Instant,
    ) -> Option<Arc<[BridgeStatus]>> {
        if plane.bridges.is_empty() || now < self.due {
            return None;
        }
        self.due = now + INTERVAL;
        Some(plane.bridge_statuses(core).collect())
    }
}

impl DataPlane {
    /// What is told of its bridges; it is that of core `core`.
    pub(in crate::gateway) fn bridge_statuses(
        &self,
        core: usize,
    ) -> impl Iterator<Item = BridgeStatus> {
        let stacks = self.rdma_stack.iter();
        let ntrdma = stacks.flat_map(|rdma_stack| rdma_stack.providers.bridges());
        let all = self.bridges.iter().zip(ntrdma);
        all.map(move |(bridge, ntrdma): (&OfNtb<Bridge>, &Ntrdma)| bridge.status(ntrdma, core))
    }
}

impl Bridge {
    /// What is told of it and its provider.
    #[cold]
    fn status(&self, ntrdma: &Ntrdma, core: usize) -> BridgeStatus {
        let device = &self.device;
        BridgeStatus {
            name: self.name.clone(),
            core,
            link: ntrdma.link(),
            addresses: (ntrdma.local(), ntrdma.remote()),
            device: device.name(),
            reached: device.connected(),
            connection: device.connection(),
            side: device.side(),
            carrier: device.carrier_status(),
            queue_pairs: ntrdma.queue_pairs(),
            connections: ntrdma.connections(),
            counters: *ntrdma.counters(),
            device_violations: device.violations(),
            measured: self.measure.as_ref().map_or(Vec::new(), |m| m.results.clone()),
        }
    }
}
