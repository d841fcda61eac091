//! Errors of calls and of channels.

use core::fmt;

/// Why a call was refused, or a channel has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The channel number is in use.
    Taken,
    /// The limit of 1024 channels is reached.
    TooMany,
    /// The channel does not exist, or is not in the right state.
    State,
    /// The peer closed the channel.
    ClosedByPeer,
    /// The peer did not answer within 10 s: no listener, or the device is gone.
    TimedOut,
    /// More than 4076 bytes of data.
    Length,
    /// Flow control: no credit. An event reports new credit.
    NoCredit,
    /// Flow control: the peer has finished sending, and all data was read.
    Finished,
    /// Flow control: the peer closed the channel before it had finished sending.
    Aborted,
    /// Flow control: no message of the peer for ten seconds.
    Silent,
    /// Flow control: messages are missing, or counts are invalid.
    Incomplete,
    /// The device is gone, or was restarted.
    Gone,
    /// The port could not deliver a message to the device.
    Undelivered,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Taken => "the channel number is in use",
            Error::TooMany => "the limit of channels is reached",
            Error::State => "the channel does not exist, or is not connected",
            Error::ClosedByPeer => "the peer has closed the channel",
            Error::TimedOut => {
                "the peer does not answer: no program listens on that channel, or the device is gone"
            }
            Error::Length => "a channel message has at most 4076 bytes",
            Error::NoCredit => "no credit: the peer has to read first",
            Error::Finished => "the peer has finished sending",
            Error::Aborted => "the peer has closed the channel before the end of its data",
            Error::Silent => "no message of the peer for ten seconds",
            Error::Incomplete => "messages of the peer are missing",
            Error::Gone => "the device is gone",
            Error::Undelivered => "the device does not accept messages",
        })
    }
}

impl core::error::Error for Error {}
