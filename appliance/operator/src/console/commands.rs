//! The commands: one table that parsing, help and completion read.

use super::system::{SmcTopic, Topic};
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

    fn optional(self) -> bool {
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

/// Options of lists: a format, and a unit of sizes.
const FORMAT: &str = "[FORMAT] [UNIT]";
const SHOW: &str = "NAME [FORMAT] [UNIT]";

/// All commands.
pub static COMMANDS: &[Command] = &[
    Command::new(&["help"], &[], "this list", Verb::Help),
    Command::new(&["show", "interfaces"], &[], "network interfaces", Verb::Show(Topic::Interfaces)),
    Command::new(&["show", "disks"], &[], "disks", Verb::Show(Topic::Disks)),
    Command::new(
        &["show", "devices"],
        &[],
        "all devices, those that nobody uses among them",
        Verb::Show(Topic::Devices),
    ),
    Command::new(&["show", "volumes"], &[], "volumes", Verb::Show(Topic::Volumes)),
    Command::new(
        &["show", "exports"],
        &[],
        "what is exported, and to whom",
        Verb::Show(Topic::Exports),
    ),
    Command::new(&["show", "memory"], &[], "memory", Verb::Show(Topic::Memory)),
    Command::new(&["show", "loops"], &[], "what the loops do", Verb::Show(Topic::Loops)),
    Command::new(
        &["show", "ntb"],
        &[],
        "bridges to other appliances and hosts",
        Verb::Show(Topic::Ntb),
    ),
    Command::new(
        &["show", "rapidio"],
        &[],
        "RapidIO ports and their networks",
        Verb::Show(Topic::Rapidio),
    ),
    Command::new(
        &["show", "usnic"],
        &[],
        "usNIC: interfaces, with what peers need to know of them, and peers",
        Verb::Show(Topic::Usnic),
    ),
    Command::new(&["show", "linx"], &[], "links to LINX nodes", Verb::Show(Topic::Linx)),
    Command::new(&["show", "log"], &[], "the last log messages", Verb::ShowLog),
    Command::new(&["show", "config"], &[], "the running configuration", Verb::ShowConfig),
    Command::new(
        &["show", "tls"],
        &[],
        "whether HTTP speaks TLS, and the fingerprint of its certificate",
        Verb::Show(Topic::Tls),
    ),
    Command::new(&["show", "version"], &[], "version", Verb::Show(Topic::Version)),
    Command::new(
        &["show", "upgrade"],
        &[],
        "the slots that releases boot from, and which boots",
        Verb::Show(Topic::Upgrade),
    ),
    Command::new(
        &["show", "crash"],
        &[],
        "what was said in panics and exceptions, newest first",
        Verb::Show(Topic::Crash),
    ),
    Command::new(
        &["show", "refused"],
        &[],
        "what was refused last: to whom, why, and what to do",
        Verb::Show(Topic::Refused),
    ),
    Command::new(
        &["show", "smc", "sockets"],
        &[],
        "connections over SMC-R and TCP",
        Verb::Show(Topic::Smc(SmcTopic::Sockets)),
    ),
    Command::new(
        &["show", "smc", "linkgroups"],
        &[],
        "link groups of SMC-R",
        Verb::Show(Topic::Smc(SmcTopic::Linkgroups)),
    ),
    Command::new(
        &["show", "smc", "links"],
        &[],
        "links of SMC-R",
        Verb::Show(Topic::Smc(SmcTopic::Links)),
    ),
    Command::new(
        &["show", "smc", "devices"],
        &[],
        "interfaces that links may use",
        Verb::Show(Topic::Smc(SmcTopic::Devices)),
    ),
    Command::new(
        &["show", "smc", "stats"],
        &[],
        "what SMC-R counted",
        Verb::Show(Topic::Smc(SmcTopic::Stats)),
    ),
    Command::new(
        &["show", "smc", "ueid"],
        &[],
        "enterprises that the appliance belongs to",
        Verb::Show(Topic::Smc(SmcTopic::Ueid)),
    ),
    Command::new(
        &["show", "smc", "rules"],
        &[],
        "rules of the messaging gateway, and their servers",
        Verb::Show(Topic::Smc(SmcTopic::Rules)),
    ),
    Command::new(
        &["set"],
        &[Argument::Path, Argument::Value],
        "change the configuration",
        Verb::Set,
    ),
    Command::new(
        &["unset"],
        &[Argument::Path, Argument::Rest("[force]")],
        "take a key or an entry of a list away",
        Verb::Unset,
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
    Command::new(
        &["volume", "list"],
        &[Argument::Rest(FORMAT)],
        "volumes and where they lie",
        Verb::Manage("volume", "list"),
    ),
    Command::new(
        &["volume", "create"],
        &[Argument::Rest("NAME size=SIZE [disk=N [force]]")],
        "make a volume",
        Verb::Manage("volume", "create"),
    ),
    Command::new(
        &["volume", "grow"],
        &[Argument::Rest("NAME size=SIZE")],
        "give a volume on a disk more space",
        Verb::Manage("volume", "grow"),
    ),
    Command::new(
        &["volume", "delete"],
        &[Argument::Rest("NAME [force]")],
        "remove a volume and what is on it, by `force`",
        Verb::Manage("volume", "delete"),
    ),
    Command::new(
        &["export", "list"],
        &[Argument::Rest(FORMAT)],
        "what clients can open",
        Verb::Manage("export", "list"),
    ),
    Command::new(
        &["export", "add"],
        &[Argument::Rest("NAME [volume=NAME] [ro] [sessions=A,B] [hosts=NET,NET]")],
        "let clients open a volume",
        Verb::Manage("export", "add"),
    ),
    Command::new(
        &["export", "set"],
        &[Argument::Rest("NAME [volume=NAME] [ro] [rw] [sessions=A,B] [hosts=NET,NET]")],
        "change an export",
        Verb::Manage("export", "set"),
    ),
    Command::new(
        &["export", "remove"],
        &[Argument::Rest("NAME")],
        "withdraw an export: nobody can open it any more",
        Verb::Manage("export", "remove"),
    ),
    Command::new(
        &["remote", "list"],
        &[Argument::Rest(FORMAT)],
        "volumes of other servers",
        Verb::Manage("remote", "list"),
    ),
    Command::new(
        &["remote", "add"],
        &[Argument::Rest("NAME sessname=S path=OURS@THEIRS device_path=D [KEY=VALUE]")],
        "map a volume of another server",
        Verb::Manage("remote", "add"),
    ),
    Command::new(
        &["remote", "remap"],
        &[Argument::Rest("NAME")],
        "open it again: to learn its size, or after the server closed it",
        Verb::Manage("remote", "remap"),
    ),
    Command::new(
        &["remote", "read"],
        &[Argument::Rest("NAME [count=N] [size=SIZE] [depth=N]")],
        "read at random places, to see how fast that is",
        Verb::Manage("remote", "read"),
    ),
    Command::new(
        &["remote", "remove"],
        &[Argument::Rest("NAME")],
        "unmap it",
        Verb::Manage("remote", "remove"),
    ),
    Command::new(
        &["mirror", "list"],
        &[Argument::Rest(FORMAT)],
        "mirrors and their members",
        Verb::Manage("mirror", "list"),
    ),
    Command::new(
        &["mirror", "create"],
        &[Argument::Rest("NAME FIRST SECOND force")],
        "make the second volume a copy of the first, and keep it so",
        Verb::Manage("mirror", "create"),
    ),
    Command::new(
        &["mirror", "force"],
        &[Argument::Rest("NAME")],
        "use the one member that can be read, although the other may be newer",
        Verb::Manage("mirror", "force"),
    ),
    Command::new(
        &["mirror", "remove"],
        &[Argument::Rest("NAME [force]")],
        "its members are volumes of their own again",
        Verb::Manage("mirror", "remove"),
    ),
    Command::new(
        &["session", "list"],
        &[Argument::Rest(FORMAT)],
        "sessions of clients",
        Verb::Manage("session", "list"),
    ),
    Command::new(
        &["session", "show"],
        &[Argument::Rest(SHOW)],
        "a session",
        Verb::Manage("session", "show"),
    ),
    Command::new(
        &["session", "disconnect"],
        &[Argument::Rest("NAME")],
        "end all paths of a session",
        Verb::Manage("session", "disconnect"),
    ),
    Command::new(
        &["device", "list"],
        &[Argument::Rest(FORMAT)],
        "devices that clients have open",
        Verb::Manage("device", "list"),
    ),
    Command::new(
        &["device", "show"],
        &[Argument::Rest(SHOW)],
        "a device and who has it open",
        Verb::Manage("device", "show"),
    ),
    Command::new(
        &["device", "close"],
        &[Argument::Rest("NAME [SESSION]")],
        "close a device by force",
        Verb::Manage("device", "close"),
    ),
    Command::new(
        &["path", "list"],
        &[Argument::Rest(FORMAT)],
        "paths of sessions",
        Verb::Manage("path", "list"),
    ),
    Command::new(
        &["path", "show"],
        &[Argument::Rest(SHOW)],
        "a path",
        Verb::Manage("path", "show"),
    ),
    Command::new(
        &["path", "disconnect"],
        &[Argument::Rest("NAME")],
        "end a path",
        Verb::Manage("path", "disconnect"),
    ),
    Command::new(
        &["path", "reset"],
        &[Argument::Rest("NAME")],
        "reset a path's counters",
        Verb::Manage("path", "reset"),
    ),
    Command::new(
        &["ntb", "measure"],
        &[Argument::Rest("[NAME] [SECONDS]")],
        "bandwidth and latency to the other appliance, under qperf's names",
        Verb::Manage("ntb", "measure"),
    ),
    Command::new(
        &["ntb", "reset"],
        &[Argument::Rest("[NAME]")],
        "take the link to the other appliance down; it comes back by itself",
        Verb::Manage("ntb", "reset"),
    ),
    Command::new(
        &["usnic", "ping"],
        &[Argument::Rest("PEER")],
        "whether a peer of usNIC answers small and large PINGs",
        Verb::Manage("usnic", "ping"),
    ),
    Command::new(
        &["usnic", "reset"],
        &[Argument::Rest("PEER")],
        "begin anew with a peer that begins anew",
        Verb::Manage("usnic", "reset"),
    ),
    Command::new(
        &["usnic", "look"],
        &[Argument::Rest("PEER [OFFSET LENGTH]")],
        "CRC-32 of what a peer has PUT",
        Verb::Manage("usnic", "look"),
    ),
    Command::new(
        &["usnic", "put"],
        &[Argument::Rest("PEER ADDRESS OFFSET LENGTH")],
        "PUT a part of what a peer has PUT to an address of the peer's",
        Verb::Manage("usnic", "put"),
    ),
    Command::new(
        &["upgrade", "confirm"],
        &[],
        "what runs on trial counts from now on",
        Verb::Manage("upgrade", "confirm"),
    ),
    Command::new(
        &["upgrade"],
        &[Argument::Rest("FROM [force]")],
        "write a release, from a URL or a disk, into the other slot, and start it on trial",
        Verb::Manage("upgrade", "write"),
    ),
    Command::new(
        &["reboot"],
        &[Argument::Rest("[force]")],
        "restart; with unsaved changes only by `force`",
        Verb::Reboot,
    ),
    Command::new(
        &["poweroff"],
        &[Argument::Rest("[force]")],
        "switch off; with changes that were not saved by `force`",
        Verb::PowerOff,
    ),
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
        Some(Argument::Value | Argument::Rest(_)) => given = split_rest(line, command),
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
    // Those that begin as the line does, for as many words as any of them.
    let alike =
        |count: usize| COMMANDS.iter().filter(move |c| c.words.get(..count) == words.get(..count));
    let Some(known) = (1..=words.len()).rev().find(|&count| alike(count).next().is_some()) else {
        let hint = did_you_mean(words[0], COMMANDS.iter().map(|c| c.words[0]));
        return Err(format!("unknown command {:?}{hint}; help lists the commands", words[0]));
    };
    let mut next: Vec<&str> = alike(known).filter_map(|c| c.words.get(known).copied()).collect();
    next.dedup();
    let (begun, accepted) = (words[..known].join(" "), next.join(", "));
    match words.get(known) {
        None => Err(format!("{begun} what? accepted: {accepted}")),
        Some(word) => {
            let hint = did_you_mean(word, next.into_iter());
            Err(format!("cannot {begun} {word:?}{hint}; accepted: {accepted}"))
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
        let manual = include_str!("../../../../docs/console.md");
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
                           disks, devices, volumes, exports, memory, loops, ntb, rapidio, usnic, linx, log, config, tls, version, upgrade, crash, refused, smc",
            ),
            (
                "show smc link",
                "cannot show smc \"link\" (did you mean \"links\"?); accepted: sockets, \
                 linkgroups, links, devices, stats, ueid, rules",
            ),
            (
                "show smc",
                "show smc what? accepted: sockets, linkgroups, links, devices, stats, ueid, rules",
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
