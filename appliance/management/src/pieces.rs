//! Reports of the object tree over HTTP, generated in pieces so that no round pays for a long report. A [`Node`]
//! generates one part of the tree. A [`ReportStream`] walks the tree and writes JSON.

use crate::appliance::Appliance;
use crate::report::Value;
use std::borrow::Cow;

/// A named value.
pub(crate) type Entry = (Cow<'static, str>, Value);

/// Rows or entries generated at a time.
const BATCH: usize = 8;

/// Rows of a list: the first row's index and the maximum count.
pub(crate) type Rows = fn(&dyn Appliance, usize, usize) -> Vec<Value>;
/// Entries of an object: an optional name to select one entry, the first entry's index, and the maximum count.
pub(crate) type Entries = fn(&dyn Appliance, Option<&str>, usize, usize) -> Vec<Entry>;

/// Generator of one part of the tree.
pub(crate) enum Node {
    /// In one piece: it is always small.
    Whole(fn(&dyn Appliance) -> Value),
    /// A list that may be long.
    Rows(Rows),
    /// Named objects that may be many.
    Entries(Entries),
    /// In one piece: the first generator for readers with full access, the second for all other readers.
    Guarded(fn(&dyn Appliance) -> Value, fn(&dyn Appliance) -> Value),
    /// A fixed set of named parts.
    Branch(&'static [(&'static str, Node)]),
}

impl Node {
    /// The whole value, for a reader with full access.
    pub fn value(&self, appliance: &dyn Appliance) -> Value {
        match self {
            Node::Whole(make) | Node::Guarded(make, _) => make(appliance),
            Node::Rows(rows) => Value::List(rows(appliance, 0, usize::MAX)),
            Node::Entries(entries) => Value::Object(entries(appliance, None, 0, usize::MAX)),
            Node::Branch(parts) => {
                let part = |(name, node): &(&'static str, Node)| -> Entry {
                    ((*name).into(), node.value(appliance))
                };
                Value::Object(parts.iter().map(part).collect())
            }
        }
    }

    /// The node that a path leads to, and the rest of the path within the node's value.
    pub fn find<'a, 'p>(
        &'static self,
        path: &'p [&'a str],
    ) -> Option<(&'static Node, &'p [&'a str])> {
        match (self, path.split_first()) {
            (Node::Branch(parts), Some((first, rest))) => {
                parts.iter().find(|(name, _)| name == first)?.1.find(rest)
            }
            _ => Some((self, path)),
        }
    }
}

/// A pending step of the walk.
enum Step {
    Text(&'static str),
    Node(&'static Node),
    Rows(Rows, usize),
    Entries(Entries, usize),
    Branch(&'static [(&'static str, Node)], usize),
}

/// A report in progress: the stack of pending steps.
pub(crate) struct ReportStream(Vec<Step>);

impl ReportStream {
    /// A report of everything below a node that needs no full access.
    pub fn of(node: &'static Node) -> Self {
        ReportStream(vec![Step::Text("\n"), Step::Node(node)])
    }

    /// Appends until the piece has `room` bytes or a little more. False at the end of the report.
    pub fn piece(&mut self, appliance: &dyn Appliance, piece: &mut Vec<u8>, room: usize) -> bool {
        while piece.len() < room {
            let Some(step) = self.0.pop() else { return false };
            self.step(step, appliance, piece);
        }
        !self.0.is_empty()
    }

    fn step(&mut self, step: Step, appliance: &dyn Appliance, piece: &mut Vec<u8>) {
        let mut put = |text: &str| piece.extend_from_slice(text.as_bytes());
        match step {
            Step::Text(text) => put(text),
            Step::Node(Node::Whole(make) | Node::Guarded(_, make)) => {
                put(&make(appliance).to_json());
            }
            Step::Node(Node::Rows(rows)) => {
                put("[");
                self.0.push(Step::Rows(*rows, 0));
            }
            Step::Node(Node::Entries(entries)) => {
                put("{");
                self.0.push(Step::Entries(*entries, 0));
            }
            Step::Node(Node::Branch(parts)) => {
                put("{");
                self.0.push(Step::Branch(parts, 0));
            }
            Step::Rows(rows, at) => {
                let batch = rows(appliance, at, BATCH);
                for (i, row) in batch.iter().enumerate() {
                    put(if at + i > 0 { "," } else { "" });
                    put(&row.to_json());
                }
                match batch.len() {
                    BATCH => self.0.push(Step::Rows(rows, at + BATCH)),
                    _ => put("]"),
                }
            }
            Step::Entries(entries, at) => {
                let batch = entries(appliance, None, at, BATCH);
                for (i, (name, value)) in batch.iter().enumerate() {
                    put(if at + i > 0 { "," } else { "" });
                    put(&Value::display(name).to_json());
                    put(":");
                    put(&value.to_json());
                }
                match batch.len() {
                    BATCH => self.0.push(Step::Entries(entries, at + BATCH)),
                    _ => put("}"),
                }
            }
            Step::Branch(parts, at) => match parts.get(at) {
                None => put("}"),
                Some((name, node)) => {
                    put(if at > 0 { ",\"" } else { "\"" });
                    put(name);
                    put("\":");
                    self.0.push(Step::Branch(parts, at + 1));
                    self.0.push(Step::Node(node));
                }
            },
        }
    }
}
