//! Services whose state belongs to the data plane, because other users there need it, too.

use super::plane::DataPlane;
use super::service::{Service, ServiceContext};
use drivers::hal::Instant;

/// Carries the bytes of bridges over TCP, as a service.
pub(super) struct TcpCarrier;

impl Service for TcpCarrier {
    fn poll(&mut self, around: &mut ServiceContext<'_>) -> usize {
        let ServiceContext { networks, plane, now, .. } = around;
        plane.bridges.iter_mut().map(|bridge| bridge.poll_tcp(networks, *now)).sum()
    }

    fn deadline(&self, _: &DataPlane) -> Option<Instant> {
        // The data plane has the bridge's deadline.
        None
    }
}

/// LINX as a service.
pub(super) struct LinxStage;

impl Service for LinxStage {
    fn poll(&mut self, around: &mut ServiceContext<'_>) -> usize {
        let DataPlane { linx: Some(linx), rapidio, .. } = &mut *around.plane else { return 0 };
        linx.poll(around.networks, rapidio, around.now)
    }

    fn deadline(&self, plane: &DataPlane) -> Option<Instant> {
        plane.linx.as_ref().and_then(|linx| linx.deadline())
    }
}
