//! What the engine counts and tells.

use super::Role;
use crate::wire::llc::DeleteReason;
use crate::wire::{PeerId, Reason};
use alloc::collections::BTreeMap;
use core::fmt;
use core::net::IpAddr;
use core::time::Duration;

/// What the engine counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections established as client.
    pub client: u64,
    /// Connections established as server.
    pub server: u64,
    /// Of both, those that made a link group.
    pub first_contacts: u64,
    /// Connections that went back to TCP, by reason: ours, or that of the peer (which is counted
    /// under [`Reason::PEER_DECLINED`] if it is none we know).
    pub fallbacks: BTreeMap<Reason, u64>,
    /// Handshakes that broke off.
    pub failed: u64,
    /// Connections lost by an abort of the peer or with their last link.
    pub aborted: u64,
    /// CDC messages sent and received.
    pub cdc_sent: u64,
    /// CDC messages received.
    pub cdc_received: u64,
    /// Of these, those of no connection.
    pub cdc_strays: u64,
    /// Messages of which only a window update was told.
    pub updates_sent: u64,
    /// LLC messages sent.
    pub llc_sent: u64,
    /// LLC messages received.
    pub llc_received: u64,
    /// Messages that made no sense, and were dropped.
    pub malformed: u64,
    /// Peers that lied, and lost their link group.
    pub violations: u64,
    /// Links that failed.
    pub links_failed: u64,
    /// Connections that went to another link.
    pub failovers: u64,
    /// Bytes received, and read by our users.
    pub bytes_received: u64,
    /// Bytes taken from our users.
    pub bytes_sent: u64,
}

impl Counters {
    pub(super) fn count_fallback(&mut self, reason: Reason) {
        let known = Reason::ALL.contains(&reason);
        *self.fallbacks.entry(if known { reason } else { Reason::PEER_DECLINED }).or_default() += 1;
    }
}

/// What an operator may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A link group stands.
    GroupUp {
        /// Our side.
        role: Role,
        /// The peer.
        peer: IpAddr,
        /// Its name of itself.
        peer_id: PeerId,
    },
    /// A link group ended.
    GroupDown {
        /// Our side.
        role: Role,
        /// The peer.
        peer: IpAddr,
        /// Why.
        reason: DeleteReason,
        /// The peer wanted it.
        by_peer: bool,
    },
    /// A link failed; the group lives on.
    LinkDown {
        /// The peer.
        peer: IpAddr,
        /// Number of the link.
        link: u8,
    },
    /// A server is not offered SMC-R for a while: handshakes with it wait in vain for what comes over RoCE.
    Doubted {
        /// The server.
        server: IpAddr,
        /// How long.
        time: Duration,
    },
    /// A connection went back to TCP.
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
                write!(f, "SMC-R link group with {peer} ({peer_id}) is up, we are its {role:?}")
            }
            Notice::GroupDown { role, peer, reason, by_peer } => {
                let (who, reason) = (who(by_peer), reason.0);
                write!(f, "SMC-R link group with {peer} ended {who} ({role:?}, {reason:#010x})")
            }
            Notice::LinkDown { peer, link } => write!(f, "SMC-R link {link} to {peer} failed"),
            Notice::Doubted { server, time } => {
                let seconds = time.as_secs();
                write!(
                    f,
                    "SMC-R is not offered to {server} for {seconds} s: it answers over TCP, and nothing of \
                     it comes over RoCE (is UDP port 4791 open both ways?)"
                )
            }
            Notice::Fallback { peer, reason, by_peer } => {
                write!(f, "SMC-R with {peer} declined {}: {reason}", who(by_peer))
            }
        }
    }
}
