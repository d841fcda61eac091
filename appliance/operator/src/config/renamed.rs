//! Renamed keys: the old name is accepted, with a warning that names the new one.

use super::item::{join, problem};
use super::origin::{Kind, Problem};
use super::tree::{Node, Value};

/// Section, old key, new key.
const RENAMED: [(&str, &str, &str); 2] =
    [("ntb", "lost_ms", "peer_timeout_ms"), ("smc", "buffer_size", "receive_buffer")];

fn new_name(section: &str, key: &str) -> Option<&'static str> {
    let found = RENAMED.iter().find(|(of, old, _)| *of == section && *old == key);
    found.map(|(_, _, new)| *new)
}

/// The current path of a renamed key such as `ntb.0.lost_ms`. None if the key was not renamed.
pub fn path(path: &str) -> Option<String> {
    let (section, _) = path.split_once('.')?;
    let (before, key) = path.rsplit_once('.')?;
    new_name(section, key).map(|new| format!("{before}.{new}"))
}

/// Replaces old names of keys in a document by the current ones, and reports each.
pub fn in_document(root: &mut Node) -> Vec<Problem> {
    let mut problems = Vec::new();
    let Value::Table(sections) = &mut root.value else { return problems };
    for (section, node) in sections {
        match &mut node.value {
            Value::Table(keys) => in_table(section, section, keys, &mut problems),
            Value::List(items) => {
                for (i, item) in items.iter_mut().enumerate() {
                    if let Value::Table(keys) = &mut item.value {
                        in_table(section, &join(section, &i.to_string()), keys, &mut problems);
                    }
                }
            }
            _ => {}
        }
    }
    problems
}

fn in_table(
    section: &str,
    path: &str,
    keys: &mut Vec<(String, Node)>,
    problems: &mut Vec<Problem>,
) {
    let old = keys.extract_if(.., |(key, _)| new_name(section, key).is_some());
    for (key, node) in old.collect::<Vec<_>>() {
        let Some(new) = new_name(section, &key) else { continue };
        let reason = format!("renamed to {new}; use the new name, the old one will be removed");
        let renamed = problem(&node, &join(path, &key), reason, String::new());
        problems.push(Problem { kind: Kind::Renamed, ..renamed });
        if keys.iter().all(|(key, _)| key != new) {
            keys.push((new.into(), node));
        }
    }
}
