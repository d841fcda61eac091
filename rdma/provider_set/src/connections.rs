//! The connection manager over all devices: it listens on each, and connects by the device of the queue pair.

use super::ProviderSet;
use super::names::{self, Owner};
use core::net::{IpAddr, SocketAddr};
use drivers::hal::Instant;
use rand_core::Rng;
use verbs::{
    ConnectionEvent, ConnectionId, ConnectionManager, ConnectionParameters, QpId, RejectReason,
    VerbsError,
};

impl ProviderSet {
    /// The connection manager of a connection or queue pair, and its handle there.
    fn manager(&mut self, name: u32) -> Result<(&mut dyn ConnectionManager, u32), VerbsError> {
        Ok(match names::owner(name) {
            Owner::Ports => (&mut self.roce, name),
            Owner::Bridge(number, own) => {
                let bridged = self.bridged.get_mut(number).ok_or(VerbsError::NoSuchObject)?;
                (&mut bridged.device, own)
            }
            #[cfg(feature = "connectx")]
            Owner::Card(number, own) => {
                let card = self.cards.get_mut(number).ok_or(VerbsError::NoSuchObject)?;
                (&mut card.secondary.device, own)
            }
        })
    }
}

impl ProviderSet {
    /// The connection managers of all devices.
    fn managers(&mut self) -> impl Iterator<Item = &mut dyn ConnectionManager> {
        let first: &mut dyn ConnectionManager = &mut self.roce;
        let bridged = self.bridged.iter_mut();
        let bridged = bridged.map(|one| -> &mut dyn ConnectionManager { &mut one.device });
        let all = core::iter::once(first).chain(bridged);
        #[cfg(feature = "connectx")]
        let all = all.chain(
            self.cards
                .iter_mut()
                .map(|card| -> &mut dyn ConnectionManager { &mut card.secondary.device }),
        );
        all
    }
}

impl ConnectionManager for ProviderSet {
    fn listen(&mut self, port: u16) -> Result<(), VerbsError> {
        // All or none.
        let mut listening = 0;
        let mut failed = None;
        for manager in self.managers() {
            match manager.listen(port) {
                Ok(()) => listening += 1,
                Err(error) => failed = failed.or(Some(error)),
            }
            if failed.is_some() {
                break;
            }
        }
        let Some(error) = failed else { return Ok(()) };
        self.managers().take(listening).for_each(|manager| manager.unlisten(port));
        Err(error)
    }

    fn unlisten(&mut self, port: u16) {
        self.managers().for_each(|manager| manager.unlisten(port));
    }

    fn connect(
        &mut self,
        qp: QpId,
        from: IpAddr,
        to: SocketAddr,
        parameters: &ConnectionParameters,
        private_data: &[u8],
        now: Instant,
        rng: &mut dyn Rng,
    ) -> Result<ConnectionId, VerbsError> {
        self.enable_forwarding();
        let (manager, own) = self.manager(qp.0)?;
        let made = manager.connect(QpId(own), from, to, parameters, private_data, now, rng)?;
        Ok(ConnectionId(made.0 | names::mark(qp.0)))
    }

    fn accept(
        &mut self,
        connection: ConnectionId,
        qp: QpId,
        parameters: &ConnectionParameters,
        private_data: &[u8],
        now: Instant,
    ) -> Result<(), VerbsError> {
        if names::mark(connection.0) != names::mark(qp.0) {
            return Err(VerbsError::Invalid);
        }
        let (manager, own) = self.manager(connection.0)?;
        manager.accept(ConnectionId(own), QpId(names::own(qp.0)), parameters, private_data, now)
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
        match names::owner(connection.0) {
            Owner::Ports => self.roce.peer_id(connection),
            Owner::Bridge(number, own) => self.ntrdma(number)?.peer_id(ConnectionId(own)),
            #[cfg(feature = "connectx")]
            Owner::Card(number, own) => {
                self.cards.get(number)?.secondary.device.peer_id(ConnectionId(own))
            }
        }
    }

    #[inline]
    fn poll_connection_event(&mut self) -> Option<ConnectionEvent> {
        if let Some(event) = self.roce.poll_connection_event() {
            return Some(event);
        }
        #[cfg(feature = "connectx")]
        for card in &mut self.cards {
            if let Some(event) = card.secondary.poll_connection_event() {
                return Some(event);
            }
        }
        self.bridged.iter_mut().find_map(|one| one.poll_connection_event())
    }
}
