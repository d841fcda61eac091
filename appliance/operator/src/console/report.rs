//! Long reports and the log, generated and shown some rows at a time so that no round of the loop pays for a whole
//! report. Objects that appear or disappear meanwhile may be missing or repeated.

use super::output::Output;
use super::support::{Encoded, Support};
use super::system::{System, Topic};
use crate::log_ring::{Cursor, Entry, Filter};
use crate::report::{TableLayout, Value};
use core::fmt::Write as _;

/// Rows generated or shown at a time.
const BATCH: usize = 8;

/// A report in progress.
#[derive(Debug)]
pub enum Report {
    /// A table of rows.
    Table(Table),
    /// The log.
    Log(Log),
    /// The checks of `doctor`, in JSON or not.
    Doctor(bool),
    /// A support bundle.
    Support(Box<Encoded>),
    /// The audit log.
    Audit(Audit),
}

impl Report {
    /// A report on a topic, if the topic may have many rows.
    pub fn new(topic: Topic, json: bool, system: &mut dyn System) -> Option<Report> {
        Table::new(topic, json, system).map(Report::Table)
    }

    /// The log up to the current message.
    pub fn log(filter: Filter, json: bool, system: &mut dyn System) -> Report {
        let end = system.log().count();
        Report::Log(Log { filter, json, cursor: Cursor::default(), end, shown: 0 })
    }

    /// The checks of `doctor`, some of which take a moment.
    pub fn doctor(json: bool, system: &mut dyn System) -> Report {
        system.start_doctor();
        Report::Doctor(json)
    }

    /// A support bundle as base64.
    pub fn support(system: &mut dyn System) -> Report {
        Report::Support(Box::new(Encoded::new(Support::new(system))))
    }

    /// The audit log.
    pub fn audit(json: bool) -> Report {
        Report::Audit(Audit { json, shown: 0 })
    }

    /// Whether the report may have nothing to show for a while.
    pub fn waits(&self) -> bool {
        matches!(self, Report::Doctor(_) | Report::Support(_))
    }

    /// Generates or shows some rows. True at the end of the report.
    pub fn poll(&mut self, system: &mut dyn System, out: &mut Output) -> bool {
        match self {
            Report::Table(table) => table.poll(system, out),
            Report::Log(log) => log.poll(system, out),
            Report::Doctor(json) => match system.poll_doctor(*json) {
                Some(text) => {
                    out.text(&text);
                    true
                }
                None => false,
            },
            Report::Support(encoded) => {
                let mut text = String::new();
                let ends = encoded.poll(system, &mut text);
                out.text(&text);
                ends
            }
            Report::Audit(audit) => audit.poll(system, out),
        }
    }
}

/// The log, in progress.
#[derive(Debug)]
pub struct Log {
    filter: Filter,
    json: bool,
    cursor: Cursor,
    /// Number of the first message after the report.
    end: u64,
    /// Messages shown so far.
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
            // Writing to a string cannot fail.
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

/// The audit log, in progress.
#[derive(Debug)]
pub struct Audit {
    json: bool,
    /// Lines shown so far.
    shown: usize,
}

impl Audit {
    fn poll(&mut self, system: &mut dyn System, out: &mut Output) -> bool {
        let lines = system.audit(self.shown, BATCH);
        let mut text = String::new();
        for line in &lines {
            let first = if self.shown == 0 { "[" } else { "," };
            // Writing to a string cannot fail.
            let _ = match self.json {
                true => write!(text, "{first}{}", line.row().to_json()),
                false => writeln!(text, "{line}"),
            };
            self.shown += 1;
        }
        let ends = lines.len() < BATCH;
        if ends && self.json {
            text.push_str(if self.shown == 0 { "[]\n" } else { "]\n" });
        }
        out.text(&text);
        ends
    }
}

/// A log message as a row for JSON.
pub fn row(entry: &Entry) -> Value {
    Value::object([
        ("seconds", (entry.at.as_nanos() as f64 / 1e9).into()),
        ("time", entry.utc().map_or(Value::None, Value::display)),
        ("level", entry.level.as_str().to_ascii_lowercase().into()),
        ("kind", entry.kind.name().into()),
        ("message", Value::display(entry.text())),
    ])
}

/// A table: first all rows are generated, then shown.
#[derive(Debug)]
pub struct Table {
    topic: Topic,
    json: bool,
    rows: Vec<Value>,
    layout: TableLayout,
    /// Number of rows shown. None until all rows are generated.
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
