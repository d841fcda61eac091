//! Counters of endpoints and interfaces. Names that begin with `num_` or `max_` are those of the BTL's own statistics.

/// Counters of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent, of all kinds.
    pub num_total_sends: u64,
    /// Retransmissions.
    pub num_resends: u64,
    /// Timeouts that caused retransmissions.
    pub num_timeout_retrans: u64,
    /// Retransmissions caused by a duplicate or partial ACK.
    pub num_fast_retrans: u64,
    /// CHUNKs sent, without retransmissions.
    pub num_chunk_sends: u64,
    /// FRAGs sent, without retransmissions.
    pub num_frag_sends: u64,
    /// ACKs sent, without piggybacked ones.
    pub num_ack_sends: u64,
    /// Packets received, of all kinds.
    pub num_total_recvs: u64,
    /// Duplicates of packets in the window.
    pub num_dup_recvs: u64,
    /// Packets from before the window.
    pub num_oow_low_recvs: u64,
    /// Packets from beyond the window.
    pub num_oow_high_recvs: u64,
    /// FRAGs received.
    pub num_frag_recvs: u64,
    /// CHUNKs received.
    pub num_chunk_recvs: u64,
    /// Parts that do not fit their fragment.
    pub num_badfrag_recvs: u64,
    /// ACKs received, without piggybacked ones.
    pub num_ack_recvs: u64,
    /// ACKs older than the newest one.
    pub num_old_dup_acks: u64,
    /// Duplicates of the newest ACK.
    pub num_dup_acks: u64,
    /// Most packets in flight.
    pub max_sent_window_size: u64,
    /// Largest distance of a packet ahead of the next expected one.
    pub max_rcvd_window_size: u64,

    /// Messages delivered.
    pub messages_received: u64,
    /// Fragments that were acknowledged.
    pub fragments_sent: u64,
    /// PUTs that are complete in regions granted to the peer.
    pub puts_received: u64,
    /// Packets of PUTs to addresses that were not granted.
    pub puts_refused: u64,
    /// ACKs of packets that were never sent.
    pub acks_of_unsent: u64,
    /// Packets that are too short, or of an unknown type.
    pub malformed: u64,
    /// Packets with another sender's name.
    pub other_senders: u64,
    /// Packets of more than 768 bytes on the priority channel.
    pub large_on_priority: u64,
    /// Packets dropped for lack of room.
    pub no_room: u64,
    /// Packets for an endpoint that has failed.
    pub after_failure: u64,
}

/// Counters of an interface, for datagrams that belong to no endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    /// Datagrams from addresses or ports of no peer.
    pub num_unk_recvs: u64,
    /// PINGs answered.
    pub pings_answered: u64,
    /// PINGs and ACKs ignored: from unknown addresses, of another version, or unexpected.
    pub pings_ignored: u64,
    /// PINGs sent.
    pub pings_sent: u64,
    /// ACKs of PINGs received.
    pub ping_acks: u64,
}
