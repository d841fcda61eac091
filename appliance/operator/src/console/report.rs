//! A report of many rows, or the log: it is made and shown some rows at a time, so that no round of the loop pays for
//! all of it. What comes and goes meanwhile may be missed, or be there twice.

use super::output::Output;
use super::system::{System, Topic};
use crate::log_ring::{Cursor, Entry, Filter};
use crate::report::{TableLayout, Value};
use core::fmt::Write as _;

/// Rows that are made, or shown, at a time.
const BATCH: usize = 8;

/// A report that is being shown.
#[derive(Debug)]
pub enum Report {
    /// Of rows.
    Table(Table),
    /// The log.
    Log(Log),
}

impl Report {
    /// A report on a topic, if it is one that may have many rows.
    pub fn new(topic: Topic, json: bool, system: &mut dyn System) -> Option<Report> {
        Table::new(topic, json, system).map(Report::Table)
    }

    /// What the log holds by now.
    pub fn log(filter: Filter, json: bool, system: &mut dyn System) -> Report {
        let end = system.log().count();
        Report::Log(Log { filter, json, cursor: Cursor::default(), end, shown: 0 })
    }

    /// Makes or shows some rows; whether that was all.
    pub fn poll(&mut self, system: &mut dyn System, out: &mut Output) -> bool {
        match self {
            Report::Table(table) => table.poll(system, out),
            Report::Log(log) => log.poll(system, out),
        }
    }
}

/// The log that is being shown.
#[derive(Debug)]
pub struct Log {
    filter: Filter,
    json: bool,
    cursor: Cursor,
    /// The number of the first message that is not shown.
    end: u64,
    /// Messages that were shown.
    shown: usize,
}

impl Log {
    fn poll(&mut self, system: &mut dyn System, out: &mut Output) -> bool {
        let mut text = String::new();
        let mut left = BATCH;
        let ends = loop {
            let entry = system.log().next_of(&mut self.cursor, self.filter);
            let Some(entry) = entry.filter(|entry| entry.number < self.end) else { break true };
            let first = if self.shown == 0 { "[" } else { "," };
            // Writing to a string does not fail.
            let _ = match self.json {
                true => write!(text, "{first}{}", row(&entry).to_json()),
                false => writeln!(text, "{entry}"),
            };
            self.shown += 1;
            left -= 1;
            if left == 0 {
                break false;
            }
        };
        if ends && self.json {
            text.push_str(if self.shown == 0 { "[]\n" } else { "]\n" });
        }
        out.text(&text);
        ends
    }
}

/// A message as programs read it.
pub fn row(entry: &Entry) -> Value {
    Value::object([
        ("seconds", (entry.at.as_nanos() as f64 / 1e9).into()),
        ("time", entry.utc().map_or(Value::None, Value::display)),
        ("level", entry.level.as_str().to_ascii_lowercase().into()),
        ("kind", entry.kind.name().into()),
        ("message", Value::display(entry.text())),
    ])
}

/// A report of rows that is being made, and then shown.
#[derive(Debug)]
pub struct Table {
    topic: Topic,
    json: bool,
    rows: Vec<Value>,
    layout: TableLayout,
    /// How many rows were shown, once all are made.
    shown: Option<usize>,
}

impl Table {
    fn new(topic: Topic, json: bool, system: &mut dyn System) -> Option<Table> {
        system.rows(topic, 0, 0)?;
        let (rows, layout) = (Vec::new(), TableLayout::default());
        Some(Table { topic, json, rows, layout, shown: None })
    }

    fn poll(&mut self, system: &mut dyn System, out: &mut Output) -> bool {
        let Some(shown) = self.shown else {
            let rows = system.rows(self.topic, self.rows.len(), BATCH).unwrap_or_default();
            let all = rows.len() < BATCH;
            rows.iter().for_each(|row| self.layout.add(row));
            self.rows.extend(rows);
            self.shown = all.then_some(0);
            return false;
        };
        let last = (shown + BATCH).min(self.rows.len());
        let mut text = String::new();
        for (at, row) in self.rows.iter().enumerate().take(last).skip(shown) {
            if self.json {
                text.push_str(if at == 0 { "[" } else { "," });
                text.push_str(&row.to_json());
            } else {
                self.layout.write(&mut text, row, at == 0);
            }
        }
        let ends = last == self.rows.len();
        match (self.json, self.rows.is_empty()) {
            (true, true) => text.push_str("[]\n"),
            (true, false) if ends => text.push_str("]\n"),
            (false, true) => text.push_str("(none)\n"),
            _ => {}
        }
        out.text(&text);
        self.shown = Some(last);
        ends
    }
}
