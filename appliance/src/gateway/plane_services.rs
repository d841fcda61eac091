//! Services whose things are the data plane's, because others there use them as well.

use super::plane::DataPlane;
use super::service::{Service, Surroundings};
use drivers::hal::Instant;

/// What carries the bytes of a bridge over TCP, as a service.
pub(super) struct TcpCarrier;

impl Service for TcpCarrier {
    fn poll(&mut self, around: &mut Surroundings<'_>) -> usize {
        let Surroundings { networks, plane, now, .. } = around;
        plane.bridges.iter_mut().map(|bridge| bridge.poll_tcp(networks, *now)).sum()
    }

    fn deadline(&self, _: &DataPlane) -> Option<Instant> {
        // The bridge's own is the data plane's.
        None
    }
}

/// LINX as a service: rules send over its links.
pub(super) struct LinxStage;

impl Service for LinxStage {
    fn poll(&mut self, around: &mut Surroundings<'_>) -> usize {
        let DataPlane { linx: Some(linx), rapidio, .. } = &mut *around.plane else { return 0 };
        linx.poll(around.networks, rapidio, around.now)
    }

    fn deadline(&self, plane: &DataPlane) -> Option<Instant> {
        plane.linx.as_ref().and_then(|linx| linx.deadline())
    }
}
