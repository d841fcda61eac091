//! [`System`]: the interface of the console to the appliance.

use super::login::Session;
use super::support::MetricsPlace;
use super::verbs::ObjectVerb;
use crate::audit::Line;
use crate::caller::Caller;
use crate::config::{Document, Problem, Role};
use crate::log_ring::LogRing;
use crate::report::Value;
use core::net::IpAddr;
use core::time::Duration;

/// Topics of `show`, except the log and the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Network interfaces: addresses, link, counters.
    Interfaces,
    /// Disks: size, features, counters.
    Disks,
    /// All devices, including unused ones.
    Devices,
    /// Volumes.
    Volumes,
    /// Exports, and the hosts and sessions that they admit.
    Exports,
    /// Memory: arena, heap.
    Memory,
    /// Poll loops: stages, shares of busy, idle and halted time.
    Loops,
    /// Bridges to other appliances and hosts.
    Ntb,
    /// RapidIO ports and their networks.
    Rapidio,
    /// usNIC: interfaces and peers.
    Usnic,
    /// Links to LINX nodes.
    Linx,
    /// TLS of the HTTP servers.
    Tls,
    /// The DNS client: name servers, and names with their addresses.
    Dns,
    /// The clock.
    Time,
    /// Version and build.
    Version,
    /// The slots that releases boot from.
    Upgrade,
    /// Records of panics and exceptions.
    Crash,
    /// Recent refusals.
    Refused,
    /// SMC-R, and the rules of the messaging gateway.
    Smc(SmcTopic),
}

/// Topics of `show smc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmcTopic {
    /// Connections, as `smcss` shows them.
    Sockets,
    /// Link groups, as `smcr linkgroup` does.
    Linkgroups,
    /// Links, as `smcr linkgroup link-show` does.
    Links,
    /// The interfaces that links may use, as `smcr device` does.
    Devices,
    /// Counters, as `smcr stats` shows them.
    Stats,
    /// UEIDs (enterprises) of the appliance.
    Ueid,
    /// Rules and their servers.
    Rules,
}

impl SmcTopic {
    /// All topics.
    pub const ALL: [SmcTopic; 7] = [
        SmcTopic::Sockets,
        SmcTopic::Linkgroups,
        SmcTopic::Links,
        SmcTopic::Devices,
        SmcTopic::Stats,
        SmcTopic::Ueid,
        SmcTopic::Rules,
    ];

    /// Name in commands.
    pub const fn name(self) -> &'static str {
        match self {
            SmcTopic::Sockets => "sockets",
            SmcTopic::Linkgroups => "linkgroups",
            SmcTopic::Links => "links",
            SmcTopic::Devices => "devices",
            SmcTopic::Stats => "stats",
            SmcTopic::Ueid => "ueid",
            SmcTopic::Rules => "rules",
        }
    }
}

/// Progress of a task such as `save`, `ping` or `rping`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A line to show. The task continues.
    Line(String),
    /// The task has ended: a line to show, or an error with its remedy.
    Done(Result<String, String>),
}

/// Result of [`System::manage`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Managed {
    /// The command is done: output with line ends.
    Told(String),
    /// The command has started a task.
    Started,
}

/// The appliance, as the console sees it. No method blocks: longer work is started as a task, whose progress the
/// console polls. At most one task runs at a time.
pub trait System {
    /// Who gives the commands, for the audit log.
    fn caller(&self) -> Caller {
        Caller::console()
    }

    /// Checks that the caller has a role, for the command `line`.
    fn needs(&mut self, _role: Role, _line: &str) -> Result<(), String> {
        Ok(())
    }

    /// The current report on a topic.
    fn show(&mut self, topic: Topic) -> Value;

    /// At most `count` rows of the report on a topic, from index `from`. None for topics that are always short.
    fn rows(&mut self, topic: Topic, from: usize, count: usize) -> Option<Vec<Value>>;

    /// Seconds since 1970.
    fn unix_seconds(&self) -> u64 {
        0
    }

    /// Appends metrics from a place, until the text has `room` bytes. False at the end.
    fn metrics(&mut self, _from: &mut MetricsPlace, _into: &mut String, _room: usize) -> bool {
        false
    }

    /// Starts the checks of `doctor` that take a moment.
    fn start_doctor(&mut self) {}

    /// The result of `doctor`, in JSON or as text, with its line end. None while a check runs.
    fn poll_doctor(&mut self, _json: bool) -> Option<String> {
        Some(String::new())
    }

    /// The running configuration.
    fn document(&self) -> &Document;

    /// Changes a value of the configuration. Returns when the change takes effect, for the operator.
    fn set(&mut self, path: &str, value: &str) -> Result<String, Vec<Problem>>;

    /// Removes a key or an entry of a list. Returns when the change takes effect, for the operator. An entry in use by
    /// clients needs `force`.
    fn unset(&mut self, path: &str, force: bool) -> Result<String, Vec<Problem>>;

    /// The log.
    fn log(&self) -> &LogRing;

    /// At most `count` lines of the audit log, from index `from`, oldest first.
    fn audit(&self, _from: usize, _count: usize) -> Vec<Line> {
        Vec::new()
    }

    /// Whether the console asks for a login.
    fn asks_for_login(&self) -> bool {
        false
    }

    /// Time without input after which a user at the console is logged out.
    fn idle_logout(&self) -> Option<Duration> {
        None
    }

    /// Checks a name and a token, and logs the result.
    fn log_in(&mut self, _name: &str, _token: &[u8]) -> Option<Session> {
        None
    }

    /// Whether a user of the console still has this role and token.
    fn is_known(&self, _user: &Session) -> bool {
        false
    }

    /// Logs that a user of the console is logged out.
    fn note_logout(&mut self, _user: &Session, _how: &str) {}

    /// Whether the configuration was changed since it was read or saved.
    fn has_unsaved(&self) -> bool;

    /// Starts writing the running configuration to the config disk.
    fn start_save(&mut self) -> Result<(), String>;

    /// Starts sending `count` echo requests, one a second, with `size` bytes of data each.
    fn start_ping(&mut self, address: IpAddr, count: u32, size: u16) -> Result<(), String>;

    /// Starts `count` pings of `size` bytes over RDMA, one after the other.
    fn start_rping(&mut self, address: IpAddr, count: u32, size: usize) -> Result<(), String>;

    /// Progress of the running task.
    fn poll_task(&mut self) -> Option<Progress>;

    /// Cancels the task, if it can be cancelled.
    fn cancel_task(&mut self);

    /// Names of the objects below `path` (`/` is the top). Names of objects with children end in `/`.
    fn list(&mut self, path: &str) -> Result<Vec<String>, String>;

    /// The value of an object.
    fn read(&mut self, path: &str) -> Result<Value, String>;

    /// Writes to an object, as `echo` does to a file of sysfs. Some writes start a task.
    fn write(&mut self, path: &str, value: &str) -> Result<Managed, String>;

    /// Executes a command on objects such as volumes or exports, with its arguments.
    fn manage(&mut self, verb: ObjectVerb, rest: &str) -> Result<Managed, String>;

    /// Reboots the machine. All output was sent.
    fn reboot(&mut self);

    /// Powers the machine off. All output was sent.
    fn power_off(&mut self);
}
