//! Status of a bridge for reports.

use super::Bridge;
use management::status::BridgeStatus;
use ntrdma::Ntrdma;
use perf_responders::ntb_perf::Measured;

impl Bridge {
    /// Status of the bridge and its provider.
    #[cold]
    pub(in crate::gateway) fn status(
        &self,
        ntrdma: &Ntrdma,
        core: usize,
        measured: Vec<Measured>,
    ) -> BridgeStatus {
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
            measured,
        }
    }
}
