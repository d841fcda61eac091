//! One connection, from the first message about it to the end of its time-wait.

use super::table::{Host, Rank};
use super::wire::message::{Message, Req};
use core::net::SocketAddr;
use core::time::Duration;
use drivers::hal::Instant;
use verbs::{AddressVector, ConnectionId, ConnectionParameters, PathMtu, PrivateData, QpId};

/// State of a connection (vol. 1, 12.9.7), with the names of Linux (`enum ib_cm_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Active side: REQ sent.
    ReqSent,
    /// Passive side: our user has not answered yet.
    ReqReceived,
    /// Passive side: REP sent.
    RepSent,
    /// Established.
    Established,
    /// DREQ sent. The end was already reported to our user.
    DreqSent,
    /// Ended; late messages are still recognised.
    TimeWait,
    /// Active side: refused; the refusal is not yet reported to our user.
    Refused,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    pub id: ConnectionId,
    /// Our communication ID.
    pub wire_id: u32,
    /// Whether we requested it.
    pub active: bool,
    pub state: State,
    /// The peer's communication ID, adapter and queue pair.
    pub remote_id: u32,
    pub remote_guid: u64,
    pub remote_qpn: u32,
    /// Transaction of the REQ; all messages but DREQ and DREP repeat it.
    pub transaction: u64,
    pub qp: Option<QpId>,
    pub address: AddressVector,
    /// Place of the port to the peer.
    pub place: usize,
    /// Requested TCP port.
    pub port: u16,
    /// The peer's address and port.
    pub from: SocketAddr,
    /// Negotiated parameters, from our side.
    pub parameters: ConnectionParameters,
    pub path_mtu: PathMtu,
    /// First PSN that we send.
    pub sq_psn: u32,
    /// ACK timeout of the queue pair (code), within its cap.
    pub ack_timeout: u8,
    /// Private data of the peer's last message.
    pub peer_data: PrivateData,
    /// Whether it was reported to our user.
    pub reported: bool,
    /// The message that is repeated until the peer answers, and its transaction.
    pub message: Option<(u64, Message)>,
    /// Timeout for an answer, and number of repetitions left.
    pub interval: Duration,
    pub retries_left: u8,
    /// Whether an MRA has prolonged the timeout of that message.
    pub prolonged: bool,
    /// The peer uses the same queue pair for another connection now: the timer ends this one.
    pub superseded: bool,
    pub deadline: Option<Instant>,
    /// Its rank and number in the table's eviction order.
    pub order: Option<(Rank, u64)>,
}

impl Connection {
    /// The peer.
    pub fn host(&self) -> Host {
        (self.place, self.address.remote)
    }

    /// The peer's queue pair, qualified by host and adapter.
    pub fn remote_qp(&self) -> (Host, u64, u32) {
        (self.host(), self.remote_guid, self.remote_qpn)
    }
}

/// Duration of a time code of the connection manager, as Linux computes it (`cm_convert_to_ms`): about 4.096 us <<
/// code, in milliseconds, at least one.
pub fn time(code: u8) -> Duration {
    Duration::from_millis(1 << code.min(31).saturating_sub(8))
}

/// The parameters that a REQ offers to the passive side. The peer's depth becomes our resources, limited to `most`.
pub fn offered(req: &Req, most: u8) -> ConnectionParameters {
    ConnectionParameters {
        responder_resources: req.initiator_depth.min(most),
        initiator_depth: req.responder_resources.min(most),
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        min_rnr_timer: 0,
    }
}

/// UDP source port of a queue pair, as Linux computes it (`rdma_flow_label_to_udp_sport` over `rdma_calc_flow_label`).
/// Both ends get the same port, so that a path keeps its order.
pub fn source_port(a: u32, b: u32) -> u16 {
    let mut v = a as u64 * b as u64;
    v ^= v >> 20;
    v ^= v >> 40;
    let label = v & 0xf_ffff;
    ((label & 0x3fff) ^ (label >> 14)) as u16 | 0xc000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_port_and_time_match_linux() {
        assert_eq!(source_port(0x11, 0x12), 0xc132);
        // With large numbers both shifts matter.
        assert_eq!(source_port(0x12_3456, 0xab_cdef), 0xc3c8);
        assert_eq!(source_port(0xff_ffff, 0xff_fffe), 0xff12);
        assert_eq!(source_port(0x40_0003, 0x80_0001), 0xc03f);
        assert_eq!(time(20), Duration::from_millis(4096));
        assert_eq!(time(0), Duration::from_millis(1));
    }
}
