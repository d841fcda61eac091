//! The untyped configuration: a tree of values with their origins. Sources are merged in this form. [`super::item`]
//! decodes the tree to the typed [`super::Config`].

use super::origin::{Origin, Source};

/// Maximum entries of any list.
pub const MAX_ENTRIES: usize = 64;

/// A value and its origin.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Origin of the value.
    pub origin: Origin,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `true`, `false`.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A quoted string.
    Text(String),
    /// Unquoted text of a path setting. The key's type decides how it is parsed.
    Bare(String),
    /// A kind of value that no key accepts (float, date), by name.
    Foreign(&'static str),
    /// A list.
    List(Vec<Node>),
    /// A table, in the order of the document.
    Table(Vec<(String, Node)>),
}

impl Value {
    /// Kind of the value, for error messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Bool(_) => "a boolean",
            Value::Integer(_) => "an integer",
            Value::Text(_) | Value::Bare(_) => "a string",
            Value::Foreign(kind) => kind,
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
        }
    }
}

impl Node {
    /// An empty table.
    pub fn empty(origin: Origin) -> Node {
        Node { value: Value::Table(Vec::new()), origin }
    }

    /// The built-in default's node for a value.
    pub fn built_in(value: Value) -> Node {
        Node { value, origin: Origin { source: Source::BuiltIn, position: 0 } }
    }

    /// The node under `key`, if this is a table with that key.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Table(entries) => entries.iter().find(|(k, _)| k == key).map(|(_, n)| n),
            _ => None,
        }
    }

    /// The node at `path` (`net.0.mtu`), if there is one.
    pub fn find(&self, path: &str) -> Option<&Node> {
        path.split('.').try_fold(self, |node, segment| match &node.value {
            Value::List(items) => items.get(segment.parse::<usize>().ok()?),
            _ => node.get(segment),
        })
    }

    /// Removes the node at `path`. False if there is none.
    pub fn remove(&mut self, path: &str) -> bool {
        let (above, last) = path.rsplit_once('.').unwrap_or(("", path));
        let mut node = self;
        for segment in above.split('.').filter(|segment| !segment.is_empty()) {
            let next = match &mut node.value {
                Value::List(items) => {
                    segment.parse().ok().and_then(|index: usize| items.get_mut(index))
                }
                Value::Table(entries) => {
                    entries.iter_mut().find(|(k, _)| k == segment).map(|(_, n)| n)
                }
                _ => None,
            };
            let Some(next) = next else { return false };
            node = next;
        }
        match &mut node.value {
            Value::List(items) => match last.parse() {
                Ok(index) if index < items.len() => drop(items.remove(index)),
                _ => return false,
            },
            Value::Table(entries) => {
                let before = entries.len();
                entries.retain(|(k, _)| k != last);
                return entries.len() < before;
            }
            _ => return false,
        }
        true
    }

    /// The entries of the list at `path`. Empty without a list.
    pub fn entries(&self, path: &str) -> &[Node] {
        match self.find(path).map(|node| &node.value) {
            Some(Value::List(items)) => items,
            _ => &[],
        }
    }

    /// Sets the origin of the node and of all nodes below it.
    pub fn set_origin(&mut self, origin: Origin) {
        self.origin = origin;
        match &mut self.value {
            Value::List(items) => items.iter_mut().for_each(|item| item.set_origin(origin)),
            Value::Table(entries) => {
                entries.iter_mut().for_each(|(_, node)| node.set_origin(origin));
            }
            _ => {}
        }
    }

    /// The node at `path` (`net.0.mtu`), or the nearest one above that exists.
    pub fn nearest(&self, path: &str) -> &Node {
        let mut node = self;
        for segment in path.split('.') {
            let next = match &node.value {
                Value::List(items) => segment.parse().ok().and_then(|i: usize| items.get(i)),
                _ => node.get(segment),
            };
            match next {
                Some(next) => node = next,
                None => break,
            }
        }
        node
    }

    /// Merges `later` over this node. Tables are merged. Other values, including lists, are replaced.
    pub fn merge(&mut self, later: Node) {
        match (&mut self.value, later.value) {
            (Value::Table(mine), Value::Table(theirs)) => {
                self.origin = later.origin;
                for (key, node) in theirs {
                    match mine.iter_mut().find(|(k, _)| *k == key) {
                        Some((_, old)) => old.merge(node),
                        None => mine.push((key, node)),
                    }
                }
            }
            (_, value) => *self = Node { value, origin: later.origin },
        }
    }

    /// Sets the value at `path`. A number in the path is an index. Missing tables and lists are created. A list is
    /// extended with empty tables up to the index. The error is a message for the operator.
    pub fn set(&mut self, path: &str, value: Node) -> Result<(), String> {
        let segments: Vec<&str> = path.split('.').collect();
        if segments.len() > 8 || segments.iter().any(|s| s.is_empty()) {
            return Err("not a path; paths look like net.0.mtu".into());
        }
        let mut node = self;
        for segment in segments {
            node = match segment.parse::<usize>() {
                Ok(index) if index < MAX_ENTRIES => node.entry_at(index, value.origin),
                Ok(_) => return Err(format!("a list holds at most {MAX_ENTRIES} entries")),
                Err(_) => node.entry_of(segment, value.origin),
            };
        }
        *node = value;
        Ok(())
    }

    fn entry_at(&mut self, index: usize, origin: Origin) -> &mut Node {
        if !matches!(self.value, Value::List(_)) {
            *self = Node { value: Value::List(Vec::new()), origin };
        }
        let Value::List(items) = &mut self.value else { unreachable!("made a list above") };
        while items.len() <= index {
            items.push(Node::empty(origin));
        }
        &mut items[index]
    }

    fn entry_of(&mut self, key: &str, origin: Origin) -> &mut Node {
        if !matches!(self.value, Value::Table(_)) {
            *self = Node::empty(origin);
        }
        let Value::Table(entries) = &mut self.value else { unreachable!("made a table above") };
        let at = entries.iter().position(|(k, _)| k == key).unwrap_or_else(|| {
            entries.push((key.into(), Node::empty(origin)));
            entries.len() - 1
        });
        &mut entries[at].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bare(text: &str) -> Node {
        let origin = Origin { source: Source::Console, position: 0 };
        Node { value: Value::Bare(text.into()), origin }
    }

    #[test]
    fn set_extends_lists_and_creates_tables() {
        let mut root = Node::built_in(Value::Table(Vec::new()));
        root.set("net.1.mtu", bare("9000")).unwrap();
        assert_eq!(root.nearest("net.1.mtu").value, Value::Bare("9000".into()));
        assert_eq!(root.nearest("net.0.mtu").value, Value::Table(vec![]));
        for wrong in ["", "net..mtu", "net.64.mtu", "a.b.c.d.e.f.g.h.i", "net.99999999999"] {
            assert!(root.clone().set(wrong, bare("1")).is_err() || wrong == "net.99999999999");
        }
    }

    #[test]
    fn tables_merge_and_lists_are_replaced() {
        let mut root = Node::built_in(Value::Table(Vec::new()));
        root.set("a.x", bare("1")).unwrap();
        root.set("a.l.0", bare("1")).unwrap();
        root.set("a.l.1", bare("2")).unwrap();
        let mut later = Node::built_in(Value::Table(Vec::new()));
        later.set("a.l.0", bare("3")).unwrap();
        root.merge(later);
        assert_eq!(root.nearest("a.x").value, Value::Bare("1".into()));
        assert_eq!(root.nearest("a.l").value, Value::List(vec![bare("3")]));
    }
}
