//! Everything that the console can do the API can: a row for each command of the console.

use super::{Route, find};
use crate::console::{COMMANDS, Verb, is_for_programs};
use net::http::Method::{self, Delete, Get, Patch, Post, Put};

/// How a program does what a command of the console does.
#[derive(Clone, Copy, Debug)]
enum By {
    /// A route of its own: method and path below `/api/v1/`.
    Route(Method, &'static str),
    /// `POST /api/v1/commands`.
    Command,
    /// Not at all, for this reason.
    Nothing(&'static str),
}
use By::{Command, Nothing};

/// The commands, by their words.
const ROWS: &[(&str, By)] = &[
    ("help", By::Route(Get, "openapi.json")),
    ("doctor", By::Route(Get, "doctor")),
    ("support", By::Route(Get, "support")),
    ("show interfaces", Command),
    ("show disks", Command),
    ("show devices", Command),
    ("show volumes", Command),
    ("show exports", Command),
    ("show memory", Command),
    ("show loops", Command),
    ("show ntb", Command),
    ("show rapidio", Command),
    ("show usnic", Command),
    ("show linx", Command),
    ("show audit", By::Route(Get, "audit")),
    ("show log audit", By::Route(Get, "log")),
    ("show log errors", By::Route(Get, "log")),
    ("show log", By::Route(Get, "log")),
    ("show nvme connect", Command),
    ("show history", By::Route(Get, "config/history")),
    ("show config", By::Route(Get, "config/running")),
    ("show tls", Command),
    ("show dns", Command),
    ("show time", Command),
    ("show version", Command),
    ("show upgrade", Command),
    ("show crash", Command),
    ("show refused", Command),
    ("show smc sockets", Command),
    ("show smc linkgroups", Command),
    ("show smc links", Command),
    ("show smc devices", Command),
    ("show smc stats", Command),
    ("show smc ueid", Command),
    ("show smc rules", Command),
    ("set", By::Route(Patch, "config/candidate")),
    ("unset", By::Route(Patch, "config/candidate")),
    ("configure set", By::Route(Patch, "config/candidate")),
    ("configure unset", By::Route(Patch, "config/candidate")),
    ("configure paste", By::Route(Put, "config/candidate")),
    ("configure show", By::Route(Get, "config/candidate")),
    ("configure discard", By::Route(Delete, "config/candidate")),
    ("compare", By::Route(Get, "config/compare")),
    ("check", Command),
    ("commit", By::Route(Post, "config/commit")),
    ("confirm", By::Route(Post, "config/confirm")),
    ("rollback", By::Route(Post, "config/rollback/7")),
    ("save", Command),
    ("wipe", Command),
    ("ping", Command),
    ("resolve", Command),
    ("rping", Command),
    ("capture start", Command),
    ("capture stop", Command),
    ("log follow", By::Route(Get, "log")),
    ("log level", Command),
    ("ls", Command),
    ("cat", Command),
    ("write", Command),
    ("volume list", By::Route(Get, "volumes")),
    ("volume show", By::Route(Get, "volumes/a")),
    ("volume create", By::Route(Put, "volumes/a")),
    ("volume grow", Command),
    ("volume delete", Command),
    ("export list", By::Route(Get, "exports")),
    ("export add", By::Route(Put, "exports/a")),
    ("export set", By::Route(Put, "exports/a")),
    ("export remove", By::Route(Delete, "exports/a")),
    ("remote list", By::Route(Get, "remotes")),
    ("remote add", By::Route(Put, "remotes/a")),
    ("remote remap", Command),
    ("remote read", Command),
    ("remote remove", By::Route(Delete, "remotes/a")),
    ("mirror list", By::Route(Get, "mirrors")),
    ("mirror create", Command),
    ("mirror force", Command),
    ("mirror grow", Command),
    ("mirror detach", Command),
    ("mirror attach", Command),
    ("mirror remove", By::Route(Delete, "mirrors/a")),
    ("session list", Command),
    ("session show", Command),
    ("session disconnect", Command),
    ("device list", Command),
    ("device show", Command),
    ("device close", Command),
    ("path list", Command),
    ("path show", Command),
    ("path disconnect", Command),
    ("path reset", Command),
    ("ntb measure", Command),
    ("ntb reset", Command),
    ("usnic ping", Command),
    ("usnic reset", Command),
    ("usnic look", Command),
    ("usnic put", Command),
    ("nvme list", Command),
    ("nvme show", Command),
    ("nvme hosts", Command),
    ("nvme check", Command),
    ("nvme ana", Command),
    ("upgrade confirm", Command),
    ("upgrade", Command),
    ("logout", Nothing("a program has no session: it sends its token or certificate each time")),
    ("reboot", Command),
    ("poweroff", Command),
];

#[test]
fn everything_that_the_console_can_do_the_api_can() {
    for command in COMMANDS {
        let words = command.words.join(" ");
        let rows: Vec<By> =
            ROWS.iter().filter(|(row, _)| *row == words).map(|(_, by)| *by).collect();
        let [by] = rows[..] else {
            panic!("`{words}`: {} rows: how does a program do this?", rows.len())
        };
        match by {
            By::Route(method, path) => {
                let found: Result<(&Route, _), _> = find(method, &format!("/api/v1/{path}"));
                assert!(found.is_ok(), "`{words}`: {method:?} {path} has no route");
            }
            // A program cannot end such a command, or is asked for more.
            Command => assert!(is_for_programs(command.verb), "`{words}`: commands refuse it"),
            Nothing(why) => {
                assert!(!is_for_programs(command.verb) && !why.is_empty(), "`{words}`");
                assert_eq!(command.verb, Verb::LogOut, "`{words}` needs a counterpart");
            }
        }
    }
    let known = |words: &str| COMMANDS.iter().any(|command| command.words.join(" ") == words);
    for (words, _) in ROWS {
        assert!(known(words), "`{words}` is no command of the console");
    }
}
