//! The user interface of the connection manager (vol. 1, ch. 12, with the RDMA IP CM service of annex A11): listen,
//! connect, accept, reject, disconnect. The connection manager moves the queue pairs through their states itself.

use super::{PathMtu, QpId, VerbsError};
use core::net::{IpAddr, SocketAddr};
use drivers::hal::Instant;
use rand_core::Rng;

/// Handle of a connection (being made, established, or ending).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// Most private data in a message: 56 bytes in a REQ (92 less the IP CM header), 196 in a REP, 148 in a REJ.
pub const MAX_PRIVATE_DATA: usize = 196;

/// Private data of a connection manager message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    bytes: [u8; MAX_PRIVATE_DATA],
    len: u8,
}

impl PrivateData {
    /// A copy of `bytes`, or None if there are more than [`MAX_PRIVATE_DATA`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut all = [0; MAX_PRIVATE_DATA];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(PrivateData { bytes: all, len: bytes.len() as u8 })
    }

    /// No private data.
    pub const fn empty() -> Self {
        PrivateData { bytes: [0; MAX_PRIVATE_DATA], len: 0 }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

impl core::fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "PrivateData({:02x?})", self.as_slice())
    }
}

/// Parameters that both sides of a connection negotiate, in addition to the queue pair's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionParameters {
    /// READs and atomics of the peer that we serve at a time.
    pub responder_resources: u8,
    /// READs and atomics that we may have outstanding.
    pub initiator_depth: u8,
    /// Retries after timeouts and NAKs (0 to 7).
    pub retry_count: u8,
    /// Retries after RNR NAKs (0 to 7; 7 is unlimited).
    pub rnr_retry_count: u8,
    /// Code of the pause that our RNR NAKs ask for.
    pub min_rnr_timer: u8,
}

/// Why a connection was refused (vol. 1, 12.6.7.2), by the numbers on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectReason(pub u16);

impl RejectReason {
    /// No resources.
    pub const NO_RESOURCES: RejectReason = RejectReason(3);
    /// No answer in time.
    pub const TIMEOUT: RejectReason = RejectReason(4);
    /// No listener for this service.
    pub const INVALID_SERVICE_ID: RejectReason = RejectReason(8);
    /// The peer's connection is a left-over of an earlier one.
    pub const STALE_CONNECTION: RejectReason = RejectReason(10);
    /// Not our address.
    pub const INVALID_GID: RejectReason = RejectReason(12);
    /// The peer's port does not support the path MTU.
    pub const INVALID_MTU: RejectReason = RejectReason(26);
    /// Refused by the application; the private data has its reason.
    pub const CONSUMER: RejectReason = RejectReason(28);
}

/// Events that the connection manager reports to its user.
#[derive(Clone, Copy, Debug)]
pub enum ConnectionEvent {
    /// A peer requests a connection to a port with a listener. Answer with `accept` or `reject`.
    Request {
        /// The connection.
        connection: ConnectionId,
        /// The requested port.
        port: u16,
        /// The peer's address and port.
        from: SocketAddr,
        /// The requested address, one of ours.
        to: IpAddr,
        /// The peer's offer (seen from our side).
        parameters: ConnectionParameters,
        /// Path MTU.
        path_mtu: PathMtu,
        /// The peer's private data.
        private_data: PrivateData,
    },
    /// The connection is established; sends may be posted (receives should be posted before).
    Established {
        /// The connection.
        connection: ConnectionId,
        /// Active side: the private data of the peer's REP; empty on the passive side.
        private_data: PrivateData,
    },
    /// The peer refused our request, or did not answer in time.
    Rejected {
        /// The connection, whose handle is now invalid.
        connection: ConnectionId,
        /// Why.
        reason: RejectReason,
        /// The peer's private data.
        private_data: PrivateData,
    },
    /// The connection ended (by either side, or because the peer is gone). Its queue pair is in the error state; the
    /// user destroys it.
    Disconnected {
        /// The connection, whose handle is now invalid.
        connection: ConnectionId,
    },
}

/// A connection manager, over the queue pairs of the provider that offers it.
pub trait ConnectionManager {
    /// Listens on a port (TCP port space), on every address.
    fn listen(&mut self, port: u16) -> Result<(), VerbsError>;
    /// Stops listening. Existing connections stay.
    fn unlisten(&mut self, port: u16);
    /// Requests a connection of `qp` (in state Init) with the peer at `to`.
    #[allow(clippy::too_many_arguments)]
    fn connect(
        &mut self,
        qp: QpId,
        from: IpAddr,
        to: SocketAddr,
        parameters: &ConnectionParameters,
        private_data: &[u8],
        now: Instant,
        rng: &mut dyn Rng,
    ) -> Result<ConnectionId, VerbsError>;
    /// Accepts a request with `qp` (in state Init, receives posted). The queue pair goes to ready-to-send at once, and
    /// the peer may send.
    fn accept(
        &mut self,
        connection: ConnectionId,
        qp: QpId,
        parameters: &ConnectionParameters,
        private_data: &[u8],
        now: Instant,
    ) -> Result<(), VerbsError>;
    /// Refuses a request.
    fn reject(
        &mut self,
        connection: ConnectionId,
        reason: RejectReason,
        private_data: &[u8],
    ) -> Result<(), VerbsError>;
    /// Ends a connection (DREQ); `Disconnected` follows.
    fn disconnect(&mut self, connection: ConnectionId, now: Instant) -> Result<(), VerbsError>;
    /// The peer's identifier of an established connection (the local communication ID that its connection manager
    /// sent), or None for providers without one.
    fn peer_id(&self, _connection: ConnectionId) -> Option<u32> {
        None
    }
    /// The next event, if any.
    fn poll_connection_event(&mut self) -> Option<ConnectionEvent>;
}
