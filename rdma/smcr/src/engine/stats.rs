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
    /// Bytes received.
    pub bytes_received: u64,
    /// Bytes accepted from users.
    pub bytes_sent: u64,
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
