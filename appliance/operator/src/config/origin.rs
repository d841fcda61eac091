//! [`Origin`] of a configuration value, and [`Problem`] with its origin, reason and accepted values.

use core::fmt;

/// Source of a configuration value. Later sources override earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The built-in default.
    BuiltIn,
    /// The document embedded in the image.
    Image,
    /// The fw_cfg file `opt/isthmus/config`; under uhyve the file `/isthmus.toml`.
    FwCfg,
    /// The document in SMBIOS strings.
    SmbiosDocument,
    /// Settings in SMBIOS strings.
    Smbios,
    /// `meta-data` on the seed disk.
    SeedMetadata,
    /// `user-data` on the seed disk.
    Seed,
    /// The config disk.
    Disk,
    /// The kernel command line.
    CommandLine,
    /// `set` on the console.
    Console,
    /// A request over HTTP.
    Http,
    /// A file under `isthmus check` on the host.
    File,
}

/// A position in a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The source.
    pub source: Source,
    /// Line of a document from 1, ordinal of a setting on the command line from 1, else 0.
    pub position: u32,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let document = match self.source {
            Source::BuiltIn => return f.write_str("built-in default"),
            Source::CommandLine => return f.write_str("command line"),
            Source::Console => return f.write_str("console"),
            Source::SeedMetadata => return f.write_str("seed meta-data"),
            Source::Smbios => return f.write_str("SMBIOS strings"),
            Source::Image => "image ",
            Source::FwCfg if cfg!(feature = "uhyve") => "/isthmus.toml ",
            Source::FwCfg => "fw_cfg ",
            Source::SmbiosDocument => "SMBIOS ",
            Source::Seed => "seed ",
            Source::Disk => "config disk ",
            Source::Http => "HTTP ",
            Source::File => "",
        };
        match self.position {
            0 => write!(f, "{document}document"),
            line => write!(f, "{document}line {line}"),
        }
    }
}

/// Consequence of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The document or setting cannot be used.
    Mistake,
    /// A key that this version does not know. It is ignored, and the rest is in force.
    Unknown,
    /// A key by the name of an earlier version. It is read as the renamed key.
    Renamed,
    /// A missing value. A pending entry may still get it.
    Missing,
}

/// A mistake in a configuration, reported so that the operator can correct it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Consequence of the problem.
    pub kind: Kind,
    /// Position in the source.
    pub origin: Origin,
    /// Path of the key (`net.0.mtu`). Empty if the document cannot be parsed.
    pub path: String,
    /// The mistake.
    pub reason: String,
    /// Accepted values. Empty if the reason is sufficient.
    pub accepted: String,
}

impl Problem {
    /// Whether the rest of the document or setting is in force.
    pub fn is_warning(&self) -> bool {
        matches!(self.kind, Kind::Unknown | Kind::Renamed)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.reason)?;
        if !self.accepted.is_empty() {
            write!(f, "; accepted: {}", self.accepted)?;
        }
        Ok(())
    }
}
