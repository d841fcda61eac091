//! Why an endpoint, a link or a hunt was not taken.

use crate::riocm::BadConfig;
use crate::wire::rlnh::MAX_NAME;
use core::fmt;

/// Why an endpoint, a link or a hunt was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The name is empty, too long, or has a zero byte or, of a link, a slash.
    Name,
    /// There is one of that name.
    Exists,
    /// There is no room for another.
    Full,
    /// There is no such endpoint or link.
    Unknown,
    /// An RLNH version that is not spoken here.
    Version(u32),
    /// The connection beneath.
    Config(BadConfig),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Name => write!(
                f,
                "a LINX name has 1 to {MAX_NAME} bytes, none of them zero; a link's has no slash either"
            ),
            Refused::Exists => f.write_str("there is one of that name"),
            Refused::Full => f.write_str("there is no room for another; see the limits"),
            Refused::Unknown => f.write_str("there is no such endpoint or link"),
            Refused::Version(version) => {
                write!(f, "RLNH has versions 1 and 2, and no version {version}")
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
