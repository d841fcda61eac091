//! Why a call is refused, or a channel has ended.

use core::fmt;

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The number is taken.
    Taken,
    /// There are 1024 channels.
    TooMany,
    /// There is no such channel, or it is not in a state for this.
    State,
    /// The peer closed the channel.
    ClosedByPeer,
    /// The peer did not answer in 10 s: nobody listens there, or the device is gone.
    TimedOut,
    /// More than 4076 bytes of data.
    Length,
    /// Between our own: the other end has to take something first; news tell when it has.
    NoCredit,
    /// Between our own: the other end has said everything, and all of it was read.
    Finished,
    /// Between our own: the other end has closed the channel before it had said everything.
    Aborted,
    /// Between our own: nothing was heard of the other end for ten seconds.
    Silent,
    /// Between our own: messages are missing, or counts are none that can be.
    Incomplete,
    /// The device is gone, or was started anew.
    Gone,
    /// The port could not deliver a message to the device.
    Undelivered,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Taken => "the number of the channel is taken",
            Error::TooMany => "there are as many channels as there can be",
            Error::State => "there is no such channel, or it is not connected",
            Error::ClosedByPeer => "the other end has closed the channel",
            Error::TimedOut => {
                "the other end does not answer: nobody listens on that channel, or the device is gone"
            }
            Error::Length => "a message of a channel has 4076 bytes at most",
            Error::NoCredit => "the other end has to read first",
            Error::Finished => "the other end has said everything",
            Error::Aborted => "the other end has closed the channel in the middle",
            Error::Silent => "nothing is heard of the other end",
            Error::Incomplete => "messages of the other end are missing",
            Error::Gone => "the device is gone",
            Error::Undelivered => "the device does not take messages",
        })
    }
}

impl core::error::Error for Error {}
