//! What a command is: its words, what follows them, and what it does.

use super::system::Topic;
use crate::log_ring::Filter;

/// What a command does.
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
    /// Takes something out of the configuration.
    Unset,
    /// Writes the configuration to the config disk.
    Save,
    /// Sends echo requests.
    Ping,
    /// Measures an rping server.
    Rping,
    /// Begins to keep frames.
    CaptureStart,
    /// Stops keeping frames.
    CaptureStop,
    /// Sets which messages are logged.
    LogLevel,
    /// Lists objects.
    List,
    /// Shows an object.
    Cat,
    /// Writes to an object.
    Write,
    /// Sees to volumes, exports, sessions, devices and paths: what, and what to do.
    Manage(&'static str, &'static str),
    /// Starts anew.
    Reboot,
    /// Switches off.
    PowerOff,
}

/// What stands at a place of a command after its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A path of the configuration.
    Path,
    /// The rest of the line.
    Value,
    /// An IP address.
    Address,
    /// A number, which can be left out.
    Count,
    /// Bytes; can be left out.
    Size,
    /// The rest of the line: which frames a capture keeps; left out, all.
    Filter,
    /// A level of the log.
    Level,
    /// A path of the object tree.
    Object,
    /// A path of the object tree; left out, the top.
    Directory,
    /// The rest of the line, as the help shows it; in brackets if it can be left out.
    Rest(&'static str),
}

impl Argument {
    /// As the help shows it.
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
    /// The words that name it.
    pub words: &'static [&'static str],
    /// What follows.
    pub arguments: &'static [Argument],
    /// What it does, in a few words.
    pub about: &'static str,
    /// What it does.
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

    /// Whether it takes `--json`.
    pub fn reports(&self) -> bool {
        self.words[0] == "show" || matches!(self.verb, Verb::List | Verb::Cat)
    }

    /// Name and arguments.
    pub fn usage(&self) -> String {
        let arguments = self.arguments.iter().map(|a| a.shown());
        let json = self.reports().then_some("[--json]");
        self.words.iter().copied().chain(arguments).chain(json).collect::<Vec<_>>().join(" ")
    }
}
