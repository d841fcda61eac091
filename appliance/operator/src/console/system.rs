//! What the console asks of the appliance.

use crate::config::{Document, Problem};
use crate::log_ring::LogRing;
use crate::report::Value;
use core::net::IpAddr;

/// What `show` can show of the appliance itself (log and configuration come from elsewhere).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Network interfaces: addresses, link, counters.
    Interfaces,
    /// Disks: size, features, counters.
    Disks,
    /// All devices, those that nobody uses among them.
    Devices,
    /// Volumes.
    Volumes,
    /// What is exported, and to whom.
    Exports,
    /// Memory: arena, heap.
    Memory,
    /// Poll loops: stages, shares of busy, idle and halted time.
    Loops,
    /// The bridge to another appliance.
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
    /// What was said in panics and exceptions.
    Crash,
    /// What was refused last.
    Refused,
    /// SMC-R, and the rules of the messaging gateway.
    Smc(SmcTopic),
}

/// What `show smc` can show.
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
    /// What was counted, as `smcr stats` shows it.
    Stats,
    /// The enterprises that the appliance belongs to.
    Ueid,
    /// Rules and their servers.
    Rules,
}

impl SmcTopic {
    /// All of them.
    pub const ALL: [SmcTopic; 7] = [
        SmcTopic::Sockets,
        SmcTopic::Linkgroups,
        SmcTopic::Links,
        SmcTopic::Devices,
        SmcTopic::Stats,
        SmcTopic::Ueid,
        SmcTopic::Rules,
    ];

    /// Its word.
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

/// News of a task that takes a while (`save`, `ping`, `rping`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A line to show; there is more to come.
    Line(String),
    /// It is over; a line to show, or what went wrong and what to do.
    Done(Result<String, String>),
}

/// What came of an order to [`System::manage`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Managed {
    /// It is done; what to show, with line ends.
    Told(String),
    /// It takes a while: a task runs.
    Started,
}

/// The appliance, as the console sees it. Nothing here blocks: what takes a while is started, then
/// asked for its progress at each poll. At most one task runs at a time.
pub trait System {
    /// What `topic` is about, as it is now.
    fn show(&mut self, topic: Topic) -> Value;

    /// Rows of the same, from one on, so many; None where there are never many.
    fn rows(&mut self, topic: Topic, from: usize, count: usize) -> Option<Vec<Value>>;

    /// The running configuration.
    fn document(&self) -> &Document;

    /// Changes a value of the configuration; says from when on it counts.
    fn set(&mut self, path: &str, value: &str) -> Result<String, Vec<Problem>>;

    /// Takes a key or an entry of a list away; says from when on that counts. What clients would lose goes by
    /// `force` only.
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

    /// News of the task that was started.
    fn poll_task(&mut self) -> Option<Progress>;

    /// Ends the task, if it can be ended.
    fn cancel_task(&mut self);

    /// Names of the objects below `path` (`/` is the top); those with objects below end in `/`.
    fn list(&mut self, path: &str) -> Result<Vec<String>, String>;

    /// What an object holds.
    fn read(&mut self, path: &str) -> Result<Value, String>;

    /// Writes to an object, as `echo` does to a file of sysfs.
    fn write(&mut self, path: &str, value: &str) -> Result<(), String>;

    /// Sees to volumes, exports, sessions, devices or paths: `what`, the order, and the words behind
    /// it.
    fn manage(&mut self, what: &str, order: &str, rest: &str) -> Result<Managed, String>;

    /// Starts the machine anew. The last output was sent.
    fn reboot(&mut self);

    /// Switches the machine off. The last output was sent.
    fn power_off(&mut self);
}
