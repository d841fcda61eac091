//! [`Document`]: the running configuration, merged from all sources at boot, changed by `set`, written by `save`.

use super::checks::check as check_whole;
use super::closing;
use super::item::{Field, Item as _};
use super::known_secrets;
use super::oem_strings::OemStrings;
use super::origin::{Kind, Origin, Problem, Source};
use super::origins::{Layer, keep_origins};
use super::pending::{self, Entry, Pending};
use super::renamed;
use super::replace;
use super::schema::Config;
use super::toml_text;
use super::tree::{MAX_ENTRIES, Node, Value};
use crate::report;
use std::borrow::Cow;

mod load;

/// The sources that are read at boot. Bytes that are not TOML in UTF-8 are reported as a problem.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sources<'a> {
    /// The document embedded in the image.
    pub image: Option<&'a [u8]>,
    /// The fw_cfg file `opt/isthmus/config`.
    pub fw_cfg: Option<&'a [u8]>,
    /// Strings of the VMM in SMBIOS.
    pub smbios: Option<&'a OemStrings>,
    /// The document on the seed disk.
    pub seed: Option<&'a [u8]>,
    /// The host name that the seed disk gives beside its document.
    pub seed_hostname: Option<&'a str>,
    /// Cause and remedy if a seed disk is named that cannot be used.
    pub seed_unusable: Option<&'a str>,
    /// The document on the config disk.
    pub disk: Option<&'a [u8]>,
    /// The document saved before `disk`.
    pub disk_before: Option<&'a [u8]>,
    /// The config disk holds only damaged documents.
    pub disk_damaged: bool,
    /// Cause and remedy if a config disk exists, or may exist, that cannot be read.
    pub disk_unreachable: Option<&'a str>,
    /// The whole kernel command line.
    pub command_line: &'a str,
    /// The command line is truncated, or could not be read.
    pub command_line_cut: bool,
}

/// A valid configuration, and the tree of values that it was decoded from.
#[derive(Clone, Debug)]
pub struct Document {
    /// All given values, including pending entries.
    pub(super) root: Node,
    /// Keys of each source document.
    pub(super) layers: Vec<Layer>,
    /// The configuration in force.
    config: Config,
    pending: Vec<Pending>,
    closed: bool,
    /// Reasons, if the document is closed.
    reasons: Vec<String>,
    older_copy: bool,
}

impl Default for Document {
    /// The built-in default.
    fn default() -> Self {
        let config = Config::default();
        let root = config.encode().map(Node::built_in).expect("a section has a value");
        let (layers, pending, reasons) = Default::default();
        Document { root, layers, config, pending, closed: false, reasons, older_copy: false }
    }
}

const CONSOLE: Origin = Origin { source: Source::Console, position: 0 };

impl Document {
    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether access is closed because a document or a restricting setting could not be used.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether the document before the newest on the config disk is in force, because the newest cannot be used.
    pub fn is_older_copy(&self) -> bool {
        self.older_copy
    }

    /// Pending entries of lists, which are not in force.
    pub fn pending(&self) -> &[Pending] {
        &self.pending
    }

    /// The pending entry that contains `path`, if any.
    pub fn pending_at(&self, path: &str) -> Option<&Pending> {
        let entry = Entry::of(path)?;
        self.pending.iter().find(|pending| pending.entry == entry)
    }

    /// Changes one value if the configuration is valid afterwards, else nothing. A new entry of a list may be
    /// incomplete: it is pending until it is complete.
    pub fn set(&mut self, path: &str, value: &str) -> Result<(), Vec<Problem>> {
        let path = &*current_name(path);
        let wrong = |reason: String| vec![console_problem(path, reason)];
        let mut root = self.root.clone();
        let mut building: Vec<Entry> = self.pending.iter().map(|p| p.entry.clone()).collect();
        if let Some(entry) = Entry::of(path) {
            let count = self.root.entries(&entry.section).len();
            if entry.index > count && entry.section != "net" {
                let section = &entry.section;
                return Err(wrong(format!(
                    "{section} has {count} entries; the next is {section}.{count}"
                )));
            }
            if entry.index == count {
                building.push(entry);
            }
        }
        put(&mut root, path, value, CONSOLE).map_err(|problem| vec![problem])?;
        if !path.contains('.') && pending::is_list(path) {
            let (before, after) = (self.root.entries(path).len(), root.entries(path).len());
            if after < before {
                let reason = format!(
                    "would remove {} of {before} entries; remove one with `unset {path}.N`",
                    before - after
                );
                return Err(wrong(reason));
            }
            building.retain(|entry| entry.section != path);
        }
        self.adopt(root, &building, Some(CONSOLE)).map(drop)
    }

    /// Removes a key or an entry of a list if the configuration is valid without it.
    pub fn unset(&mut self, path: &str) -> Result<(), Vec<Problem>> {
        let path = &*current_name(path);
        let wrong = |reason: &str| vec![console_problem(path, reason.into())];
        let mut root = self.root.clone();
        if !path.contains('.') || !root.remove(path) {
            return Err(wrong("no such key or entry; `show config` lists all"));
        }
        let mut building: Vec<Entry> = self.pending.iter().map(|p| p.entry.clone()).collect();
        if let Some(gone) = Entry::of(path).filter(|entry| entry.to_string() == path) {
            building.retain(|entry| *entry != gone);
            for entry in &mut building {
                if entry.section == gone.section && entry.index > gone.index {
                    entry.index -= 1;
                }
            }
            let of_exports = gone.section == "export" && self.pending_at(path).is_none();
            if of_exports && self.config.export.len() == 1 {
                let reason = "cannot remove the last export: without any, every volume is exported to all hosts";
                return Err(wrong(reason));
            }
        }
        self.adopt(root, &building, Some(CONSOLE)).map(drop)
    }

    /// The object that clients would lose if `path` is unset: an entry in force that holds data or gives access to it.
    pub fn loses(&self, path: &str) -> Option<String> {
        let entry = Entry::of(path).filter(|entry| entry.to_string() == path)?;
        let holds = matches!(entry.section.as_str(), "volume" | "remote" | "mirror" | "export");
        let exists = entry.index < self.root.entries(&entry.section).len();
        if !holds || !exists || self.pending_at(path).is_some() {
            return None;
        }
        let name = self.root.find(&format!("{path}.name")).map(|node| match &node.value {
            Value::Text(name) | Value::Bare(name) => name.as_str(),
            _ => "",
        });
        Some(format!("{} {}", entry.section, name.unwrap_or_default()))
    }

    /// Changes the typed configuration if it is valid afterwards, else nothing. Pending entries are kept, after the
    /// others.
    pub fn edit(&mut self, change: impl FnOnce(&mut Config)) -> Result<(), Vec<Problem>> {
        let mut config = self.config.clone();
        change(&mut config);
        let mut root = config.encode().map(Node::built_in).expect("a section has a value");
        let before = self.config.encode().map(Node::built_in);
        keep_origins(&mut root, before.as_ref(), Some(&self.root), CONSOLE);
        let from = self.clone();
        self.adopt_all(root, &from, CONSOLE)
    }

    /// The configuration in force as a document that decodes to the same configuration.
    pub fn to_toml(&self) -> String {
        toml_text::write(&self.config.encode().expect("a section has a value"))
    }

    /// The configuration in force for `show config`: without secrets, with the source of each key, and with the reasons
    /// if access is closed.
    pub fn to_shown_toml(&self) -> String {
        let mut text = String::new();
        if self.closed {
            text += "# Closed: exports, rules, bridges, services and HTTP writes are disabled until this is corrected:\n";
            for line in self.reasons.iter().flat_map(|reason| reason.lines()) {
                text += &format!("#   {line}\n");
            }
        }
        text + &self.with_origins(&self.to_text(false))
    }

    /// The value of a pending entry without secrets.
    fn pending_value(&self, entry: &Entry) -> Option<Value> {
        let mut node = self.root.find(&entry.to_string())?.clone();
        replace::hide(&mut node, &entry.section);
        Some(node.value)
    }

    /// Pending entries as comments that follow a document. Empty without any.
    pub fn pending_toml(&self) -> String {
        let mut text = String::new();
        for pending in &self.pending {
            let Some(value) = self.pending_value(&pending.entry) else { continue };
            text += &format!("\n# Pending, neither in force nor saved: {pending}\n");
            for line in toml_text::write_entry(&pending.entry.section, &value).lines() {
                text += &format!("# {line}\n");
            }
        }
        text
    }

    /// The configuration without secrets as a report, for JSON. Pending entries are under `pending`.
    pub fn to_report(&self) -> report::Value {
        let mut report = self.shown().map_or(report::Value::None, report_of);
        if let report::Value::Object(entries) = &mut report
            && !self.pending.is_empty()
        {
            let pending = self.pending.iter().map(|pending| {
                let given = self.pending_value(&pending.entry);
                report::Value::object([
                    ("entry", report::Value::display(&pending.entry)),
                    ("missing", report::Value::list(pending.missing().map(report::Value::display))),
                    ("given", given.map_or(report::Value::None, report_of)),
                ])
            });
            entries.push(("pending".into(), report::Value::list(pending)));
        }
        report
    }

    /// Completions of a partial path. Sections end in a dot. Lists offer the existing indices and the next one.
    pub fn complete(&self, partial: &str) -> Vec<String> {
        let mut segments: Vec<&str> = partial.split('.').collect();
        let word = segments.pop().unwrap_or_default();
        let mut fields = Config::fields();
        let mut list = false;
        for &segment in &segments {
            if list && segment.parse::<usize>().is_ok() {
                list = false;
                continue;
            }
            let Some(field) = fields.iter().find(|f| f.name == segment && !list) else {
                return Vec::new();
            };
            (fields, list) = ((field.fields)(), field.list);
        }
        let above = segments.join(".");
        let prefix = if above.is_empty() { String::new() } else { format!("{above}.") };
        if list {
            let count = match &self.root.nearest(&above).value {
                Value::List(items) => items.len(),
                _ => 0,
            };
            let end = if fields.is_empty() { "" } else { "." };
            let indices = (0..=count).take(MAX_ENTRIES).map(|i| i.to_string());
            return indices
                .filter(|i| i.starts_with(word))
                .map(|i| format!("{prefix}{i}{end}"))
                .collect();
        }
        let end = |f: &Field| if (f.fields)().is_empty() { "" } else { "." };
        let matching = fields.iter().filter(|f| f.name.starts_with(word));
        matching.map(|f| format!("{prefix}{}{}", f.name, end(f))).collect()
    }

    /// Merges a document if the configuration is valid afterwards. Returns its tree, the problems of unknown keys, and
    /// whether those keys may have restricted everything.
    fn lay_over(
        &mut self,
        text: &[u8],
        source: Source,
    ) -> Result<(Node, Vec<Problem>, bool), Vec<Problem>> {
        let mut tree = toml_text::parse(text, source)?;
        let mut unknown = renamed::in_document(&mut tree);
        let closes = closing::leave_out_unknown(&mut tree, &mut unknown);
        known_secrets::leave_out(&mut tree, &mut unknown);
        let mut root = self.root.clone();
        root.merge(tree.clone());
        match self.adopt(root, &[], None) {
            Ok(()) => Ok((tree, unknown, closes)),
            Err(mut problems) => {
                problems.extend(unknown);
                Err(in_order_of_lines(problems))
            }
        }
    }

    /// Closes the settings that may have been restricted, except those that a `later` document defines.
    fn close(&mut self, later: &[Node], origin: Origin) {
        let mut root = self.root.clone();
        closing::close(&mut root, later, origin);
        if self.adopt(root, &[], None).is_err() {
            // The closed settings conflict with the other values: discards all of those.
            let mut default = Document::default();
            closing::close(&mut default.root, &[], origin);
            let root = default.root.clone();
            default.adopt(root, &[], None).expect("the default can be closed");
            *self = default;
        }
        self.closed = true;
    }

    /// Makes `root` the configuration if it is valid. Entries in `building` may lack values. `blamed` becomes the
    /// origin of problems that a change causes in a built-in default.
    fn adopt(
        &mut self,
        root: Node,
        building: &[Entry],
        blamed: Option<Origin>,
    ) -> Result<(), Vec<Problem>> {
        let mut pending: Vec<Pending> = Vec::new();
        loop {
            let in_force = pending::without(&root, &pending);
            let mut problems = Vec::new();
            let config = Config::decode(&in_force, "", None, &mut problems);
            if let Some(config) = config.filter(|_| problems.is_empty()) {
                problems = check_whole(&config, &in_force);
                if problems.is_empty() {
                    pending.sort_by(|a, b| a.entry.cmp(&b.entry));
                    (self.root, self.config, self.pending) = (root, config, pending);
                    return Ok(());
                }
            }
            for problem in &mut problems {
                problem.path = pending::outer_path(&problem.path, &pending);
                if let Some(origin) = blamed.filter(|_| problem.origin.source == Source::BuiltIn) {
                    problem.origin = origin;
                }
            }
            let (missing, wrong): (Vec<Problem>, Vec<Problem>) =
                problems.into_iter().partition(|p| {
                    let entry = Entry::of(&p.path).filter(|_| p.kind == Kind::Missing);
                    entry.is_some_and(|entry| building.contains(&entry))
                });
            if !wrong.is_empty() {
                return Err(in_order_of_lines(wrong));
            }
            for problem in missing {
                pending::note(&mut pending, problem);
            }
        }
    }

    /// Makes `root`, a tree without pending entries, the configuration. The pending entries of `from` follow the others.
    pub(super) fn adopt_all(
        &mut self,
        mut root: Node,
        from: &Document,
        blamed: Origin,
    ) -> Result<(), Vec<Problem>> {
        let mut building = Vec::new();
        for Pending { entry, .. } in &from.pending {
            let Some(node) = from.root.find(&entry.to_string()) else { continue };
            let index = root.entries(&entry.section).len();
            let entry = Entry { section: entry.section.clone(), index };
            let kept = root.set(&entry.to_string(), node.clone());
            kept.map_err(|reason| vec![console_problem(&entry.to_string(), reason)])?;
            building.push(entry);
        }
        self.adopt(root, &building, Some(blamed))
    }

    /// The tree without pending entries.
    pub(super) fn root_in_force(&self) -> Node {
        pending::without(&self.root, &self.pending)
    }
}

/// The path with the key's current name. Logs a warning for an old name.
fn current_name(path: &str) -> Cow<'_, str> {
    match renamed::path(path) {
        None => path.into(),
        Some(new) => {
            log::warn!(
                "configuration: {path} was renamed to {new}; use the new name, the old one will be removed"
            );
            new.into()
        }
    }
}

fn in_order_of_lines(mut problems: Vec<Problem>) -> Vec<Problem> {
    problems.sort_by_key(|problem| (problem.origin.source, problem.origin.position));
    problems
}

fn console_problem(path: &str, reason: String) -> Problem {
    let path = path.chars().take(64).collect();
    Problem { kind: Kind::Mistake, origin: CONSOLE, path, reason, accepted: String::new() }
}

fn put(root: &mut Node, path: &str, value: &str, origin: Origin) -> Result<(), Problem> {
    let problem = |reason: String| Problem { origin, ..console_problem(path, reason) };
    match toml_text::parse_value(value, origin) {
        Ok(node) => root.set(path, node).map_err(problem),
        Err(reason) => Err(problem(reason)),
    }
}

/// A value for reports.
pub(super) fn report_of(value: Value) -> report::Value {
    match value {
        Value::Bool(b) => b.into(),
        Value::Integer(i) => match u64::try_from(i) {
            Ok(number) => number.into(),
            Err(_) => i.to_string().into(),
        },
        Value::Text(text) | Value::Bare(text) => text.into(),
        Value::Foreign(_) => report::Value::None,
        Value::List(items) => report::Value::list(items.into_iter().map(|n| report_of(n.value))),
        Value::Table(entries) => report::Value::Object(
            entries.into_iter().map(|(key, n)| (key.into(), report_of(n.value))).collect(),
        ),
    }
}

/// Checks a document on its own, as `isthmus check` does. An unknown key is a mistake.
pub fn check(text: &[u8]) -> Result<Config, Vec<Problem>> {
    let mut document = Document::default();
    let mut root = document.root.clone();
    let mut tree = toml_text::parse(text, Source::File)?;
    let _ = renamed::in_document(&mut tree);
    root.merge(tree);
    document.adopt(root, &[], None)?;
    Ok(document.config)
}

/// The renamed keys of a document, for warnings of `isthmus check`.
pub fn renamed_keys(text: &[u8]) -> Vec<Problem> {
    toml_text::parse(text, Source::File)
        .map(|mut tree| renamed::in_document(&mut tree))
        .unwrap_or_default()
}
