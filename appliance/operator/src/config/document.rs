//! The running configuration: made of all sources at boot, changed by `set`, written by `save`.

use super::checks::check as check_whole;
use super::command_line;
use super::item::{Field, Item as _};
use super::order;
use super::origin::{Origin, Problem, Source};
use super::schema::Config;
use super::toml_text;
use super::tree::{MAX_ENTRIES, Node, Value};
use crate::report;

/// What is read at boot. Bytes are TOML in UTF-8, or else a problem.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sources<'a> {
    /// The document embedded in the image.
    pub image: Option<&'a [u8]>,
    /// The fw_cfg file `opt/isthmus/config`.
    pub fw_cfg: Option<&'a [u8]>,
    /// The document on the config disk.
    pub disk: Option<&'a [u8]>,
    /// The whole kernel command line.
    pub command_line: &'a str,
}

/// A valid configuration, and the values that it was made of.
#[derive(Clone, Debug)]
pub struct Document {
    root: Node,
    config: Config,
}

impl Default for Document {
    /// The built-in default.
    fn default() -> Self {
        let config = Config::default();
        let root = config.encode().map(Node::built_in).expect("a section has a value");
        Document { root, config }
    }
}

impl Document {
    /// Lays the sources over the built-in default. A document with a mistake is left out as a
    /// whole, of the command line only the settings that are wrong; each is told as a problem.
    pub fn load(sources: &Sources<'_>) -> (Document, Vec<Problem>) {
        let mut document = Document::default();
        let mut problems = Vec::new();
        let documents = [
            (Source::Image, sources.image),
            (Source::FwCfg, sources.fw_cfg),
            (Source::Disk, sources.disk),
        ];
        for (source, text) in documents {
            if let Some(text) = text {
                problems.extend(document.lay_over(text, source).err().into_iter().flatten());
            }
        }
        problems.extend(document.apply_command_line(sources.command_line));
        (document, problems)
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Changes one value, if the whole is valid afterwards; if not, nothing is changed.
    pub fn set(&mut self, path: &str, value: &str) -> Result<(), Vec<Problem>> {
        let origin = Origin { source: Source::Console, position: 0 };
        let mut root = self.root.clone();
        put(&mut root, path, value, origin).map_err(|p| vec![p])?;
        self.adopt(root)
    }

    /// Changes the configuration as a whole, if it is valid afterwards; if not, nothing is changed.
    pub fn edit(&mut self, change: impl FnOnce(&mut Config)) -> Result<(), Vec<Problem>> {
        let mut config = self.config.clone();
        change(&mut config);
        let root = config.encode().map(Node::built_in).expect("a section has a value");
        self.adopt(root)
    }

    /// The whole configuration as a document that reads back to the same.
    pub fn to_toml(&self) -> String {
        toml_text::write(&self.config.encode().expect("a section has a value"))
    }

    /// The whole configuration as a report, for JSON.
    pub fn to_report(&self) -> report::Value {
        self.config.encode().map_or(report::Value::None, report_of)
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

    fn lay_over(&mut self, text: &[u8], source: Source) -> Result<(), Vec<Problem>> {
        let mut root = self.root.clone();
        root.merge(toml_text::parse(text, source)?);
        self.adopt(root)
    }

    fn adopt(&mut self, root: Node) -> Result<(), Vec<Problem>> {
        let mut problems = Vec::new();
        let config = Config::decode(&root, "", None, &mut problems);
        if let Some(config) = config.filter(|_| problems.is_empty()) {
            problems = check_whole(&config, &root);
            if problems.is_empty() {
                *self = Document { root, config };
                return Ok(());
            }
        }
        Err(order::by_key(problems, |p| (p.origin.source, p.origin.position)))
    }

    /// Tries all settings together; as long as some are wrong, leaves those out and tries again.
    fn apply_command_line(&mut self, line: &str) -> Vec<Problem> {
        let mut settings: Vec<_> = (1u32..).zip(command_line::settings(line)).collect();
        let mut found = Vec::new();
        while !settings.is_empty() {
            let mut root = self.root.clone();
            let put = |(position, (path, value)): &(u32, (String, String))| {
                let origin = Origin { source: Source::CommandLine, position: *position };
                put(&mut root, path, value, origin).err()
            };
            let mut problems: Vec<Problem> = settings.iter().filter_map(put).collect();
            if problems.is_empty() {
                problems = match self.adopt(root) {
                    Ok(()) => break,
                    Err(problems) => problems,
                };
            }
            let blamed = |position: u32| {
                let origin = Origin { source: Source::CommandLine, position };
                problems.iter().any(|p| p.origin == origin)
            };
            let before = settings.len();
            settings.retain(|(position, _)| !blamed(*position));
            if settings.len() == before {
                settings.clear();
            }
            found.append(&mut problems);
        }
        found
    }
}

fn put(root: &mut Node, path: &str, value: &str, origin: Origin) -> Result<(), Problem> {
    let shown: String = path.chars().take(64).collect();
    let problem = |reason: String| Problem { origin, path: shown, reason, accepted: String::new() };
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

/// Checks a document on its own, as `isthmus check` does.
pub fn check(text: &[u8]) -> Result<Config, Vec<Problem>> {
    let mut document = Document::default();
    document.lay_over(text, Source::File)?;
    Ok(document.config)
}
