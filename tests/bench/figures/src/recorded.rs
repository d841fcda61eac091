//! `docs/figures.json`: the last value of each figure, with the commit and the day at which it was measured.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Number, Value};

use crate::figure::{Figure, Of};
use crate::number;
use crate::{SUITES, suite};

/// The measured values of a figure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// The figure itself, which is compared with the bar.
    pub value: f64,
    /// Linux's value, if the figure is a ratio to it.
    pub linux: Option<f64>,
    /// The value of Isthmus, if the figure is a ratio.
    pub ours: Option<f64>,
    /// Commit of the measured sources.
    pub commit: String,
    /// The day, as 2026-11-28.
    pub date: String,
}

/// The last value of each figure, by suite and key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recorded(BTreeMap<String, BTreeMap<String, Measured>>);

impl Measured {
    /// As JSON, rounded for the record.
    pub fn json(&self) -> Map<String, Value> {
        let mut object = Map::new();
        let numbers = [("value", Some(self.value)), ("linux", self.linux), ("ours", self.ours)];
        for (name, value) in numbers {
            if let Some(value) = value {
                object.insert(name.into(), json(number::recorded(value)));
            }
        }
        object.insert("commit".into(), self.commit.clone().into());
        object.insert("date".into(), self.date.clone().into());
        object
    }

    fn parse(value: &Value) -> Option<Measured> {
        let text = |name: &str| Some(value.get(name)?.as_str()?.to_string());
        let number = |name: &str| value.get(name).and_then(Value::as_f64);
        Some(Measured {
            value: number("value")?,
            linux: number("linux"),
            ours: number("ours"),
            commit: text("commit")?,
            date: text("date")?,
        })
    }

    /// The value of Isthmus.
    pub fn isthmus(&self, figure: &Figure) -> Option<f64> {
        match figure.of {
            Of::Isthmus => Some(self.value),
            Of::Linux | Of::Other => self.ours,
        }
    }
}

/// A number, without a point if it is whole.
pub fn json(value: f64) -> Value {
    match value.fract() == 0.0 {
        true => Value::Number(Number::from(value as i64)),
        false => Number::from_f64(value).map_or(Value::Null, Value::Number),
    }
}

impl Recorded {
    /// Reads a document.
    pub fn parse(text: &str) -> Result<Recorded> {
        let document: Map<String, Value> =
            serde_json::from_str(text).context("the recorded figures are no JSON object")?;
        let mut recorded = Recorded::default();
        for (name, figures) in &document {
            let figures = figures.as_object().with_context(|| format!("no figures of {name}"))?;
            for (key, value) in figures {
                let measured = Measured::parse(value);
                let measured = measured.with_context(|| format!("{name}: {key}: {value}"))?;
                recorded.set(name, key, measured);
            }
        }
        Ok(recorded)
    }

    /// Reads a file.
    pub fn read(file: &Path) -> Result<Recorded> {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        Recorded::parse(&text)
    }

    /// The document.
    pub fn to_json(&self) -> String {
        let suites = self.0.iter().map(|(name, figures)| {
            let figures = figures.iter().map(|(key, one)| (key.clone(), one.json().into()));
            (name.clone(), Value::Object(figures.collect()))
        });
        format!("{:#}\n", Value::Object(suites.collect()))
    }

    /// The measured values of a figure.
    pub fn get(&self, suite: &str, key: &str) -> Option<&Measured> {
        self.0.get(suite)?.get(key)
    }

    /// Records a value.
    pub fn set(&mut self, suite: &str, key: &str, measured: Measured) {
        self.0.entry(suite.into()).or_default().insert(key.into(), measured);
    }

    /// Records the figures of a suite's report, `target/bench/SUITE.json`, except those that were measured on an
    /// earlier day than the recorded ones.
    pub fn record(&mut self, name: &str, report: &str) -> Result<()> {
        let report: Value = serde_json::from_str(report).context("the report is no JSON")?;
        let figures = report.get("figures").and_then(Value::as_object);
        let known = suite(name).with_context(|| format!("no suite {name}"))?;
        for (key, value) in figures.context("the report has no figures")? {
            let measured = Measured::parse(value).with_context(|| format!("{key}: {value}"))?;
            let is_old = |before: &Measured| before.date > measured.date;
            if known.figure(key).is_some() && !self.get(name, key).is_some_and(is_old) {
                self.set(name, key, measured);
            }
        }
        Ok(())
    }

    /// Removes records of figures that no longer exist.
    pub fn forget_unknown(&mut self) {
        for suite in SUITES {
            if let Some(figures) = self.0.get_mut(suite.name) {
                figures.retain(|key, _| suite.figure(key).is_some());
            }
        }
        self.0.retain(|name, _| suite(name).is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"{"boot_seconds": 0.2, "figures": {
        "boot_seconds": {"value": 0.2, "commit": "b", "date": "2026-11-29"},
        "of_no_table": {"value": 1, "commit": "b", "date": "2026-11-29"}}}"#;

    fn measured(value: f64, date: &str) -> Measured {
        Measured { value, commit: "a".into(), date: date.into(), ..Measured::default() }
    }

    #[test]
    fn document_is_read_as_written() {
        let mut recorded = Recorded::default();
        let one = Measured { linux: Some(2000.0), ours: Some(0.5), ..measured(0.1, "2026-11-28") };
        recorded.set("rnbd", "read4k_qd32_ratio", one);
        recorded.set("boot", "boot_seconds", measured(3.0, "2026-11-28"));
        assert_eq!(Recorded::parse(&recorded.to_json()).unwrap(), recorded);
        assert!(Recorded::parse(r#"{"boot": {"boot_seconds": {"value": 1}}}"#).is_err());
    }

    #[test]
    fn report_replaces_older_values_and_retains_the_rest() {
        let mut recorded = Recorded::default();
        recorded.set("boot", "boot_seconds", measured(0.1, "2026-11-28"));
        recorded.set("boot", "image_bytes", measured(4.0, "2026-11-28"));
        recorded.record("boot", REPORT).unwrap();
        let now = recorded.get("boot", "boot_seconds").unwrap();
        assert_eq!((now.value, now.commit.as_str()), (0.2, "b"));
        assert_eq!(recorded.get("boot", "image_bytes").unwrap().value, 4.0);
        assert_eq!(recorded.get("boot", "of_no_table"), None);
        recorded.set("boot", "boot_seconds", measured(0.1, "2026-11-30"));
        recorded.record("boot", REPORT).unwrap();
        assert_eq!(recorded.get("boot", "boot_seconds").unwrap().value, 0.1);
        assert!(recorded.record("boot", "{}").is_err());
    }

    #[test]
    fn records_of_unknown_figures_are_removed() {
        let mut recorded = Recorded::default();
        recorded.set("boot", "gone", measured(1.0, "2026-11-28"));
        recorded.set("gone", "boot_seconds", measured(1.0, "2026-11-28"));
        recorded.forget_unknown();
        assert_eq!(recorded, Recorded(BTreeMap::from([("boot".into(), BTreeMap::new())])));
    }
}
