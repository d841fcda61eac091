//! Causes of a connection's end.

use crate::wire::riocm::Malformed;
use core::fmt;

/// A fault of the peer that ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A malformed packet.
    Malformed(Malformed),
    /// A packet 64 or more ahead of the next expected one.
    Beyond,
    /// A missing packet.
    Missing,
    /// A part of a message without its first part.
    NoMessage,
    /// A second first part of a message.
    Begun,
    /// More than 32 messages in reassembly.
    TooMany,
    /// A message above the maximum length, in bytes.
    TooLong(u32),
    /// A part whose length does not match its message.
    Part,
    /// Too many or too few patches.
    Patches,
    /// No memory for a message: the peer sends faster than messages are read.
    NoRoom,
    /// An invalid message type of LINX's TCP connection manager.
    Stream(u8),
    /// A violation of RLNH.
    Link,
    /// RLNH's handshake was not completed in time.
    Handshake,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Malformed(why) => why.fmt(f),
            Fault::Beyond => f.write_str(
                "the peer sent a packet that is 64 or more ahead of a missing one: a packet was lost, or either end has restarted",
            ),
            Fault::Missing => f.write_str(
                "a packet from the peer is missing, and later ones have arrived: RapidIO or a driver has lost it",
            ),
            Fault::NoMessage => f.write_str("the peer sent a part of a message without its first part"),
            Fault::Begun => f.write_str("the peer began a message with the id of an incomplete one"),
            Fault::TooMany => f.write_str("the peer sent parts of more than 32 messages at a time"),
            Fault::TooLong(size) => write!(
                f,
                "the peer sent a message of {size} bytes, longer than max_message: raise max_message at this end"
            ),
            Fault::Part => f.write_str("the peer sent a part whose length does not match its message"),
            Fault::Patches => f.write_str("the peer sent too many or too few patches for a message"),
            Fault::NoRoom => f.write_str(
                "the peer sends faster than messages are read: give the link more memory, or make the peer send less",
            ),
            Fault::Stream(number) => {
                write!(f, "the peer sent a TCP message of type {number:#04x}: it is not LINX, or another version")
            }
            Fault::Link => f.write_str("the peer violated RLNH"),
            Fault::Handshake => f.write_str(
                "the peer did not answer RLNH's INIT in time: an INIT or INIT_REPLY was lost, or the peer's LINX hangs",
            ),
        }
    }
}

/// Why a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// Its user ended it.
    Asked,
    /// The peer sent CONN_RESET, or ended the TCP connection.
    Reset,
    /// The peer requested a connection while there was one: it has restarted.
    Restarted,
    /// The peer was silent for three heartbeat intervals.
    Silent,
    /// The RapidIO port was removed.
    PortGone,
    /// It was reset because of a fault of the peer.
    Fault(Fault),
}

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Down::Asked => f.write_str("closed by this node"),
            Down::Reset => f.write_str("closed by the peer"),
            Down::Restarted => f.write_str("the peer has restarted"),
            Down::Silent => f.write_str("no packet from the peer for three heartbeat intervals"),
            Down::PortGone => f.write_str("the RapidIO port was removed"),
            Down::Fault(fault) => fault.fmt(f),
        }
    }
}

impl core::error::Error for Down {}
