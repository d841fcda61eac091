//! Configuration of an engine, its interfaces and its endpoints.

use crate::wire::header::Layout;
use crate::wire::modex::Modex;
use crate::wire::ping::Version;
use core::fmt;
use core::net::Ipv4Addr;
use core::time::Duration;

/// Size of the window in packets. At most one fewer may be in flight.
pub const WINDOW: u64 = 4096;

/// Capacity of an engine, which allocates all of it at construction.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Most endpoints.
    pub endpoints: usize,
    /// Most fragments in flight, of all endpoints. If the limits of the endpoints add up to more fragments or messages,
    /// some endpoints can use up those of all.
    pub sends: usize,
    /// Most messages that have arrived or are arriving, of all endpoints; at most 65,533.
    pub messages: usize,
    /// Most endpoints with a missing packet at a time. For further ones, packets after a lost one are dropped and have
    /// to be retransmitted.
    pub receive_windows: usize,
    /// Longest message in bytes, in both directions.
    pub max_message: usize,
    /// Most regions granted to peers' PUTs, of all endpoints.
    pub grants: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            endpoints: 64,
            sends: 4096,
            messages: 4096,
            receive_windows: 16,
            max_message: 16 << 20,
            grants: 64,
        }
    }
}

/// Configuration of a local interface.
#[derive(Clone, Copy, Debug)]
pub struct InterfaceConfig {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its netmask.
    pub netmask: Ipv4Addr,
    /// UDP port of acknowledgements.
    pub priority_port: u16,
    /// UDP port of all other packets.
    pub data_port: u16,
    /// UDP port of the connectivity checker; 0 for none.
    pub ping_port: u16,
    /// Speed in Mb/s for pacing; 0 for no pacing.
    pub link_speed: u32,
    /// Longest IPv4 packet in bytes.
    pub mtu: u16,
    /// First sequence number, for all peers.
    pub isn: u16,
}

impl InterfaceConfig {
    /// The modex for peers.
    pub fn modex(&self) -> Modex {
        Modex {
            address: self.address,
            priority_port: self.priority_port,
            data_port: self.data_port,
            netmask: self.netmask,
            ping_port: self.ping_port,
            link_speed: self.link_speed,
            max_message: Modex::max_message_of(self.mtu),
            isn: self.isn,
        }
    }
}

/// Order in which messages are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Each message when it is complete, as in Open MPI, whose upper layer has its own sequence numbers.
    #[default]
    AsTheyCome,
    /// In the order in which the peer sent them, by the sequence numbers of their last packets.
    InOrder,
}

/// An endpoint: one peer at one interface.
#[derive(Clone, Copy, Debug)]
pub struct EndpointConfig {
    /// Number of the local interface, in the order of addition.
    pub interface: usize,
    /// Local name: job << 32 + rank.
    pub sender: u64,
    /// Name of the peer.
    pub peer_sender: u64,
    /// The peer's interface.
    pub modex: Modex,
    /// First sequence number for this peer, if its copy of the modex has another than the interface's.
    pub isn: Option<u16>,
    /// Layout of the peer's packets.
    pub layout: Layout,
    /// Order in which messages are delivered.
    pub delivery: Delivery,
    /// Before the first message, check whether the path carries small and large datagrams.
    pub check_connectivity: bool,
    /// The only tag with a handler at the peer; messages with other tags are rejected. (The stock peer crashes on a tag
    /// without a handler.)
    pub tag: Option<u8>,
    /// Most messages that wait for the user or are arriving; beyond that, packets are dropped.
    pub messages: usize,
    /// Most bytes of these messages, each rounded up to a power of two.
    pub receive_bytes: usize,
    /// Most fragments in flight.
    pub sends: usize,
    /// Most bytes of fragments that are copies.
    pub send_bytes: usize,
    /// Whether the endpoint leaves the reserved parts of memory to other endpoints, whatever its own limits. False if
    /// the user divides the memory itself.
    pub leaves_room: bool,
    /// Times and counts.
    pub timing: Timing,
}

impl EndpointConfig {
    /// A configuration with defaults for the other fields.
    pub fn new(interface: usize, sender: u64, peer_sender: u64, modex: Modex) -> Self {
        EndpointConfig {
            interface,
            sender,
            peer_sender,
            modex,
            isn: None,
            layout: Layout::V4,
            delivery: Delivery::AsTheyCome,
            check_connectivity: true,
            tag: None,
            messages: 1024,
            receive_bytes: 32 << 20,
            sends: 1024,
            send_bytes: 4 << 20,
            leaves_room: true,
            timing: Timing::default(),
        }
    }

    /// Version of Open MPI in PINGs; the peer's PINGs have to contain the same.
    pub fn version(&self) -> Version {
        match self.layout {
            Layout::V4 => Version { major: 4, minor: 1 },
            Layout::V5 => Version { major: 5, minor: 0 },
        }
    }
}

/// Times and counts of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Time without an ACK until packets are retransmitted (`retransmit_ms`); doubled each time.
    pub retransmit: Duration,
    /// Upper limit of that time.
    pub retransmit_most: Duration,
    /// Consecutive timeouts until the endpoint fails.
    pub retries: u32,
    /// Minimum time until the first packet is retransmitted early, which is normally some round trips.
    pub probe: Duration,
    /// Longest delay of an ACK.
    pub ack_delay: Duration,
    /// Packets after which an ACK is sent at once.
    pub ack_every: u32,
    /// Most packets in flight; at most 4,095.
    pub in_flight: u32,
    /// How long an incomplete message is kept without further parts.
    pub silence: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            retransmit: Duration::from_millis(5),
            retransmit_most: Duration::from_millis(500),
            retries: 64,
            probe: Duration::from_micros(300),
            ack_delay: Duration::from_micros(50),
            ack_every: 32,
            in_flight: WINDOW as u32 - 1,
            silence: Duration::from_secs(60),
        }
    }
}

/// Why an interface or an endpoint was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadConfig {
    /// No interface has that number.
    NoInterface,
    /// The MTU is not supported.
    Mtu(u16),
    /// Two ports of the interface are equal, or one is 0.
    Ports,
    /// The longest message of the peer and of the local interface differ, because their MTUs differ.
    MaxMessage {
        /// Bytes of the local one, with the prefix.
        ours: u16,
        /// Bytes of the peer's.
        peers: u16,
    },
    /// An endpoint has that address and port already.
    Exists,
    /// The limit of endpoints is reached.
    Full,
    /// A time or count is 0, or `in_flight` exceeds the window.
    Timing,
}

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadConfig::NoInterface => f.write_str("usNIC has no interface with that number"),
            BadConfig::Mtu(mtu) => write!(f, "usNIC does not support an MTU of {mtu} bytes"),
            BadConfig::Ports => {
                f.write_str("a usNIC interface needs UDP ports that differ from each other and from 0")
            }
            BadConfig::MaxMessage { ours, peers } => write!(
                f,
                "the peer's longest message is {peers} bytes and ours {ours}: both ends need the same MTU"
            ),
            BadConfig::Exists => f.write_str("an endpoint for the peer's address and port exists"),
            BadConfig::Full => f.write_str("the limit of usNIC endpoints is reached"),
            BadConfig::Timing => f.write_str(
                "times and counts of a usNIC endpoint must be above 0, and packets in flight at most 4095",
            ),
        }
    }
}

impl core::error::Error for BadConfig {}
