//! One connection, from the first message about it to the end of its time-wait.

use super::table::{Host, Rank};
use super::wire::message::{Message, Req};
use core::net::SocketAddr;
use core::time::Duration;
use drivers::hal::Instant;
use verbs::{AddressVector, ConnectionId, ConnectionParameters, PathMtu, PrivateData, QpId};

/// State of a connection (vol. 1, 12.9.7), in the words of Linux (`enum ib_cm_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Active side: the REQ is out.
    ReqSent,
    /// Passive side: our user has not answered yet.
    ReqReceived,
    /// Passive side: the REP is out.
    RepSent,
    /// It stands.
    Established,
    /// The DREQ is out. Our user has been told already.
    DreqSent,
    /// Over; late messages are still recognised.
    TimeWait,
    /// Active side: refused, and our user has not been told yet.
    Refused,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    pub id: ConnectionId,
    /// Our name for it on the wire.
    pub wire_id: u32,
    /// Whether we asked for it.
    pub active: bool,
    pub state: State,
    /// The peer's name for it, adapter and queue pair.
    pub remote_id: u32,
    pub remote_guid: u64,
    pub remote_qpn: u32,
    /// Transaction of the REQ; all but DREQ and DREP repeat it.
    pub transaction: u64,
    pub qp: Option<QpId>,
    pub address: AddressVector,
    /// Place of the port that the peer is reached through.
    pub place: usize,
    /// TCP port that was asked for.
    pub port: u16,
    /// Who asked (the peer's address and port).
    pub from: SocketAddr,
    /// What is agreed, from our side.
    pub parameters: ConnectionParameters,
    pub path_mtu: PathMtu,
    /// PSN that we start to send with.
    pub sq_psn: u32,
    /// ACK timeout of the queue pair, as a code, within its cap.
    pub ack_timeout: u8,
    /// What the peer said last.
    pub peer_data: PrivateData,
    /// Whether our user knows of it.
    pub told: bool,
    /// The message that is repeated until it is answered, and its transaction.
    pub message: Option<(u64, Message)>,
    /// How long an answer may take, and how often more it is asked for.
    pub interval: Duration,
    pub retries_left: u8,
    /// Whether the peer was given longer to answer that message (MRA).
    pub prolonged: bool,
    /// Its peer has another connection by the same queue pair now: its timer ends it.
    pub superseded: bool,
    pub deadline: Option<Instant>,
    /// Where it stands among those that may give way, which the table keeps.
    pub order: Option<(Rank, u64)>,
}

impl Connection {
    /// The peer.
    pub fn host(&self) -> Host {
        (self.place, self.address.remote)
    }

    /// The peer's queue pair.
    pub fn holds(&self) -> (Host, u64, u32) {
        (self.host(), self.remote_guid, self.remote_qpn)
    }
}

/// What a time code of the connection manager stands for, as Linux reckons it
/// (`cm_convert_to_ms`): about 4.096 us << code, in milliseconds, at least one.
pub fn time(code: u8) -> Duration {
    Duration::from_millis(1 << code.min(31).saturating_sub(8))
}

/// What the passive side is offered by a REQ: the peer's depth is our resources, as far as we have any, `most`.
pub fn offered(req: &Req, most: u8) -> ConnectionParameters {
    ConnectionParameters {
        responder_resources: req.initiator_depth.min(most),
        initiator_depth: req.responder_resources.min(most),
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        min_rnr_timer: 0,
    }
}

/// UDP source port of a queue pair, as Linux chooses it (`rdma_flow_label_to_udp_sport` over
/// `rdma_calc_flow_label`): the same from both ends, so that a path keeps its order.
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
    fn numbers_are_those_of_linux() {
        assert_eq!(source_port(0x11, 0x12), 0xc132);
        // Both shifts count when the numbers are large.
        assert_eq!(source_port(0x12_3456, 0xab_cdef), 0xc3c8);
        assert_eq!(source_port(0xff_ffff, 0xff_fffe), 0xff12);
        assert_eq!(source_port(0x40_0003, 0x80_0001), 0xc03f);
        assert_eq!(time(20), Duration::from_millis(4096));
        assert_eq!(time(0), Duration::from_millis(1));
    }
}
