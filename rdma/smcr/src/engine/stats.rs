//! Counters of the engine, and its notices for the operator's log.

use super::Role;
use crate::wire::llc::DeleteReason;
use crate::wire::{PeerId, Reason};
use alloc::collections::BTreeMap;
use core::fmt;
use core::net::IpAddr;
use core::time::Duration;

/// Counters of the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections established as client.
    pub client: u64,
    /// Connections established as server.
    pub server: u64,
    /// Of both, first contacts: connections that created a link group.
    pub first_contacts: u64,
    /// Connections that fell back to TCP, by our or the peer's reason. Unknown reasons of peers are counted under
    /// [`Reason::PEER_DECLINED`].
    pub fallbacks: BTreeMap<Reason, u64>,
    /// Handshakes that failed without a fallback.
    pub failed: u64,
    /// Connections lost because the peer aborted or the last link failed.
    pub aborted: u64,
    /// CDC messages sent.
    pub cdc_sent: u64,
    /// CDC messages received.
    pub cdc_received: u64,
    /// Of these, messages for unknown connections.
    pub cdc_strays: u64,
    /// CDC messages sent without data.
    pub updates_sent: u64,
    /// LLC messages sent.
    pub llc_sent: u64,
    /// LLC messages received.
    pub llc_received: u64,
    /// Malformed messages, which were dropped.
    pub malformed: u64,
    /// Protocol violations, each of which ended a link group.
    pub violations: u64,
    /// Links that failed.
    pub links_failed: u64,
    /// Connections moved to another link.
    pub failovers: u64,
    /// Connections moved back to a link that is up again.
    pub returned: u64,
    /// Reads of users, and receive buffers.
    pub rx: Traffic,
    /// Writes of users, and send buffers.
    pub tx: Traffic,
    /// Bytes received.
    pub bytes_received: u64,
    /// Bytes accepted from users.
    pub bytes_sent: u64,
}

/// Number of size classes in `smcr stats`: up to 8, 16, 32, 64, 128, 256 and 512 KiB, and larger.
pub const SIZE_CLASSES: usize = 8;

/// Counters of one direction (`smcr stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Reads or writes of users that moved bytes.
    pub requests: u64,
    /// The same by their bytes.
    pub by_size: [u64; SIZE_CLASSES],
    /// Writes that found too little room. Reading: messages of peers whose data filled the receive buffer.
    pub full: u64,
    /// Messages to peers whose receive buffer had no room for the rest.
    pub full_at_peer: u64,
    /// Buffers that connections got, by size.
    pub buffers: [u64; SIZE_CLASSES],
    /// Of these, buffers that another connection had used before.
    pub reused: u64,
}

impl Traffic {
    #[inline]
    fn class(bytes: u64) -> usize {
        match bytes {
            0..=8192 => 0,
            _ => ((bytes - 1).ilog2() as usize - 12).min(SIZE_CLASSES - 1),
        }
    }

    #[inline]
    pub(super) fn count_request(&mut self, bytes: u64, is_full: bool) {
        self.full += u64::from(is_full);
        if bytes > 0 {
            self.requests += 1;
            self.by_size[Self::class(bytes)] += 1;
        }
    }

    pub(super) fn count_buffer(&mut self, bytes: usize, is_reused: bool) {
        self.buffers[Self::class(bytes as u64)] += 1;
        self.reused += u64::from(is_reused);
    }
}

impl Counters {
    pub(super) fn count_fallback(&mut self, reason: Reason) {
        let known = Reason::ALL.contains(&reason);
        *self.fallbacks.entry(if known { reason } else { Reason::PEER_DECLINED }).or_default() += 1;
    }
}

/// A notice for the operator's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A link group is up.
    GroupUp {
        /// Our role.
        role: Role,
        /// The peer.
        peer: IpAddr,
        /// The peer's ID.
        peer_id: PeerId,
    },
    /// A link group ended.
    GroupDown {
        /// Our role.
        role: Role,
        /// The peer.
        peer: IpAddr,
        /// Why.
        reason: DeleteReason,
        /// The peer ended the group.
        by_peer: bool,
    },
    /// A link failed; the group continues.
    LinkDown {
        /// The peer.
        peer: IpAddr,
        /// Number of the link.
        link: u8,
    },
    /// A server is not offered SMC-R for a while: handshakes timed out on its RoCE path.
    ServerBlocked {
        /// The server.
        server: IpAddr,
        /// Duration.
        time: Duration,
    },
    /// A connection fell back to TCP.
    Fallback {
        /// The other end.
        peer: IpAddr,
        /// Why.
        reason: Reason,
        /// The peer declined.
        by_peer: bool,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = |by_peer| if by_peer { "by the peer" } else { "by us" };
        match *self {
            Notice::GroupUp { role, peer, peer_id } => {
                write!(f, "SMC-R link group with {peer} ({peer_id}) is up (we are {role:?})")
            }
            Notice::GroupDown { role, peer, reason, by_peer } => {
                let (who, reason) = (who(by_peer), reason.0);
                write!(f, "SMC-R link group with {peer} ended {who} ({role:?}, {reason:#010x})")
            }
            Notice::LinkDown { peer, link } => write!(f, "SMC-R link {link} to {peer} failed"),
            Notice::ServerBlocked { server, time } => {
                let seconds = time.as_secs();
                write!(
                    f,
                    "SMC-R to {server} is disabled for {seconds} s: the server answers over TCP, but not over \
                     RoCE (is UDP port 4791 open both ways?)"
                )
            }
            Notice::Fallback { peer, reason, by_peer } => {
                write!(f, "SMC-R with {peer} declined {}: {reason}", who(by_peer))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_fall_into_the_classes_of_smcr_stats() {
        let mut traffic = Traffic::default();
        for bytes in
            [0, 1, 8192, 8193, 16 << 10, (16 << 10) + 1, 512 << 10, (512 << 10) + 1, 1 << 30]
        {
            traffic.count_request(bytes, false);
        }
        assert_eq!(traffic.by_size, [2, 2, 1, 0, 0, 0, 1, 2]);
        assert_eq!((traffic.requests, traffic.full), (8, 0), "nothing is no request");
        traffic.count_request(0, true);
        traffic.count_buffer(64 << 10, true);
        assert_eq!((traffic.requests, traffic.full, traffic.reused), (8, 1, 1));
        assert_eq!(traffic.buffers, [0, 0, 0, 1, 0, 0, 0, 0]);
    }
}
