//! The source of each key in force, and the keys of a source that a stronger source overrides.

use super::document::Document;
use super::origin::{Origin, Source};
use super::tree::{Node, Value};

/// Maximum keys named in a list. Further keys are only counted.
const NAMED: usize = 12;

/// The keys that one source defines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The source.
    pub source: Source,
    /// Paths of the keys. A list of sections counts as one key.
    keys: Vec<String>,
}

impl Layer {
    /// The keys of a document.
    pub fn of(source: Source, tree: &Node) -> Layer {
        let mut keys = Vec::new();
        leaves(tree, "", &mut |path, _| keys.push(path.to_string()));
        Layer { source, keys }
    }

    /// The paths of settings, which may be in entries of lists.
    pub fn of_settings(source: Source, settings: &[(String, String)]) -> Layer {
        Layer { source, keys: settings.iter().map(|(path, _)| path.clone()).collect() }
    }
}

/// Calls `each` with the path and node of every value that is not a section.
fn leaves(node: &Node, path: &str, each: &mut impl FnMut(&str, &Node)) {
    let Value::Table(entries) = &node.value else { return each(path, node) };
    for (key, node) in entries {
        leaves(node, &super::item::join(path, key), each);
    }
}

/// Sets the origins in a tree. Values equal to those in `before` keep the origin that they have in `root`. Other values
/// get `now`. Both trees are encoded configurations.
pub fn keep_origins(tree: &mut Node, before: Option<&Node>, root: Option<&Node>, now: Origin) {
    let is_same = before.is_some_and(|before| before.value == tree.value);
    match &mut tree.value {
        Value::Table(entries) => {
            for (key, node) in entries {
                let before = before.and_then(|before| before.get(key));
                keep_origins(node, before, root.and_then(|root| root.get(key)), now);
            }
        }
        _ if is_same => tree.set_origin(root.map_or_else(built_in, |root| root.origin)),
        _ => tree.set_origin(now),
    }
}

fn built_in() -> Origin {
    Origin { source: Source::BuiltIn, position: 0 }
}

fn name(source: Source) -> String {
    Origin { source, position: 0 }.to_string()
}

/// The first keys, and the number of the others.
fn some(keys: &[String]) -> String {
    match keys.len().checked_sub(NAMED) {
        None | Some(0) => keys.join(", "),
        Some(more) => format!("{} and {more} more", keys[..NAMED].join(", ")),
    }
}

impl Document {
    /// Whether a key in force is from this source.
    pub fn depends_on(&self, source: Source) -> bool {
        let mut found = false;
        leaves(&self.root, "", &mut |_, node| found |= has(node, source));
        found
    }

    /// The keys of a document that are in force, and the overridden keys by overriding source.
    fn split_keys(&self, layer: &Layer) -> (Vec<String>, Vec<(Source, Vec<String>)>) {
        let (mut used, mut overridden): (Vec<String>, Vec<(Source, Vec<String>)>) =
            Default::default();
        for key in &layer.keys {
            let by = self.source_in_force(key);
            if by == layer.source {
                used.push(key.clone());
                continue;
            }
            match overridden.iter_mut().find(|(source, _)| *source == by) {
                Some((_, keys)) => keys.push(key.clone()),
                None => overridden.push((by, vec![key.clone()])),
            }
        }
        (used, overridden)
    }

    /// The source of a key. The path of a setting may lead into a list that a later source has replaced.
    fn source_in_force(&self, key: &str) -> Source {
        let above = || {
            let mut paths = key.match_indices('.').map(|(at, _)| &key[..at]);
            paths.find_map(|path| {
                self.root.find(path).filter(|node| matches!(node.value, Value::List(_)))
            })
        };
        let node = self.root.find(key).or_else(above);
        node.map_or(Source::BuiltIn, |node| node.origin.source)
    }

    /// One line for the log: the sources, and the keys of each that a stronger source overrides.
    pub fn sources_line(&self) -> String {
        let mut parts: Vec<String> = Vec::new();
        for layer in &self.layers {
            let (used, overridden) = self.split_keys(layer);
            let mut line =
                format!("{}: {} of {} keys", name(layer.source), used.len(), layer.keys.len());
            for (by, keys) in overridden {
                line += &format!(", {} overridden by {} ({})", keys.len(), name(by), some(&keys));
            }
            parts.push(line);
        }
        let mut settings = Vec::new();
        nodes_of(&self.root, "", Source::CommandLine, &mut settings);
        if !settings.is_empty() {
            parts.push(format!("command line: {}", some(&settings)));
        }
        match parts.is_empty() {
            true => "built-in defaults only".into(),
            false => parts.join("; "),
        }
    }

    /// Overridden keys as comments that follow a document. Empty without any.
    pub fn covered_toml(&self) -> String {
        let mut text = String::new();
        for layer in &self.layers {
            for (by, keys) in self.split_keys(layer).1 {
                let (what, by) = (name(layer.source), name(by));
                text += &format!("# {what}, overridden by {by}: {}\n", keys.join(", "));
            }
        }
        match text.is_empty() {
            true => text,
            false => format!("\n# Overridden, not in force:\n{text}"),
        }
    }

    /// A document's text with a comment after each key that names its source, except built-in defaults.
    pub(super) fn with_origins(&self, text: &str) -> String {
        let (mut section, mut commented) = (String::new(), String::new());
        let mut counts: Vec<(String, usize)> = Vec::new();
        for line in text.lines() {
            commented += line;
            if let Some(list) = line.strip_prefix("[[").and_then(|line| line.strip_suffix("]]")) {
                section = entry(list, &mut counts);
            } else if let Some(table) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
                section = table.to_string();
            } else if let Some((key, value)) = line.split_once(" = ")
                && !value.contains("'''")
                && !value.contains("\"\"\"")
            {
                let origin = self.origin(&super::item::join(&section, key));
                if let Some(origin) = origin.filter(|origin| origin.source != Source::BuiltIn) {
                    commented += &format!("  # {origin}");
                }
            }
            commented.push('\n');
        }
        commented
    }

    /// Origin of the value at a path. None for the default of a key in a list entry.
    fn origin(&self, path: &str) -> Option<Origin> {
        let mut origin = None;
        let mut at = &self.root;
        for segment in path.split('.') {
            at = match &at.value {
                Value::List(items) => items.get(segment.parse::<usize>().ok()?)?,
                _ => at.get(segment)?,
            };
            origin = Some(at.origin);
        }
        origin
    }
}

/// The path of the next entry of a list, which may be nested in an entry of another list (`usnic.peer`).
fn entry(list: &str, counts: &mut Vec<(String, usize)>) -> String {
    let mut path = String::new();
    for (at, part) in list.split('.').enumerate() {
        path = super::item::join(&path, part);
        let last = at + 1 == list.split('.').count();
        let index = match counts.iter_mut().find(|(known, _)| *known == path) {
            Some((_, index)) if last => {
                *index += 1;
                *index
            }
            Some((_, index)) => *index,
            None => {
                counts.push((path.clone(), 0));
                0
            }
        };
        path = format!("{path}.{index}");
    }
    path
}

/// Whether a value, or a value inside it, is from a source.
fn has(node: &Node, source: Source) -> bool {
    let below = match &node.value {
        Value::List(items) => items.iter().any(|item| has(item, source)),
        Value::Table(entries) => entries.iter().any(|(_, node)| has(node, source)),
        _ => false,
    };
    below || (node.origin.source == source && !matches!(node.value, Value::Table(_)))
}

/// Paths of values from a source.
fn nodes_of(node: &Node, path: &str, source: Source, into: &mut Vec<String>) {
    match &node.value {
        Value::Table(entries) => {
            for (key, node) in entries {
                nodes_of(node, &super::item::join(path, key), source, into);
            }
        }
        _ if node.origin.source == source => into.push(path.to_string()),
        Value::List(items) => {
            for (index, item) in items.iter().enumerate() {
                nodes_of(item, &format!("{path}.{index}"), source, into);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Document, OemStrings, Source, Sources};

    const FW_CFG: &str =
        "[system]\nhostname = \"vmm\"\nlog_level = \"warn\"\n[[volume]]\nname = \"a\"\n";
    const DISK: &str = "[system]\nhostname = \"disk\"\n[[net]]\nmtu = 1400\n[[net]]\nmtu = 1500\n";

    fn load() -> Document {
        let (document, problems) = Document::load(&Sources {
            fw_cfg: Some(FW_CFG.as_bytes()),
            disk: Some(DISK.as_bytes()),
            command_line: "isthmus.net.1.mtu=9000",
            ..Sources::default()
        });
        assert_eq!(problems, []);
        document
    }

    #[test]
    fn sources_line_names_overridden_keys_and_their_source() {
        assert_eq!(
            load().sources_line(),
            "fw_cfg document: 2 of 3 keys, 1 overridden by config disk document (system.hostname); \
             config disk document: 2 of 2 keys; command line: net.1.mtu"
        );
        assert_eq!(Document::default().sources_line(), "built-in defaults only");
    }

    #[test]
    fn smbios_settings_lie_between_fw_cfg_and_the_disk() {
        let setting = |path: &str, value: &str| (path.to_string(), value.to_string());
        let strings = OemStrings {
            document: Some(b"[rnbd]\nport = 7\n".to_vec()),
            settings: vec![
                setting("system.log_level", "error"),
                setting("net.0.mtu", "1300"),
                setting("net.0.mtuu", "1300"),
            ],
            ..OemStrings::default()
        };
        let sources = Sources {
            fw_cfg: Some(FW_CFG.as_bytes()),
            smbios: Some(&strings),
            seed: Some(b"[rnbd]\nport = 8\n"),
            seed_hostname: Some("seeded"),
            disk: Some(b"[[net]]\nmtu = 1400\n"),
            ..Sources::default()
        };
        let (document, problems) = Document::load(&sources);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].to_string().starts_with("SMBIOS strings: net.0.mtuu: unknown key"));
        assert_eq!(
            document.sources_line(),
            "fw_cfg document: 1 of 3 keys, 1 overridden by seed meta-data (system.hostname), \
             1 overridden by SMBIOS strings (system.log_level); \
             SMBIOS document: 0 of 1 keys, 1 overridden by seed document (rnbd.port); \
             SMBIOS strings: 1 of 2 keys, 1 overridden by config disk document (net.0.mtu); \
             seed meta-data: 1 of 1 keys; seed document: 1 of 1 keys; \
             config disk document: 1 of 1 keys"
        );
    }

    #[test]
    fn shown_document_names_the_origin_of_each_key() {
        let mut document = load();
        document.set("rnbd.port", "99").unwrap();
        let shown = document.to_shown_toml() + &document.covered_toml();
        for line in [
            "hostname = \"disk\"  # config disk line 2",
            "log_level = \"warn\"  # fw_cfg line 3",
            "name = \"a\"  # fw_cfg line 5",
            "mtu = 1400  # config disk line 4",
            "mtu = 9000  # command line",
            "port = 99  # console",
            "# fw_cfg document, overridden by config disk document: system.hostname",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line}:\n{shown}");
        }
        assert!(shown.contains("\nidle_after_us = 100\n"), "a default has no origin: {shown}");
        assert!(crate::config::check(shown.as_bytes()).is_ok());
    }

    #[test]
    fn change_of_one_section_keeps_the_origins_of_others() {
        let mut document = load();
        assert!(document.depends_on(Source::FwCfg) && !document.depends_on(Source::Image));
        document.edit(|config| config.rnbd.port = 99).unwrap();
        let shown = document.to_shown_toml();
        assert!(shown.contains("log_level = \"warn\"  # fw_cfg line 3\n"), "{shown}");
        assert!(shown.contains("port = 99  # console\n"), "{shown}");
        assert!(document.depends_on(Source::FwCfg));
    }
}
