//! [`Refused`]: why an endpoint, a link or a hunt is refused.

use crate::riocm::BadConfig;
use crate::wire::rlnh::MAX_NAME;
use core::fmt;

/// Why an endpoint, a link or a hunt is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The name is empty, too long, has a zero byte, or (for a link) a slash.
    Name,
    /// The name is in use.
    Exists,
    /// The limit is reached.
    Full,
    /// Unknown endpoint or link.
    Unknown,
    /// Unsupported RLNH version.
    Version(u32),
    /// The connection's configuration is invalid.
    Config(BadConfig),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Name => write!(
                f,
                "invalid LINX name: 1 to {MAX_NAME} bytes without zero bytes, and without a slash for a link"
            ),
            Refused::Exists => f.write_str("the name is already in use"),
            Refused::Full => f.write_str("the limit is reached"),
            Refused::Unknown => f.write_str("unknown endpoint or link"),
            Refused::Version(version) => {
                write!(f, "unsupported RLNH version {version}: use 1 or 2")
            }
            Refused::Config(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for Refused {}

impl From<BadConfig> for Refused {
    fn from(why: BadConfig) -> Self {
        Refused::Config(why)
    }
}
