//! The commands: one table that parsing, help and completion read.

use super::system::Topic;
use crate::suggestion::did_you_mean;

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Lists the commands.
    Help,
    /// Shows a part of the appliance.
    Show(Topic),
    /// Shows the log.
    ShowLog,
    /// Shows the running configuration.
    ShowConfig,
    /// Changes the configuration.
    Set,
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
        }
    }

    fn optional(self) -> bool {
        matches!(self, Argument::Count | Argument::Size | Argument::Filter | Argument::Directory)
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
    const fn new(
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

/// All commands.
pub static COMMANDS: &[Command] = &[
    Command::new(&["help"], &[], "this list", Verb::Help),
    Command::new(&["show", "interfaces"], &[], "network interfaces", Verb::Show(Topic::Interfaces)),
    Command::new(&["show", "disks"], &[], "disks", Verb::Show(Topic::Disks)),
    Command::new(&["show", "volumes"], &[], "volumes", Verb::Show(Topic::Volumes)),
    Command::new(&["show", "memory"], &[], "memory", Verb::Show(Topic::Memory)),
    Command::new(&["show", "loops"], &[], "what the loops do", Verb::Show(Topic::Loops)),
    Command::new(&["show", "log"], &[], "the last log messages", Verb::ShowLog),
    Command::new(&["show", "config"], &[], "the running configuration", Verb::ShowConfig),
    Command::new(&["show", "version"], &[], "version", Verb::Show(Topic::Version)),
    Command::new(
        &["set"],
        &[Argument::Path, Argument::Value],
        "change the configuration",
        Verb::Set,
    ),
    Command::new(&["save"], &[], "write the configuration to the config disk", Verb::Save),
    Command::new(
        &["ping"],
        &[Argument::Address, Argument::Count],
        "send echo requests",
        Verb::Ping,
    ),
    Command::new(
        &["rping"],
        &[Argument::Address, Argument::Count, Argument::Size],
        "ping over RDMA: READs and WRITEs of a server started with `rping -s -S SIZE`",
        Verb::Rping,
    ),
    Command::new(
        &["capture", "start"],
        &[Argument::Filter],
        "keep the last frames, for `/capture.pcapng`",
        Verb::CaptureStart,
    ),
    Command::new(
        &["capture", "stop"],
        &[],
        "keep no more frames; what was kept stays",
        Verb::CaptureStop,
    ),
    Command::new(
        &["log", "level"],
        &[Argument::Level],
        "log messages of this level and worse",
        Verb::LogLevel,
    ),
    Command::new(&["ls"], &[Argument::Directory], "list objects", Verb::List),
    Command::new(&["cat"], &[Argument::Object], "show an object", Verb::Cat),
    Command::new(
        &["write"],
        &[Argument::Object, Argument::Value],
        "write to an object",
        Verb::Write,
    ),
    Command::new(&["reboot"], &[], "start anew", Verb::Reboot),
    Command::new(&["poweroff"], &[], "switch off", Verb::PowerOff),
];

/// A line, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// What to do.
    pub verb: Verb,
    /// The arguments that were given.
    pub arguments: Vec<String>,
    /// Whether the answer is wanted as JSON.
    pub json: bool,
}

/// Takes a line apart; None if there is nothing on it. The error is a sentence for the operator.
pub fn parse(line: &str) -> Result<Option<Invocation>, String> {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    if words.is_empty() {
        return Ok(None);
    }
    let command = find(&words)?;
    let mut json = false;
    if command.reports() {
        let before = words.len();
        words.retain(|w| *w != "--json");
        json = words.len() < before;
    }
    let mut given = words.split_off(command.words.len());
    let filter;
    match command.arguments.last() {
        Some(Argument::Value) => given = split_rest(line, command),
        Some(Argument::Filter) if !given.is_empty() => {
            filter = given.join(" ");
            given = vec![&filter];
        }
        _ => {}
    }
    let least = command.arguments.iter().filter(|a| !a.optional()).count();
    if !(least..=command.arguments.len()).contains(&given.len()) {
        return Err(format!("usage: {}", command.usage()));
    }
    let arguments = given.into_iter().map(String::from).collect();
    Ok(Some(Invocation { verb: command.verb, arguments, json }))
}

/// The arguments of a command whose last one is the rest of the line, spaces and all.
fn split_rest<'a>(line: &'a str, command: &Command) -> Vec<&'a str> {
    let mut rest = line.trim();
    let mut words = Vec::new();
    while words.len() + 1 < command.words.len() + command.arguments.len() {
        let Some((word, after)) = rest.split_once(char::is_whitespace) else { break };
        words.push(word);
        rest = after.trim_start();
    }
    words.push(rest);
    words.split_off(command.words.len().min(words.len()))
}

fn find(words: &[&str]) -> Result<&'static Command, String> {
    if let Some(found) = COMMANDS.iter().find(|c| words.starts_with(c.words)) {
        return Ok(found);
    }
    let family: Vec<_> = COMMANDS.iter().filter(|c| c.words[0] == words[0]).collect();
    if family.is_empty() {
        let hint = did_you_mean(words[0], COMMANDS.iter().map(|c| c.words[0]));
        return Err(format!("unknown command {:?}{hint}; help lists the commands", words[0]));
    }
    let seconds = || family.iter().filter_map(|c| c.words.get(1).copied());
    let accepted = seconds().collect::<Vec<_>>().join(", ");
    match words.get(1) {
        None => Err(format!("{} what? accepted: {accepted}", words[0])),
        Some(word) => {
            let hint = did_you_mean(word, seconds());
            Err(format!("cannot {} {word:?}{hint}; accepted: {accepted}", words[0]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> (Verb, Vec<String>, bool) {
        let i = parse(line).unwrap().unwrap();
        (i.verb, i.arguments, i.json)
    }

    #[test]
    fn lines_are_taken_apart() {
        assert_eq!(parse("  ").unwrap(), None);
        assert_eq!(parsed(" show  disks --json "), (Verb::Show(Topic::Disks), vec![], true));
        let set = |path: &str, value: &str| (Verb::Set, vec![path.into(), value.into()], false);
        assert_eq!(parsed("set net.0.mtu 9000"), set("net.0.mtu", "9000"));
        assert_eq!(parsed("set a  [\"b\",  \"c\"] "), set("a", "[\"b\",  \"c\"]"));
        assert_eq!(parsed("ping 10.0.0.1"), (Verb::Ping, vec!["10.0.0.1".into()], false));
        assert_eq!(parsed("ls"), (Verb::List, vec![], false));
        assert_eq!(parsed("capture start"), (Verb::CaptureStart, vec![], false));
        let start = parsed("capture start  roce  host 10.0.0.2 ");
        assert_eq!(start, (Verb::CaptureStart, vec!["roce host 10.0.0.2".into()], false));
    }

    #[test]
    fn the_manual_has_every_command() {
        let manual = include_str!("../../../docs/console.md");
        for command in COMMANDS {
            let line = format!("| `{}` | {}", command.usage(), command.about);
            assert!(manual.contains(&line), "{line}");
        }
    }

    #[test]
    fn mistakes_are_explained() {
        let cases = [
            (
                "shwo disks",
                "unknown command \"shwo\" (did you mean \"show\"?); help lists the commands",
            ),
            ("frobnicate", "unknown command \"frobnicate\"; help lists the commands"),
            ("log", "log what? accepted: level"),
            (
                "show disk",
                "cannot show \"disk\" (did you mean \"disks\"?); accepted: interfaces, \
                           disks, volumes, memory, loops, log, config, version",
            ),
            ("set net.0.mtu", "usage: set PATH VALUE"),
            ("set", "usage: set PATH VALUE"),
            ("ping", "usage: ping ADDRESS [COUNT]"),
            ("show log now", "usage: show log [--json]"),
            ("save --json", "usage: save"),
        ];
        for (line, expected) in cases {
            assert_eq!(parse(line).unwrap_err(), expected, "{line}");
        }
    }
}
