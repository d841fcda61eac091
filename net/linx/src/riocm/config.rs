//! What is configured of the engine, its ports and its connections.

use core::fmt;
use core::time::Duration;

/// Most connections: ids are 1 to 255.
pub const MOST_CONNECTIONS: usize = 255;
/// An MTU is more than this.
pub const LEAST_MTU: u16 = 64;
/// The MTU where nobody knows the port's.
pub const DEFAULT_MTU: u16 = 256;
/// Pause between heartbeats in units of 100 ms, where nobody chose one.
pub const DEFAULT_HEARTBEAT: u8 = 5;

/// The engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Messages that wait to be sent, of all connections.
    pub sends: usize,
    /// Time between two CONN_REQ, more or less: up to 128 ms are added or taken off by chance.
    pub retry: Duration,
    /// How long packets may be kept behind one that is missing. RapidIO loses none, so one that does not come after
    /// that never will, and the connection is reset. None: for ever.
    pub gap: Option<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Config { sends: 1024, retry: Duration::from_millis(200), gap: Some(Duration::from_secs(2)) }
    }
}

/// In which way messages are sent that do not fit into a packet. Both are always received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fragmentation {
    /// FRAG_START and FRAG: what Linux sends.
    #[default]
    Simple,
    /// PATCH_START, FRAG and PATCH: what a sender needs that writes headers over its own bytes. Here nothing is written
    /// over; it looks the same on the wire.
    Patch,
}

/// A connection. Both ends are configured, each with the other's ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionConfig<'a> {
    /// Name of the RapidIO port, which need not be there yet.
    pub port: &'a str,
    /// Device id of the peer.
    pub peer_id: u16,
    /// Mailbox of the peer, 0 to 3 (0 is rionet's, 1 is rio_cm's).
    pub peer_mailbox: u8,
    /// RIOCM port of the peer.
    pub peer_port: u16,
    /// RIOCM port of ours.
    pub my_port: u16,
    /// Longest packet in bytes, with its first four; 0 for as long as the RapidIO port allows.
    pub mtu: u16,
    /// Pause between heartbeats in units of 100 ms; 0 for 500 ms. The longer of both ends' holds.
    pub heartbeat: u8,
    /// Longest message in bytes that is received or sent.
    pub max_message: u32,
    /// Memory for messages that arrive or wait to be taken, in bytes; set aside for this connection. Each message, and
    /// each packet that comes early, takes whole pieces of [`crate::PIECE`].
    pub receive_bytes: usize,
    /// Memory for what is sent and was copied.
    pub send_bytes: usize,
    /// Messages that wait to be sent.
    pub sends: usize,
    /// How long messages are sent.
    pub fragmentation: Fragmentation,
}

impl<'a> ConnectionConfig<'a> {
    /// With defaults.
    pub fn new(port: &'a str, peer_id: u16, peer_mailbox: u8, ports: (u16, u16)) -> Self {
        ConnectionConfig {
            port,
            peer_id,
            peer_mailbox,
            my_port: ports.0,
            peer_port: ports.1,
            mtu: 0,
            heartbeat: 0,
            max_message: 65536,
            receive_bytes: 512 << 10,
            send_bytes: 256 << 10,
            sends: 128,
            fragmentation: Fragmentation::Simple,
        }
    }
}

/// Why a connection or a port was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadConfig {
    /// The MTU is too small, or more than a RapidIO message has.
    Mtu(u16),
    /// There is no such mailbox.
    Mailbox(u8),
    /// There is a connection between these ports.
    Exists,
    /// There is a port of that name.
    PortExists,
    /// All connection ids are taken.
    Full,
    /// There is not so much memory.
    Memory {
        /// Bytes that were asked for.
        wanted: usize,
    },
    /// Memory for what is received does not hold two of the longest messages, that for sending not one.
    TooLittle,
}

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadConfig::Mtu(mtu) => {
                write!(f, "RIOCM needs an MTU from {} to 4096 bytes, not {mtu}", LEAST_MTU + 1)
            }
            BadConfig::Mailbox(mailbox) => {
                write!(f, "RapidIO has mailboxes 0 to 3, and no mailbox {mailbox}")
            }
            BadConfig::Exists => f.write_str(
                "there is a RIOCM connection with the same RapidIO port, peer and ports",
            ),
            BadConfig::PortExists => f.write_str("there is a RapidIO port of that name"),
            BadConfig::Full => {
                write!(f, "there are {MOST_CONNECTIONS} RIOCM connections, which is all there can be")
            }
            BadConfig::Memory { wanted } => {
                write!(f, "there are no {wanted} bytes of memory left for another link")
            }
            BadConfig::TooLittle => f.write_str(
                "the memory of a link has to hold two of the longest messages received, and one sent",
            ),
        }
    }
}

impl core::error::Error for BadConfig {}
