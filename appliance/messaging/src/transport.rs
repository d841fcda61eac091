//! Transports of rule connections: accept, connect, read, write, close. TCP and SMC-R carry bytes. LINX, usNIC and
//! rio_cm carry messages, and are [`MessageTransport`]s.
//!
//! A transport reports events ([`Transport::next_event`]). The rule then reads and writes until nothing moves. It reads
//! only data that the other side has room for, so waiting data stays in the transport, which slows its peer down if it
//! can.

use crate::names::MessageName;
use alloc::string::String;
use core::fmt;
pub use net::tcp::Closed;

/// Kind of data that a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// Bytes, without boundaries.
    Bytes,
    /// Messages of limited length.
    Messages {
        /// Bytes of the longest message.
        longest: usize,
    },
}

/// Transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Over {
    /// SMC-R.
    Smc,
    /// TCP.
    Tcp,
    /// Signals of LINX.
    Linx,
    /// Messages of usNIC.
    Usnic,
    /// Channels of rio_cm.
    RioCm,
}

/// Event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<C> {
    /// The connection is open: accepted, or connected.
    Opened(C, Over),
    /// Data or room may be available.
    Ready(C),
    /// The connection failed to open, and is gone.
    Failed(C),
    /// The SMC-R handshake failed, and the connection is gone. TCP alone may work.
    Broken(C),
    /// This many peers were refused, by the limit of connections or by admission.
    Refused(u64),
}

impl<C> Event<C> {
    /// Converts the ID of the connection.
    #[inline]
    pub fn map<T>(self, name: impl FnOnce(C) -> T) -> Event<T> {
        match self {
            Event::Opened(connection, over) => Event::Opened(name(connection), over),
            Event::Ready(connection) => Event::Ready(name(connection)),
            Event::Failed(connection) => Event::Failed(name(connection)),
            Event::Broken(connection) => Event::Broken(name(connection)),
            Event::Refused(count) => Event::Refused(count),
        }
    }
}

/// Why nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritten {
    /// There is no room now. [`Event::Ready`] follows when there is.
    Full,
    /// The message is longer than the transport's longest, or shorter than its shortest.
    Length,
    /// The connection, or our direction of it, has ended.
    Ended(Closed),
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The peer, or its end of the connection, is gone.
    PeerGone,
    /// The transport's link or network is down.
    LinkDown,
    /// The peer does not acknowledge data.
    NoAnswer,
    /// A reset, or a loss without further details from the transport.
    Lost,
    /// The stream is not a sequence of length-prefixed messages, or one exceeds the other end's limit.
    BadLength(u64),
    /// A message exceeds the other end's limit.
    TooLong(usize),
    /// Messages of the peer were lost in transit.
    Incomplete,
    /// The idle timeout expired.
    Idle,
    /// No server could be reached.
    NoServer,
    /// The rule was removed, or the machine shuts down.
    Asked,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::PeerGone => f.write_str("the peer is gone"),
            Reason::LinkDown => f.write_str("the link to the peer is down"),
            Reason::NoAnswer => f.write_str("the peer does not acknowledge data"),
            Reason::Lost => f.write_str("the connection was reset or lost"),
            Reason::BadLength(length) => write!(
                f,
                "the stream announces a message of {length} bytes, more than the other end accepts: check that the program \
                 writes a four-byte length before each message"
            ),
            Reason::TooLong(length) => {
                write!(f, "a message has {length} bytes, more than the other end accepts")
            }
            Reason::Incomplete => f.write_str("messages of the peer were lost"),
            Reason::Idle => f.write_str("the idle timeout expired"),
            Reason::NoServer => f.write_str("no server could be reached"),
            Reason::Asked => f.write_str("the rule has ended"),
        }
    }
}

/// A transport of connections.
pub trait Transport {
    /// ID of a connection.
    type Connection: Copy;
    /// The address to connect to.
    type Target: ?Sized;

    /// The next event. Accepted connections are events, too.
    fn next_event(&mut self) -> Option<Event<Self::Connection>>;
    /// Starts to connect. None if there is no route, or no room.
    fn connect(&mut self, to: &Self::Target) -> Option<Self::Connection>;
    /// Kind of data that a connection carries.
    fn carries(&self, connection: Self::Connection) -> Carries;
    /// Unread bytes of the first message that has arrived. None if there is none, or the connection carries bytes.
    fn message(&mut self, connection: Self::Connection) -> Result<Option<usize>, Closed>;
    /// Reads available data; 0 if there is none now. A read ends at the end of the first message, which is released
    /// when all of it was read.
    fn read(&mut self, connection: Self::Connection, into: &mut [u8]) -> Result<usize, Closed>;
    /// Bytes that a write would accept now. A message is accepted as a whole or not at all ([`Transport::write`]).
    fn room(&mut self, connection: Self::Connection) -> usize;
    /// Writes as many bytes as there is room for, or one message. Returns the number of bytes.
    fn write(&mut self, connection: Self::Connection, bytes: &[u8]) -> Result<usize, Unwritten>;
    /// Half-closes our direction after the written data, if the transport supports that.
    fn finish(&mut self, connection: Self::Connection);
    /// Closes or aborts a connection. Returns the number of messages that had arrived and were not read.
    fn close(&mut self, connection: Self::Connection, abort: bool) -> usize;
    /// Why a connection has ended.
    fn reason(&self, connection: Self::Connection) -> Reason;
    /// Whether the transport detects a dead peer by itself.
    fn is_watched(&self, _: Self::Connection) -> bool {
        true
    }
}

/// An end of a rule to listen on or connect to.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Name of the end.
    pub name: MessageName,
    /// Number of the rule's end. Its events carry this number.
    pub owner: u32,
    /// LINX: fixed signal number. None if each message starts with its number.
    pub signal: Option<u32>,
    /// Maximum number of connections.
    pub connections: usize,
    /// Name that peers see: the rule's.
    pub label: String,
}

/// Why an end cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// Reason, and advice to the operator.
    pub why: String,
    /// Temporary, not an error: for example the network is not enumerated yet.
    pub passes: bool,
}

impl From<String> for Obstacle {
    fn from(why: String) -> Self {
        Obstacle { why, passes: false }
    }
}

/// A transport that carries messages.
pub trait MessageTransport: Transport<Connection = u32, Target = Wanted> {
    /// Why an end cannot be listened on or connected to. None if it can.
    fn obstacle(&self, name: &MessageName, listens: bool) -> Option<Obstacle>;
    /// Listens for connections to this end.
    fn listen(&mut self, end: &Wanted) -> Result<(), String>;
    /// Sets the maximum number of connections of an end. Existing connections stay.
    fn relimit(&mut self, _owner: u32, _connections: usize) {}
    /// Stops listening. Connections that are not accepted yet end.
    fn unlisten(&mut self, owner: u32);
    /// The next event, and the owner of its end.
    fn next_owned(&mut self) -> Option<(u32, Event<u32>)>;
}
