//! [`Levels`]: the least severe level that is logged, and other levels for single subjects.
//!
//! A subject is a part of the program. A message belongs to it if a module on the path of the message has one of its
//! names. Without levels for subjects a message costs one load more than before.

use super::AUDIT;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use log::{LevelFilter, Metadata};

/// Names of subjects, and of their modules.
const SUBJECTS: [(&str, &[&str]); 18] = [
    ("bridge", &["bridge", "ntb", "ntrdma"]),
    ("config", &["config", "configure", "configuration", "leaving", "revisions", "stages"]),
    ("crash", &["crash", "crash_records"]),
    ("disk", &["disk_pool", "disk_queues", "disks", "known_disks"]),
    ("http", &["http", "web"]),
    ("linx", &["linx"]),
    ("machine", &["bringup", "platform", "watchdog"]),
    ("names", &["names"]),
    ("network", &["cards", "network", "port_assignment", "ports", "tagged_port", "udp_engines"]),
    ("nvme", &["nvme"]),
    ("rapidio", &["rapidio"]),
    ("remote", &["remote_storage"]),
    ("smc", &["smc"]),
    ("storage", &["queue_depth", "serve", "storage", "storage_cores", "volumes"]),
    ("syslog", &["syslog"]),
    ("time", &["time"]),
    ("tls", &["tls"]),
    ("upgrade", &["upgrade"]),
];
const _: () = assert!(SUBJECTS.len() == COUNT);
const COUNT: usize = 18;

/// Marks a level that is not set.
const UNSET: u8 = u8::MAX;

/// A subject, as an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject(usize);

impl Subject {
    /// Names of all subjects, in alphabetical order.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SUBJECTS.iter().map(|(name, _)| *name)
    }

    /// The subject with a name.
    pub fn named(name: &str) -> Option<Subject> {
        Self::names().position(|other| other == name).map(Subject)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        SUBJECTS[self.0].0
    }

    /// The subject of a message, by the path of its module: the innermost module with a name of a subject decides.
    fn of(target: &str) -> Option<Subject> {
        target.rsplit("::").find_map(|module| {
            SUBJECTS.iter().position(|(_, modules)| modules.contains(&module)).map(Subject)
        })
    }
}

/// Levels of the log.
#[derive(Debug)]
pub struct Levels {
    base: AtomicU8,
    /// Whether a subject has a level of its own.
    any: AtomicBool,
    of_subjects: [AtomicU8; COUNT],
}

/// Levels of the program's log.
pub(super) static LEVELS: Levels = Levels::new();

/// Sets the levels of the program's log: of all messages, and of subjects.
pub fn set_levels(base: LevelFilter, of_subjects: &[(Subject, LevelFilter)]) {
    LEVELS.set(base, of_subjects);
    let most = of_subjects.iter().map(|(_, level)| *level).max();
    // The macros drop messages above it before they call the logger.
    log::set_max_level(most.unwrap_or(base).max(base));
}

fn level(number: u8) -> Option<LevelFilter> {
    LevelFilter::iter().nth(number.into())
}

impl Levels {
    pub(super) const fn new() -> Levels {
        Levels {
            base: AtomicU8::new(UNSET),
            any: AtomicBool::new(false),
            of_subjects: [const { AtomicU8::new(UNSET) }; COUNT],
        }
    }

    pub(super) fn set(&self, base: LevelFilter, of_subjects: &[(Subject, LevelFilter)]) {
        self.base.store(base as u8, Ordering::Relaxed);
        for (number, place) in self.of_subjects.iter().enumerate() {
            let set = of_subjects.iter().rfind(|(subject, _)| subject.0 == number);
            place.store(set.map_or(UNSET, |(_, level)| *level as u8), Ordering::Relaxed);
        }
        self.any.store(!of_subjects.is_empty(), Ordering::Relaxed);
    }

    /// The level of messages without a level of their subject.
    pub(super) fn base(&self) -> LevelFilter {
        level(self.base.load(Ordering::Relaxed)).unwrap_or_else(log::max_level)
    }

    /// Whether a message is logged. One about an operator's action always is.
    pub(super) fn takes(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == AUDIT || metadata.level() <= self.of(metadata.target())
    }

    /// The level of messages of a module.
    fn of(&self, target: &str) -> LevelFilter {
        let set = || {
            let Subject(number) = Subject::of(target)?;
            level(self.of_subjects[number].load(Ordering::Relaxed))
        };
        let any = self.any.load(Ordering::Relaxed);
        any.then(set).flatten().unwrap_or_else(|| self.base())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subject_of_a_message_is_its_innermost_module_with_a_name() {
        let name = |target| Subject::of(target).map(Subject::name);
        for (target, expected) in [
            ("appliance::gateway::smc::rules", Some("smc")),
            ("appliance::gateway::remote_storage::sessions", Some("remote")),
            ("appliance::gateway::start::configuration", Some("config")),
            ("net::http", Some("http")),
            ("appliance::gateway::bridge::tcp", Some("bridge")),
            ("appliance::gateway", None),
            ("audit", None),
            ("", None),
        ] {
            assert_eq!(name(target), expected, "{target}");
        }
        let names: Vec<&str> = Subject::names().collect();
        assert!(names.is_sorted());
        assert!(names.iter().all(|name| Subject::named(name).unwrap().name() == *name));
        assert_eq!(Subject::named("nothing"), None);
    }

    #[test]
    fn level_of_a_subject_overrides_the_level_of_all_until_it_is_unset() {
        let levels = Levels::new();
        let (smc, nvme) = (Subject::named("smc").unwrap(), Subject::named("nvme").unwrap());
        levels.set(LevelFilter::Info, &[(smc, LevelFilter::Debug), (nvme, LevelFilter::Off)]);
        assert_eq!(levels.of("appliance::gateway::smc"), LevelFilter::Debug);
        assert_eq!(levels.of("appliance::gateway::nvme::connections"), LevelFilter::Off);
        assert_eq!(levels.of("appliance::gateway::linx"), LevelFilter::Info);
        levels.set(LevelFilter::Warn, &[]);
        assert_eq!(levels.of("appliance::gateway::smc"), LevelFilter::Warn);
    }
}
