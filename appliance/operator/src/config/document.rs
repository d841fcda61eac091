//! The running configuration: made of all sources at boot, changed by `set`, written by `save`.

use super::checks::check as check_whole;
use super::closing;
use super::command_line;
use super::item::{Field, Item as _};
use super::known_secrets;
use super::order;
use super::origin::{Kind, Origin, Problem, Source};
use super::origins::{Layer, keep_origins};
use super::pending::{self, Entry, Pending};
use super::renamed;
use super::schema::Config;
use super::toml_text;
use super::tree::{MAX_ENTRIES, Node, Value};
use super::values::PrivateKey;
use crate::report;
use std::borrow::Cow;

/// What is read at boot. Bytes are TOML in UTF-8, or else a problem.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sources<'a> {
    /// The document embedded in the image.
    pub image: Option<&'a [u8]>,
    /// The fw_cfg file `opt/isthmus/config`.
    pub fw_cfg: Option<&'a [u8]>,
    /// The document on the config disk.
    pub disk: Option<&'a [u8]>,
    /// The one that was saved there before it.
    pub disk_before: Option<&'a [u8]>,
    /// There is a config disk which held a document that cannot be read any more.
    pub disk_damaged: bool,
    /// There is, or may be, a config disk that cannot be read: why, and what to do.
    pub disk_unreachable: Option<&'a str>,
    /// The whole kernel command line.
    pub command_line: &'a str,
    /// It is not whole, or could not be read.
    pub command_line_cut: bool,
}

/// A valid configuration, and the values that it was made of.
#[derive(Clone, Debug)]
pub struct Document {
    /// All that was said, entries that are being made among it.
    pub(super) root: Node,
    /// What each document says by itself.
    pub(super) layers: Vec<Layer>,
    /// What is in force.
    config: Config,
    pending: Vec<Pending>,
    closed: bool,
    /// Why, if it is closed.
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
    /// Lays the sources over the built-in default. Of a document, keys that nothing is known of are left out, and what
    /// they may have restricted is closed; one with another mistake is left out as a whole, for the copy that was saved
    /// before it if there is one, and otherwise what it may have restricted is closed. Of the command line only the
    /// settings that are wrong are left out. Everything is told as a problem.
    pub fn load(sources: &Sources<'_>) -> (Document, Vec<Problem>) {
        let mut document = Document::default();
        let mut problems = Vec::new();
        let documents = [
            (Source::Image, [sources.image, None]),
            (Source::FwCfg, [sources.fw_cfg, None]),
            (Source::Disk, [sources.disk, sources.disk_before]),
        ];
        // What was laid over since a document could not be used.
        let mut later = Vec::new();
        let mut unusable = None;
        for (source, copies) in documents {
            let origin = Origin { source, position: 0 };
            let mut problem = |reason: &str| {
                let (path, accepted) = (String::new(), String::new());
                let reason = reason.into();
                problems.push(Problem { kind: Kind::Mistake, origin, path, reason, accepted });
            };
            let copies: Vec<&[u8]> = copies.into_iter().flatten().collect();
            if copies.is_empty() {
                let lost = match sources.disk_unreachable {
                    None if !sources.disk_damaged => None,
                    None => Some("damaged, and there is no copy; `save` writes a new one"),
                    why => why,
                };
                if let Some(why) = lost.filter(|_| source == Source::Disk) {
                    problem(why);
                    (unusable, later) = (Some(origin), Vec::new());
                }
                continue;
            }
            let mut used = None;
            for (age, text) in copies.into_iter().enumerate() {
                match document.lay_over(text, source) {
                    Ok((tree, unknown, closes)) => {
                        problems.extend(unknown);
                        used = Some((age, tree, closes));
                        break;
                    }
                    Err(found) => problems.extend(found),
                }
            }
            match used {
                Some((age, tree, closes)) => {
                    document.layers.push(Layer::of(source, &tree));
                    match closes {
                        true => (unusable, later) = (Some(origin), Vec::new()),
                        false => later.push(tree),
                    }
                    if age > 0 {
                        document.older_copy = true;
                        let reason =
                            "the newest cannot be used; the one saved before it is in force";
                        let (path, accepted) = (String::new(), String::new());
                        let reason = reason.into();
                        problems.push(Problem {
                            kind: Kind::Mistake,
                            origin,
                            path,
                            reason,
                            accepted,
                        });
                    }
                }
                None => (unusable, later) = (Some(origin), Vec::new()),
            }
        }
        if let Some(origin) = unusable {
            document.close(&later, origin);
        }
        problems.extend(document.apply_command_line(sources.command_line));
        if sources.command_line_cut {
            let origin = Origin { source: Source::CommandLine, position: 0 };
            let reason =
                "too long, or no plain text: what was lost of it may have restricted something";
            problems.push(Problem { origin, ..console_problem("", reason.into()) });
            document.close(&[], origin);
        }
        if document.closed {
            let mistakes = problems.iter().filter(|problem| !problem.is_warning());
            document.reasons = mistakes.map(ToString::to_string).collect();
        }
        (document, problems)
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether something stays closed because a document, or a setting that restricts, could not be used.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether the config disk's newest document could not be used, and the one before it is in force.
    pub fn is_older_copy(&self) -> bool {
        self.older_copy
    }

    /// Entries of lists that are being made and not in force.
    pub fn pending(&self) -> &[Pending] {
        &self.pending
    }

    /// The entry that `path` is in, if that is being made.
    pub fn pending_at(&self, path: &str) -> Option<&Pending> {
        let entry = Entry::of(path)?;
        self.pending.iter().find(|pending| pending.entry == entry)
    }

    /// Changes one value, if the whole is valid afterwards; if not, nothing is changed. An entry of a list
    /// that is being made needs not be complete: it is pending until it is.
    pub fn set(&mut self, path: &str, value: &str) -> Result<(), Vec<Problem>> {
        let path = &*of_today(path);
        let wrong = |reason: String| vec![console_problem(path, reason)];
        let mut root = self.root.clone();
        let mut building: Vec<Entry> = self.pending.iter().map(|p| p.entry.clone()).collect();
        if let Some(entry) = Entry::of(path) {
            let there = self.root.entries(&entry.section).len();
            if entry.index > there && entry.section != "net" {
                let section = &entry.section;
                return Err(wrong(format!(
                    "there are {there} of {section}; the next is {section}.{there}"
                )));
            }
            if entry.index == there {
                building.push(entry);
            }
        }
        put(&mut root, path, value, CONSOLE).map_err(|problem| vec![problem])?;
        if !path.contains('.') && pending::is_list(path) {
            let (before, after) = (self.root.entries(path).len(), root.entries(path).len());
            if after < before {
                let reason = format!(
                    "{} of {before} entries would go; `unset {path}.N` takes one away",
                    before - after
                );
                return Err(wrong(reason));
            }
            building.retain(|entry| entry.section != path);
        }
        self.adopt(root, &building, Some(CONSOLE)).map(drop)
    }

    /// Takes a key or an entry of a list away, if the whole is valid without it.
    pub fn unset(&mut self, path: &str) -> Result<(), Vec<Problem>> {
        let path = &*of_today(path);
        let wrong = |reason: &str| vec![console_problem(path, reason.into())];
        let mut root = self.root.clone();
        if !path.contains('.') || !root.remove(path) {
            return Err(wrong("there is nothing of that name; `show config` shows what there is"));
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
                let reason = "the last export stays: without any, every volume is exported";
                return Err(wrong(reason));
            }
        }
        self.adopt(root, &building, Some(CONSOLE)).map(drop)
    }

    /// What clients would lose if `path` is unset: an entry that is in force and holds data, or leads to it.
    pub fn loses(&self, path: &str) -> Option<String> {
        let entry = Entry::of(path).filter(|entry| entry.to_string() == path)?;
        let holds = matches!(entry.section.as_str(), "volume" | "remote" | "mirror" | "export");
        let there = entry.index < self.root.entries(&entry.section).len();
        if !holds || !there || self.pending_at(path).is_some() {
            return None;
        }
        let name = self.root.find(&format!("{path}.name")).map(|node| match &node.value {
            Value::Text(name) | Value::Bare(name) => name.as_str(),
            _ => "",
        });
        Some(format!("{} {}", entry.section, name.unwrap_or_default()))
    }

    /// Changes the configuration as a whole, if it is valid afterwards; if not, nothing is changed. Entries
    /// that are being made stay, behind the others.
    pub fn edit(&mut self, change: impl FnOnce(&mut Config)) -> Result<(), Vec<Problem>> {
        let mut config = self.config.clone();
        change(&mut config);
        let mut root = config.encode().map(Node::built_in).expect("a section has a value");
        let before = self.config.encode().map(Node::built_in);
        keep_origins(&mut root, before.as_ref(), Some(&self.root), CONSOLE);
        let mut building = Vec::new();
        for Pending { entry, .. } in &self.pending {
            let Some(node) = self.root.find(&entry.to_string()) else { continue };
            let index = root.entries(&entry.section).len();
            let entry = Entry { section: entry.section.clone(), index };
            let kept = root.set(&entry.to_string(), node.clone());
            kept.map_err(|reason| vec![console_problem(&entry.to_string(), reason)])?;
            building.push(entry);
        }
        self.adopt(root, &building, Some(CONSOLE)).map(drop)
    }

    /// The configuration that is in force as a document that reads back to the same.
    pub fn to_toml(&self) -> String {
        toml_text::write(&self.config.encode().expect("a section has a value"))
    }

    /// The same for people to look at: without secrets, with the source of each key, and with why it is closed, if it is.
    pub fn to_shown_toml(&self) -> String {
        let mut text = String::new();
        if self.closed {
            text +=
                "# Closed: nothing is exported, relayed or written to until this is corrected:\n";
            for line in self.reasons.iter().flat_map(|reason| reason.lines()) {
                text += &format!("#   {line}\n");
            }
        }
        let shown = toml_text::write(&self.shown().encode().expect("a section has a value"));
        text + &self.with_origins(&shown)
    }

    /// What is in force without secrets.
    fn shown(&self) -> Config {
        let mut config = self.config.clone();
        if let Some(key) = &mut config.http.key {
            *key = PrivateKey::not_shown();
        }
        config
    }

    /// Entries that are being made, as comments behind a document; empty if there are none.
    pub fn pending_toml(&self) -> String {
        let mut text = String::new();
        for pending in &self.pending {
            let Some(node) = self.root.find(&pending.entry.to_string()) else { continue };
            text += &format!("\n# Pending, neither in force nor saved: {pending}\n");
            for line in toml_text::write_entry(&pending.entry.section, &node.value).lines() {
                text += &format!("# {line}\n");
            }
        }
        text
    }

    /// The whole configuration without secrets as a report, for JSON. What is being made stands under `pending`.
    pub fn to_report(&self) -> report::Value {
        let mut report = self.shown().encode().map_or(report::Value::None, report_of);
        if let report::Value::Object(entries) = &mut report
            && !self.pending.is_empty()
        {
            let pending = self.pending.iter().map(|pending| {
                let node = self.root.find(&pending.entry.to_string());
                report::Value::object([
                    ("entry", report::Value::display(&pending.entry)),
                    ("missing", report::Value::list(pending.missing().map(report::Value::display))),
                    (
                        "given",
                        node.map_or(report::Value::None, |node| report_of(node.value.clone())),
                    ),
                ])
            });
            entries.push(("pending".into(), report::Value::list(pending)));
        }
        report
    }

    /// Paths that could stand where `partial` does, for completion: a section's with a dot at the
    /// end, a list's with the indices that are there and the next.
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
            let there = match &self.root.nearest(&above).value {
                Value::List(items) => items.len(),
                _ => 0,
            };
            let end = if fields.is_empty() { "" } else { "." };
            let indices = (0..=there).take(MAX_ENTRIES).map(|i| i.to_string());
            return indices
                .filter(|i| i.starts_with(word))
                .map(|i| format!("{prefix}{i}{end}"))
                .collect();
        }
        let end = |f: &Field| if (f.fields)().is_empty() { "" } else { "." };
        let matching = fields.iter().filter(|f| f.name.starts_with(word));
        matching.map(|f| format!("{prefix}{}{}", f.name, end(f))).collect()
    }

    /// Lays a document over, if the whole is valid afterwards; gives its tree, what of it is not known, and whether that
    /// may have restricted anything.
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
                Err(order::by_key(problems, |p| (p.origin.source, p.origin.position)))
            }
        }
    }

    /// Closes what may have been restricted, unless a `later` document says how that is to be.
    fn close(&mut self, later: &[Node], origin: Origin) {
        let mut root = self.root.clone();
        closing::close(&mut root, later, origin);
        if self.adopt(root, &[], None).is_err() {
            // What is closed does not go with what else was said: then nothing of that holds.
            let mut default = Document::default();
            closing::close(&mut default.root, &[], origin);
            let root = default.root.clone();
            default.adopt(root, &[], None).expect("the default can be closed");
            *self = default;
        }
        self.closed = true;
    }

    /// Makes `root` the configuration, if it is valid. Of entries that are being built something may be missing.
    /// Whoever changes it now is blamed for what does not go with a built-in default.
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
                    let pending = order::by_key(pending, |p| p.entry.clone());
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
                return Err(order::by_key(wrong, |p| (p.origin.source, p.origin.position)));
            }
            for problem in missing {
                pending::note(&mut pending, problem);
            }
        }
    }

    /// Tries all settings together; as long as some are wrong, leaves those out and tries again.
    fn apply_command_line(&mut self, line: &str) -> Vec<Problem> {
        let mut settings: Vec<_> = (1u32..).zip(command_line::settings(line)).collect();
        let mut found = Vec::new();
        for (position, (path, _)) in &mut settings {
            let Some(new) = renamed::path(path) else { continue };
            let origin = Origin { source: Source::CommandLine, position: *position };
            let told = console_problem(path, format!("is called {new} now; write that"));
            found.push(Problem { kind: Kind::Renamed, origin, ..told });
            *path = new;
        }
        let mut restricts = false;
        while !settings.is_empty() {
            let mut root = self.root.clone();
            let put = |(position, (path, value)): &(u32, (String, String))| {
                let origin = Origin { source: Source::CommandLine, position: *position };
                put(&mut root, path, value, origin).err()
            };
            let mut problems: Vec<Problem> = settings.iter().filter_map(put).collect();
            if problems.is_empty() {
                problems = match self.adopt(root, &[], None) {
                    Ok(()) => break,
                    Err(problems) => problems,
                };
            }
            let blamed = |position: u32| {
                let origin = Origin { source: Source::CommandLine, position };
                problems.iter().any(|p| p.origin == origin)
            };
            let everything = settings.iter().all(|(position, _)| !blamed(*position));
            settings.retain(|(position, (path, _))| {
                let left_out = everything || blamed(*position);
                restricts |= left_out && closing::restricts(path);
                !left_out
            });
            found.append(&mut problems);
        }
        if restricts {
            self.close(&[], Origin { source: Source::CommandLine, position: 0 });
        }
        found
    }
}

/// The path of a key by its name of today; that it had another one is logged.
fn of_today(path: &str) -> Cow<'_, str> {
    match renamed::path(path) {
        None => path.into(),
        Some(new) => {
            log::warn!(
                "configuration: {path} is called {new} now; write that, the old name will go"
            );
            new.into()
        }
    }
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

fn report_of(value: Value) -> report::Value {
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

/// Checks a document on its own, as `isthmus check` does: a key that nothing is known of is a mistake.
pub fn check(text: &[u8]) -> Result<Config, Vec<Problem>> {
    let mut document = Document::default();
    let mut root = document.root.clone();
    let mut tree = toml_text::parse(text, Source::File)?;
    let _ = renamed::in_document(&mut tree);
    root.merge(tree);
    document.adopt(root, &[], None)?;
    Ok(document.config)
}

/// The keys of a document that are called something else now, as `isthmus check` warns of them.
pub fn renamed_keys(text: &[u8]) -> Vec<Problem> {
    toml_text::parse(text, Source::File)
        .map(|mut tree| renamed::in_document(&mut tree))
        .unwrap_or_default()
}
