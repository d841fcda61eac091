//! Why a connection ended, in words for the operator.

use crate::wire::reply;
use core::fmt;

/// A short text of a server, reduced to printable ASCII.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text {
    bytes: [u8; Text::LONGEST],
    length: u8,
}

impl Text {
    /// Longest text that is kept.
    pub const LONGEST: usize = 96;

    /// Keeps the beginning of a text.
    pub fn of(text: &[u8]) -> Text {
        let mut bytes = [0; Text::LONGEST];
        let length = text.len().min(Text::LONGEST);
        for (to, &from) in bytes.iter_mut().zip(text) {
            *to = if from.is_ascii_graphic() || from == b' ' { from } else { b'?' };
        }
        Text { bytes, length: length as u8 }
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.bytes.get(..self.length.into()).unwrap_or_default();
        f.write_str(core::str::from_utf8(text).unwrap_or_default())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a connection ended or was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No route, no free connection, or the name has no address.
    NoRoute,
    /// The server's machine refused the TCP connection, or did not answer.
    Refused,
    /// The server closed or reset the connection.
    Closed,
    /// No end of the handshake within its time limit.
    SlowHandshake,
    /// No complete reply to a request within `keepalive_ms`.
    Silent,
    /// The server is not an NBD server.
    NotNbd,
    /// The server does not speak the fixed newstyle handshake.
    OldStyle,
    /// The server wants TLS.
    WantsTls,
    /// The server does not know the export.
    NoExport,
    /// The server refused an option with this error.
    Option(u32, Text),
    /// The server sent something that the handshake does not allow.
    Handshake(&'static str),
    /// The export cannot be a volume.
    Export(&'static str),
    /// The export is not the one that the volume was opened with.
    Changed(&'static str),
    /// The export is smaller than before, in bytes: before, now.
    Smaller(u64, u64),
    /// The server broke the protocol of replies.
    Reply(&'static str),
    /// The server announced its shutdown.
    ShuttingDown,
    /// The volume's user gave up its requests.
    GivenUp,
}

impl Failure {
    /// Whether the server is there, and its operator has to correct something.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Failure::NotNbd
                | Failure::OldStyle
                | Failure::WantsTls
                | Failure::NoExport
                | Failure::Option(..)
                | Failure::Handshake(_)
                | Failure::Export(_)
                | Failure::Changed(_)
                | Failure::Smaller(..)
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::NoRoute => f.write_str("no address of the server, or no route to it"),
            Failure::Refused => f.write_str("the server refuses the connection or does not answer"),
            Failure::Closed => f.write_str("the server closed the connection"),
            Failure::SlowHandshake => f.write_str("the server did not complete the handshake"),
            Failure::Silent => {
                f.write_str("the server did not complete a reply within `keepalive_ms`")
            }
            Failure::NotNbd => f.write_str("the server is not an NBD server: check its port"),
            Failure::OldStyle => {
                f.write_str("the server does not speak the fixed newstyle handshake: update it")
            }
            Failure::WantsTls => {
                f.write_str("the server wants TLS, which remotes of this kind do not have")
            }
            Failure::NoExport => f.write_str("the server has no export of this name"),
            Failure::Option(reply::UNKNOWN_EXPORT, text) => write!(f, "no such export: {text}"),
            Failure::Option(error, text) => {
                write!(f, "the server refused the export with error {error:#x}: {text}")
            }
            Failure::Handshake(what) => write!(f, "invalid handshake of the server: {what}"),
            Failure::Export(what) => write!(f, "the export cannot be a volume: {what}"),
            Failure::Changed(what) => {
                write!(
                    f,
                    "not the export that was opened before: {what}; remove and add the remote to accept it"
                )
            }
            Failure::Smaller(before, now) => write!(
                f,
                "the export had {before} bytes and has {now}; remove and add the remote to accept it"
            ),
            Failure::Reply(what) => write!(f, "invalid reply of the server: {what}"),
            Failure::ShuttingDown => f.write_str("the server is being shut down"),
            Failure::GivenUp => {
                f.write_str("its requests were given up, because it did not answer")
            }
        }
    }
}
