//! Parses console lines by the table of commands.

use super::command::{Argument, Command, Verb};
use super::commands::COMMANDS;
use crate::config::Role;
use crate::suggestion::did_you_mean;

/// A parsed line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// Action.
    pub verb: Verb,
    /// Given arguments.
    pub arguments: Vec<String>,
    /// Whether the reply is to be JSON.
    pub json: bool,
    /// The role that the command needs.
    pub role: Role,
}

/// Parses a line. None for an empty line. The error is a message for the operator.
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
        // `json` without dashes, as in `list` commands.
        if command.words[0] == "show" && before == command.words.len() + 1 {
            words.pop_if(|last| *last == "json");
        }
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
    Ok(Some(Invocation { verb: command.verb, arguments, json, role: command.role() }))
}

/// The arguments of a command whose last argument is the rest of the line, including spaces.
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
    // Commands that share the longest prefix of words with the line.
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
    use super::super::system::Topic;
    use super::*;
    use crate::log_ring::Filter;

    fn parsed(line: &str) -> (Verb, Vec<String>, bool) {
        let i = parse(line).unwrap().unwrap();
        (i.verb, i.arguments, i.json)
    }

    #[test]
    fn lines_are_parsed() {
        assert_eq!(parse("  ").unwrap(), None);
        assert_eq!(parsed(" show  disks --json "), (Verb::Show(Topic::Disks), vec![], true));
        assert_eq!(parsed("show disks json"), (Verb::Show(Topic::Disks), vec![], true));
        assert_eq!(parsed("show log audit json"), (Verb::ShowLog(Filter::Audit), vec![], true));
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
    fn mistakes_are_explained() {
        let cases = [
            (
                "shwo disks",
                "unknown command \"shwo\" (did you mean \"show\"?); help lists the commands",
            ),
            ("frobnicate", "unknown command \"frobnicate\"; help lists the commands"),
            ("log", "log what? accepted: follow, level"),
            (
                "show disk",
                "cannot show \"disk\" (did you mean \"disks\"?); accepted: interfaces, \
                           disks, devices, volumes, exports, memory, loops, ntb, rapidio, usnic, linx, audit, log, nvme, history, config, tls, dns, time, version, upgrade, crash, refused, smc",
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
            ("ping", "usage: ping ADDRESS [COUNT] [SIZE]"),
            ("show log now", "usage: show log [--json]"),
            ("save --json", "usage: save"),
        ];
        for (line, expected) in cases {
            assert_eq!(parse(line).unwrap_err(), expected, "{line}");
        }
    }
}
