//! What an engine, its interfaces and its endpoints are made with.

use crate::wire::header::Layout;
use crate::wire::modex::Modex;
use crate::wire::ping::Version;
use core::fmt;
use core::net::Ipv4Addr;
use core::time::Duration;

/// Packets that may be on the way without an acknowledgement: a window of 4,096 holds one fewer.
pub const WINDOW: u64 = 4096;

/// Room of an engine. All of it is taken when the engine is made.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Most endpoints.
    pub endpoints: usize,
    /// Fragments that are being sent, of all endpoints. If each of them may have more than its share of these, or of
    /// messages, some of them can take what all have.
    pub sends: usize,
    /// Messages that have arrived or are arriving, of all endpoints; at most 65,533.
    pub messages: usize,
    /// Endpoints that may miss packets at a time; others have to send what follows a lost packet again.
    pub receive_windows: usize,
    /// Longest message in bytes, either way.
    pub max_message: usize,
    /// Regions granted to peers' PUTs, of all endpoints.
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

/// An interface of ours.
#[derive(Clone, Copy, Debug)]
pub struct InterfaceConfig {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its netmask.
    pub netmask: Ipv4Addr,
    /// UDP port of acknowledgements.
    pub priority_port: u16,
    /// UDP port of everything else.
    pub data_port: u16,
    /// UDP port of the connectivity checker; 0 for none.
    pub ping_port: u16,
    /// Mb/s, which packets are paced by; 0 for no pacing.
    pub link_speed: u32,
    /// Longest IPv4 packet in bytes.
    pub mtu: u16,
    /// First sequence number, towards every peer.
    pub isn: u16,
}

impl InterfaceConfig {
    /// How peers hear of it.
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

/// In which order messages are handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Each when it is whole, as Open MPI does, whose upper layer has numbers of its own.
    #[default]
    AsTheyCome,
    /// By the sequence number of their last packets: the order in which the peer sent them.
    InOrder,
}

/// An endpoint: one peer at one interface.
#[derive(Clone, Copy, Debug)]
pub struct EndpointConfig {
    /// Which of our interfaces, by the order in which they were added.
    pub interface: usize,
    /// Who we are: job << 32 + rank.
    pub sender: u64,
    /// Who the peer is.
    pub peer_sender: u64,
    /// The peer's interface.
    pub modex: Modex,
    /// Our first sequence number towards it, if the peer was told another than the interface's.
    pub isn: Option<u16>,
    /// How the peer lays out its packets.
    pub layout: Layout,
    /// In which order messages are handed over.
    pub delivery: Delivery,
    /// Ask, when something is first sent, whether the path carries small and large datagrams.
    pub check_connectivity: bool,
    /// The only tag that the peer knows a handler for; any other is not sent. (The stock peer dies of a tag that
    /// nobody has registered.)
    pub tag: Option<u8>,
    /// Most messages that wait to be taken, or arrive, before the peer has to send again.
    pub messages: usize,
    /// Most bytes that these take, each rounded up to a power of two.
    pub receive_bytes: usize,
    /// Most fragments that are being sent.
    pub sends: usize,
    /// Most bytes of them that are copied.
    pub send_bytes: usize,
    /// Of the memory it leaves the other endpoints a part that is theirs, however much it may have. Not so if its user
    /// counts memory itself.
    pub leaves_room: bool,
    /// How it waits, and when it gives up.
    pub timing: Timing,
}

impl EndpointConfig {
    /// With defaults for everything else.
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

    /// The version that our PINGs tell, and that the peer's have to.
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
    /// How long an ACK is waited for before packets are sent again (`retransmit_ms`); doubled each time.
    pub retransmit: Duration,
    /// At most so long.
    pub retransmit_most: Duration,
    /// How often in a row, until the endpoint fails.
    pub retries: u32,
    /// The first packet is sent once more after some round trips, at least this, before all that.
    pub probe: Duration,
    /// How long an ACK waits for company.
    pub ack_delay: Duration,
    /// Packets that are acknowledged at once when so many wait.
    pub ack_every: u32,
    /// Most packets on the way; at most 4,095.
    pub in_flight: u32,
    /// How long half a message is kept of a peer that says nothing.
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

/// Why an interface or an endpoint was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadConfig {
    /// There is no interface of that number.
    NoInterface,
    /// The MTU cannot be.
    Mtu(u16),
    /// Two ports of the interface are equal, or one is 0.
    Ports,
    /// The peer's longest message is another than ours: one of the two has another MTU.
    MaxMessage {
        /// Ours in bytes, with the prefix.
        ours: u16,
        /// The peer's.
        peers: u16,
    },
    /// There is an endpoint for that address and port.
    Exists,
    /// All endpoints are taken.
    Full,
    /// A time or count of 0, or more packets on the way than the window holds.
    Timing,
}

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadConfig::NoInterface => f.write_str("usNIC has no interface of that number"),
            BadConfig::Mtu(mtu) => write!(f, "usNIC cannot work with an MTU of {mtu} bytes"),
            BadConfig::Ports => {
                f.write_str("a usNIC interface needs UDP ports that differ from each other and from 0")
            }
            BadConfig::MaxMessage { ours, peers } => write!(
                f,
                "the peer's longest message is {peers} bytes and ours {ours}: both ends need the same MTU"
            ),
            BadConfig::Exists => f.write_str("there is an endpoint for the peer's address and port"),
            BadConfig::Full => f.write_str("there is no room for another usNIC endpoint"),
            BadConfig::Timing => f.write_str(
                "times and counts of a usNIC endpoint are above 0, and packets on the way at most 4095",
            ),
        }
    }
}

impl core::error::Error for BadConfig {}
