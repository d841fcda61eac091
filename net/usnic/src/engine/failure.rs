//! Why an endpoint failed, and what the operator is told of it.

use core::fmt;
use core::net::SocketAddrV4;

/// Why an endpoint failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nothing was acknowledged, however often it was sent.
    Unacknowledged {
        /// How often.
        times: u32,
    },
    /// The peer acknowledges what was not sent: it goes on with a connection from before one of the two restarted.
    OtherLife,
    /// Neither PING was answered.
    NoAnswer {
        /// Where they went.
        to: SocketAddrV4,
    },
    /// Small PINGs were answered, large ones were not.
    LargeLost {
        /// Where they went.
        to: SocketAddrV4,
        /// Bytes of the large one's IPv4 packet.
        packet: u32,
    },
    /// Half a message came, and then nothing more.
    Silent,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Unacknowledged { times } => write!(
                f,
                "the peer acknowledged nothing although packets were sent {times} times: it has ended, has restarted with another modex, or cannot be reached"
            ),
            Failure::OtherLife => f.write_str(
                "the peer acknowledges packets that were never sent: one of the two has restarted, and both need to exchange their modexes again",
            ),
            Failure::NoAnswer { to } => write!(
                f,
                "no PING to {to} was answered, neither small nor large: the address or port is wrong, there is no route, a firewall drops UDP, or the peer has another version of Open MPI"
            ),
            Failure::LargeLost { to, packet } => write!(
                f,
                "small PINGs to {to} are answered, those in IPv4 packets of {packet} bytes are not: a router, switch or interface on the way has a smaller MTU"
            ),
            Failure::Silent => f.write_str("the peer sent half a message, and then nothing more"),
        }
    }
}

impl core::error::Error for Failure {}
