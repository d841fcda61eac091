//! A report of many rows: it is made and shown some rows at a time, so that no round of the loop pays for all of
//! it. What comes and goes meanwhile may be missed, or be there twice.

use super::output::Output;
use super::system::{System, Topic};
use crate::report::{TableLayout, Value};

/// Rows that are made, or shown, at a time.
const BATCH: usize = 8;

/// A report that is being made, and then shown.
#[derive(Debug)]
pub struct Report {
    topic: Topic,
    json: bool,
    rows: Vec<Value>,
    layout: TableLayout,
    /// How many rows were shown, once all are made.
    shown: Option<usize>,
}

impl Report {
    /// A report on a topic, if it is one that may have many rows.
    pub fn new(topic: Topic, json: bool, system: &mut dyn System) -> Option<Report> {
        system.rows(topic, 0, 0)?;
        let (rows, layout) = (Vec::new(), TableLayout::default());
        Some(Report { topic, json, rows, layout, shown: None })
    }

    /// Makes or shows some rows; whether that was all.
    pub fn poll(&mut self, system: &mut dyn System, out: &mut Output) -> bool {
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
