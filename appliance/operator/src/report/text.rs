//! Reports as text. A list of objects is a table. An object is a block of `name  value` lines. A table that is too
//! wide, or has nested values, is shown as blocks.

use super::Value;
use core::fmt::Write as _;
use std::borrow::Cow;

/// Widest table in columns.
const WIDEST: usize = 100;

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

type Entries = [(Cow<'static, str>, Value)];

fn entries(value: &Value) -> Option<&Entries> {
    match value {
        Value::Object(entries) => Some(entries),
        _ => None,
    }
}

fn write_table(out: &mut String, items: &[Value], indent: usize) {
    let mut layout = TableLayout { indent, ..TableLayout::default() };
    items.iter().for_each(|row| layout.add(row));
    items.iter().enumerate().for_each(|(i, row)| layout.write(out, row, i == 0));
}

/// Layout of a list of objects. It collects all rows first and writes them afterwards, so that both can be done in
/// pieces.
#[derive(Debug, Default)]
pub struct TableLayout {
    indent: usize,
    columns: Vec<Column>,
    /// A cell holds a nested value, which does not fit on a line.
    is_nested: bool,
}

#[derive(Debug)]
struct Column {
    name: Cow<'static, str>,
    /// Characters of the longest cell or the name.
    width: usize,
    /// Whether all cells are numbers, which are aligned to the right.
    numeric: bool,
}

impl TableLayout {
    /// Adds a row to the layout.
    pub fn add(&mut self, row: &Value) {
        for (name, value) in entries(row).into_iter().flatten() {
            let found = self.columns.iter().position(|column| column.name == *name);
            let at = found.unwrap_or_else(|| {
                let (name, width) = (name.clone(), name.len());
                self.columns.push(Column { name, width, numeric: true });
                self.columns.len() - 1
            });
            let column = &mut self.columns[at];
            self.is_nested |= !is_cell(value);
            column.width = column.width.max(cell(value).chars().count());
            column.numeric &= !matches!(
                value,
                Value::Bool(_) | Value::Text(_) | Value::List(_) | Value::Object(_)
            );
        }
    }

    /// Appends a row, preceded by the column names if it is the first.
    pub fn write(&self, out: &mut String, row: &Value, first: bool) {
        let row = entries(row).unwrap_or_default();
        let width = self.columns.iter().map(|column| column.width + 2).sum::<usize>();
        if self.is_nested || width > WIDEST + 2 {
            out.push_str(if first { "" } else { "\n" });
            return write_block(out, row, self.indent);
        }
        if first {
            self.write_line(out, |column| column.name.to_string());
        }
        self.write_line(out, |column| {
            let value = row.iter().find(|(name, _)| *name == column.name);
            value.map_or_else(|| cell(&Value::None), |(_, value)| cell(value))
        });
    }

    fn write_line(&self, out: &mut String, text: impl Fn(&Column) -> String) {
        let cells = self.columns.iter().map(|column| column.pad(&text(column)));
        line(out, cells.collect::<Vec<_>>().join("  ").trim_end(), self.indent);
    }
}

impl Column {
    fn pad(&self, text: &str) -> String {
        let width = self.width;
        if self.numeric { format!("{text:>width$}") } else { format!("{text:width$}") }
    }
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
        Value::Memory(n) => format!("{:.1}MiB", *n as f64 / f64::from(1 << 20)),
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
    fn lists_of_objects_are_shown_as_tables() {
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
    fn nested_or_wide_rows_are_shown_as_blocks() {
        let row = |n: u8| Value::list([Value::object([("n", n.into())])]);
        let nested = Value::list([1, 2].map(|n| Value::object([("id", n.into()), ("in", row(n))])));
        assert_eq!(nested.to_text(), "id  1\nin:\n  n\n  1\n\nid  2\nin:\n  n\n  2\n");
        let wide = Value::list([Value::object([("text", "x".repeat(120).into())])]);
        assert_eq!(wide.to_text(), format!("text  {}\n", "x".repeat(120)));
    }

    #[test]
    fn objects_are_shown_as_blocks() {
        let report = Value::object([
            ("arena", Value::Bytes(64 << 20)),
            ("free", Value::Memory(32_970_112)),
            ("share", 0.5.into()),
            ("inner", Value::object([("a", true.into())])),
            ("rows", Value::list([Value::object([("x", 1u8.into())])])),
            ("empty", Value::List(vec![])),
        ]);
        let expected = "\
arena  64MiB
free   31.4MiB
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
    fn control_characters_of_peers_do_not_reach_the_terminal() {
        assert_eq!(Value::display("a\x1b[2J\n\u{9b}").to_text(), "a\u{fffd}[2J\u{fffd}\u{fffd}\n");
    }
}
