//! The table of commands, for parsing, help and completion.

use super::command::{Argument, Command, Verb};
use super::system::{SmcTopic, Topic};
use super::verbs::ObjectVerb::{
    self, Configure, Device, Export, Mirror, Name, Ntb, Nvme, Path, Remote, Session, Upgrade,
    Usnic, Volume,
};
use super::verbs::{
    ConfigureVerb, DeviceVerb, ExportVerb, MirrorVerb, NameVerb, NtbVerb, NvmeVerb, PathVerb,
    RemoteVerb, SessionVerb, UpgradeVerb, UsnicVerb, VolumeVerb,
};
use crate::log_ring::Filter;

/// Options of lists: a format, and a unit of sizes.
const FORMAT: &str = "[FORMAT] [UNIT]";
const SHOW: &str = "NAME [FORMAT] [UNIT]";

/// All commands.
pub static COMMANDS: &[Command] = &[
    Command::new(&["help"], &[], "this list", Verb::Help),
    Command::new(&["doctor"], &[], "what is wrong, why, and what to do", Verb::Doctor),
    Command::new(&["support"], &[], "a tar file of all reports, in base64", Verb::Support),
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
    Command::new(
        &["show", "linx"],
        &[Argument::Name],
        "links to LINX nodes, or all about one",
        Verb::ShowLinx,
    ),
    Command::new(&["show", "audit"], &[], "audit log, also of earlier boots", Verb::ShowAudit),
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
    Command::new(
        &["show", "nvme", "connect"],
        &[Argument::Rest("NQN")],
        "the commands with which a Linux host connects to an NVMe subsystem",
        Verb::Manage(Nvme(NvmeVerb::Connect)),
    ),
    Command::new(
        &["show", "history"],
        &[],
        "revisions of the running configuration, newest first",
        Verb::Manage(Configure(ConfigureVerb::History)),
    ),
    Command::new(&["show", "config"], &[], "the running configuration", Verb::ShowConfig),
    Command::new(
        &["show", "tls"],
        &[],
        "TLS of the HTTP server and its certificate's fingerprint",
        Verb::Show(Topic::Tls),
    ),
    Command::new(
        &["show", "dns"],
        &[],
        "name servers, and names with their addresses",
        Verb::Show(Topic::Dns),
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
    Command::new(
        &["configure", "set"],
        &[Argument::Rest("PATH VALUE")],
        "change a key of the candidate",
        Verb::Manage(Configure(ConfigureVerb::Set)),
    ),
    Command::new(
        &["configure", "unset"],
        &[Argument::Rest("PATH")],
        "remove a key or an entry of a list from the candidate",
        Verb::Manage(Configure(ConfigureVerb::Unset)),
    ),
    Command::new(
        &["configure", "paste"],
        &[],
        "enter a whole document as the candidate, up to a line with a dot",
        Verb::Paste,
    ),
    Command::new(
        &["configure", "show"],
        &[],
        "the candidate as a document",
        Verb::Manage(Configure(ConfigureVerb::Show)),
    ),
    Command::new(
        &["configure", "discard"],
        &[],
        "drop the candidate",
        Verb::Manage(Configure(ConfigureVerb::Discard)),
    ),
    Command::new(
        &["compare"],
        &[Argument::Rest("[REVISION]")],
        "what the candidate changes, or what has changed since a revision",
        Verb::Manage(Configure(ConfigureVerb::Compare)),
    ),
    Command::new(
        &["check"],
        &[],
        "whether the candidate can be committed and can start, and whom it cuts off",
        Verb::Manage(Configure(ConfigureVerb::Check)),
    ),
    Command::new(
        &["commit"],
        &[Argument::Rest("[confirmed MINUTES [reboot]] [comment TEXT] [--yes]")],
        "put the candidate in force, or try it until `confirm`",
        Verb::Manage(Configure(ConfigureVerb::Commit)),
    ),
    Command::new(
        &["confirm"],
        &[],
        "keep what was committed with `confirmed`",
        Verb::Manage(Configure(ConfigureVerb::Confirm)),
    ),
    Command::new(
        &["rollback"],
        &[Argument::Rest("REVISION [confirmed MINUTES] [comment TEXT] [--yes]")],
        "return to a revision of `show history`",
        Verb::Manage(Configure(ConfigureVerb::Rollback)),
    ),
    Command::new(&["save"], &[], "write the configuration to the config disk", Verb::Save),
    Command::new(
        &["wipe"],
        &[Argument::Rest("[DISK] --yes NAME")],
        "erase the config disk NAME, or the table of volumes of DISK",
        Verb::Manage(ObjectVerb::Wipe),
    ),
    Command::new(
        &["ping"],
        &[Argument::Address, Argument::Count, Argument::Size],
        "send echo requests with SIZE bytes of data, without fragmentation",
        Verb::Ping,
    ),
    Command::new(
        &["resolve"],
        &[Argument::Rest("NAME")],
        "the addresses of a name",
        Verb::Manage(Name(NameVerb::Resolve)),
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
        &["log", "follow"],
        &[Argument::Rest("[KIND]")],
        "messages as they come, all or `audit` or `errors`, until Ctrl-C",
        Verb::LogFollow,
    ),
    Command::new(
        &["log", "level"],
        &[Argument::Subject, Argument::Level],
        "log messages of this level and above; of one subject: also `default`",
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
        Verb::Manage(Volume(VolumeVerb::List)),
    ),
    Command::new(
        &["volume", "show"],
        &[Argument::Rest(SHOW)],
        "one volume",
        Verb::Manage(Volume(VolumeVerb::Show)),
    ),
    Command::new(
        &["volume", "create"],
        &[Argument::Rest("NAME size=SIZE [disk=N [force]]")],
        "create a volume",
        Verb::Manage(Volume(VolumeVerb::Create)),
    ),
    Command::new(
        &["volume", "grow"],
        &[Argument::Rest("NAME size=SIZE")],
        "grow a volume on a disk",
        Verb::Manage(Volume(VolumeVerb::Grow)),
    ),
    Command::new(
        &["volume", "delete"],
        &[Argument::Rest("NAME [force]")],
        "delete a volume and its data; needs `force`",
        Verb::Manage(Volume(VolumeVerb::Delete)),
    ),
    Command::new(
        &["export", "list"],
        &[Argument::Rest(FORMAT)],
        "exports that clients can open",
        Verb::Manage(Export(ExportVerb::List)),
    ),
    Command::new(
        &["export", "add"],
        &[Argument::Rest("NAME [volume=NAME] [ro] [sessions=A,B] [hosts=NET,NET] [LIMIT=N]")],
        "export a volume to clients",
        Verb::Manage(Export(ExportVerb::Add)),
    ),
    Command::new(
        &["export", "set"],
        &[Argument::Rest("NAME [volume=NAME] [ro] [rw] [sessions=A,B] [hosts=NET,NET] [LIMIT=N]")],
        "change an export",
        Verb::Manage(Export(ExportVerb::Set)),
    ),
    Command::new(
        &["export", "remove"],
        &[Argument::Rest("NAME")],
        "withdraw an export: clients can no longer open it",
        Verb::Manage(Export(ExportVerb::Remove)),
    ),
    Command::new(
        &["remote", "list"],
        &[Argument::Rest(FORMAT)],
        "remote volumes",
        Verb::Manage(Remote(RemoteVerb::List)),
    ),
    Command::new(
        &["remote", "add"],
        &[Argument::Rest("NAME sessname=S path=OURS@THEIRS device_path=D [KEY=VALUE]")],
        "map a volume of another server; over NBD: `NAME kind=nbd address=SERVER`; over NVMe/TCP: \
         `NAME kind=nvme-tcp address=A,B nqn=N host_nqn=H`",
        Verb::Manage(Remote(RemoteVerb::Add)),
    ),
    Command::new(
        &["remote", "remap"],
        &[Argument::Rest("NAME")],
        "reopen a remote volume, after a resize or after the server closed it",
        Verb::Manage(Remote(RemoteVerb::Remap)),
    ),
    Command::new(
        &["remote", "read"],
        &[Argument::Rest("NAME [count=N] [size=SIZE] [depth=N]")],
        "benchmark random reads of a remote volume or mirror",
        Verb::Manage(Remote(RemoteVerb::Read)),
    ),
    Command::new(
        &["remote", "remove"],
        &[Argument::Rest("NAME")],
        "unmap a remote volume",
        Verb::Manage(Remote(RemoteVerb::Remove)),
    ),
    Command::new(
        &["mirror", "list"],
        &[Argument::Rest(FORMAT)],
        "mirrors and their members",
        Verb::Manage(Mirror(MirrorVerb::List)),
    ),
    Command::new(
        &["mirror", "create"],
        &[Argument::Rest("NAME FIRST SECOND force")],
        "mirror the first volume to the second, which is overwritten",
        Verb::Manage(Mirror(MirrorVerb::Create)),
    ),
    Command::new(
        &["mirror", "force"],
        &[Argument::Rest("NAME")],
        "run on the only readable member, although the other may be newer",
        Verb::Manage(Mirror(MirrorVerb::Force)),
    ),
    Command::new(
        &["mirror", "grow"],
        &[Argument::Rest("NAME")],
        "grow the mirror after both members have grown",
        Verb::Manage(Mirror(MirrorVerb::Grow)),
    ),
    Command::new(
        &["mirror", "detach"],
        &[Argument::Rest("NAME MEMBER force")],
        "take a member out of use, even while clients have the mirror open",
        Verb::Manage(Mirror(MirrorVerb::Detach)),
    ),
    Command::new(
        &["mirror", "attach"],
        &[Argument::Rest("NAME MEMBER")],
        "take a detached member back and resync it",
        Verb::Manage(Mirror(MirrorVerb::Attach)),
    ),
    Command::new(
        &["mirror", "remove"],
        &[Argument::Rest("NAME [force]")],
        "dissolve the mirror; its members stay as volumes",
        Verb::Manage(Mirror(MirrorVerb::Remove)),
    ),
    Command::new(
        &["session", "list"],
        &[Argument::Rest(FORMAT)],
        "sessions of clients",
        Verb::Manage(Session(SessionVerb::List)),
    ),
    Command::new(
        &["session", "show"],
        &[Argument::Rest(SHOW)],
        "one session",
        Verb::Manage(Session(SessionVerb::Show)),
    ),
    Command::new(
        &["session", "disconnect"],
        &[Argument::Rest("NAME")],
        "end all paths of a session",
        Verb::Manage(Session(SessionVerb::Disconnect)),
    ),
    Command::new(
        &["device", "list"],
        &[Argument::Rest(FORMAT)],
        "devices that clients have open",
        Verb::Manage(Device(DeviceVerb::List)),
    ),
    Command::new(
        &["device", "show"],
        &[Argument::Rest(SHOW)],
        "one device, and the sessions that have it open",
        Verb::Manage(Device(DeviceVerb::Show)),
    ),
    Command::new(
        &["device", "close"],
        &[Argument::Rest("NAME [SESSION]")],
        "close a device by force",
        Verb::Manage(Device(DeviceVerb::Close)),
    ),
    Command::new(
        &["path", "list"],
        &[Argument::Rest(FORMAT)],
        "paths of sessions",
        Verb::Manage(Path(PathVerb::List)),
    ),
    Command::new(
        &["path", "show"],
        &[Argument::Rest(SHOW)],
        "one path",
        Verb::Manage(Path(PathVerb::Show)),
    ),
    Command::new(
        &["path", "disconnect"],
        &[Argument::Rest("NAME")],
        "end a path",
        Verb::Manage(Path(PathVerb::Disconnect)),
    ),
    Command::new(
        &["path", "reset"],
        &[Argument::Rest("NAME")],
        "reset a path's counters",
        Verb::Manage(Path(PathVerb::Reset)),
    ),
    Command::new(
        &["ntb", "measure"],
        &[Argument::Rest("[NAME] [SECONDS]")],
        "measure bandwidth and latency to the other appliance, named as in qperf",
        Verb::Manage(Ntb(NtbVerb::Measure)),
    ),
    Command::new(
        &["ntb", "reset"],
        &[Argument::Rest("[NAME]")],
        "reset the link to the other appliance",
        Verb::Manage(Ntb(NtbVerb::Reset)),
    ),
    Command::new(
        &["usnic", "ping"],
        &[Argument::Rest("PEER")],
        "send small and large PINGs to a usNIC peer",
        Verb::Manage(Usnic(UsnicVerb::Ping)),
    ),
    Command::new(
        &["usnic", "reset"],
        &[Argument::Rest("PEER")],
        "reset the connection to a usNIC peer that restarts",
        Verb::Manage(Usnic(UsnicVerb::Reset)),
    ),
    Command::new(
        &["usnic", "look"],
        &[Argument::Rest("PEER [OFFSET LENGTH]")],
        "CRC-32 of the data that a peer has PUT",
        Verb::Manage(Usnic(UsnicVerb::Look)),
    ),
    Command::new(
        &["usnic", "put"],
        &[Argument::Rest("PEER ADDRESS OFFSET LENGTH")],
        "PUT a part of the data that a peer has PUT to an address of that peer",
        Verb::Manage(Usnic(UsnicVerb::Put)),
    ),
    Command::new(
        &["nvme", "list"],
        &[Argument::Rest(FORMAT)],
        "NVMe subsystems and their namespaces",
        Verb::Manage(Nvme(NvmeVerb::List)),
    ),
    Command::new(
        &["nvme", "show"],
        &[Argument::Rest("NQN")],
        "an NVMe subsystem with the hosts that it admits",
        Verb::Manage(Nvme(NvmeVerb::Show)),
    ),
    Command::new(
        &["nvme", "hosts"],
        &[Argument::Rest(FORMAT)],
        "connected NVMe hosts",
        Verb::Manage(Nvme(NvmeVerb::Hosts)),
    ),
    Command::new(
        &["nvme", "check"],
        &[Argument::Rest("HOSTNQN [ADDRESS]")],
        "whether an NVMe host would be admitted, and if not, why",
        Verb::Manage(Nvme(NvmeVerb::Check)),
    ),
    Command::new(
        &["nvme", "ana"],
        &[Argument::Rest("GROUP STATE")],
        "set the state of an ANA group: optimized, non-optimized, inaccessible, persistent-loss, change",
        Verb::Manage(Nvme(NvmeVerb::Ana)),
    ),
    Command::new(
        &["upgrade", "confirm"],
        &[],
        "keep the running release, which is on trial",
        Verb::Manage(Upgrade(UpgradeVerb::Confirm)),
    ),
    Command::new(
        &["upgrade"],
        &[Argument::Rest("FROM [force]")],
        "write a release from a URL or a disk to the other slot, and boot it on trial",
        Verb::Manage(Upgrade(UpgradeVerb::Write)),
    ),
    Command::new(&["logout"], &[], "end the session at the console", Verb::LogOut),
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

impl ObjectVerb {
    /// Words of the command.
    pub fn words(self) -> &'static [&'static str] {
        let command = COMMANDS.iter().find(|command| command.verb == Verb::Manage(self));
        command.map_or(&[], |command| command.words)
    }
}

#[cfg(test)]
#[path = "commands_tests.rs"]
mod tests;
