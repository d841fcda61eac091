//! Access granted by a configuration and its restrictions, one line each. An upgrade compares the lines of two
//! configurations and shows the operator those that only one of them has.

use super::item::{Field, Item};
use super::messaging::{Rule, Smc};
use super::ntb::Ntb;
use super::nvme::{HostNqn, Subsystem};
use super::nvme_host::NvmeHost;
use super::schema::{Config, Export, Limits};
use core::fmt::Display;
use net::tls::Authorities;

/// The list value of a key, as in a line.
fn list(items: &[impl Display]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// An access, or a restriction of one.
enum Door {
    /// The access of a subject, with its line.
    Access(String, String),
    /// A restriction of a subject, or of everything: its key, and its value if it has one.
    Limit(String, &'static str, Option<String>),
    /// A secret that a host of the subject has to prove: the host, and the key.
    Proof(String, String, &'static str),
}

impl Door {
    fn line(&self) -> String {
        match self {
            Door::Access(_, line) => line.clone(),
            Door::Proof(subject, host, key) => format!("{subject}: {key} of {host} is set"),
            Door::Limit(subject, key, value) => {
                let colon = if subject.is_empty() { "" } else { ": " };
                let value = value.as_ref().map(|value| format!(" = {value}")).unwrap_or_default();
                format!("{subject}{colon}{key}{value}")
            }
        }
    }

    /// The subject that has access.
    fn subject(&self) -> Option<&str> {
        match self {
            Door::Access(subject, _) => Some(subject),
            Door::Limit(..) | Door::Proof(..) => None,
        }
    }
}

/// [`list`], of a list that restricts something.
fn listed(items: &[impl Display]) -> Option<String> {
    (!items.is_empty()).then(|| list(items))
}

/// The value of a key that differs from its default.
fn changed(fields: &[Field], key: &str, value: impl Item + Display) -> Option<String> {
    let field = fields.iter().find(|field| field.name == key)?;
    (value.encode() != (field.default)()).then(|| value.to_string())
}

/// The subject of a bridge's lines.
fn bridge(index: usize, ntb: &Ntb) -> String {
    match (&ntb.device, ntb.tcp) {
        (Some(device), _) => format!("ntb {device}"),
        (None, Some(tcp)) => format!("ntb to {tcp}"),
        (None, None) => format!("ntb {index}"),
    }
}

/// Restrictions of an export.
fn limits_of_export(export: &Export) -> Vec<Door> {
    let subject = || format!("export {}", export.name);
    let mut doors = Vec::new();
    if export.read_only {
        doors.push(Door::Limit(subject(), "read_only", None));
    }
    for (key, value) in [("sessions", listed(&export.sessions)), ("hosts", listed(&export.hosts))] {
        doors.extend(value.map(|value| Door::Limit(subject(), key, Some(value))));
    }
    let limits = export.limits();
    let rates = limits.entries();
    doors.extend(rates.map(|(key, rate)| Door::Limit(subject(), key, Some(rate.to_string()))));
    doors
}

/// Restrictions of a subsystem and of its namespaces.
fn limits_of_subsystem(subsystem: &Subsystem) -> Vec<Door> {
    let subject = || subject_of(subsystem);
    let mut doors = Vec::new();
    if subsystem.dhchap.is_required() {
        doors.push(Door::Limit(subject(), "dhchap = required", None));
    }
    if subsystem.tls.is_required() {
        doors.push(Door::Limit(subject(), "tls = required", None));
    }
    if !subsystem.hosts.iter().any(HostNqn::is_all) {
        doors.push(Door::Limit(subject(), "hosts", Some(list(&subsystem.hosts))));
    }
    let networks = listed(&subsystem.networks);
    doors.extend(networks.map(|networks| Door::Limit(subject(), "networks", Some(networks))));
    for namespace in &subsystem.namespace {
        let line = format!("{}: {} of {}", subject(), namespace.nsid, namespace.volume);
        if namespace.read_only {
            doors.push(Door::Limit(line.clone(), "read_only", None));
        }
        let rate = |(key, rate): (_, u64)| Door::Limit(line.clone(), key, Some(rate.to_string()));
        doors.extend(namespace.limits().entries().map(rate));
    }
    doors
}

/// The subject of a subsystem's lines.
fn subject_of(subsystem: &Subsystem) -> String {
    format!("subsystem {}", subsystem.nqn)
}

/// Whether the number `new` is no larger than `old`, or each entry of the list `new` is one of the list `old`.
fn is_narrower(new: &str, old: &str) -> bool {
    if let (Ok(new), Ok(old)) = (new.parse::<u64>(), old.parse::<u64>()) {
        return new <= old;
    }
    let entries = |list| str::split(list, ',').filter(|entry| !entry.is_empty());
    entries(new).all(|entry| entries(old).any(|other| other == entry))
}

impl Config {
    /// One line for each export, each rule, and each restriction of access.
    pub fn doors(&self, exports: &[Export]) -> Vec<String> {
        self.all_doors(exports).iter().map(Door::line).collect()
    }

    /// What this configuration admits and `old` does not, a line each, with the exports of both.
    pub fn opened(&self, old: &Config, exports: &[Export], old_exports: &[Export]) -> Vec<String> {
        let (new, before) = (self.all_doors(exports), old.all_doors(old_exports));
        let mut lines = Vec::new();
        for door in &new {
            let Door::Access(subject, line) = door else { continue };
            let is_same = |other: &Door| matches!(other, Door::Access(_, known) if known == line);
            if !subject.starts_with("user ") && !before.iter().any(is_same) {
                lines.push(door.line());
            }
        }
        for door in &before {
            let Door::Limit(subject, key, value) = door else { continue };
            let gone = !subject.is_empty()
                && new.iter().all(|other| other.subject() != Some(subject.as_str()));
            let now = new.iter().find_map(|other| match other {
                Door::Limit(of, other, value) if of == subject && other == key => Some(value),
                _ => None,
            });
            let narrower = now.is_some_and(|now| match (now, value) {
                (Some(now), Some(value)) => is_narrower(now, value),
                _ => true,
            });
            if !gone && !narrower {
                lines.push(format!("without {}", door.line()));
            }
        }
        lines.extend(self.unproven(&before));
        for user in &self.user {
            let (name, role) = (&user.name, user.role);
            match old.user.iter().find(|other| other.name == *name) {
                Some(other) if other.role >= role => {
                    if user.token_sha256.is_some() && other.token_sha256 != user.token_sha256 {
                        lines.push(format!("user {name} with another token"));
                    }
                    if user.certificate.is_some() && other.certificate != user.certificate {
                        lines.push(format!("user {name} with another certificate"));
                    }
                }
                _ => lines.push(format!("user {name} has the role {role}")),
            }
        }
        let token = self.http.token_sha256;
        if token.is_some() && token != old.http.token_sha256 {
            lines.push("http.token_sha256 with another token".into());
        }
        lines
    }

    /// Secrets of `before` that hosts of a subsystem have no more, although it admits them.
    fn unproven(&self, before: &[Door]) -> Vec<String> {
        let mut lines = Vec::new();
        for door in before {
            let Door::Proof(subject, host, key) = door else { continue };
            let admits = |one: &&Subsystem| {
                subject_of(one) == *subject
                    && one.hosts.iter().any(|it| it.is_all() || it.to_string() == *host)
            };
            let Some(subsystem) = self.subsystem.iter().find(admits) else { continue };
            let has = self.proofs(subsystem).any(|(of, other)| of == *host && other == *key);
            if !has {
                lines.push(format!("without {}", door.line()));
            }
        }
        lines
    }

    /// Secrets of the hosts that a subsystem admits: the host, and the key.
    fn proofs(&self, subsystem: &Subsystem) -> impl Iterator<Item = (String, &'static str)> {
        let admitted =
            |host: &&NvmeHost| subsystem.hosts.iter().any(|one| one.is_all() || *one == host.nqn);
        let of = |host: &NvmeHost| {
            let keys = [
                ("dhchap_secret", host.dhchap_secret.is_some()),
                ("tls_psk", host.tls_psk.is_some()),
            ];
            let nqn = host.nqn.to_string();
            keys.into_iter().filter(|(_, set)| *set).map(move |(key, _)| (nqn.clone(), key))
        };
        let all: Vec<_> = self.nvme_host.iter().filter(admitted).flat_map(of).collect();
        all.into_iter()
    }

    fn all_doors(&self, exports: &[Export]) -> Vec<Door> {
        let mut doors = self.limits_of_everything();
        for export in exports {
            doors.extend(limits_of_export(export));
        }
        for subsystem in &self.subsystem {
            doors.extend(limits_of_subsystem(subsystem));
        }
        let mut limit = |subject: String, key: &'static str, value: Option<String>| {
            doors.extend(value.map(|value| Door::Limit(subject, key, Some(value))));
        };
        for rule in &self.rule {
            let subject = || format!("rule {}", rule.name);
            limit(subject(), "hosts", listed(&rule.hosts));
            let fields = Rule::fields();
            limit(subject(), "connections", changed(fields, "connections", rule.connections));
            let per_host = rule.connections_per_host.map(|it| it.to_string());
            limit(subject(), "connections_per_host", per_host);
        }
        for usnic in &self.usnic {
            limit(format!("usnic {}", usnic.name), "hosts", listed(&usnic.hosts));
        }
        for link in &self.linx {
            limit(format!("linx {}", link.name), "hosts", listed(&link.hosts));
        }
        for (i, ntb) in self.ntb.iter().enumerate() {
            limit(bridge(i, ntb), "hosts", listed(&ntb.hosts));
        }
        doors.extend(self.accesses(exports));
        doors
    }

    /// Restrictions that belong to no export, subsystem or rule.
    fn limits_of_everything(&self) -> Vec<Door> {
        let mut doors = Vec::new();
        let mut limit = |restricts: bool, key: &'static str, value: Option<String>| {
            if restricts {
                doors.push(Door::Limit(String::new(), key, value));
            }
        };
        let http = &self.http;
        limit(!http.anonymous, "http.anonymous", Some("false".into()));
        limit(!http.hosts.is_empty(), "http.hosts", Some(list(&http.hosts)));
        limit(!http.listen.is_empty(), "http.listen", Some(list(&http.listen)));
        limit(!self.smc.hosts.is_empty(), "smc.hosts", Some(list(&self.smc.hosts)));
        limit(self.console.login, "console.login", Some("true".into()));
        let off = [
            ("http.enabled", http.enabled),
            ("rnbd.enabled", self.rnbd.enabled),
            ("roce.enabled", self.roce.enabled),
            ("roce.services", self.roce.services),
            ("smc.services", self.smc.services),
            ("services.udp_echo", self.services.udp_echo),
        ];
        off.into_iter().for_each(|(key, on)| limit(!on, key, Some("false".into())));
        limit(http.tls, "http.tls", Some("true".into()));
        let keys = [
            ("http.token_sha256 is set", http.token_sha256.is_some()),
            ("http.certificate is set", http.certificate.is_some()),
            ("http.key is set", http.key.is_some()),
            ("system.upgrade_key is set", self.system.upgrade_key.is_some()),
        ];
        keys.into_iter().for_each(|(key, set)| limit(set, key, None));
        let (limits, smc, fields) = (&self.limits, &self.smc, Limits::fields());
        let sessions = changed(fields, "sessions_per_host", limits.sessions_per_host);
        let connections = changed(fields, "connections_per_host", limits.connections_per_host);
        for (key, value) in [
            ("limits.sessions_per_host", sessions),
            ("limits.connections_per_host", connections),
            ("limits.memory_per_host", limits.memory_per_host.map(|size| size.0.to_string())),
            ("smc.connections", changed(Smc::fields(), "connections", smc.connections)),
            ("smc.connections_per_host", smc.connections_per_host.map(|it| it.to_string())),
        ] {
            limit(value.is_some(), key, value);
        }
        doors
    }

    fn accesses(&self, exports: &[Export]) -> Vec<Door> {
        let mut doors = Vec::new();
        // Whose certificates name users.
        for fingerprint in
            self.http.authorities().iter().flatten().flat_map(Authorities::fingerprints)
        {
            let line = format!("http.client_ca with the SHA-256 {fingerprint}");
            doors.push(Door::Access(line.clone(), line));
        }
        for export in exports {
            let subject = format!("export {}", export.name);
            let line = format!("{subject} of {}", export.volume);
            doors.push(Door::Access(subject, line));
        }
        for subsystem in &self.subsystem {
            let subject = subject_of(subsystem);
            doors.push(Door::Access(subject.clone(), subject.clone()));
            let proofs = self.proofs(subsystem);
            doors.extend(proofs.map(|(host, key)| Door::Proof(subject.clone(), host, key)));
            for namespace in &subsystem.namespace {
                let line = format!("{subject}: {} of {}", namespace.nsid, namespace.volume);
                doors.push(Door::Access(line.clone(), line));
            }
        }
        for rule in &self.rule {
            let subject = format!("rule {}", rule.name);
            let line = format!("{subject} on {}", rule.listen);
            doors.push(Door::Access(subject, line));
        }
        for user in &self.user {
            let subject = format!("user {}", user.name);
            let line = format!("{subject} has the role {}", user.role);
            doors.push(Door::Access(subject, line));
        }
        let usnic = self.usnic.iter().map(|one| format!("usnic {}", one.name));
        let linx = self.linx.iter().map(|one| format!("linx {}", one.name));
        let ntb = self.ntb.iter().enumerate().map(|(i, one)| bridge(i, one));
        let rapidio = self.rapidio.iter().enumerate().map(|(i, one)| match &one.device {
            Some(device) => format!("rapidio {device}"),
            None => format!("rapidio {i}"),
        });
        let named = usnic.chain(linx).chain(ntb).chain(rapidio);
        doors.extend(named.map(|subject| Door::Access(subject.clone(), subject)));
        doors
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Document, Sources};

    #[test]
    fn access_that_a_configuration_adds_is_listed() {
        use crate::config::check;
        const OLD: &str = "[http]\nhosts = [\"10.0.0.0/24\", \"10.0.1.0/24\"]\nanonymous = false\n\
             [[user]]\nname = \"ada\"\nrole = \"operate\"\ntoken_sha256 = \"TOKEN\"\n\
             [[rule]]\nname = \"r\"\nlisten = 99\nbackend = \"10.0.0.9:80\"\nhosts = \"10.0.0.2\"\n\
             connections = 8\n[limits]\nsessions_per_host = 2\n\
             [[ntb]]\ntcp = \"10.0.0.9\"\nlisten = true\naddress = \"10.1.0.1\"\n\
             peer = \"10.1.0.2\"\nhosts = \"10.0.0.8/30\"\n\
             [[export]]\nname = \"a\"\nvolume = \"ram0\"\nread_only = true\niops = 500\n\
             [[subsystem]]\nnqn = \"nqn.x:a\"\nhosts = \"nqn.h:1\"\ndhchap = \"required\"\n\
             [[nvme_host]]\nnqn = \"nqn.h:1\"\n\
             dhchap_secret = \"DHHC-1:00:YfEJbVxTwBJm0HgvAvpxdtBua+7LJGXnu8AvjEi9WPWDgsdm:\"\n\
             tls_psk = \"NVMeTLSkey-1:01:oTGLJIkEQBPfhHOj3d/MJNiBuDc8/rsGEaEuShBpkVLVlkod:\"\n";
        let config =
            |text: &str| check(text.replace("TOKEN", &"ab".repeat(32)).as_bytes()).unwrap();
        let old = config(OLD);
        let opened = |new: &crate::config::Config| new.opened(&old, &new.exports(), &old.exports());
        for (from, to, lines) in [
            ("", "", &[][..]),
            (", \"10.0.1.0/24\"", "", &[]),
            ("\"operate\"", "\"read\"", &[]),
            (
                "[[rule]]\nname = \"r\"\nlisten = 99\nbackend = \"10.0.0.9:80\"\nhosts = \"10.0.0.2\"\n\
                 connections = 8\n",
                "",
                &[],
            ),
            ("anonymous = false\n", "", &["without http.anonymous = false"]),
            ("10.0.1.0/24", "10.0.2.0/24", &["without http.hosts = 10.0.0.0/24,10.0.1.0/24"]),
            ("\"operate\"", "\"admin\"", &["user ada has the role admin"]),
            ("TOKEN", &"cd".repeat(32), &["user ada with another token"]),
            ("\"ada\"", "\"eve\"", &["user eve has the role operate"]),
            ("listen = 99", "listen = 98", &["rule r on 98"]),
            ("hosts = \"10.0.0.2\"\n", "", &["without rule r: hosts = 10.0.0.2/32"]),
            ("read_only = true\n", "", &["without export a: read_only"]),
            ("iops = 500", "iops = 400", &[]),
            ("iops = 500", "iops = 600", &["without export a: iops = 500"]),
            ("connections = 8", "connections = 9", &["without rule r: connections = 8"]),
            (
                "sessions_per_host = 2",
                "sessions_per_host = 3",
                &["without limits.sessions_per_host = 2"],
            ),
            ("hosts = \"10.0.0.8/30\"\n", "", &["without ntb to 10.0.0.9: hosts = 10.0.0.8/30"]),
            ("tcp = \"10.0.0.9\"", "tcp = \"10.0.0.8\"", &["ntb to 10.0.0.8"]),
            ("name = \"a\"", "name = \"b\"", &["export b of ram0"]),
            ("\"required\"", "\"optional\"", &["without subsystem nqn.x:a: dhchap = required"]),
            (
                "tls_psk = \"NVMeTLSkey-1:01:oTGLJIkEQBPfhHOj3d/MJNiBuDc8/rsGEaEuShBpkVLVlkod:\"\n",
                "",
                &["without subsystem nqn.x:a: tls_psk of nqn.h:1 is set"],
            ),
            (
                "hosts = \"nqn.h:1\"",
                "hosts = \"*\"",
                &["without subsystem nqn.x:a: hosts = nqn.h:1"],
            ),
        ] {
            assert_eq!(opened(&config(&OLD.replacen(from, to, 1))), lines, "{from} {to}");
        }
        let token =
            OLD.replace("[http]\n", &format!("[http]\ntoken_sha256 = \"{}\"\n", "ef".repeat(32)));
        assert_eq!(opened(&config(&token)), ["http.token_sha256 with another token"]);
    }

    /// A change that admits more hosts removes a line.
    #[test]
    fn doors_list_each_restriction_and_no_secret() {
        let source = "[system]\nupgrade_key = \"abababababababababababababababababababababababababababababababab\"\n\
             [http]\nhosts = \"10.0.0.2\"\nlisten = \"10.0.0.1\"\n\
             token_sha256 = \"cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd\"\n\
             [smc]\nservices = true\nhosts = \"10.0.0.2\"\n\
             [[export]]\nname = \"a\"\nvolume = \"ram0\"\nread_only = true\nsessions = \"s\"\n\
             hosts = [\"10.0.0.2\", \"10.0.0.3\"]\n\
             [[rule]]\nname = \"r\"\nlisten = 99\nbackend = \"10.0.0.9:80\"\nhosts = \"10.0.0.2\"\n\
             [[rapidio]]\nrole = \"agent\"\n";
        let load = |text: &str| {
            let sources = Sources { disk: Some(text.as_bytes()), ..Sources::default() };
            let (document, problems) = Document::load(&sources);
            assert_eq!(problems, []);
            document.config().doors(&document.config().exports())
        };
        let all = load(source);
        let text = all.join("\n");
        for line in [
            "export a of ram0",
            "export a: read_only",
            "export a: sessions = s",
            "export a: hosts = 10.0.0.2/32,10.0.0.3/32",
            "rule r on 99",
            "rule r: hosts = 10.0.0.2/32",
            "http.hosts = 10.0.0.2/32",
            "http.listen = 10.0.0.1",
            "http.token_sha256 is set",
            "smc.hosts = 10.0.0.2/32",
            "roce.services = false",
            "system.upgrade_key is set",
            "rapidio 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
        }
        assert!(!text.contains("abab") && !text.contains("cdcd"), "{text}");
        for removed in ["hosts = \"10.0.0.2\"\n", "read_only = true\n", "sessions = \"s\"\n"] {
            let open = load(&source.replacen(removed, "", 1));
            assert!(all.iter().any(|line| !open.contains(line)), "{removed}");
        }
        assert!(all.iter().any(|line| !load("").contains(line)));
    }
}
