//! What a benchmark found: a flat JSON document and a table beside its bars.

use std::fs;

use anyhow::{Result, bail};
use launch::workspace;
use serde_json::{Map, Number, Value};

/// The figures of one suite.
pub struct Report {
    suite: &'static str,
    /// The keys that are wanted; all, if none is named.
    keys: Vec<String>,
    figures: Vec<Figure>,
}

struct Figure {
    key: &'static str,
    value: f64,
    bar: Bar,
}

/// What a figure is held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    /// It must not be exceeded.
    AtMost(f64),
    /// It must be reached.
    AtLeast(f64),
    /// The figure is only told.
    None,
}

impl Report {
    /// An empty report for `suite`.
    ///
    /// `idle_after_us` is what the appliance has it at where a key does not end in `_default`: that counts
    /// more than anything else, because polling is counted. None where nothing waits.
    pub fn new(suite: &'static str, idle_after_us: Option<u32>) -> Report {
        Report::of(suite, idle_after_us, Vec::new())
    }

    /// As `new`, for some keys only.
    pub fn of(suite: &'static str, idle_after_us: Option<u32>, keys: Vec<String>) -> Report {
        let mut report = Report { suite, keys, figures: Vec::new() };
        if let Some(time) = idle_after_us {
            report.figures.push(Figure {
                key: "idle_after_us",
                value: time.into(),
                bar: Bar::None,
            });
        }
        report
    }

    /// Whether one of these keys is wanted.
    pub fn wants(&self, keys: &[&str]) -> bool {
        self.keys.is_empty() || keys.iter().any(|key| self.keys.iter().any(|wanted| wanted == key))
    }

    /// Adds a figure that must not exceed `bar`, and prints it.
    pub fn add(&mut self, key: &'static str, value: f64, bar: f64) {
        self.check(key, value, Bar::AtMost(bar));
    }

    /// Adds a figure and prints it.
    pub fn check(&mut self, key: &'static str, value: f64, bar: Bar) {
        eprintln!("{key}: {}", number(value));
        self.figures.push(Figure { key, value, bar });
    }

    /// Writes `target/bench/SUITE.json`, prints the table, and fails if a bar is missed.
    pub fn close(self) -> Result<()> {
        let directory = workspace::target().join("bench");
        fs::create_dir_all(&directory)?;
        let file = directory.join(format!("{}.json", self.suite));
        // Of some keys only, the others stay as they were.
        let mut document = Map::new();
        if !self.keys.is_empty()
            && let Ok(text) = fs::read_to_string(&file)
            && let Ok(Value::Object(before)) = serde_json::from_str(&text)
        {
            document = before;
        }
        document.extend(self.json());
        fs::write(&file, format!("{:#}\n", Value::Object(document)))?;
        println!("\n| key | measured | bar | |\n|---|--:|--:|---|");
        for figure in &self.figures {
            let (key, value) = (figure.key, number(figure.value));
            let verdict = if figure.holds() { "holds" } else { "MISSED" };
            match figure.bar {
                Bar::AtMost(bar) => {
                    println!("| `{key}` | {value} | ≤ {} | {verdict} |", number(bar))
                }
                Bar::AtLeast(bar) => {
                    println!("| `{key}` | {value} | ≥ {} | {verdict} |", number(bar))
                }
                Bar::None => println!("| `{key}` | {value} | | |"),
            }
        }
        println!("\n{}", file.display());
        let missed = self.figures.iter().filter(|figure| !figure.holds());
        let missed: Vec<&str> = missed.map(|figure| figure.key).collect();
        if !missed.is_empty() {
            bail!("bars missed: {}", missed.join(", "));
        }
        Ok(())
    }

    fn json(&self) -> Map<String, Value> {
        let mut document = Map::new();
        for figure in &self.figures {
            let whole = figure.value.fract() == 0.0;
            let value = if whole {
                Some(Number::from(figure.value as i64))
            } else {
                Number::from_f64(figure.value)
            };
            document.insert(figure.key.into(), value.map_or(Value::Null, Value::Number));
        }
        document
    }
}

impl Figure {
    fn holds(&self) -> bool {
        match self.bar {
            Bar::AtMost(bar) => self.value <= bar,
            Bar::AtLeast(bar) => self.value >= bar,
            Bar::None => true,
        }
    }
}

/// With thousands separated, or with three decimals when small and not whole.
fn number(value: f64) -> String {
    if value.fract() != 0.0 && value < 100.0 {
        return format!("{value:.3}");
    }
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(number(2_097_152.0), "2,097,152");
        assert_eq!(number(999.0), "999");
        assert_eq!(number(0.25), "0.250");
    }

    #[test]
    fn the_document_is_flat() {
        let mut report = Report::new("x", None);
        report.add("a", 3.0, 4.0);
        report.add("b", 0.5, 0.4);
        assert_eq!(Value::Object(report.json()).to_string(), r#"{"a":3,"b":0.5}"#);
        assert!(report.figures[0].holds() && !report.figures[1].holds());
        report.check("c", 0.5, Bar::AtLeast(0.6));
        report.check("d", 0.5, Bar::None);
        assert!(!report.figures[2].holds() && report.figures[3].holds());
    }
}
