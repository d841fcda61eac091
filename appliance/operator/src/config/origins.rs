//! Which source each key in force is from, and what of a source is covered by a stronger one.

use super::document::Document;
use super::origin::{Origin, Source};
use super::tree::{Node, Value};

/// Keys that are named at most where they are listed; of others there is the number.
const NAMED: usize = 12;

/// What one source says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The source.
    pub source: Source,
    /// Paths of its keys; a list of sections is one.
    keys: Vec<String>,
}

impl Layer {
    /// What a document says.
    pub fn of(source: Source, tree: &Node) -> Layer {
        let mut keys = Vec::new();
        leaves(tree, "", &mut |path, _| keys.push(path.to_string()));
        Layer { source, keys }
    }
}

/// Each value that is no section, with its path.
fn leaves(node: &Node, path: &str, each: &mut impl FnMut(&str, &Node)) {
    let Value::Table(entries) = &node.value else { return each(path, node) };
    for (key, node) in entries {
        leaves(node, &super::item::join(path, key), each);
    }
}

/// Says of values of a tree where they come from: of those that are as `before`, where they came from by `root`, of
/// others `now`. Both trees are as a configuration is written.
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

/// Some of these, and how many more there are.
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

    /// Of a document: its keys that are in force, and those that others cover, by which.
    fn standing(&self, layer: &Layer) -> (Vec<String>, Vec<(Source, Vec<String>)>) {
        let (mut used, mut covered): (Vec<String>, Vec<(Source, Vec<String>)>) = Default::default();
        for key in &layer.keys {
            let by = self.root.find(key).map_or(Source::BuiltIn, |node| node.origin.source);
            if by == layer.source {
                used.push(key.clone());
                continue;
            }
            match covered.iter_mut().find(|(source, _)| *source == by) {
                Some((_, keys)) => keys.push(key.clone()),
                None => covered.push((by, vec![key.clone()])),
            }
        }
        (used, covered)
    }

    /// In one line, which sources there are, and what of each is covered by a stronger one.
    pub fn sources_line(&self) -> String {
        let mut told: Vec<String> = Vec::new();
        for layer in &self.layers {
            let (used, covered) = self.standing(layer);
            let mut line =
                format!("{}: {} of {} keys", name(layer.source), used.len(), layer.keys.len());
            for (by, keys) in covered {
                line += &format!(", {} covered by {} ({})", keys.len(), name(by), some(&keys));
            }
            told.push(line);
        }
        let mut settings = Vec::new();
        nodes_of(&self.root, "", Source::CommandLine, &mut settings);
        if !settings.is_empty() {
            told.push(format!("command line: {}", some(&settings)));
        }
        match told.is_empty() {
            true => "built-in defaults alone".into(),
            false => told.join("; "),
        }
    }

    /// What is covered, as comments behind a document; empty if nothing is.
    pub fn covered_toml(&self) -> String {
        let mut text = String::new();
        for layer in &self.layers {
            for (by, keys) in self.standing(layer).1 {
                let (what, by) = (name(layer.source), name(by));
                text += &format!("# {what}, covered by {by}: {}\n", keys.join(", "));
            }
        }
        match text.is_empty() {
            true => text,
            false => format!("\n# Said by a source, and not in force:\n{text}"),
        }
    }

    /// A document as it is written, with a comment at each key that says which source it is from, but for built-in
    /// defaults.
    pub(super) fn with_origins(&self, text: &str) -> String {
        let (mut section, mut told) = (String::new(), String::new());
        let mut counts: Vec<(String, usize)> = Vec::new();
        for line in text.lines() {
            told += line;
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
                    told += &format!("  # {origin}");
                }
            }
            told.push('\n');
        }
        told
    }

    /// Where the value at a path is from; None of what an entry of a list leaves to its default.
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

/// The path of the next entry of a list, which may be in an entry of another one (`usnic.peer`).
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

/// Whether a value, or anything in it, is from a source.
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
    use crate::config::{Document, Source, Sources};

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
    fn sources_line_names_what_is_covered_and_by_what() {
        assert_eq!(
            load().sources_line(),
            "fw_cfg document: 2 of 3 keys, 1 covered by config disk document (system.hostname); \
             config disk document: 2 of 2 keys; command line: net.1.mtu"
        );
        assert_eq!(Document::default().sources_line(), "built-in defaults alone");
    }

    #[test]
    fn shown_document_tells_the_origin_of_each_key() {
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
            "# fw_cfg document, covered by config disk document: system.hostname",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line}:\n{shown}");
        }
        assert!(shown.contains("\nidle_after_us = 100\n"), "a default has no origin: {shown}");
        assert!(crate::config::check(shown.as_bytes()).is_ok());
    }

    #[test]
    fn a_change_of_one_section_leaves_the_origins_of_others() {
        let mut document = load();
        assert!(document.depends_on(Source::FwCfg) && !document.depends_on(Source::Image));
        document.edit(|config| config.rnbd.port = 99).unwrap();
        let shown = document.to_shown_toml();
        assert!(shown.contains("log_level = \"warn\"  # fw_cfg line 3\n"), "{shown}");
        assert!(shown.contains("port = 99  # console\n"), "{shown}");
        assert!(document.depends_on(Source::FwCfg));
    }
}
