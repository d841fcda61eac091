//! The object tree, and how it is told over HTTP: in pieces, so that no round pays for a long report. A
//! [`Node`] says how a part of the tree is made; a [`Telling`] is a walk through it, which writes JSON.

use crate::appliance::Appliance;
use crate::report::Value;
use std::borrow::Cow;

/// A named value.
pub(crate) type Entry = (Cow<'static, str>, Value);

/// Rows or entries that are made at a time.
const BATCH: usize = 8;

/// The rows of a list, from one on, so many.
pub(crate) type Rows = fn(&dyn Appliance, usize, usize) -> Vec<Value>;
/// The entries of an object, from one on, so many; only the one of a name, if one is given.
pub(crate) type Entries = fn(&dyn Appliance, Option<&str>, usize, usize) -> Vec<Entry>;

/// How a part of the tree is made.
pub(crate) enum Node {
    /// At once: it is small, whatever there is.
    Whole(fn(&dyn Appliance) -> Value),
    /// A list of which there may be many.
    Rows(Rows),
    /// Named objects of which there may be many.
    Entries(Entries),
    /// As `Whole`, by the first for those who may see everything, and by the second for all others.
    Guarded(fn(&dyn Appliance) -> Value, fn(&dyn Appliance) -> Value),
    /// Parts that are always there.
    Branch(&'static [(&'static str, Node)]),
}

impl Node {
    /// All of it, for those who may see everything.
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

    /// The node that a path leads to, and what of the path is left: that is within its value.
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

/// What is to be written next.
enum Step {
    Text(&'static str),
    Node(&'static Node),
    Rows(Rows, usize),
    Entries(Entries, usize),
    Branch(&'static [(&'static str, Node)], usize),
}

/// A report that is being told.
pub(crate) struct Telling(Vec<Step>);

impl Telling {
    /// Of all that is below a node, as far as everybody may see it.
    pub fn of(node: &'static Node) -> Self {
        Telling(vec![Step::Text("\n"), Step::Node(node)])
    }

    /// Writes on until the piece has `room` bytes or a little more; false if that is the end.
    pub fn piece(&mut self, appliance: &dyn Appliance, piece: &mut Vec<u8>, room: usize) -> bool {
        while piece.len() < room {
            let Some(step) = self.0.pop() else { return false };
            self.step(step, appliance, piece);
        }
        !self.0.is_empty()
    }

    fn step(&mut self, step: Step, appliance: &dyn Appliance, piece: &mut Vec<u8>) {
        let mut say = |text: &str| piece.extend_from_slice(text.as_bytes());
        match step {
            Step::Text(text) => say(text),
            Step::Node(Node::Whole(make) | Node::Guarded(_, make)) => {
                say(&make(appliance).to_json());
            }
            Step::Node(Node::Rows(rows)) => {
                say("[");
                self.0.push(Step::Rows(*rows, 0));
            }
            Step::Node(Node::Entries(entries)) => {
                say("{");
                self.0.push(Step::Entries(*entries, 0));
            }
            Step::Node(Node::Branch(parts)) => {
                say("{");
                self.0.push(Step::Branch(parts, 0));
            }
            Step::Rows(rows, at) => {
                let batch = rows(appliance, at, BATCH);
                for (i, row) in batch.iter().enumerate() {
                    say(if at + i > 0 { "," } else { "" });
                    say(&row.to_json());
                }
                match batch.len() {
                    BATCH => self.0.push(Step::Rows(rows, at + BATCH)),
                    _ => say("]"),
                }
            }
            Step::Entries(entries, at) => {
                let batch = entries(appliance, None, at, BATCH);
                for (i, (name, value)) in batch.iter().enumerate() {
                    say(if at + i > 0 { "," } else { "" });
                    say(&Value::display(name).to_json());
                    say(":");
                    say(&value.to_json());
                }
                match batch.len() {
                    BATCH => self.0.push(Step::Entries(entries, at + BATCH)),
                    _ => say("}"),
                }
            }
            Step::Branch(parts, at) => match parts.get(at) {
                None => say("}"),
                Some((name, node)) => {
                    say(if at > 0 { ",\"" } else { "\"" });
                    say(name);
                    say("\":");
                    self.0.push(Step::Branch(parts, at + 1));
                    self.0.push(Step::Node(node));
                }
            },
        }
    }
}
