//! Access granted by a configuration and its restrictions, one line each. An upgrade compares the lines of two
//! configurations and shows the operator those that only one of them has.

use super::schema::{Config, Export};
use core::fmt::Display;

/// The list value of a key, as in a line.
fn list(items: &[impl Display]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

impl Config {
    /// One line for each export, each rule, and each restriction of access.
    pub fn doors(&self, exports: &[Export]) -> Vec<String> {
        let mut lines = Vec::new();
        let mut add = |restricts: bool, line: String| {
            if restricts {
                lines.push(line);
            }
        };
        for export in exports {
            let name = &export.name;
            add(true, format!("export {name} of {}", export.volume));
            add(export.read_only, format!("export {name}: read_only"));
            add(
                !export.sessions.is_empty(),
                format!("export {name}: sessions = {}", list(&export.sessions)),
            );
            add(
                !export.hosts.is_empty(),
                format!("export {name}: hosts = {}", list(&export.hosts)),
            );
        }
        for rule in &self.rule {
            let name = &rule.name;
            add(true, format!("rule {name} on {}", rule.listen));
            add(!rule.hosts.is_empty(), format!("rule {name}: hosts = {}", list(&rule.hosts)));
        }
        for usnic in self.usnic.iter().filter(|usnic| !usnic.hosts.is_empty()) {
            add(true, format!("usnic {}: hosts = {}", usnic.name, list(&usnic.hosts)));
        }
        for link in self.linx.iter().filter(|link| !link.hosts.is_empty()) {
            add(true, format!("linx {}: hosts = {}", link.name, list(&link.hosts)));
        }
        let http = &self.http;
        add(!http.hosts.is_empty(), format!("http.hosts = {}", list(&http.hosts)));
        add(!http.listen.is_empty(), format!("http.listen = {}", list(&http.listen)));
        add(!self.smc.hosts.is_empty(), format!("smc.hosts = {}", list(&self.smc.hosts)));
        let off = [
            ("http.enabled", http.enabled),
            ("rnbd.enabled", self.rnbd.enabled),
            ("roce.enabled", self.roce.enabled),
            ("roce.services", self.roce.services),
            ("smc.services", self.smc.services),
            ("services.udp_echo", self.services.udp_echo),
        ];
        off.into_iter().for_each(|(key, on)| add(!on, format!("{key} = false")));
        add(http.tls, "http.tls = true".into());
        let keys = [
            ("http.token_sha256", http.token_sha256.is_some()),
            ("http.certificate", http.certificate.is_some()),
            ("http.key", http.key.is_some()),
            ("system.upgrade_key", self.system.upgrade_key.is_some()),
        ];
        keys.into_iter().for_each(|(key, set)| add(set, format!("{key} is set")));
        lines
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Document, Sources};

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
