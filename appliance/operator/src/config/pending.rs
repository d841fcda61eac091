//! Pending entries: list entries under construction on the console (`set rule.0.name …`). While a value is missing, the
//! entry is neither in force nor saved.

use super::item::Item as _;
use super::origin::Problem;
use super::schema::Config;
use super::tree::{Node, Value};
use core::fmt;

/// An entry of a list of sections, such as `rule.0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Name of the list.
    pub section: String,
    /// Index in the list, from 0.
    pub index: usize,
}

/// An incomplete entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The entry.
    pub entry: Entry,
    problems: Vec<Problem>,
}

/// Whether a key of the top level is a list of sections.
pub fn is_list(name: &str) -> bool {
    let field = Config::fields().iter().find(|field| field.name == name);
    field.is_some_and(|field| field.list && !(field.fields)().is_empty())
}

impl Entry {
    /// The entry that `path` names or is inside of.
    pub fn of(path: &str) -> Option<Entry> {
        let mut segments = path.split('.');
        let section = segments.next().filter(|section| is_list(section))?;
        let index = segments.next()?.parse().ok()?;
        Some(Entry { section: section.into(), index })
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.section, self.index)
    }
}

impl Pending {
    /// Missing keys, in a few words each.
    pub fn missing(&self) -> impl Iterator<Item = String> + '_ {
        let start = self.entry.to_string().len() + 1;
        self.problems.iter().map(move |problem| {
            let key = problem.path.get(start..).unwrap_or_default();
            match problem.reason.as_str() {
                "missing" => key.to_string(),
                reason => format!("{key} ({reason}; accepted: {})", problem.accepted),
            }
        })
    }
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: still missing: {}",
            self.entry,
            self.missing().collect::<Vec<_>>().join(", ")
        )
    }
}

/// Adds the problem of a missing value to its entry.
pub fn note(pending: &mut Vec<Pending>, problem: Problem) {
    let Some(entry) = Entry::of(&problem.path) else { return };
    match pending.iter_mut().find(|pending| pending.entry == entry) {
        Some(known) => known.problems.push(problem),
        None => pending.push(Pending { entry, problems: vec![problem] }),
    }
}

/// The tree without pending entries.
pub fn without(root: &Node, pending: &[Pending]) -> Node {
    let mut root = root.clone();
    let Value::Table(sections) = &mut root.value else { return root };
    for (name, node) in sections {
        if let Value::List(items) = &mut node.value {
            let mut index = 0;
            items.retain(|_| {
                let is_pending = |p: &&Pending| p.entry.section == *name && p.entry.index == index;
                let gone = pending.iter().any(|p| is_pending(&p));
                index += 1;
                !gone
            });
        }
    }
    root
}

/// Translates a path in the tree without pending entries to the whole tree.
pub fn outer_path(path: &str, pending: &[Pending]) -> String {
    let Some(entry) = Entry::of(path) else { return path.into() };
    let rest = path.get(entry.to_string().len()..).unwrap_or_default();
    let mut gone: Vec<usize> = Vec::new();
    for other in pending.iter().filter(|other| other.entry.section == entry.section) {
        let at = gone.partition_point(|index| *index < other.entry.index);
        gone.insert(at, other.entry.index);
    }
    let index =
        gone.into_iter().fold(entry.index, |index, gone| index + usize::from(gone <= index));
    format!("{}{rest}", Entry { index, ..entry })
}
