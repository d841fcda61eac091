//! Alerts, and why a session has failed.

use core::fmt;

/// An alert (RFC 8446 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alert(pub u8);

macro_rules! alerts {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl Alert {
            $(#[doc = concat!("`", $text, "`")]
            pub const $name: Alert = Alert($code);)*

            /// Its name in RFC 8446.
            pub fn name(self) -> &'static str {
                match self.0 {
                    $($code => $text,)*
                    _ => "unassigned",
                }
            }
        }
    };
}

alerts! {
    CLOSE_NOTIFY = 0, "close_notify";
    UNEXPECTED_MESSAGE = 10, "unexpected_message";
    BAD_RECORD_MAC = 20, "bad_record_mac";
    RECORD_OVERFLOW = 22, "record_overflow";
    HANDSHAKE_FAILURE = 40, "handshake_failure";
    ILLEGAL_PARAMETER = 47, "illegal_parameter";
    DECODE_ERROR = 50, "decode_error";
    DECRYPT_ERROR = 51, "decrypt_error";
    PROTOCOL_VERSION = 70, "protocol_version";
    INSUFFICIENT_SECURITY = 71, "insufficient_security";
    INTERNAL_ERROR = 80, "internal_error";
    USER_CANCELED = 90, "user_canceled";
    MISSING_EXTENSION = 109, "missing_extension";
    UNSUPPORTED_EXTENSION = 110, "unsupported_extension";
    UNKNOWN_PSK_IDENTITY = 115, "unknown_psk_identity";
    CERTIFICATE_REQUIRED = 116, "certificate_required";
}

/// Why a session has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The peer did not complete its handshake before the deadline.
    Slow,
    /// The peer sent this alert.
    Alert(Alert),
    /// The caller closed the session before its handshake was complete.
    Canceled,
    /// The peer violated the protocol, or offers or needs an unsupported parameter. It was sent the alert.
    Violation {
        /// The alert.
        alert: Alert,
        /// The reason, for the operator.
        why: &'static str,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Slow => f.write_str("the peer did not complete its TLS handshake in time"),
            Failure::Canceled => f.write_str("the TLS handshake was canceled"),
            Failure::Alert(alert) => {
                write!(f, "the peer sent the TLS alert {} ({})", alert.name(), alert.0)
            }
            Failure::Violation { alert, why } => write!(f, "{why} (TLS alert {})", alert.name()),
        }
    }
}

/// A violation, before it is recorded as a [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub alert: Alert,
    pub why: &'static str,
}

impl Violation {
    pub const fn new(alert: Alert, why: &'static str) -> Self {
        Violation { alert, why }
    }
}

pub(crate) type Checked<T> = Result<T, Violation>;

/// An error with this alert and reason.
pub(crate) const fn violates<T>(alert: Alert, why: &'static str) -> Checked<T> {
    Err(Violation::new(alert, why))
}

/// The error of a message that cannot be decoded.
pub(crate) const UNDECODABLE: Violation =
    Violation::new(Alert::DECODE_ERROR, "the peer sent a TLS message with wrong lengths");
