//! [`Command`]: the words of a command, its arguments and its action.

use super::system::Topic;
use super::verbs::ObjectVerb;
use crate::config::Role;
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
    /// Shows the links to LINX nodes, or all about one.
    ShowLinx,
    /// Shows the running configuration.
    ShowConfig,
    /// Checks the appliance.
    Doctor,
    /// Shows a support bundle as base64.
    Support,
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
    /// Shows the audit log.
    ShowAudit,
    /// Shows messages of the log as they come.
    LogFollow,
    /// Sets the log level.
    LogLevel,
    /// Lists objects.
    List,
    /// Shows an object.
    Cat,
    /// Writes to an object.
    Write,
    /// Manages objects such as volumes, exports and sessions.
    Manage(ObjectVerb),
    /// Reads a document from the following lines.
    Paste,
    /// Ends the session at the console.
    LogOut,
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
    /// An optional subject of the log.
    Subject,
    /// A level of the log.
    Level,
    /// A path of the object tree.
    Object,
    /// An optional path of the object tree, by default the top.
    Directory,
    /// An optional name.
    Name,
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
            Argument::Subject => "[SUBJECT]",
            Argument::Level => "LEVEL",
            Argument::Object => "OBJECT",
            Argument::Directory => "[OBJECT]",
            Argument::Name => "[NAME]",
            Argument::Rest(shown) => shown,
        }
    }

    pub(super) fn optional(self) -> bool {
        match self {
            Argument::Count
            | Argument::Size
            | Argument::Filter
            | Argument::Subject
            | Argument::Directory
            | Argument::Name => true,
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

    /// The role that the command needs.
    pub fn role(&self) -> Role {
        match self.words {
            ["help" | "logout" | "show" | "ls" | "cat" | "compare" | "check" | "doctor", ..]
            | [_, "list" | "show" | "look"]
            | ["log", "follow"]
            | ["nvme", "hosts" | "check"] => Role::Read,
            ["ping" | "rping" | "resolve" | "write" | "reboot" | "poweroff" | "support"]
            | ["capture" | "session" | "device" | "path" | "ntb" | "usnic", ..]
            | ["remote", "remap" | "read"]
            | ["mirror", "detach" | "attach"] => Role::Operate,
            _ => Role::Admin,
        }
    }

    /// Whether the command accepts `--json`.
    pub fn reports(&self) -> bool {
        // One with another argument shows text.
        let shows = self.words[0] == "show" && matches!(self.arguments, [] | [Argument::Name]);
        shows || matches!(self.verb, Verb::List | Verb::Cat | Verb::Doctor)
    }

    /// Words and arguments, for the help.
    pub fn usage(&self) -> String {
        let arguments = self.arguments.iter().map(|a| a.shown());
        let json = self.reports().then_some("[--json]");
        self.words.iter().copied().chain(arguments).chain(json).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::super::commands::COMMANDS;
    use super::super::verbs::ObjectVerb;
    use super::*;

    #[test]
    fn command_on_objects_that_changes_nothing_and_sends_nothing_needs_the_role_read() {
        let role = |words: &[&str]| COMMANDS.iter().find(|c| c.words == words).unwrap().role();
        for words in [["nvme", "hosts"], ["nvme", "check"], ["nvme", "list"], ["usnic", "look"]] {
            assert_eq!(role(&words), Role::Read, "{words:?}");
        }
        for words in [["configure", "set"], ["nvme", "ana"], ["volume", "delete"], ["log", "level"]]
        {
            assert_eq!(role(&words), Role::Admin, "{words:?}");
        }
        for command in COMMANDS {
            let changes = matches!(command.verb, Verb::Manage(verb) if verb.is_change())
                || matches!(command.verb, Verb::Manage(ObjectVerb::Usnic(_)) if command.words[1] != "look");
            assert!(!changes || command.role() > Role::Read, "{:?}", command.words);
        }
    }
}
