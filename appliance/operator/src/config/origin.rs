//! Where a value of the configuration comes from, and what is wrong with it.

use core::fmt;

/// What a piece of configuration was read from. Later ones win.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The built-in default.
    BuiltIn,
    /// The document embedded in the image.
    Image,
    /// The fw_cfg file `opt/isthmus/config`; under uhyve the file `/isthmus.toml`.
    FwCfg,
    /// The config disk.
    Disk,
    /// The kernel command line.
    CommandLine,
    /// `set` on the console.
    Console,
    /// A file on the host that is being checked.
    File,
}

/// A place in a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Which source.
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
            Source::Image => "image ",
            Source::FwCfg if cfg!(feature = "uhyve") => "/isthmus.toml ",
            Source::FwCfg => "fw_cfg ",
            Source::Disk => "config disk ",
            Source::File => "",
        };
        match self.position {
            0 => write!(f, "{document}document"),
            line => write!(f, "{document}line {line}"),
        }
    }
}

/// What follows from a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What it stands in cannot be used.
    Mistake,
    /// A key that this version does not know. It can be left out, the rest holds.
    Unknown,
    /// A key by a name of an earlier version. It is taken for what it is called now.
    Renamed,
    /// Something that is not there yet: an entry that is being made waits for it.
    Missing,
}

/// Something wrong in a configuration: the operator's mistake, said so that it can be mended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What follows from it.
    pub kind: Kind,
    /// Where it stands.
    pub origin: Origin,
    /// Path of the key (`net.0.mtu`); empty if the document cannot be read at all.
    pub path: String,
    /// What is wrong.
    pub reason: String,
    /// What would be accepted; empty where the reason says it all.
    pub accepted: String,
}

impl Problem {
    /// Whether the rest of what it stands in holds.
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
