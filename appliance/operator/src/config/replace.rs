//! Documents that are made of a running one: by a whole text, by a patch, or by one entry of a list.

use super::document::Document;
use super::is_secret;
use super::item::{Item as _, join};
use super::json_text;
use super::origin::{Kind, Origin, Problem, Source};
use super::renamed;
use super::toml_text;
use super::tree::{MAX_ENTRIES, Node, Value};

/// What reports show instead of a secret. A document that contains it in place of a secret keeps the running one.
const HIDDEN: &str = "(not shown)";

/// Name of a list entry.
fn name_of(node: &Node) -> Option<&str> {
    match node.get("name").map(|node| &node.value) {
        Some(Value::Text(name) | Value::Bare(name)) => Some(name),
        _ => None,
    }
}

/// What tells an entry of a list from others: its name, or of a subsystem or an NVMe host its NQN.
fn identity_of(node: &Node) -> Option<&Node> {
    node.get("name").or_else(|| node.get("nqn"))
}

/// Replaces all secrets of a tree by [`HIDDEN`].
pub(super) fn hide(node: &mut Node, path: &str) {
    match &mut node.value {
        Value::Table(entries) => {
            entries.iter_mut().for_each(|(key, node)| hide(node, &join(path, key)));
        }
        Value::List(items) => items.iter_mut().for_each(|item| hide(item, path)),
        value if is_secret(path) => *value = Value::Text(HIDDEN.into()),
        _ => {}
    }
}

/// Replaces [`HIDDEN`] by the secret of the running configuration. Entries of lists are matched by name
/// or NQN.
fn fill(node: &mut Node, running: Option<&Node>, path: &str) {
    match &mut node.value {
        Value::Table(entries) => {
            entries.retain_mut(|(key, node)| {
                let (path, known) = (join(path, key), running.and_then(|node| node.get(key)));
                let is_hidden = matches!(&node.value, Value::Text(text) if text == HIDDEN);
                if !is_hidden || !is_secret(&path) {
                    fill(node, known, &path);
                    return true;
                }
                known.map(|known| node.value = known.value.clone()).is_some()
            });
        }
        Value::List(items) => {
            let known = match running.map(|node| &node.value) {
                Some(Value::List(items)) => items.as_slice(),
                _ => &[],
            };
            for item in items {
                let value = |node: &Node| identity_of(node).map(|node| node.value.clone());
                let other = known.iter().find(|other| value(other) == value(item));
                fill(item, other, path);
            }
        }
        _ => {}
    }
}

/// Merges a patch (RFC 7396): `None` removes a key, tables are merged, all other values are replaced.
fn merge_patch(node: &mut Node, patch: json_text::Json, origin: Origin) {
    let json_text::Json::Object(keys) = patch else {
        *node = patch.into_node(origin);
        return;
    };
    if !matches!(node.value, Value::Table(_)) {
        *node = Node::empty(origin);
    }
    let Value::Table(entries) = &mut node.value else { return };
    for (key, value) in keys {
        if let json_text::Json::Null = value {
            entries.retain(|(known, _)| *known != key);
            continue;
        }
        match entries.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => merge_patch(known, value, origin),
            None => {
                let mut new = Node::empty(origin);
                merge_patch(&mut new, value, origin);
                entries.push((key, new));
            }
        }
    }
}

fn problem(path: &str, reason: String, source: Source) -> Vec<Problem> {
    let origin = Origin { source, position: 0 };
    let (path, accepted) = (path.chars().take(64).collect(), String::new());
    vec![Problem { kind: Kind::Mistake, origin, path, reason, accepted }]
}

impl Document {
    /// The document that a whole text defines over the built-in default. Unknown keys are mistakes. Secrets that the
    /// text does not show are those of this document.
    pub fn replaced(&self, text: &[u8], source: Source) -> Result<Document, Vec<Problem>> {
        let mut tree = toml_text::parse(text, source)?;
        let _ = renamed::in_document(&mut tree);
        fill(&mut tree, self.encoded().as_ref(), "");
        let mut document = Document::default();
        let mut root = document.root.clone();
        root.merge(tree);
        let whole = Document::default();
        document.adopt_all(root, &whole, Origin { source, position: 0 })?;
        Ok(document)
    }

    /// This document with a patch in JSON (RFC 7396). Lists are replaced as a whole.
    pub fn patched(&self, json: &[u8]) -> Result<Document, Vec<Problem>> {
        let origin = Origin { source: Source::Http, position: 0 };
        let patch = json_text::parse(json).map_err(|why| problem("", why, Source::Http))?;
        if !matches!(patch, json_text::Json::Object(_)) {
            return Err(problem("", "not a JSON object of sections".into(), Source::Http));
        }
        let mut document = self.clone();
        let mut root = self.root_in_force();
        merge_patch(&mut root, patch, origin);
        fill(&mut root, self.encoded().as_ref(), "");
        document.adopt_all(root, self, origin)?;
        Ok(document)
    }

    /// This document without its pending entries, to be edited as a candidate.
    pub fn without_pending(&self) -> Document {
        let mut document = self.clone();
        let (root, none) = (self.root_in_force(), Document::default());
        // The configuration in force is valid.
        let _ = document.adopt_all(root, &none, Origin { source: Source::Console, position: 0 });
        document
    }

    /// This document with the pending entries of another one.
    pub fn with_pending_of(&self, other: &Document) -> Document {
        let (mut document, root) = (self.clone(), self.root_in_force());
        let origin = Origin { source: Source::Console, position: 0 };
        match document.adopt_all(root, other, origin) {
            Ok(()) => document,
            Err(_) => self.clone(),
        }
    }

    /// This document with the entry of this name in a list of sections: added, or replaced. `json` is an object of the
    /// entry's keys, without `name` or with the same.
    pub fn with_entry(
        &self,
        section: &str,
        name: &str,
        json: &[u8],
    ) -> Result<Document, Vec<Problem>> {
        let origin = Origin { source: Source::Http, position: 0 };
        let wrong = |why: &str| problem(section, why.into(), Source::Http);
        let parsed = json_text::parse(json).map_err(|why| problem(section, why, Source::Http))?;
        if !matches!(parsed, json_text::Json::Object(_)) {
            return Err(wrong("not a JSON object of the entry's keys"));
        }
        let mut entry = parsed.into_node(origin);
        match name_of(&entry) {
            None if entry.get("name").is_some() => return Err(wrong("name: not a string")),
            None => {
                let name = Node { value: Value::Text(name.into()), origin };
                entry.set("name", name).map_err(|why| wrong(&why))?;
            }
            Some(given) if given != name => {
                return Err(wrong("the name in the body differs from that in the path"));
            }
            Some(_) => {}
        }
        self.change_list(section, |items| {
            match items.iter().position(|item| name_of(item) == Some(name)) {
                Some(at) => items[at] = entry,
                None if items.len() >= MAX_ENTRIES => {
                    return Err(wrong(&format!("a list holds at most {MAX_ENTRIES} entries")));
                }
                None => items.push(entry),
            }
            Ok(())
        })
    }

    /// This document without the entry of this name. None if there is none.
    pub fn without_entry(
        &self,
        section: &str,
        name: &str,
    ) -> Option<Result<Document, Vec<Problem>>> {
        self.entry_json(section, name, false)?;
        Some(self.change_list(section, |items| {
            items.retain(|item| name_of(item) != Some(name));
            Ok(())
        }))
    }

    /// The entry of this name as JSON on one line. Without `secrets` they are not shown.
    pub fn entry_json(&self, section: &str, name: &str, secrets: bool) -> Option<String> {
        let entry = self.encoded()?;
        let mut entry =
            entry.entries(section).iter().find(|item| name_of(item) == Some(name))?.clone();
        if !secrets {
            hide(&mut entry, section);
        }
        Some(super::document::report_of(entry.value).to_json())
    }

    /// All entries of a list as JSON on one line. Without `secrets` they are not shown.
    pub fn list_json(&self, section: &str, secrets: bool) -> String {
        let mut entries = self.encoded().map(|tree| tree.entries(section).to_vec());
        if !secrets {
            entries.iter_mut().flatten().for_each(|entry| hide(entry, section));
        }
        let entries = entries.unwrap_or_default().into_iter();
        crate::report::Value::list(entries.map(|e| super::document::report_of(e.value))).to_json()
    }

    /// The configuration in force as a document. Without `secrets` they are not shown.
    pub fn to_text(&self, secrets: bool) -> String {
        let value = if secrets { self.encoded().map(|tree| tree.value) } else { self.shown() };
        value.map_or(String::new(), |value| toml_text::write(&value))
    }

    /// The configuration in force as a value without secrets.
    pub(super) fn shown(&self) -> Option<Value> {
        let mut tree = self.encoded()?;
        hide(&mut tree, "");
        Some(tree.value)
    }

    /// The configuration in force as JSON on one line, without secrets.
    pub fn to_json(&self) -> String {
        self.shown().map_or("{}".into(), |value| super::document::report_of(value).to_json())
    }

    fn encoded(&self) -> Option<Node> {
        self.config().encode().map(Node::built_in)
    }

    fn change_list(
        &self,
        section: &str,
        change: impl FnOnce(&mut Vec<Node>) -> Result<(), Vec<Problem>>,
    ) -> Result<Document, Vec<Problem>> {
        let mut document = self.clone();
        let mut root = self.root_in_force();
        if !matches!(root.find(section).map(|node| &node.value), Some(Value::List(_))) {
            let list = Value::List(Vec::new());
            let made = root.set(section, Node { value: list, ..Node::empty(root.origin) });
            made.map_err(|why| problem(section, why, Source::Http))?;
        }
        if let Value::Table(sections) = &mut root.value
            && let Some((_, node)) = sections.iter_mut().find(|(key, _)| key == section)
            && let Value::List(items) = &mut node.value
        {
            change(items)?;
        }
        fill(&mut root, self.encoded().as_ref(), "");
        let origin = Origin { source: Source::Http, position: 0 };
        document.adopt_all(root, self, origin)?;
        Ok(document)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "abababababababababababababababababababababababababababababababab";

    fn document(text: &str) -> Document {
        Document::default().replaced(text.as_bytes(), Source::Console).unwrap()
    }

    #[test]
    fn whole_document_replaces_all_keys_and_keeps_hidden_secrets() {
        let running = document(&format!(
            "[system]\nhostname = \"a\"\n[http]\ntoken_sha256 = \"{KEY}\"\n[[user]]\nname = \"ci\"\n\
             role = \"read\"\ntoken_sha256 = \"{}\"\n",
            "cd".repeat(32)
        ));
        let shown = running.to_text(false);
        assert!(!shown.contains("abab"), "{shown}");
        let again = running.replaced(shown.as_bytes(), Source::Console).unwrap();
        assert_eq!(again.config(), running.config());
        let other = running.replaced(b"[http]\nport = 81\n", Source::Console).unwrap();
        assert_eq!(other.config().system.hostname.as_str(), "isthmus");
        assert_eq!(other.config().http.token_sha256, None);
        let wrong = running.replaced(b"[http]\nprot = 81\n", Source::Console).unwrap_err();
        assert_eq!(wrong[0].origin.to_string(), "console");
        // A hidden secret that the running document lacks is absent.
        let lost = Document::default().replaced(shown.as_bytes(), Source::Console).unwrap();
        let user = &lost.config().user[0];
        assert_eq!((user.token_sha256, &user.certificate), (None, &None), "it is known by nothing");
    }

    #[test]
    fn no_report_shows_a_secret() {
        let mut running = document(&format!(
            "[http]\ntoken_sha256 = \"{KEY}\"\n[[user]]\nname = \"ci\"\nrole = \"read\"\n\
             token_sha256 = \"{}\"\n",
            "cd".repeat(32)
        ));
        // A user whose role is still missing.
        running.set("user.1.name", "later").unwrap();
        running.set("user.1.token_sha256", &"ef".repeat(32)).unwrap();
        let reports = [
            running.to_shown_toml(),
            running.pending_toml(),
            running.to_report().to_json(),
            running.to_json(),
            running.to_text(false),
            running.list_json("user", false),
        ];
        for report in reports {
            let leaks = ["abab", "cdcd", "efef"].iter().any(|secret| report.contains(secret));
            assert!(report.contains("(not shown)") && !leaks, "{report}");
        }
    }

    #[test]
    fn patch_merges_tables_and_removes_null() {
        let running = document("[system]\nsyslog = \"10.0.0.9:514\"\nhostname = \"a\"\n");
        let patch = br#"{"system":{"syslog":null},"http":{"port":81,"hosts":["10.0.0.0/24"]}}"#;
        let patched = running.patched(patch).unwrap();
        let config = patched.config();
        assert_eq!((config.system.syslog.clone(), config.http.port), (None, Some(81)));
        assert_eq!(config.system.hostname.as_str(), "a");
        for wrong in ["[]", "{", "{\"http\":{\"port\":0}}", "{\"a\":1,\"a\":2}", "{\"nothing\":1}"]
        {
            assert!(running.patched(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn entry_is_added_replaced_and_removed_by_name() {
        let body = br#"{"listen":99,"backend":["10.0.0.9:80"]}"#;
        let one = Document::default().with_entry("rule", "r", body).unwrap();
        assert_eq!(one.config().rule.len(), 1);
        assert!(one.entry_json("rule", "r", false).unwrap().contains("\"listen\""));
        let same = one.with_entry("rule", "r", body).unwrap();
        assert_eq!(same.config(), one.config(), "the same request again changes nothing");
        let body = br#"{"name":"r","listen":98,"backend":["10.0.0.9:80"]}"#;
        let other = one.with_entry("rule", "r", body).unwrap();
        assert_eq!(other.config().rule.len(), 1);
        assert!(one.with_entry("rule", "s", body).is_err(), "names differ");
        assert!(other.without_entry("rule", "s").is_none());
        let none = other.without_entry("rule", "r").unwrap().unwrap();
        assert!(none.config().rule.is_empty());
        assert_eq!(other.list_json("rule", false).matches("\"name\"").count(), 1);
    }
}
