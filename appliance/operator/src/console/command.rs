//! [`Command`]: the words of a command, its arguments and its action.

use super::system::Topic;
use crate::log_ring::Filter;

/// Action of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Lists the commands.
    Help,
    /// Shows a part of the appliance.
    Show(Topic),
    /// Shows the log, or a part of it.
    ShowLog(Filter),
    /// Shows the running configuration.
    ShowConfig,
    /// Changes the configuration.
    Set,
    /// Removes a key or an entry from the configuration.
    Unset,
    /// Writes the configuration to the config disk.
    Save,
    /// Sends ICMP echo requests.
    Ping,
    /// Runs rping against a server.
    Rping,
    /// Starts a packet capture.
    CaptureStart,
    /// Stops the packet capture.
    CaptureStop,
    /// Sets the log level.
    LogLevel,
    /// Lists objects.
    List,
    /// Shows an object.
    Cat,
    /// Writes to an object.
    Write,
    /// Manages objects such as volumes, exports and sessions: the kind of object, and the command.
    Manage(&'static str, &'static str),
    /// Reboots.
    Reboot,
    /// Powers off.
    PowerOff,
}

/// An argument of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A path of the configuration.
    Path,
    /// The rest of the line.
    Value,
    /// An IP address.
    Address,
    /// An optional number.
    Count,
    /// An optional number of bytes.
    Size,
    /// The rest of the line: an optional capture filter.
    Filter,
    /// A level of the log.
    Level,
    /// A path of the object tree.
    Object,
    /// An optional path of the object tree, by default the top.
    Directory,
    /// The rest of the line, with its text in the help. Brackets mark it as optional.
    Rest(&'static str),
}

impl Argument {
    /// Text in the help.
    pub fn shown(self) -> &'static str {
        match self {
            Argument::Path => "PATH",
            Argument::Value => "VALUE",
            Argument::Address => "ADDRESS",
            Argument::Count => "[COUNT]",
            Argument::Size => "[SIZE]",
            Argument::Filter => "[FILTER]",
            Argument::Level => "LEVEL",
            Argument::Object => "OBJECT",
            Argument::Directory => "[OBJECT]",
            Argument::Rest(shown) => shown,
        }
    }

    pub(super) fn optional(self) -> bool {
        match self {
            Argument::Count | Argument::Size | Argument::Filter | Argument::Directory => true,
            Argument::Rest(shown) => shown.starts_with('['),
            _ => false,
        }
    }
}

/// A command.
#[derive(Debug)]
pub struct Command {
    /// Words of the command.
    pub words: &'static [&'static str],
    /// Arguments after the words.
    pub arguments: &'static [Argument],
    /// Description in the help.
    pub about: &'static str,
    /// Action.
    pub verb: Verb,
}

impl Command {
    pub(super) const fn new(
        words: &'static [&'static str],
        arguments: &'static [Argument],
        about: &'static str,
        verb: Verb,
    ) -> Command {
        Command { words, arguments, about, verb }
    }

    /// Whether the command accepts `--json`.
    pub fn reports(&self) -> bool {
        self.words[0] == "show" || matches!(self.verb, Verb::List | Verb::Cat)
    }

    /// Words and arguments, for the help.
    pub fn usage(&self) -> String {
        let arguments = self.arguments.iter().map(|a| a.shown());
        let json = self.reports().then_some("[--json]");
        self.words.iter().copied().chain(arguments).chain(json).collect::<Vec<_>>().join(" ")
    }
}
