//! The difference between two configurations, key by key.

use super::in_force::InForce;
use super::is_secret;
use super::item::{Item as _, join};
use super::schema::Config;
use super::toml_text;
use super::tree::{Node, Value};
use crate::report;
use core::fmt;

/// A key that differs between two configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Path of the key. The index is that of the later configuration, or of the earlier one if the entry is removed.
    pub path: String,
    /// Name of the list entry that contains the key, if it has a name.
    pub entry: Option<String>,
    /// The earlier value as in a document. None if the key was absent.
    pub before: Option<String>,
    /// The later value. None if the key is absent.
    pub after: Option<String>,
    /// Whether the key can take effect without a reboot.
    pub at_once: bool,
}

impl fmt::Display for Change {
    /// A line with the earlier value, one with the later value, or both. No final line end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = self.entry.as_ref().map(|name| format!("  # {name}")).unwrap_or_default();
        let mut first = true;
        for (sign, value) in [('-', &self.before), ('+', &self.after)] {
            let Some(value) = value else { continue };
            let end = if core::mem::take(&mut first) { "" } else { "\n" };
            write!(f, "{end}{sign} {} = {value}{entry}", self.path)?;
        }
        Ok(())
    }
}

/// The keys that differ, in the order of the schema. Entries of lists are matched by name, or without a name by their
/// place. Values of secrets are not shown.
pub fn compare(before: &Config, after: &Config) -> Vec<Change> {
    let mut changes = Vec::new();
    let tree = |config: &Config| Node::built_in(config.encode().unwrap_or(Value::Table(vec![])));
    walk("", None, Some(&tree(before)), Some(&tree(after)), &mut changes);
    changes
}

/// Changes as JSON.
pub fn changes_json(changes: &[Change]) -> report::Value {
    report::Value::list(changes.iter().map(|change| {
        report::Value::object([
            ("path", change.path.clone().into()),
            ("entry", change.entry.clone().into()),
            ("before", change.before.clone().into()),
            ("after", change.after.clone().into()),
            ("at_once", change.at_once.into()),
        ])
    }))
}

/// The name of a list entry; of a subsystem or an NVMe host its NQN.
fn name_of(node: &Node) -> Option<&str> {
    match node.get("name").or_else(|| node.get("nqn")).map(|node| &node.value) {
        Some(Value::Text(name) | Value::Bare(name)) => Some(name),
        _ => None,
    }
}

fn entries(node: Option<&Node>) -> &[Node] {
    match node.map(|node| &node.value) {
        Some(Value::List(items)) => items,
        _ => &[],
    }
}

/// Whether a value is a list of sections.
fn has_sections(node: Option<&Node>) -> bool {
    entries(node).first().is_some_and(|item| matches!(item.value, Value::Table(_)))
}

fn walk(
    path: &str,
    entry: Option<&str>,
    before: Option<&Node>,
    after: Option<&Node>,
    changes: &mut Vec<Change>,
) {
    let table = |node: Option<&Node>| match node.map(|node| &node.value) {
        Some(Value::Table(entries)) => entries.iter().map(|(key, _)| key.clone()).collect(),
        _ => Vec::new(),
    };
    let (old, new) = (table(before), table(after));
    if !old.is_empty() || !new.is_empty() {
        let gone = old.iter().filter(|key| !new.contains(key));
        for key in new.iter().chain(gone) {
            let get = |node: Option<&'_ Node>| node.and_then(|node| node.get(key)).cloned();
            let (before, after) = (get(before), get(after));
            walk(&join(path, key), entry, before.as_ref(), after.as_ref(), changes);
        }
        return;
    }
    if has_sections(before) || has_sections(after) {
        return walk_list(path, before, after, changes);
    }
    let text = |node: Option<&Node>| {
        let node = node?;
        Some(match is_secret(path) {
            true => "(not shown)".to_string(),
            false => toml_text::write_one(&node.value),
        })
    };
    if before.map(|node| &node.value) != after.map(|node| &node.value) {
        let at_once = InForce::of(path).is_at_once();
        let (before, after) = (text(before), text(after));
        let entry = entry.map(str::to_string);
        changes.push(Change { path: path.into(), entry, before, after, at_once });
    }
}

fn walk_list(path: &str, before: Option<&Node>, after: Option<&Node>, changes: &mut Vec<Change>) {
    let (old, new) = (entries(before), entries(after));
    let mut matched = vec![false; old.len()];
    for (index, item) in new.iter().enumerate() {
        let name = name_of(item);
        let other = match name {
            Some(name) => old.iter().position(|other| name_of(other) == Some(name)),
            None => (index < old.len()).then_some(index),
        };
        let other = other.filter(|&at| !core::mem::replace(&mut matched[at], true));
        walk(&join(path, &index.to_string()), name, other.map(|at| &old[at]), Some(item), changes);
    }
    for (index, item) in old.iter().enumerate().filter(|(index, _)| !matched[*index]) {
        walk(&join(path, &index.to_string()), name_of(item), Some(item), None, changes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Document;

    fn config(text: &str) -> Config {
        crate::config::check(text.as_bytes()).unwrap()
    }

    fn shown(before: &str, after: &str) -> Vec<String> {
        compare(&config(before), &config(after)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn equal_configurations_have_no_changes() {
        assert!(compare(&Config::default(), &Config::default()).is_empty());
    }

    #[test]
    fn changed_added_and_removed_keys_are_listed() {
        let before = "[system]\nsyslog = \"10.0.0.9:514\"\n[http]\nport = 81\n";
        let after = "[system]\nhostname = \"a\"\n[http]\nport = 82\nhosts = [\"10.0.0.0/24\"]\n";
        assert_eq!(
            shown(before, after),
            [
                "- system.hostname = \"isthmus\"\n+ system.hostname = \"a\"",
                "- system.syslog = \"10.0.0.9:514\"",
                "- http.port = 81\n+ http.port = 82",
                "- http.hosts = []\n+ http.hosts = [\"10.0.0.0/24\"]",
            ]
        );
    }

    #[test]
    fn entries_are_matched_by_name() {
        let rule = |name: &str, port: u16| {
            format!("[[rule]]\nname = \"{name}\"\nlisten = {port}\nbackend = \"10.0.0.9:80\"\n")
        };
        let before = rule("a", 91) + &rule("b", 92);
        assert_eq!(shown(&before, &rule("b", 93)).last().unwrap(), "- rule.0.hosts = []  # a",);
        let changes = shown(&before, &rule("b", 93));
        assert_eq!(
            changes[0],
            "- rule.0.listen = 92\n+ rule.0.listen = 93  # b".replace("92\n", "92  # b\n")
        );
        assert!(!changes.iter().any(|line| line.contains("rule.1")), "{changes:?}");
    }

    #[test]
    fn secrets_are_not_shown_and_effect_is_that_of_the_key() {
        let mut document = Document::default();
        document.set("http.token_sha256", &"ab".repeat(32)).unwrap();
        document.set("net.0.mtu", "1400").unwrap();
        let changes = compare(&Config::default(), document.config());
        let of = |path: &str| changes.iter().find(|change| change.path == path).unwrap();
        assert_eq!(of("http.token_sha256").after.as_deref(), Some("(not shown)"));
        assert!(of("http.token_sha256").at_once && !of("net.0.mtu").at_once);
        assert_eq!(of("net.0.mtu").entry, None);
    }
}
