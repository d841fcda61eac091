//! Never fail open. What an unknown key may have been meant to restrict is closed, and so is, while a
//! document cannot be used, what it may have restricted.

use super::item::{Field, join, problem};
use super::origin::{Kind, Origin, Problem};
use super::tree::{Node, Value};
use crate::suggestion::nearest;

/// A network of no host: with it as its only one, a list of hosts admits nobody.
const NOBODY: &str = "0.0.0.0/32";

/// Keys that restrict something.
const RESTRICTING: [&str; 7] =
    ["hosts", "sessions", "listen", "read_only", "enabled", "token_sha256", "tls"];

/// Lists and sections without which more would be open.
const SECTIONS: [(&str, &str); 6] = [
    ("export", "rnbd"),
    ("rnbd", "rnbd"),
    ("volume", "rnbd"),
    ("remote", "rnbd"),
    ("mirror", "rnbd"),
    ("http", "http"),
];

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

/// Takes out of a document's tree the keys that nothing is known of, each told as a problem. Where one is
/// close to the name of a restriction, what it stands in is closed.
pub fn leave_out_unknown(
    node: &mut Node,
    fields: &'static [Field],
    path: &str,
    problems: &mut Vec<Problem>,
) {
    let origin = node.origin;
    match &mut node.value {
        Value::List(items) => {
            for (i, item) in items.iter_mut().enumerate() {
                leave_out_unknown(item, fields, &join(path, &i.to_string()), problems);
            }
        }
        Value::Table(entries) if !fields.is_empty() => {
            let names = || fields.iter().map(|field| field.name);
            let unknown = entries.extract_if(.., |(key, _)| names().all(|name| name != key));
            let unknown: Vec<(String, Node)> = unknown.collect();
            for (key, node) in entries.iter_mut() {
                let field = fields.iter().find(|field| field.name == key);
                let below = field.map_or(&[][..], |field| (field.fields)());
                if !below.is_empty() {
                    leave_out_unknown(node, below, &join(path, key), problems);
                }
            }
            for (key, value) in unknown {
                let meant = nearest(&key, names());
                let closed =
                    meant.and_then(|meant| close_here(entries, fields, path, meant, &value));
                let hint = meant.map(|m| format!(" (did you mean {m:?}?)")).unwrap_or_default();
                let then = closed.unwrap_or("the rest holds");
                let shown: String = key.chars().take(64).collect();
                let reason = format!("unknown key{hint}, left out; {then}");
                let accepted = names().collect::<Vec<_>>().join(", ");
                let unknown = problem(&value, &join(path, &shown), reason, accepted);
                problems.push(Problem { kind: Kind::Unknown, ..unknown });
            }
        }
        _ => {}
    }
    node.origin = origin;
}

/// Closes what a restriction that was misspelled may have closed; in words, if there is any.
fn close_here(
    entries: &mut Vec<(String, Node)>,
    fields: &[Field],
    path: &str,
    meant: &str,
    value: &Node,
) -> Option<&'static str> {
    let origin = value.origin;
    let mut put = |key: &str, value: Value| {
        entries.retain(|(k, _)| k != key);
        entries.push((key.into(), Node { value, origin }));
    };
    let off = |said: &Node| said.value != Value::Bool(true);
    if path.is_empty() {
        let (_, section) = SECTIONS.iter().find(|(name, _)| *name == meant)?;
        put(
            section,
            Value::Table(vec![("enabled".into(), Node { value: Value::Bool(false), origin })]),
        );
        return Some("closed until the key is corrected");
    }
    let has = |name: &str| fields.iter().any(|field| field.name == name);
    match meant {
        "read_only" => put("read_only", Value::Bool(true)),
        // Who asked for TLS does not want to be served without it.
        "tls" if value.value != Value::Bool(false) => put("enabled", Value::Bool(false)),
        "enabled" if off(value) => put("enabled", Value::Bool(false)),
        "hosts" | "sessions" | "listen" if has("hosts") => {
            put("hosts", Value::List(vec![Node { value: text(NOBODY), origin }]));
            return Some("nobody is admitted here until the key is corrected");
        }
        _ => return None,
    }
    Some("the stricter setting holds until the key is corrected")
}

/// What is closed while a document cannot be used: a key of a later document by which that is said anew, the
/// path, and the value.
fn closed() -> [(&'static str, &'static str, Value); 10] {
    let off = || Value::Bool(false);
    [
        ("export", "rnbd.enabled", off()),
        ("rule", "rule", Value::List(Vec::new())),
        ("ntb", "ntb", Value::List(Vec::new())),
        ("rapidio", "rapidio", Value::List(Vec::new())),
        ("usnic", "usnic", Value::List(Vec::new())),
        ("linx", "linx", Value::List(Vec::new())),
        ("smc.services", "smc.services", off()),
        ("roce.services", "roce.services", off()),
        ("services.udp_echo", "services.udp_echo", off()),
        ("http.token_sha256", "http.token_sha256", Value::Bare(String::new())),
    ]
}

/// Closes what a document that cannot be used may have restricted, unless a `later` one says how that is to be.
pub fn close(root: &mut Node, later: &[Node], origin: Origin) {
    for (said_by, path, value) in closed() {
        if later.iter().all(|document| document.find(said_by).is_none()) {
            // These paths are good.
            let _ = root.set(path, Node { value, origin });
        }
    }
}

/// Whether a setting of the command line that was left out may have restricted something.
pub fn restricts(path: &str) -> bool {
    let (first, last) =
        (path.split('.').next(), path.rsplit('.').find(|s| s.parse::<u8>().is_err()));
    let section = first.and_then(|first| nearest(first, SECTIONS.iter().map(|(name, _)| *name)));
    let key = last.and_then(|last| nearest(last, RESTRICTING.into_iter()));
    section == Some("export") || key.is_some()
}
