//! The connection manager over all devices: it listens on each, and connects by the one that the
//! queue pair is of.

use super::bridged::renamed;
use super::{BRIDGED, ProviderSet, bridged};
use core::net::{IpAddr, SocketAddr};
use drivers::hal::Instant;
use rand_core::RngCore;
use verbs::{
    ConnectionEvent, ConnectionId, ConnectionManager, ConnectionParameters, QpId, RejectReason,
    VerbsError,
};

impl ProviderSet {
    /// The connection manager that has a connection or queue pair, and its name there.
    fn manager(&mut self, name: u32) -> Result<(&mut dyn ConnectionManager, u32), VerbsError> {
        match (bridged(name), &mut self.bridged) {
            (None, _) => Ok((&mut self.roce, name)),
            (Some(own), Some(device)) => Ok((&mut device.ntrdma, own)),
            (Some(_), None) => Err(VerbsError::NoSuchObject),
        }
    }
}

impl ConnectionManager for ProviderSet {
    fn listen(&mut self, port: u16) -> Result<(), VerbsError> {
        self.roce.listen(port)?;
        let Some(device) = &mut self.bridged else { return Ok(()) };
        device.ntrdma.listen(port).inspect_err(|_| self.roce.unlisten(port))
    }

    fn unlisten(&mut self, port: u16) {
        self.roce.unlisten(port);
        if let Some(device) = &mut self.bridged {
            device.ntrdma.unlisten(port);
        }
    }

    fn connect(
        &mut self,
        qp: QpId,
        from: IpAddr,
        to: SocketAddr,
        parameters: &ConnectionParameters,
        private_data: &[u8],
        now: Instant,
        rng: &mut dyn RngCore,
    ) -> Result<ConnectionId, VerbsError> {
        self.pass_on();
        let (manager, own) = self.manager(qp.0)?;
        let made = manager.connect(QpId(own), from, to, parameters, private_data, now, rng)?;
        Ok(ConnectionId(made.0 | qp.0 & BRIDGED))
    }

    fn accept(
        &mut self,
        connection: ConnectionId,
        qp: QpId,
        parameters: &ConnectionParameters,
        private_data: &[u8],
        now: Instant,
    ) -> Result<(), VerbsError> {
        if bridged(connection.0).is_some() != bridged(qp.0).is_some() {
            return Err(VerbsError::Invalid);
        }
        let (manager, own) = self.manager(connection.0)?;
        manager.accept(ConnectionId(own), QpId(qp.0 & !BRIDGED), parameters, private_data, now)
    }

    fn reject(
        &mut self,
        connection: ConnectionId,
        reason: RejectReason,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        let (manager, own) = self.manager(connection.0)?;
        manager.reject(ConnectionId(own), reason, private_data)
    }

    fn disconnect(&mut self, connection: ConnectionId, now: Instant) -> Result<(), VerbsError> {
        let (manager, own) = self.manager(connection.0)?;
        manager.disconnect(ConnectionId(own), now)
    }

    fn peer_id(&self, connection: ConnectionId) -> Option<u32> {
        match bridged(connection.0) {
            None => self.roce.peer_id(connection),
            Some(own) => self.bridged.as_ref()?.ntrdma.peer_id(ConnectionId(own)),
        }
    }

    #[inline]
    fn poll_connection_event(&mut self) -> Option<ConnectionEvent> {
        if let Some(event) = self.roce.poll_connection_event() {
            return Some(event);
        }
        self.bridged.as_mut()?.ntrdma.poll_connection_event().map(renamed)
    }
}
