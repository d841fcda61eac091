//! What is counted.

/// Counters of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent, of all kinds.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets received that belong to the connection.
    pub received_packets: u64,
    /// Their bytes, padding included.
    pub received_bytes: u64,
    /// Times that it was connected.
    pub num_connects: u64,
    /// Messages whose last packet was sent.
    pub sent_messages: u64,
    /// Messages handed over.
    pub received_messages: u64,
    /// Messages that were given to be sent when the connection ended.
    pub unsent_messages: u64,
    /// Packets that came before one that they follow.
    pub reordered: u64,
    /// Packets of an old sequence number, each of which ended the connection.
    pub duplicates: u64,
    /// Packets of data from before the connection was up, or from after its end.
    pub outside: u64,
    /// CONN packets that were ignored: an MTU too small, an ACK that was not due.
    pub ignored: u64,
    /// Times that the peer was silent for three heartbeats.
    pub silent: u64,
    /// Times that the peer sent CONN_RESET, or began anew.
    pub peer_resets: u64,
    /// Times that the connection was reset because of what the peer sent.
    pub faults: u64,
    /// Of these: because messages found no room.
    pub no_room: u64,
}

/// Counters of what belongs to no connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StrayCounters {
    /// RapidIO messages that are no packets of RIOCM.
    pub malformed: u64,
    /// Packets whose header names another sender than RapidIO does.
    pub forged: u64,
    /// CONN packets between ports that nobody configured.
    pub unknown_peer: u64,
    /// Packets for a connection id that nobody has.
    pub unknown_cid: u64,
    /// Packets for a connection id that another peer has: from before one of the two restarted.
    pub stale: u64,
}
