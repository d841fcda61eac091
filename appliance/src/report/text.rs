//! Reports as text: a list of objects is a table, an object is a block of `name  value` lines.

use super::Value;
use core::fmt::Write as _;
use std::borrow::Cow;

/// Appends `value` with every line indented by `indent` columns.
pub fn write(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(entries) => write_block(out, entries, indent),
        Value::List(items) if items.is_empty() => line(out, "(none)", indent),
        Value::List(items) if items.iter().all(|i| matches!(i, Value::Object(_))) => {
            write_table(out, items, indent);
        }
        Value::List(items) => items.iter().for_each(|i| line(out, &cell(i), indent)),
        single => line(out, &cell(single), indent),
    }
}

fn line(out: &mut String, text: &str, indent: usize) {
    let _ = writeln!(out, "{:indent$}{text}", "");
}

fn write_block(out: &mut String, entries: &[(Cow<'static, str>, Value)], indent: usize) {
    let width = entries.iter().filter(|(_, v)| is_cell(v)).map(|(k, _)| k.len()).max();
    for (key, value) in entries {
        if is_cell(value) {
            line(out, &format!("{key:0$}  {1}", width.unwrap_or(0), cell(value)), indent);
        } else {
            line(out, &format!("{key}:"), indent);
            write(out, value, indent + 2);
        }
    }
}

fn write_table(out: &mut String, items: &[Value], indent: usize) {
    let rows: Vec<&[(Cow<'static, str>, Value)]> = items
        .iter()
        .map(|item| match item {
            Value::Object(entries) => entries.as_slice(),
            _ => &[],
        })
        .collect();
    let mut columns: Vec<&str> = Vec::new();
    for (key, _) in rows.iter().copied().flatten() {
        if !columns.contains(&key.as_ref()) {
            columns.push(key);
        }
    }
    let at = |row: &[(Cow<'static, str>, Value)], column: &str| {
        row.iter().find(|(k, _)| k == column).map_or(Value::None, |(_, v)| v.clone())
    };
    let table: Vec<Vec<Value>> =
        rows.iter().map(|row| columns.iter().map(|c| at(row, c)).collect()).collect();
    let cells: Vec<Vec<String>> = table.iter().map(|row| row.iter().map(cell).collect()).collect();
    let width = |i: usize, name: &str| {
        let longest = cells.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
        longest.max(name.chars().count())
    };
    let widths: Vec<usize> = columns.iter().enumerate().map(|(i, c)| width(i, c)).collect();
    let numeric = |i: usize| {
        let number = |v: &Value| {
            matches!(v, Value::None | Value::Number(_) | Value::Float(_) | Value::Bytes(_))
        };
        table.iter().all(|row| number(&row[i]))
    };
    let write_row = |out: &mut String, row: &[String]| {
        let mut text = String::new();
        for (i, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let gap = if i > 0 { "  " } else { "" };
            let _ = match numeric(i) {
                true => write!(text, "{gap}{cell:>width$}"),
                false => write!(text, "{gap}{cell:width$}"),
            };
        }
        line(out, text.trim_end(), indent);
    };
    write_row(out, &columns.iter().map(|c| (*c).to_string()).collect::<Vec<_>>());
    cells.iter().for_each(|row| write_row(out, row));
}

/// Whether a value is shown on the line of its name.
fn is_cell(value: &Value) -> bool {
    match value {
        Value::Object(_) => false,
        Value::List(items) => items.iter().all(|i| !matches!(i, Value::Object(_) | Value::List(_))),
        _ => true,
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::None => "-".into(),
        Value::Bool(b) => if *b { "yes" } else { "no" }.into(),
        Value::Number(n) => n.to_string(),
        Value::Float(f) => format!("{f:.3}"),
        Value::Bytes(n) => crate::config::Size(*n).to_string(),
        Value::Text(text) => text
            .chars()
            .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
            .collect(),
        Value::List(items) if items.is_empty() => "-".into(),
        Value::List(items) => items.iter().map(cell).collect::<Vec<_>>().join(", "),
        Value::Object(entries) => {
            let pair = |(k, v): &(Cow<'static, str>, Value)| format!("{k}={}", cell(v));
            entries.iter().map(pair).collect::<Vec<_>>().join(" ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_objects_are_tables() {
        let row = |name: &'static str, mtu: u32, addresses: &[&'static str]| {
            Value::object([
                ("name", name.into()),
                ("mtu", mtu.into()),
                ("addresses", Value::list(addresses.iter().map(|&a| a.into()))),
            ])
        };
        let table =
            Value::list([row("net0", 1500, &["10.0.0.1/24", "fe80::1/64"]), row("n", 9000, &[])]);
        let expected = "\
name   mtu  addresses
net0  1500  10.0.0.1/24, fe80::1/64
n     9000  -
";
        assert_eq!(table.to_text(), expected);
    }

    #[test]
    fn objects_are_blocks() {
        let report = Value::object([
            ("arena", Value::Bytes(64 << 20)),
            ("share", 0.5.into()),
            ("inner", Value::object([("a", true.into())])),
            ("rows", Value::list([Value::object([("x", 1u8.into())])])),
            ("empty", Value::List(vec![])),
        ]);
        let expected = "\
arena  64MiB
share  0.500
inner:
  a  yes
rows:
  x
  1
empty  -
";
        assert_eq!(report.to_text(), expected);
        assert_eq!(Value::List(vec![]).to_text(), "(none)\n");
    }

    #[test]
    fn a_peers_text_cannot_drive_the_terminal() {
        assert_eq!(Value::display("a\x1b[2J\n\u{9b}").to_text(), "a\u{fffd}[2J\u{fffd}\u{fffd}\n");
    }
}
