//! Fail closed. An unknown key in a section that grants access closes that section or entry. An unknown key that sounds
//! like a restriction closes everything. While a document cannot be used, everything that it may have restricted is
//! closed.

use super::item::{Field, Item as _, join, problem};
use super::origin::{Kind, Origin, Problem};
use super::schema::Config;
use super::tree::{Node, Value};
use crate::suggestion::nearest;

/// A network without hosts: a list of hosts with only this network admits no host.
const NO_HOST: &str = "0.0.0.0/32";

/// Sections that grant access to peers, or define what they access.
const GRANTING: [&str; 19] = [
    "console",
    "export",
    "rnbd",
    "volume",
    "remote",
    "mirror",
    "http",
    "rule",
    "roce",
    "smc",
    "services",
    "usnic",
    "linx",
    "ntb",
    "rapidio",
    "user",
    "nvme",
    "subsystem",
    "nvme_host",
];

/// Words in keys by which operators restrict access.
const RESTRICTING: [&str; 67] = [
    "access",
    "acl",
    "allow",
    "allowed",
    "allowlist",
    "auth",
    "authorized",
    "ban",
    "bandwidth",
    "blacklist",
    "block",
    "blocked",
    "blocklist",
    "chap",
    "cidr",
    "client",
    "clients",
    "denied",
    "deny",
    "denylist",
    "dhchap",
    "disable",
    "disabled",
    "enable",
    "enabled",
    "encrypt",
    "encrypted",
    "exclude",
    "filter",
    "firewall",
    "forbid",
    "host",
    "hosts",
    "https",
    "initiator",
    "initiators",
    "iops",
    "limit",
    "limits",
    "listen",
    "login",
    "max",
    "mode",
    "network",
    "networks",
    "only",
    "password",
    "permit",
    "private",
    "psk",
    "qos",
    "quota",
    "rate",
    "readonly",
    "reject",
    "restrict",
    "ro",
    "secret",
    "session",
    "sessions",
    "ssl",
    "subnet",
    "subnets",
    "throttle",
    "tls",
    "token",
    "whitelist",
];

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

/// Scope that an ignored key closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closed {
    Nothing,
    /// A section, or one entry of a list of sections.
    Section(&'static str, Option<usize>),
    Everything,
}

/// Removes unknown keys from a document's tree, reports each as a problem, and closes what it may have restricted. True
/// if that may be everything.
pub fn leave_out_unknown(root: &mut Node, problems: &mut Vec<Problem>) -> bool {
    let mut closed = Vec::new();
    visit(root, Config::fields(), "", problems, &mut closed);
    for (what, origin) in &closed {
        if let Closed::Section(section, index) = what {
            close_section(root, section, *index, *origin);
        }
    }
    closed.iter().any(|(what, _)| *what == Closed::Everything)
}

fn visit(
    node: &mut Node,
    fields: &'static [Field],
    path: &str,
    problems: &mut Vec<Problem>,
    closed: &mut Vec<(Closed, Origin)>,
) {
    match &mut node.value {
        Value::List(items) => {
            for (i, item) in items.iter_mut().enumerate() {
                visit(item, fields, &join(path, &i.to_string()), problems, closed);
            }
        }
        Value::Table(entries) if !fields.is_empty() => {
            let names = || fields.iter().map(|field| field.name);
            let unknown = entries.extract_if(.., |(key, _)| names().all(|name| name != key));
            let unknown: Vec<(String, Node)> = unknown.collect();
            for (key, node) in entries.iter_mut() {
                let field = fields.iter().find(|field| field.name == key);
                let below = field.map_or(&[][..], |field| (field.fields)());
                if !below.is_empty() {
                    visit(node, below, &join(path, key), problems, closed);
                }
            }
            for (key, value) in unknown {
                let meant = nearest(&key, names());
                let what = closes(path, &key, meant, &value);
                let hint = meant.map(|m| format!(" (did you mean {m:?}?)")).unwrap_or_default();
                let shown: String = key.chars().take(64).collect();
                let reason = format!("unknown key{hint}, ignored; {}", what.consequence());
                let accepted = names().collect::<Vec<_>>().join(", ");
                let kind = if what == Closed::Nothing { Kind::Unknown } else { Kind::Mistake };
                let unknown = problem(&value, &join(path, &shown), reason, accepted);
                problems.push(Problem { kind, ..unknown });
                closed.push((what, value.origin));
            }
        }
        _ => {}
    }
}

impl Closed {
    /// The consequence, for the operator.
    fn consequence(self) -> String {
        match self {
            Closed::Nothing => "the rest is in force".into(),
            Closed::Everything => {
                "exports, subsystems, rules, bridges, services and HTTP writes are disabled until it is corrected".into()
            }
            Closed::Section(section @ ("export" | "rule"), Some(index)) => {
                format!("{section}.{index} admits no host until it is corrected")
            }
            Closed::Section("subsystem", Some(index)) => {
                format!("subsystem.{index} admits no host until it is corrected")
            }
            Closed::Section("export" | "rnbd", _) => {
                "exports are disabled until it is corrected".into()
            }
            Closed::Section("volume" | "remote" | "mirror", _) => {
                "exports and subsystems are disabled until it is corrected".into()
            }
            Closed::Section("console", _) => {
                "the console asks for a login, if a user can log in, until it is corrected".into()
            }
            Closed::Section("nvme" | "nvme_host", _) => {
                "subsystems are disabled until it is corrected".into()
            }
            Closed::Section(section, _) => {
                format!("{section} is disabled until it is corrected")
            }
        }
    }
}

/// Scope that an unknown key at `path` closes. `meant` is a known key with a similar name.
fn closes(path: &str, key: &str, meant: Option<&str>, value: &Node) -> Closed {
    let granting = |name: &str| GRANTING.into_iter().find(|section| *section == name);
    let mut segments = path.split('.');
    let section = segments.next().unwrap_or_default();
    // Storage, rules and bridges all depend on RoCE.
    if section == "roce" || (section.is_empty() && meant == Some("roce")) {
        return Closed::Everything;
    }
    if let Some(section) = granting(section) {
        return Closed::Section(section, segments.next().and_then(|index| index.parse().ok()));
    }
    if section.is_empty()
        && !is_restricting(key, false)
        && let Some(section) = meant.and_then(granting)
    {
        return Closed::Section(section, None);
    }
    let restricts = is_restricting(key, meant.is_none()) || has_restricting(value);
    // The document on a misnamed config disk may hold restrictions, and limits are restrictions themselves.
    let restricts = restricts || meant == Some("config_disk");
    let limits = section == "limits" || (section.is_empty() && meant == Some("limits"));
    if restricts || limits { Closed::Everything } else { Closed::Nothing }
}

/// Whether a key contains a restricting word; with `near`, also a misspelled one.
fn is_restricting(key: &str, near: bool) -> bool {
    let lower = key.chars().take(64).collect::<String>().to_ascii_lowercase();
    let is_word = |part: &str| {
        let mut words = RESTRICTING.into_iter();
        words.any(|word| {
            part == word || (near && word.len() > 3 && strsim::osa_distance(part, word) <= 1)
        })
    };
    let mut parts = lower.split(|c: char| !c.is_ascii_alphanumeric());
    is_word(&lower.replace(['_', '-'], "")) || parts.any(is_word)
}

/// Whether the value of an unknown key contains a key with a restricting word.
fn has_restricting(node: &Node) -> bool {
    match &node.value {
        Value::List(items) => items.iter().any(has_restricting),
        Value::Table(entries) => {
            entries.iter().any(|(key, node)| is_restricting(key, true) || has_restricting(node))
        }
        _ => false,
    }
}

/// Closes a section of a document, or one entry.
fn close_section(root: &mut Node, section: &str, index: Option<usize>, origin: Origin) {
    let node = |value: Value| Node { value, origin };
    let no_host = || node(Value::List(vec![node(text(NO_HOST))]));
    let off = || node(Value::Bool(false));
    let mut put = |path: &str, node: Node| {
        // The path is valid. If another kind of value is in its way, the document is rejected as a whole.
        let _ = root.set(path, node);
    };
    match (section, index) {
        ("export" | "rule", Some(index)) => put(&format!("{section}.{index}.hosts"), no_host()),
        // Without NQNs it admits no host.
        ("subsystem", Some(index)) => {
            put(&format!("subsystem.{index}.hosts"), node(Value::List(Vec::new())));
        }
        // Without their secrets, hosts would be admitted by name.
        ("nvme" | "nvme_host", _) => put("subsystem", node(Value::List(Vec::new()))),
        ("export" | "rnbd", _) => put("rnbd.enabled", off()),
        ("volume" | "remote" | "mirror", _) => {
            put("rnbd.enabled", off());
            put("subsystem", node(Value::List(Vec::new())));
        }
        ("http", _) => put("http.enabled", off()),
        ("console", _) => put("console.login", node(Value::Bool(true))),
        ("smc", _) => {
            put("smc.services", off());
            put("smc.hosts", no_host());
        }
        ("services", _) => put("services.udp_echo", off()),
        (list, _) => put(list, node(Value::List(Vec::new()))),
    }
}

/// Settings that are closed while a document cannot be used: the key by which a later document defines the setting
/// again, the path, and the closing value.
fn closed() -> [(&'static str, &'static str, Value); 13] {
    let off = || Value::Bool(false);
    [
        ("export", "rnbd.enabled", off()),
        ("rule", "rule", Value::List(Vec::new())),
        ("ntb", "ntb", Value::List(Vec::new())),
        ("rapidio", "rapidio", Value::List(Vec::new())),
        ("usnic", "usnic", Value::List(Vec::new())),
        ("linx", "linx", Value::List(Vec::new())),
        ("subsystem", "subsystem", Value::List(Vec::new())),
        ("smc.services", "smc.services", off()),
        ("roce.services", "roce.services", off()),
        ("services.udp_echo", "services.udp_echo", off()),
        ("http.anonymous", "http.anonymous", off()),
        ("http.token_sha256", "http.token_sha256", Value::Bare(String::new())),
        ("user", "user", Value::List(Vec::new())),
    ]
}

/// Closes the settings that an unusable document may have restricted, except those that a `later` document defines.
pub fn close(root: &mut Node, later: &[Node], origin: Origin) {
    for (defined_by, path, value) in closed() {
        if later.iter().all(|document| document.find(defined_by).is_none()) {
            // These paths are valid.
            let _ = root.set(path, Node { value, origin });
        }
    }
}

/// Whether an ignored setting of the command line may have restricted access.
pub fn restricts(path: &str) -> bool {
    let mut segments = path.split('.').filter(|segment| segment.parse::<u8>().is_err());
    let sections = Config::fields().iter().map(|field| field.name);
    let section = segments.next().and_then(|first| nearest(first, sections));
    let grants = section.is_some_and(|section| GRANTING.contains(&section));
    let disk =
        path.rsplit('.').any(|segment| nearest(segment, ["config_disk"].into_iter()).is_some());
    let word = disk || path.rsplit('.').any(|segment| is_restricting(segment, !is_known(path)));
    word || matches!(section, Some("export" | "limits")) || (grants && !is_known(path))
}

/// Whether the schema has a key at this path.
fn is_known(path: &str) -> bool {
    let mut fields = Config::fields();
    for segment in path.split('.').filter(|segment| segment.parse::<u8>().is_err()) {
        let Some(field) = fields.iter().find(|field| field.name == segment) else { return false };
        fields = (field.fields)();
    }
    true
}

#[cfg(test)]
#[path = "closing_tests.rs"]
mod tests;
