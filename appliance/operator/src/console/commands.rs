//! The table of commands, for parsing, help and completion.

use super::command::{Argument, Command, Verb};
use super::system::{SmcTopic, Topic};
use crate::log_ring::Filter;

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
        "all devices, including unused ones",
        Verb::Show(Topic::Devices),
    ),
    Command::new(&["show", "volumes"], &[], "volumes", Verb::Show(Topic::Volumes)),
    Command::new(
        &["show", "exports"],
        &[],
        "exports and the hosts and sessions that they admit",
        Verb::Show(Topic::Exports),
    ),
    Command::new(&["show", "memory"], &[], "memory", Verb::Show(Topic::Memory)),
    Command::new(&["show", "loops"], &[], "poll loops and their load", Verb::Show(Topic::Loops)),
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
        "usNIC interfaces with the modex for their peers, and peers",
        Verb::Show(Topic::Usnic),
    ),
    Command::new(&["show", "linx"], &[], "links to LINX nodes", Verb::Show(Topic::Linx)),
    Command::new(
        &["show", "log", "audit"],
        &[],
        "log messages about operators' actions",
        Verb::ShowLog(Filter::Audit),
    ),
    Command::new(
        &["show", "log", "errors"],
        &[],
        "log messages of errors, warnings and refusals",
        Verb::ShowLog(Filter::Errors),
    ),
    Command::new(&["show", "log"], &[], "the last log messages", Verb::ShowLog(Filter::All)),
    Command::new(&["show", "config"], &[], "the running configuration", Verb::ShowConfig),
    Command::new(
        &["show", "tls"],
        &[],
        "TLS of the HTTP server and its certificate's fingerprint",
        Verb::Show(Topic::Tls),
    ),
    Command::new(&["show", "time"], &[], "the wall clock and its source", Verb::Show(Topic::Time)),
    Command::new(&["show", "version"], &[], "version", Verb::Show(Topic::Version)),
    Command::new(
        &["show", "upgrade"],
        &[],
        "release slots, and which one boots next",
        Verb::Show(Topic::Upgrade),
    ),
    Command::new(
        &["show", "crash"],
        &[],
        "records of panics and exceptions, newest first",
        Verb::Show(Topic::Crash),
    ),
    Command::new(
        &["show", "refused"],
        &[],
        "recent refusals with peer, reason and remedy",
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
        "counters of SMC-R",
        Verb::Show(Topic::Smc(SmcTopic::Stats)),
    ),
    Command::new(
        &["show", "smc", "ueid"],
        &[],
        "UEIDs (enterprises) of the appliance",
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
        "remove a key or an entry of a list",
        Verb::Unset,
    ),
    Command::new(&["save"], &[], "write the configuration to the config disk", Verb::Save),
    Command::new(
        &["ping"],
        &[Argument::Address, Argument::Count, Argument::Size],
        "send echo requests with SIZE bytes of data, without fragmentation",
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
        "capture the last frames for `/capture.pcapng`",
        Verb::CaptureStart,
    ),
    Command::new(
        &["capture", "stop"],
        &[],
        "stop the capture; its frames are retained",
        Verb::CaptureStop,
    ),
    Command::new(
        &["log", "level"],
        &[Argument::Level],
        "log messages of this level and above",
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
        "volumes with size, disk and state",
        Verb::Manage("volume", "list"),
    ),
    Command::new(
        &["volume", "show"],
        &[Argument::Rest(SHOW)],
        "one volume",
        Verb::Manage("volume", "show"),
    ),
    Command::new(
        &["volume", "create"],
        &[Argument::Rest("NAME size=SIZE [disk=N [force]]")],
        "create a volume",
        Verb::Manage("volume", "create"),
    ),
    Command::new(
        &["volume", "grow"],
        &[Argument::Rest("NAME size=SIZE")],
        "grow a volume on a disk",
        Verb::Manage("volume", "grow"),
    ),
    Command::new(
        &["volume", "delete"],
        &[Argument::Rest("NAME [force]")],
        "delete a volume and its data; needs `force`",
        Verb::Manage("volume", "delete"),
    ),
    Command::new(
        &["export", "list"],
        &[Argument::Rest(FORMAT)],
        "exports that clients can open",
        Verb::Manage("export", "list"),
    ),
    Command::new(
        &["export", "add"],
        &[Argument::Rest("NAME [volume=NAME] [ro] [sessions=A,B] [hosts=NET,NET]")],
        "export a volume to clients",
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
        "withdraw an export: clients can no longer open it",
        Verb::Manage("export", "remove"),
    ),
    Command::new(
        &["remote", "list"],
        &[Argument::Rest(FORMAT)],
        "remote volumes",
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
        "reopen a remote volume, after a resize or after the server closed it",
        Verb::Manage("remote", "remap"),
    ),
    Command::new(
        &["remote", "read"],
        &[Argument::Rest("NAME [count=N] [size=SIZE] [depth=N]")],
        "benchmark random reads of a remote volume or mirror",
        Verb::Manage("remote", "read"),
    ),
    Command::new(
        &["remote", "remove"],
        &[Argument::Rest("NAME")],
        "unmap a remote volume",
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
        "mirror the first volume to the second, which is overwritten",
        Verb::Manage("mirror", "create"),
    ),
    Command::new(
        &["mirror", "force"],
        &[Argument::Rest("NAME")],
        "run on the only readable member, although the other may be newer",
        Verb::Manage("mirror", "force"),
    ),
    Command::new(
        &["mirror", "grow"],
        &[Argument::Rest("NAME")],
        "grow the mirror after both members have grown",
        Verb::Manage("mirror", "grow"),
    ),
    Command::new(
        &["mirror", "detach"],
        &[Argument::Rest("NAME MEMBER force")],
        "take a member out of use, even while clients have the mirror open",
        Verb::Manage("mirror", "detach"),
    ),
    Command::new(
        &["mirror", "attach"],
        &[Argument::Rest("NAME MEMBER")],
        "take a detached member back and resync it",
        Verb::Manage("mirror", "attach"),
    ),
    Command::new(
        &["mirror", "remove"],
        &[Argument::Rest("NAME [force]")],
        "dissolve the mirror; its members stay as volumes",
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
        "one session",
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
        "one device, and the sessions that have it open",
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
        "one path",
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
        "measure bandwidth and latency to the other appliance, named as in qperf",
        Verb::Manage("ntb", "measure"),
    ),
    Command::new(
        &["ntb", "reset"],
        &[Argument::Rest("[NAME]")],
        "reset the link to the other appliance",
        Verb::Manage("ntb", "reset"),
    ),
    Command::new(
        &["usnic", "ping"],
        &[Argument::Rest("PEER")],
        "send small and large PINGs to a usNIC peer",
        Verb::Manage("usnic", "ping"),
    ),
    Command::new(
        &["usnic", "reset"],
        &[Argument::Rest("PEER")],
        "reset the connection to a usNIC peer that restarts",
        Verb::Manage("usnic", "reset"),
    ),
    Command::new(
        &["usnic", "look"],
        &[Argument::Rest("PEER [OFFSET LENGTH]")],
        "CRC-32 of the data that a peer has PUT",
        Verb::Manage("usnic", "look"),
    ),
    Command::new(
        &["usnic", "put"],
        &[Argument::Rest("PEER ADDRESS OFFSET LENGTH")],
        "PUT a part of the data that a peer has PUT to an address of that peer",
        Verb::Manage("usnic", "put"),
    ),
    Command::new(
        &["upgrade", "confirm"],
        &[],
        "keep the running release, which is on trial",
        Verb::Manage("upgrade", "confirm"),
    ),
    Command::new(
        &["upgrade"],
        &[Argument::Rest("FROM [force]")],
        "write a release from a URL or a disk to the other slot, and boot it on trial",
        Verb::Manage("upgrade", "write"),
    ),
    Command::new(
        &["reboot"],
        &[Argument::Rest("[force]")],
        "reboot; unsaved changes need `force`",
        Verb::Reboot,
    ),
    Command::new(
        &["poweroff"],
        &[Argument::Rest("[force]")],
        "power off; unsaved changes need `force`",
        Verb::PowerOff,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_lists_every_command() {
        let manual = include_str!("../../../../docs/console.md");
        for command in COMMANDS {
            let line = format!("| `{}` | {}", command.usage(), command.about);
            assert!(manual.contains(&line), "{line}");
        }
    }
}
