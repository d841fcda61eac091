//! What is counted. Names of the first group are those of the BTL's own statistics.

/// Counters of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent, of all kinds.
    pub num_total_sends: u64,
    /// Packets sent again.
    pub num_resends: u64,
    /// … because time had passed.
    pub num_timeout_retrans: u64,
    /// … because of an ACK that came twice, or that told of a gap.
    pub num_fast_retrans: u64,
    /// Packets with a part of a fragment sent, the first time.
    pub num_chunk_sends: u64,
    /// Packets with a whole fragment sent, the first time.
    pub num_frag_sends: u64,
    /// ACKs sent, without those that went along with data.
    pub num_ack_sends: u64,
    /// Packets received, of all kinds.
    pub num_total_recvs: u64,
    /// Packets that had arrived before, and are in the window.
    pub num_dup_recvs: u64,
    /// Packets from before the window.
    pub num_oow_low_recvs: u64,
    /// Packets from beyond the window.
    pub num_oow_high_recvs: u64,
    /// Whole fragments received.
    pub num_frag_recvs: u64,
    /// Parts of fragments received.
    pub num_chunk_recvs: u64,
    /// Parts that do not fit their fragment.
    pub num_badfrag_recvs: u64,
    /// ACKs received, without those that came along with data.
    pub num_ack_recvs: u64,
    /// ACKs that are older than the newest.
    pub num_old_dup_acks: u64,
    /// ACKs that say what the newest said.
    pub num_dup_acks: u64,
    /// Most packets that were on the way.
    pub max_sent_window_size: u64,
    /// Farthest that a packet was ahead of the next.
    pub max_rcvd_window_size: u64,

    /// Messages handed over.
    pub messages_received: u64,
    /// Fragments that were acknowledged.
    pub fragments_sent: u64,
    /// PUTs that are complete in regions granted to the peer.
    pub puts_received: u64,
    /// Packets of PUTs to addresses that were not granted.
    pub puts_refused: u64,
    /// ACKs of packets that were never sent.
    pub acks_of_unsent: u64,
    /// Packets that are shorter than they say, or of no known type.
    pub malformed: u64,
    /// Packets in which another sender names itself.
    pub other_senders: u64,
    /// Packets of more than 768 bytes on the priority channel.
    pub large_on_priority: u64,
    /// Packets that found no room, and have to come again.
    pub no_room: u64,
    /// Packets that came for an endpoint that has failed.
    pub after_failure: u64,
}

/// Counters of an interface: what belongs to no endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    /// Datagrams from addresses or ports of no peer.
    pub num_unk_recvs: u64,
    /// PINGs that were answered.
    pub pings_answered: u64,
    /// PINGs and their ACKs that were not: strangers', of another version, to no purpose.
    pub pings_ignored: u64,
    /// PINGs sent.
    pub pings_sent: u64,
    /// Their ACKs.
    pub ping_acks: u64,
}
