//! What carries the connections of rules: accept, connect, read, write, close. TCP and SMC-R carry bytes, LINX, usNIC and
//! rio_cm carry messages.
//!
//! A transport tells of what is new ([`Transport::next_event`]) and is then read and written until nothing moves. Nothing
//! is taken from it that the other side has no room for, so that what waits, waits in the transport, which holds its peer
//! up as it can.

use core::fmt;
pub use net::tcp::Closed;

/// What a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// Bytes, without boundaries.
    Bytes,
    /// Messages of at most so many bytes.
    Messages {
        /// Bytes of the longest.
        longest: usize,
    },
}

/// By what a connection goes.
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

/// What is new of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<C> {
    /// It is open: accepted, or what was asked for.
    Opened(C, Over),
    /// It is worth to read or write again.
    Ready(C),
    /// It was asked for, never opened, and is gone.
    Failed(C),
    /// As `Failed`, by the handshake of SMC-R: without that it may be had.
    Broken(C),
    /// Peers were turned away: as many as may be are there, or they may not. How many.
    Refused(u64),
}

impl<C> Event<C> {
    /// The same of a connection by another name.
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
    /// There is no room: [`Event::Ready`] comes when there is.
    Full,
    /// It is longer than the transport's longest message, or shorter than its shortest.
    Length,
    /// The connection, or our direction of it, has ended.
    Ended(Closed),
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The peer, or its end of the connection, is gone.
    PeerGone,
    /// What carries it is down: a link, a network.
    LinkDown,
    /// The peer acknowledges nothing.
    NoAnswer,
    /// A reset, or a loss that the transport says no more of.
    Lost,
    /// The stream is no sequence of length-prefixed messages, or one is longer than the other end takes.
    BadLength(u64),
    /// A message is longer than the other end takes.
    TooLong(usize),
    /// Messages are missing on the way.
    Incomplete,
    /// Nothing came for as long as the rule allows.
    Idle,
    /// No server could be reached.
    NoServer,
    /// The rule, or the machine, ends.
    Asked,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::PeerGone => f.write_str("the peer is gone"),
            Reason::LinkDown => f.write_str("the link to the peer is down"),
            Reason::NoAnswer => f.write_str("the peer acknowledges nothing"),
            Reason::Lost => f.write_str("the connection was reset or lost"),
            Reason::BadLength(length) => write!(
                f,
                "the stream announces a message of {length} bytes, which the other end does not take; does its program \
                 write a four-byte length before each message?"
            ),
            Reason::TooLong(length) => {
                write!(f, "a message has {length} bytes, more than the other end takes")
            }
            Reason::Incomplete => f.write_str("messages of the peer are missing"),
            Reason::Idle => f.write_str("nothing came for too long"),
            Reason::NoServer => f.write_str("no server could be reached"),
            Reason::Asked => f.write_str("the rule has ended"),
        }
    }
}

/// What carries connections.
pub trait Transport {
    /// Names a connection.
    type Connection: Copy;
    /// Whom to connect to, and how.
    type Target: ?Sized;

    /// What is new: accepted connections among it.
    fn next_event(&mut self) -> Option<Event<Self::Connection>>;
    /// Begins to connect; None if there is no way, or no room.
    fn connect(&mut self, to: &Self::Target) -> Option<Self::Connection>;
    /// What a connection carries.
    fn carries(&self, connection: Self::Connection) -> Carries;
    /// Of messages: bytes that are left of the first that has arrived, if there is one. Of bytes: none.
    fn message(&mut self, connection: Self::Connection) -> Result<Option<usize>, Closed>;
    /// Reads what has arrived, 0 if there is nothing at present; of messages not beyond the end of the first, which is
    /// taken when all of it was read.
    fn read(&mut self, connection: Self::Connection, into: &mut [u8]) -> Result<usize, Closed>;
    /// Bytes that a write of bytes would take now. Of messages all or nothing, as [`Transport::write`] says.
    fn room(&mut self, connection: Self::Connection) -> usize;
    /// Writes: of bytes as many as there is room for, of messages one. How many bytes.
    fn write(&mut self, connection: Self::Connection, bytes: &[u8]) -> Result<usize, Unwritten>;
    /// Ends our direction after what was written, where a transport has that.
    fn finish(&mut self, connection: Self::Connection);
    /// Gives a connection up, in order or by an abort; messages that had arrived and were not read.
    fn close(&mut self, connection: Self::Connection, abort: bool) -> usize;
    /// Why a connection has ended, as far as is known.
    fn reason(&self, connection: Self::Connection) -> Reason;
    /// Whether the transport finds out by itself that a peer is gone.
    fn is_watched(&self, _: Self::Connection) -> bool {
        true
    }
}
