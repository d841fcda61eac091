//! Access granted by a configuration and its restrictions, one line each. An upgrade compares the lines of two
//! configurations and shows the operator those that only one of them has.

use super::nvme::{HostNqn, Subsystem};
use super::nvme_host::NvmeHost;
use super::schema::{Config, Export};
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
    /// A subject with access that has no line of its own.
    Present(String),
    /// A restriction of a subject, or of everything: its key, and its value if it has one.
    Limit(String, &'static str, Option<String>),
    /// A secret that a host of the subject has to prove: the host, and the key.
    Proof(String, String, &'static str),
}

impl Door {
    fn line(&self) -> Option<String> {
        Some(match self {
            Door::Access(_, line) => line.clone(),
            Door::Present(_) => return None,
            Door::Proof(subject, host, key) => format!("{subject}: {key} of {host} is set"),
            Door::Limit(subject, key, value) => {
                let colon = if subject.is_empty() { "" } else { ": " };
                let value = value.as_ref().map(|value| format!(" = {value}")).unwrap_or_default();
                format!("{subject}{colon}{key}{value}")
            }
        })
    }

    /// The subject that has access.
    fn subject(&self) -> Option<&str> {
        match self {
            Door::Access(subject, _) | Door::Present(subject) => Some(subject),
            Door::Limit(..) | Door::Proof(..) => None,
        }
    }
}

/// The subject of a subsystem's lines.
fn subject_of(subsystem: &Subsystem) -> String {
    format!("subsystem {}", subsystem.nqn)
}

/// Whether each entry of the list `new` is one of the list `old`.
fn is_narrower(new: &str, old: &str) -> bool {
    let entries = |list| str::split(list, ',').filter(|entry| !entry.is_empty());
    entries(new).all(|entry| entries(old).any(|other| other == entry))
}

impl Config {
    /// One line for each export, each rule, and each restriction of access.
    pub fn doors(&self, exports: &[Export]) -> Vec<String> {
        self.all_doors(exports).iter().filter_map(Door::line).collect()
    }

    /// What this configuration admits and `old` does not, a line each, with the exports of both.
    pub fn opened(&self, old: &Config, exports: &[Export], old_exports: &[Export]) -> Vec<String> {
        let (new, before) = (self.all_doors(exports), old.all_doors(old_exports));
        let mut lines = Vec::new();
        for door in &new {
            let Some(subject) = door.subject().filter(|subject| !subject.starts_with("user "))
            else {
                continue;
            };
            let known = before.iter().any(|other| match (door, other) {
                (Door::Access(_, line), Door::Access(_, other)) => line == other,
                _ => other.subject() == Some(subject),
            });
            if !known {
                lines.push(door.line().unwrap_or_else(|| subject.into()));
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
                lines.push(format!("without {}", door.line().unwrap_or_default()));
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
                lines.push(format!("without {}", door.line().unwrap_or_default()));
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
        let mut doors = Vec::new();
        let mut limit =
            |restricts: bool, subject: &str, key: &'static str, value: Option<String>| {
                if restricts {
                    doors.push(Door::Limit(subject.into(), key, value));
                }
            };
        let http = &self.http;
        limit(!http.anonymous, "", "http.anonymous", Some("false".into()));
        limit(!http.hosts.is_empty(), "", "http.hosts", Some(list(&http.hosts)));
        limit(!http.listen.is_empty(), "", "http.listen", Some(list(&http.listen)));
        limit(!self.smc.hosts.is_empty(), "", "smc.hosts", Some(list(&self.smc.hosts)));
        limit(self.console.login, "", "console.login", Some("true".into()));
        let off = [
            ("http.enabled", http.enabled),
            ("rnbd.enabled", self.rnbd.enabled),
            ("roce.enabled", self.roce.enabled),
            ("roce.services", self.roce.services),
            ("smc.services", self.smc.services),
            ("services.udp_echo", self.services.udp_echo),
        ];
        off.into_iter().for_each(|(key, on)| limit(!on, "", key, Some("false".into())));
        limit(http.tls, "", "http.tls", Some("true".into()));
        let keys = [
            ("http.token_sha256 is set", http.token_sha256.is_some()),
            ("http.certificate is set", http.certificate.is_some()),
            ("http.key is set", http.key.is_some()),
            ("system.upgrade_key is set", self.system.upgrade_key.is_some()),
        ];
        keys.into_iter().for_each(|(key, set)| limit(set, "", key, None));
        for export in exports {
            let subject = &format!("export {}", export.name);
            limit(export.read_only, subject, "read_only", None);
            let sessions = Some(list(&export.sessions));
            limit(!export.sessions.is_empty(), subject, "sessions", sessions);
            limit(!export.hosts.is_empty(), subject, "hosts", Some(list(&export.hosts)));
        }
        for subsystem in &self.subsystem {
            let subject = &subject_of(subsystem);
            limit(subsystem.dhchap.is_required(), subject, "dhchap = required", None);
            limit(subsystem.tls.is_required(), subject, "tls = required", None);
            let is_open = subsystem.hosts.iter().any(HostNqn::is_all);
            limit(!is_open, subject, "hosts", Some(list(&subsystem.hosts)));
            let networks = Some(list(&subsystem.networks));
            limit(!subsystem.networks.is_empty(), subject, "networks", networks);
            for namespace in subsystem.namespace.iter().filter(|one| one.read_only) {
                let line = format!("{subject}: {} of {}", namespace.nsid, namespace.volume);
                limit(true, &line, "read_only", None);
            }
        }
        for rule in self.rule.iter().filter(|rule| !rule.hosts.is_empty()) {
            limit(true, &format!("rule {}", rule.name), "hosts", Some(list(&rule.hosts)));
        }
        for usnic in self.usnic.iter().filter(|usnic| !usnic.hosts.is_empty()) {
            limit(true, &format!("usnic {}", usnic.name), "hosts", Some(list(&usnic.hosts)));
        }
        for link in self.linx.iter().filter(|link| !link.hosts.is_empty()) {
            limit(true, &format!("linx {}", link.name), "hosts", Some(list(&link.hosts)));
        }
        doors.extend(self.accesses(exports));
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
        doors.extend(usnic.chain(linx).map(Door::Present));
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
             [[export]]\nname = \"a\"\nvolume = \"ram0\"\nread_only = true\n\
             [[subsystem]]\nnqn = \"nqn.x:a\"\nhosts = \"nqn.h:1\"\ndhchap = \"required\"\n\
             [[nvme_host]]\nnqn = \"nqn.h:1\"\n\
             dhchap_secret = \"DHHC-1:00:ERERERERERERERERERERERERERERERERERERERERERHYIEm8:\"\n\
             tls_psk = \"NVMeTLSkey-1:01:IiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIGuf2I:\"\n";
        let config =
            |text: &str| check(text.replace("TOKEN", &"ab".repeat(32)).as_bytes()).unwrap();
        let old = config(OLD);
        let opened = |new: &crate::config::Config| new.opened(&old, &new.exports(), &old.exports());
        for (from, to, lines) in [
            ("", "", &[][..]),
            (", \"10.0.1.0/24\"", "", &[]),
            ("\"operate\"", "\"read\"", &[]),
            (
                "[[rule]]\nname = \"r\"\nlisten = 99\nbackend = \"10.0.0.9:80\"\nhosts = \"10.0.0.2\"\n",
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
            ("name = \"a\"", "name = \"b\"", &["export b of ram0"]),
            ("\"required\"", "\"optional\"", &["without subsystem nqn.x:a: dhchap = required"]),
            (
                "tls_psk = \"NVMeTLSkey-1:01:IiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIGuf2I:\"\n",
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
             [[rule]]\nname = \"r\"\nlisten = 99\nbackend = \"10.0.0.9:80\"\nhosts = \"10.0.0.2\"\n";
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
