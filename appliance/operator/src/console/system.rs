//! [`System`]: the interface of the console to the appliance.

use crate::config::{Document, Problem};
use crate::log_ring::LogRing;
use crate::report::Value;
use core::net::IpAddr;

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
    /// The current report on a topic.
    fn show(&mut self, topic: Topic) -> Value;

    /// At most `count` rows of the report on a topic, from index `from`. None for topics that are always short.
    fn rows(&mut self, topic: Topic, from: usize, count: usize) -> Option<Vec<Value>>;

    /// The running configuration.
    fn document(&self) -> &Document;

    /// Changes a value of the configuration. Returns when the change takes effect, for the operator.
    fn set(&mut self, path: &str, value: &str) -> Result<String, Vec<Problem>>;

    /// Removes a key or an entry of a list. Returns when the change takes effect, for the operator. An entry in use by
    /// clients needs `force`.
    fn unset(&mut self, path: &str, force: bool) -> Result<String, Vec<Problem>>;

    /// The log.
    fn log(&self) -> &LogRing;

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

    /// Writes to an object, as `echo` does to a file of sysfs.
    fn write(&mut self, path: &str, value: &str) -> Result<(), String>;

    /// Executes a command on objects such as volumes or exports: the kind of object, the command, and its arguments.
    fn manage(&mut self, what: &str, order: &str, rest: &str) -> Result<Managed, String>;

    /// Reboots the machine. All output was sent.
    fn reboot(&mut self);

    /// Powers the machine off. All output was sent.
    fn power_off(&mut self);
}
