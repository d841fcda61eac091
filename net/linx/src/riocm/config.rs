//! Configuration of the engine and its connections.

use core::fmt;
use core::time::Duration;

/// Maximum number of connections: ids are 1 to 255.
pub const MOST_CONNECTIONS: usize = 255;
/// An MTU must exceed this.
pub const LEAST_MTU: u16 = 64;
/// MTU of a port whose MTU is unknown.
pub const DEFAULT_MTU: u16 = 256;
/// Default interval of heartbeats in units of 100 ms.
pub const DEFAULT_HEARTBEAT: u8 = 5;

/// Configuration of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Queued messages of all connections.
    pub sends: usize,
    /// Mean time between two CONN_REQ, which varies randomly by up to 128 ms.
    pub retry: Duration,
    /// How long packets are kept after a missing one. RapidIO loses no packets, so a packet that is later than that
    /// will never arrive, and the connection is reset. None: no limit.
    pub gap: Option<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Config { sends: 1024, retry: Duration::from_millis(200), gap: Some(Duration::from_secs(2)) }
    }
}

/// How messages larger than a packet are sent. Both ways are always received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fragmentation {
    /// FRAG_START and FRAG, as Linux sends.
    #[default]
    Simple,
    /// PATCH_START, FRAG and PATCH, for senders that overwrite their own bytes with headers. This engine overwrites
    /// nothing, but sends the same packets.
    Patch,
}

/// Configuration of a connection. Each end is configured with the other's ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionConfig<'a> {
    /// Name of the RapidIO port, which need not exist yet.
    pub port: &'a str,
    /// Device id of the peer.
    pub peer_id: u16,
    /// Mailbox of the peer, 0 to 3 (0 is rionet's, 1 is rio_cm's).
    pub peer_mailbox: u8,
    /// RIOCM port of the peer.
    pub peer_port: u16,
    /// Our RIOCM port.
    pub my_port: u16,
    /// Longest packet in bytes, including its first four; 0 for the limit of the RapidIO port.
    pub mtu: u16,
    /// Interval of heartbeats in units of 100 ms; 0 for 500 ms. The longer interval of both ends is used.
    pub heartbeat: u8,
    /// Longest message in bytes, received or sent.
    pub max_message: u32,
    /// Memory reserved for received messages, in bytes. Each message, and each early packet, takes whole pieces of
    /// [`crate::PIECE`].
    pub receive_bytes: usize,
    /// Memory for copied messages to be sent, in bytes.
    pub send_bytes: usize,
    /// Queued messages.
    pub sends: usize,
    /// How messages larger than a packet are sent.
    pub fragmentation: Fragmentation,
}

impl<'a> ConnectionConfig<'a> {
    /// A configuration with defaults.
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

/// Why a connection or a port is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadConfig {
    /// The MTU is too small, or exceeds a RapidIO message.
    Mtu(u16),
    /// Invalid mailbox.
    Mailbox(u8),
    /// A connection between these ports exists.
    Exists,
    /// A port of that name exists.
    PortExists,
    /// All connection ids are in use.
    Full,
    /// Too little memory.
    Memory {
        /// Bytes requested.
        wanted: usize,
    },
    /// The receive memory is below two of the longest messages, or the send memory below one.
    TooLittle,
}

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadConfig::Mtu(mtu) => {
                write!(f, "RIOCM needs an MTU from {} to 4096 bytes, not {mtu}", LEAST_MTU + 1)
            }
            BadConfig::Mailbox(mailbox) => {
                write!(f, "invalid mailbox {mailbox}: RapidIO has mailboxes 0 to 3")
            }
            BadConfig::Exists => f.write_str(
                "a RIOCM connection with the same RapidIO port, peer and RIOCM ports exists",
            ),
            BadConfig::PortExists => f.write_str("a RapidIO port of that name exists"),
            BadConfig::Full => {
                write!(f, "the limit of {MOST_CONNECTIONS} RIOCM connections is reached")
            }
            BadConfig::Memory { wanted } => {
                write!(f, "too little memory: another link needs {wanted} bytes")
            }
            BadConfig::TooLittle => f.write_str(
                "the memory of a link must hold two received messages and one sent message of maximum length",
            ),
        }
    }
}

impl core::error::Error for BadConfig {}
