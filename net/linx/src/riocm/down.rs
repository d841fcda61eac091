//! Why a connection ended.

use crate::wire::riocm::Malformed;
use core::fmt;

/// What the peer did that ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A packet that is none.
    Malformed(Malformed),
    /// A packet that is 64 or more ahead of the next.
    Beyond,
    /// A packet did not come.
    Missing,
    /// A part of a message that has no beginning.
    NoMessage,
    /// The beginning of a message that has begun.
    Begun,
    /// More than 32 messages in parts.
    TooMany,
    /// A message that is longer than the longest.
    TooLong(u32),
    /// A part that does not fit its message.
    Part,
    /// More or fewer patches than there is to patch.
    Patches,
    /// No memory for the message: it was sent faster than it was taken.
    NoRoom,
    /// A header of LINX's TCP connection manager that is none, of this type.
    Stream(u8),
    /// The link above was told something that breaks its rules.
    Link,
    /// The handshake of the link above was not done in time.
    Handshake,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Malformed(why) => why.fmt(f),
            Fault::Beyond => f.write_str(
                "the peer sent a packet that is 64 or more ahead of one that did not come: one was lost, or one of the two has restarted",
            ),
            Fault::Missing => f.write_str(
                "a packet of the peer did not come, and others behind it did: RapidIO or a driver has lost it",
            ),
            Fault::NoMessage => f.write_str("the peer sent a part of a message that did not begin"),
            Fault::Begun => f.write_str("the peer began a message under the id of one that has not ended"),
            Fault::TooMany => f.write_str("the peer sends more than 32 messages in parts at a time"),
            Fault::TooLong(size) => write!(
                f,
                "the peer sent a message of {size} bytes, which is longer than max_message: raise it at this end"
            ),
            Fault::Part => f.write_str("the peer sent a part that does not fit its message"),
            Fault::Patches => f.write_str("the peer sent more or fewer patches than its message needs"),
            Fault::NoRoom => f.write_str(
                "messages came faster than they were taken: give the link more memory, or the peer less to send",
            ),
            Fault::Stream(number) => {
                write!(f, "the peer sent a TCP message of type {number:#04x}: it is not LINX, or of another version")
            }
            Fault::Link => f.write_str("the peer broke a rule of RLNH"),
            Fault::Handshake => f.write_str(
                "the peer did not answer RLNH's INIT in time: an INIT or INIT_REPLY was lost, or the peer's LINX hangs",
            ),
        }
    }
}

/// Why a connection is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// Its user wanted it.
    Asked,
    /// The peer sent CONN_RESET, or ended the TCP connection.
    Reset,
    /// The peer asks for a connection while there is one: it has restarted.
    Restarted,
    /// Nothing came for three heartbeats.
    Silent,
    /// The RapidIO port has gone.
    PortGone,
    /// It was reset because of what the peer did.
    Fault(Fault),
}

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Down::Asked => f.write_str("it was ended here"),
            Down::Reset => f.write_str("the peer ended it"),
            Down::Restarted => f.write_str("the peer has restarted"),
            Down::Silent => f.write_str("nothing came from the peer for three heartbeats"),
            Down::PortGone => f.write_str("the RapidIO port has gone"),
            Down::Fault(fault) => fault.fmt(f),
        }
    }
}

impl core::error::Error for Down {}
