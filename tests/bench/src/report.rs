//! Results of a benchmark: a JSON document, and a table with the bars.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};
use figures::number::{bar, shown};
use figures::{Bar, Figure, Measured, Of, Suite};
use launch::build::commit;
use launch::{command, workspace};
use serde_json::{Map, Value};

/// The figures of one suite.
pub struct Report {
    suite: &'static Suite,
    /// `system.idle_after_us` of the appliance for keys that do not end in `_default`. It dominates the figures,
    /// because polling is counted. None if nothing waits.
    idle_after_us: Option<u32>,
    /// The requested keys; empty means all.
    keys: Vec<String>,
    found: Vec<(&'static Figure, Measured)>,
}

impl Report {
    /// An empty report for a suite of the table.
    pub fn new(suite: &str, idle_after_us: Option<u32>) -> Report {
        Report::of(suite, idle_after_us, Vec::new())
    }

    /// As `new`, for some keys only.
    pub fn of(suite: &str, idle_after_us: Option<u32>, keys: Vec<String>) -> Report {
        let suite = figures::suite(suite).expect("a suite of the table");
        Report { suite, idle_after_us, keys, found: Vec::new() }
    }

    /// Whether one of these keys is requested.
    pub fn wants(&self, keys: &[&str]) -> bool {
        self.keys.is_empty() || keys.iter().any(|key| self.keys.iter().any(|wanted| wanted == key))
    }

    /// Adds a figure of the suite, and prints it.
    pub fn add(&mut self, key: &str, value: f64) {
        self.put(key, Measured { value, ..Measured::default() });
    }

    /// Adds a figure that is a ratio to Linux, or to the divisor that its meaning names.
    pub fn ratio(&mut self, key: &str, ours: f64, other: f64) {
        self.ratio_of(key, ours / other, ours, other);
    }

    /// As [`Report::ratio`], for a ratio that was computed from more than these two values.
    pub fn ratio_of(&mut self, key: &str, value: f64, ours: f64, other: f64) {
        let by_linux = self.figure(key).of == Of::Linux;
        let linux = by_linux.then_some(other);
        self.put(key, Measured { value, linux, ours: Some(ours), ..Measured::default() });
    }

    fn put(&mut self, key: &str, measured: Measured) {
        eprintln!("{key}: {}", shown(measured.value));
        self.found.push((self.figure(key), measured));
    }

    fn figure(&self, key: &str) -> &'static Figure {
        let figure = self.suite.figure(key);
        figure.unwrap_or_else(|| panic!("{key} is not in the table of {}", self.suite.name))
    }

    /// Writes `target/bench/SUITE.json`, prints the table, and fails if a bar is missed.
    pub fn close(mut self) -> Result<()> {
        let commit = std::env::var("ISTHMUS_COMMIT").unwrap_or_else(|_| commit::of_tree());
        let date = command::output(Command::new("date").args(["-u", "+%F"]))?.trim().to_string();
        for (_, measured) in &mut self.found {
            (measured.commit, measured.date) = (commit.clone(), date.clone());
        }
        let directory = workspace::target().join("bench");
        fs::create_dir_all(&directory)?;
        let file = directory.join(format!("{}.json", self.suite.name));
        // A run of some keys retains the others.
        let before = if self.keys.is_empty() { Map::new() } else { document(&file) };
        fs::write(&file, format!("{:#}\n", Value::Object(self.json(before))))?;
        self.print();
        println!("\n{}", file.display());
        let missed = self.found.iter().filter(|(figure, found)| !figure.bar.holds(found.value));
        let missed: Vec<&str> = missed.map(|(figure, _)| figure.key).collect();
        if !missed.is_empty() {
            bail!("bars missed: {}", missed.join(", "));
        }
        Ok(())
    }

    fn print(&self) {
        println!("\n| key | measured | bar | |\n|---|--:|--:|---|");
        for (figure, found) in &self.found {
            let (key, value) = (figure.key, shown(found.value));
            let verdict = if figure.bar.holds(found.value) { "holds" } else { "MISSED" };
            match figure.bar {
                Bar::AtMost(most) => {
                    println!("| `{key}` | {value} | ≤ {} | {verdict} |", bar(most))
                }
                Bar::AtLeast(least) => {
                    println!("| `{key}` | {value} | ≥ {} | {verdict} |", bar(least))
                }
                Bar::None => println!("| `{key}` | {value} | | |"),
            }
        }
    }

    /// The values by key, and below `figures` the details of each.
    fn json(&self, mut document: Map<String, Value>) -> Map<String, Value> {
        let mut figures = match document.remove("figures") {
            Some(Value::Object(figures)) => figures,
            _ => Map::new(),
        };
        if let Some(time) = self.idle_after_us {
            document.insert("idle_after_us".into(), time.into());
        }
        for (figure, found) in &self.found {
            document.insert(figure.key.into(), number(found.value));
            let mut object = found.json();
            object.insert("meaning".into(), figure.meaning.into());
            object.insert("unit".into(), figure.unit.into());
            if let (Some(bar), Some(direction)) = (figure.bar.number(), figure.bar.direction()) {
                object.insert("bar".into(), number(bar));
                object.insert("direction".into(), direction.into());
            }
            figures.insert(figure.key.into(), object.into());
        }
        document.insert("figures".into(), figures.into());
        document
    }
}

fn number(value: f64) -> Value {
    match value.fract() == 0.0 {
        true => (value as i64).into(),
        false => value.into(),
    }
}

/// The document of the previous run; empty if there is none.
fn document(file: &Path) -> Map<String, Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    match serde_json::from_str(&text) {
        Ok(Value::Object(document)) => document,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_has_values_by_key_and_the_details_of_each_figure() {
        let mut report = Report::new("roce", Some(0));
        report.add("rx_write_packet_instructions", 181.0);
        report.ratio("guest_write_lat_ratio", 1_000.0, 4_000.0);
        let document = Value::Object(report.json(Map::new()));
        assert_eq!(document["idle_after_us"], 0);
        assert_eq!(document["rx_write_packet_instructions"], 181);
        assert_eq!(document["guest_write_lat_ratio"], 0.25);
        let ratio = &document["figures"]["guest_write_lat_ratio"];
        assert_eq!((&ratio["linux"], &ratio["ours"]), (&4000.into(), &1000.into()));
        assert_eq!((&ratio["bar"], &ratio["direction"]), (&0.1.into(), &"at most".into()));
        assert_eq!(ratio["unit"], "instructions");
    }

    #[test]
    fn figures_that_were_not_measured_are_retained() {
        let mut before = Report::new("roce", None);
        before.add("bytes_per_idle_qp", 7.0);
        let mut report = Report::new("roce", None);
        report.add("allocations_after_setup", 0.0);
        let document = Value::Object(report.json(before.json(Map::new())));
        assert_eq!(document["bytes_per_idle_qp"], 7);
        assert_eq!(document["figures"]["bytes_per_idle_qp"]["value"], 7);
        assert_eq!(document["figures"]["allocations_after_setup"]["value"], 0);
    }

    #[test]
    #[should_panic(expected = "is not in the table")]
    fn figure_outside_the_table_panics() {
        Report::new("roce", None).add("unknown", 1.0);
    }
}
