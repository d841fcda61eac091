//! Reasons for the failure of an endpoint, and their messages for the operator.

use core::fmt;
use core::net::SocketAddrV4;

/// Why an endpoint failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The peer acknowledged no packet in spite of retransmissions.
    Unacknowledged {
        /// Number of transmissions.
        times: u32,
    },
    /// The peer acknowledges packets that were never sent: its state is from before one of the two restarted.
    StaleState,
    /// The peer's agent answered neither the small nor the large PING.
    NoAnswer {
        /// Destination of the PINGs.
        to: SocketAddrV4,
    },
    /// The peer's agent answered small PINGs, not large ones.
    LargeLost {
        /// Destination of the PINGs.
        to: SocketAddrV4,
        /// Bytes of the IPv4 packet of a large PING.
        packet: u32,
    },
    /// The peer sent a part of a message, and then no more.
    Silent,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Unacknowledged { times } => write!(
                f,
                "the peer acknowledged nothing although packets were sent {times} times: it has ended, has restarted with another modex, or cannot be reached"
            ),
            Failure::StaleState => f.write_str(
                "the peer acknowledges packets that were never sent: one of the two has restarted; exchange the modexes again",
            ),
            Failure::NoAnswer { to } => write!(
                f,
                "no PING to {to} was answered, neither small nor large: the address or port is wrong, there is no route, a firewall drops UDP, or the peer has another version of Open MPI"
            ),
            Failure::LargeLost { to, packet } => write!(
                f,
                "small PINGs to {to} are answered, those in IPv4 packets of {packet} bytes are not: a router, switch or interface on the way has a smaller MTU"
            ),
            Failure::Silent => f.write_str("the peer sent a part of a message, and then no more: check that its process runs"),
        }
    }
}

impl core::error::Error for Failure {}
