//! Statistics of the provider: numbers since the start, for metrics and the console.

use super::wire::extended::Nak;
use super::wire::opcode::Class;

/// Packets by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packets {
    /// SEND, reliable or datagram.
    pub sends: u64,
    /// RDMA WRITE.
    pub writes: u64,
    /// RDMA READ requests.
    pub reads: u64,
    /// Atomic requests.
    pub atomics: u64,
    /// RDMA READ responses.
    pub read_responses: u64,
    /// ACKs and NAKs, and answers to atomics.
    pub acknowledges: u64,
    /// Connection manager messages.
    pub connection_manager: u64,
}

impl Packets {
    /// Counts a packet.
    #[inline]
    pub(super) fn count(&mut self, class: Class) {
        *match class {
            Class::Send => &mut self.sends,
            Class::Write => &mut self.writes,
            Class::Read => &mut self.reads,
            Class::Atomic => &mut self.atomics,
            Class::ReadResponse => &mut self.read_responses,
            Class::Acknowledge | Class::AtomicAcknowledge => &mut self.acknowledges,
        } += 1;
    }
}

/// Packets that were dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Inconsistent headers, unknown versions or opcodes, wrong IP or UDP checksums.
    pub malformed: u64,
    /// For another MAC or IP address.
    pub not_ours: u64,
    /// For a queue pair that does not exist.
    pub unknown_qp: u64,
    /// The queue pair has another service, or its state does not allow the packet.
    pub wrong_state: u64,
    /// Not from the queue pair's peer, or not from the MAC address that the neighbour table has for it.
    pub wrong_peer: u64,
    /// Connection manager messages whose sender the neighbour table did not resolve.
    pub no_way_back: u64,
    /// Wrong partition, or wrong key of a datagram.
    pub wrong_key: u64,
    /// Wrong ICRC.
    pub icrc: u64,
    /// Ahead of the expected PSN: something before it is missing.
    pub out_of_sequence: u64,
    /// Behind the expected PSN (acknowledged again).
    pub duplicate: u64,
    /// Answers to no outstanding request.
    pub unexpected_answer: u64,
    /// Datagrams without a posted receive, or with one that is too small.
    pub no_receive: u64,
}

/// NAKs by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Naks {
    /// A packet is missing.
    pub sequence: u64,
    /// Invalid request.
    pub invalid_request: u64,
    /// Access refused.
    pub remote_access: u64,
    /// The request could not be executed.
    pub remote_operation: u64,
    /// No receive posted.
    pub receiver_not_ready: u64,
}

impl Naks {
    /// Counts a NAK.
    pub(super) fn count(&mut self, nak: Nak) {
        *match nak {
            Nak::SequenceError => &mut self.sequence,
            Nak::InvalidRequest => &mut self.invalid_request,
            Nak::RemoteAccess => &mut self.remote_access,
            Nak::RemoteOperation => &mut self.remote_operation,
        } += 1;
    }
}

/// All counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets received and accepted.
    pub received: Packets,
    /// Packets sent.
    pub sent: Packets,
    /// Packets dropped.
    pub dropped: Drops,
    /// NAKs that we sent.
    pub naks_sent: Naks,
    /// NAKs that we received.
    pub naks_received: Naks,
    /// Retransmissions, each from the oldest unacknowledged packet on.
    pub retries: u64,
    /// Of these, because the ACK timer expired.
    pub timeouts: u64,
    /// ACKs repeated after a pause, in case the first was lost, and ACKs held for the message behind an announced WRITE
    /// that did not come.
    pub acks_repeated: u64,
    /// Connections refused because the requesting host is at its limit.
    pub refused_of_host: u64,
    /// Connections being made or ending that were evicted for a new request.
    pub gave_way: u64,
    /// Queue pairs that went to error by themselves.
    pub qp_errors: u64,
    /// Completions lost because their queue was full (the user made it too small).
    pub completions_lost: u64,
}
