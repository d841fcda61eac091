//! TOML 1.1 text to [`Node`]s and back. The `toml` crate parses. This module adds the line to each value, and converts
//! each mistake to a [`Problem`].

use super::origin::{Kind, Origin, Problem, Source};
use super::tree::{Node, Value};
use core::fmt::Write as _;
use toml::de::{DeTable, DeValue};
use toml_writer::TomlWrite as _;

/// Longest document in bytes: the capacity of a slot in the image and on the config disk.
pub const MAX_DOCUMENT: usize = super::slot::MAX_TEXT;

/// Most brackets inside each other, and most dots of a key. Sections need three.
const MAX_DEPTH: u32 = 8;
const TOO_DEEP: &str = "nested too deeply";

/// Whether a text has more levels than a document needs. The `toml` crate limits brackets and dots, but not their
/// product, and a tree of thousands of levels does not fit on the stack of a loop.
fn is_too_deep(text: &str) -> bool {
    let bytes = text.as_bytes();
    let (mut at, mut depth, mut dots) = (0, 0_u32, 0_u32);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'#' => at = skip(bytes, at, |rest| rest.starts_with(b"\n")),
            b'"' | b'\'' => at = end_of_string(bytes, at, byte),
            b'.' => dots += 1,
            b'{' | b'[' => (depth, dots) = (depth + 1, 0),
            b'}' | b']' => (depth, dots) = (depth.saturating_sub(1), 0),
            b'=' | b',' | b'\n' => dots = 0,
            _ => {}
        }
        if depth.max(dots) > MAX_DEPTH {
            return true;
        }
        at += 1;
    }
    false
}

/// The first place from `at` where the rest of the text `ends`, or the end of the text.
fn skip(bytes: &[u8], at: usize, ends: impl Fn(&[u8]) -> bool) -> usize {
    (at..bytes.len()).find(|&at| ends(&bytes[at..])).unwrap_or(bytes.len())
}

/// The last byte of the string that begins at `at`.
fn end_of_string(bytes: &[u8], at: usize, quote: u8) -> usize {
    let long = [quote; 3];
    let is_long = bytes[at..].starts_with(&long);
    let mut at = at + if is_long { 3 } else { 1 };
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' if quote == b'"' => at += 1,
            b'\n' if !is_long => return at,
            _ if is_long && bytes[at..].starts_with(&long) => {
                // Up to two quotes may stand before the three that end the string.
                return skip(bytes, at, |rest| rest.first() != Some(&quote)).min(at + 5) - 1;
            }
            _ if !is_long && byte == quote => return at,
            _ => {}
        }
        at += 1;
    }
    at
}

/// Reads a document.
pub fn parse(bytes: &[u8], source: Source) -> Result<Node, Vec<Problem>> {
    let lines = Lines::of(bytes, source);
    let problem = |at: usize, reason: String| Problem {
        kind: Kind::Mistake,
        origin: lines.origin(at),
        path: String::new(),
        reason,
        accepted: String::new(),
    };
    if bytes.len() > MAX_DOCUMENT {
        let reason =
            format!("{} bytes are too many; accepted: at most {MAX_DOCUMENT}", bytes.len());
        return Err(vec![problem(0, reason)]);
    }
    let text = core::str::from_utf8(bytes)
        .map_err(|e| vec![problem(e.valid_up_to(), "not UTF-8 text".into())])?;
    if is_too_deep(text) {
        return Err(vec![problem(0, TOO_DEEP.into())]);
    }
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let at = |e: &toml::de::Error| e.span().map_or(0, |s| s.start);
        let mut all: Vec<_> = errors.iter().map(|e| problem(at(e), e.message().into())).collect();
        // Further mistakes of a line are mostly consequences of the first.
        all.dedup_by_key(|p| p.origin);
        return Err(all);
    }
    let origin = Origin { source, position: 0 };
    Ok(Node { value: table_of(table.get_ref(), &lines), origin })
}

/// Parses the value of a path setting: TOML if it starts like a TOML string or list, else bare text such as
/// `[2001:db8::1]:80`.
pub fn parse_value(text: &str, origin: Origin) -> Result<Node, String> {
    let text = text.trim();
    let mut value = Value::Bare(text.into());
    if text.starts_with(['"', '\'', '[']) && !is_ipv6_in_brackets(text) {
        if is_too_deep(text) {
            return Err(TOO_DEEP.into());
        }
        let parsed = DeValue::parse(text).map_err(|e| e.message().to_string())?;
        value = value_of(parsed.get_ref(), &Lines { starts: vec![], origin });
    }
    Ok(Node { value, origin })
}

/// Whether the text begins with an IPv6 address in brackets, as before a port. No TOML list does.
fn is_ipv6_in_brackets(text: &str) -> bool {
    let inside = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    inside.is_some_and(|(address, _)| address.parse::<core::net::Ipv6Addr>().is_ok())
}

/// Offsets of line starts, to convert an offset to a line. Without any, all values have the same origin.
struct Lines {
    starts: Vec<usize>,
    origin: Origin,
}

impl Lines {
    fn of(bytes: &[u8], source: Source) -> Lines {
        let ends = bytes.iter().enumerate().filter(|&(_, &b)| b == b'\n').map(|(i, _)| i + 1);
        let starts = core::iter::once(0).chain(ends).collect();
        Lines { starts, origin: Origin { source, position: 0 } }
    }

    fn origin(&self, at: usize) -> Origin {
        match self.starts.partition_point(|&start| start <= at) {
            0 => self.origin,
            line => Origin { position: line as u32, ..self.origin },
        }
    }
}

fn table_of(table: &DeTable<'_>, lines: &Lines) -> Value {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let node = |(key, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
        let key: &toml::de::DeString<'_> = key.get_ref();
        let origin = lines.origin(value.span().start);
        (key.to_string(), Node { value: value_of(value.get_ref(), lines), origin })
    };
    Value::Table(entries.into_iter().map(node).collect())
}

fn value_of(value: &DeValue<'_>, lines: &Lines) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(i) => match i64::from_str_radix(i.as_str(), i.radix()) {
            Ok(i) => Value::Integer(i),
            Err(_) => Value::Foreign("an integer of more than 64 bits"),
        },
        DeValue::Boolean(b) => Value::Bool(*b),
        DeValue::Float(_) => Value::Foreign("a floating-point number"),
        DeValue::Datetime(_) => Value::Foreign("a date"),
        DeValue::Array(items) => Value::List(
            items
                .iter()
                .map(|item| Node {
                    value: value_of(item.get_ref(), lines),
                    origin: lines.origin(item.span().start),
                })
                .collect(),
        ),
        DeValue::Table(table) => table_of(table, lines),
    }
}

/// Writes an entry of the list `path` (`[[path]]`).
pub fn write_entry(path: &str, entry: &Value) -> String {
    let mut text = format!("[[{path}]]\n");
    if let Value::Table(inner) = entry {
        write_table(&mut text, path, inner);
    }
    text
}

/// Writes a value that is not a section.
pub fn write_one(value: &Value) -> String {
    let mut text = String::new();
    write_value(&mut text, value);
    text
}

/// Writes a table as a document.
pub fn write(root: &Value) -> String {
    let mut text = String::new();
    if let Value::Table(entries) = root {
        write_table(&mut text, "", entries);
    }
    text
}

fn write_table(text: &mut String, path: &str, entries: &[(String, Node)]) {
    for (key, node) in entries.iter().filter(|(_, n)| !stands_apart(&n.value)) {
        let _ = write!(text, "{key} = ");
        write_value(text, &node.value);
        text.push('\n');
    }
    for (key, node) in entries {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match &node.value {
            Value::Table(inner) => {
                let _ = write!(text, "\n[{path}]\n");
                write_table(text, &path, inner);
            }
            Value::List(items) if stands_apart(&node.value) => {
                for item in items {
                    let _ = write!(text, "\n[[{path}]]\n");
                    if let Value::Table(inner) = &item.value {
                        write_table(text, &path, inner);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Whether a value is written under its own header: a table, or a list of tables.
fn stands_apart(value: &Value) -> bool {
    match value {
        Value::Table(_) => true,
        Value::List(items) => items.first().is_some_and(|i| matches!(i.value, Value::Table(_))),
        _ => false,
    }
}

fn write_value(text: &mut String, value: &Value) {
    let _ = match value {
        Value::Bool(b) => text.value(*b),
        Value::Integer(i) => text.value(*i),
        Value::Text(t) | Value::Bare(t) => text.value(t.as_str()),
        Value::List(items) => {
            text.push('[');
            for (i, item) in items.iter().enumerate() {
                text.push_str(if i > 0 { ", " } else { "" });
                write_value(text, &item.value);
            }
            text.write_char(']')
        }
        // Typed values never encode to these. A pending entry may hold them.
        Value::Foreign(what) => text.value(*what),
        Value::Table(_) => text.value("a table"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(text: &str) -> Vec<u32> {
        let problems = parse(text.as_bytes(), Source::File).unwrap_err();
        problems.iter().map(|p| p.origin.position).collect()
    }

    #[test]
    fn values_carry_their_line() {
        let text =
            "[system]\nhostname = \"a\"\n\n[[net]]\nmtu = 1\n[[net]]\naddress = [\n \"x\"]\n";
        let root = parse(text.as_bytes(), Source::FwCfg).unwrap();
        assert_eq!(root.nearest("system.hostname").origin.to_string(), "fw_cfg line 2");
        assert_eq!(root.nearest("net.0.mtu").origin.position, 5);
        assert_eq!(root.nearest("net.1").origin.position, 6);
        assert_eq!(root.nearest("net.1.address.0").origin.position, 8);
    }

    #[test]
    fn mistakes_are_reported_with_their_lines() {
        assert_eq!(lines_of("a = 1\nb = = 2\nc = 3\nd\n"), [2, 4]);
        assert_eq!(lines_of("a = 1\na = 2\n"), [2]);
        assert_eq!(
            parse(b"a = 1\nb = \"\xff\"\n", Source::File).unwrap_err()[0].origin.position,
            2
        );
        assert!(parse(&vec![b'#'; MAX_DOCUMENT + 1], Source::File).is_err());
    }

    /// Dotted keys in nested tables multiply: 80 of 80 parts each would be 6,400 levels.
    #[test]
    fn depth_of_a_document_is_limited() {
        for (levels, dots) in [(75, 78), (17, 1), (2, 60)] {
            let key = "a.".repeat(dots) + "a";
            let text = format!("{}x = 1{}", format!("{key}={{").repeat(levels), "}".repeat(levels));
            assert!(text.len() <= MAX_DOCUMENT && parse(text.as_bytes(), Source::File).is_err());
        }
        let lists = "[".repeat(70) + &"]".repeat(70);
        assert!(parse(format!("a = {lists}").as_bytes(), Source::File).is_err());
        let origin = Origin { source: Source::Console, position: 0 };
        assert!(parse_value(&lists, origin).is_err());
        let quoted = "# {{{{{{{{{{{{{{{{{{ [\na = \"{{{{{{{{{{{{{{{{{{{\\\"{{\"\nb = '[[[[[[[[[[[[[[[['\n\
                      c = \"\"\"\n{{{{{{{{{{{{{{{{{{\n\"\"\"\n";
        assert!(parse(quoted.as_bytes(), Source::File).is_ok());
    }

    #[test]
    fn ipv6_address_in_brackets_is_not_a_list() {
        let origin = Origin { source: Source::CommandLine, position: 1 };
        let read = |text: &str| parse_value(text, origin).map(|node| node.value);
        for text in ["[2001:db8::1]:80", "[::1]", "[::1]:80,[::2]:81"] {
            assert_eq!(read(text), Ok(Value::Bare(text.into())), "{text}");
        }
        for (text, entries) in [("[]", 0), ("[1, 2]", 2), ("[\"[::1]:80\"]", 1)] {
            let list = read(text);
            assert!(matches!(list, Ok(Value::List(items)) if items.len() == entries), "{text}");
        }
        assert!(read("[2001:db8::g]:80").is_err());
    }
}
