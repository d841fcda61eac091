//! One connection, from the first message about it to the end of its time-wait.

use crate::roce::wire::cm::{Message, Req};
use crate::verbs::{AddressVector, ConnectionId, ConnectionParameters, PathMtu, PrivateData, QpId};
use core::net::SocketAddr;
use core::time::Duration;
use drivers::hal::Instant;

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
    /// Port that was asked for.
    pub port: u16,
    /// Who asked (the peer's address and port).
    pub from: SocketAddr,
    /// What is agreed, from our side.
    pub parameters: ConnectionParameters,
    pub path_mtu: PathMtu,
    /// PSN that we start to send with.
    pub sq_psn: u32,
    /// ACK timeout of the queue pair, as a code.
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
    pub deadline: Option<Instant>,
}

/// What a time code of the connection manager stands for, as Linux reckons it
/// (`cm_convert_to_ms`): about 4.096 us << code, in milliseconds, at least one.
pub fn time(code: u8) -> Duration {
    Duration::from_millis(1 << code.min(31).saturating_sub(8))
}

/// What the passive side is offered by a REQ: the peer's depth is our resources.
pub fn offered(req: &Req) -> ConnectionParameters {
    ConnectionParameters {
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
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
        assert_eq!(time(20), Duration::from_millis(4096));
        assert_eq!(time(0), Duration::from_millis(1));
    }
}
