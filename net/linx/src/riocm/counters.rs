//! Counters of connections and of packets without a connection.

/// Counters of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent, of all kinds.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets received on the connection.
    pub received_packets: u64,
    /// Their bytes, padding included.
    pub received_bytes: u64,
    /// Times that it was connected.
    pub num_connects: u64,
    /// Messages whose last packet was sent.
    pub sent_messages: u64,
    /// Messages delivered.
    pub received_messages: u64,
    /// Messages still queued when the connection ended.
    pub unsent_messages: u64,
    /// Packets that came before an earlier one.
    pub reordered: u64,
    /// Packets with an old sequence number. Each ended the connection.
    pub duplicates: u64,
    /// Data packets from before the connection was established, or after its end.
    pub outside: u64,
    /// CONN packets that were ignored: MTU too small, or unexpected ACK.
    pub ignored: u64,
    /// Times that the peer was silent for three heartbeat intervals.
    pub silent: u64,
    /// Times that the peer sent CONN_RESET, or restarted the connection.
    pub peer_resets: u64,
    /// Times that the connection was reset because of a fault of the peer.
    pub faults: u64,
    /// Faults because there was no memory for messages.
    pub no_room: u64,
}

/// Counters of packets without a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StrayCounters {
    /// RapidIO messages that are not RIOCM packets.
    pub malformed: u64,
    /// Packets whose header has another sender than RapidIO reports.
    pub forged: u64,
    /// CONN packets between ports that are not configured.
    pub unknown_peer: u64,
    /// Packets for an unused connection id.
    pub unknown_cid: u64,
    /// Packets for the connection id of another peer, from before a restart of either end.
    pub stale: u64,
}
