//! Limits of exports and namespaces, as commands and reports have them.

use crate::config::{Export, Size};
use core::fmt::{Display, Write as _};
use core::str::FromStr;
use storage::limits::Limits;

/// Limits among the options of a command: `iops=1000`, `read_bandwidth=100MiB`, `write_iops=none`.
#[derive(Debug, Default)]
pub(super) struct LimitOptions<'a>(Vec<(&'a str, &'a str)>);

impl<'a> LimitOptions<'a> {
    /// The keys.
    pub const KEYS: [&'static str; 6] =
        ["iops", "read_iops", "write_iops", "bandwidth", "read_bandwidth", "write_bandwidth"];

    pub fn add(&mut self, key: &'a str, value: &'a str) {
        self.0.push((key, value));
    }

    /// Changes the limits of an export. The configuration checks their ranges.
    pub fn apply(&self, export: &mut Export) -> Result<(), String> {
        for &(key, value) in &self.0 {
            match key {
                "iops" => export.iops = number(key, value)?,
                "read_iops" => export.read_iops = number(key, value)?,
                "write_iops" => export.write_iops = number(key, value)?,
                "bandwidth" => export.bandwidth = number(key, value)?,
                "read_bandwidth" => export.read_bandwidth = number(key, value)?,
                _ => export.write_bandwidth = number(key, value)?,
            }
        }
        Ok(())
    }
}

fn number<T: FromStr<Err: Display>>(key: &str, value: &str) -> Result<Option<T>, String> {
    if value == "none" {
        return Ok(None);
    }
    let parsed = value.parse::<T>().map(Some);
    parsed.map_err(|why| {
        format!("{key}={value}: {why}; such as iops=1000, bandwidth=100MiB or {key}=none")
    })
}

/// Limits in one line: with the names of their keys.
pub(super) fn text(limits: &Limits) -> String {
    let mut text = String::new();
    for (key, rate) in limits.entries() {
        // Writing to a string cannot fail.
        let _ = match key.ends_with("bandwidth") {
            true => write!(text, " {key}={}", Size(rate)),
            false => write!(text, " {key}={rate}"),
        };
    }
    match text.is_empty() {
        true => "none".into(),
        false => text.trim_start().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_change_the_limits_that_they_name() {
        let mut export = Export::of("a".parse().unwrap(), "ram0".parse().unwrap());
        export.write_iops = Some(700);
        let apply = |export: &mut Export, options: &[(&'static str, &'static str)]| {
            LimitOptions(options.to_vec()).apply(export)
        };
        apply(&mut export, &[("iops", "1000"), ("read_bandwidth", "100MiB")]).unwrap();
        assert_eq!(text(&export.limits()), "read_bandwidth=100MiB write_iops=700 iops=1000");
        let none = [("iops", "none"), ("read_bandwidth", "none"), ("write_iops", "none")];
        apply(&mut export, &none).unwrap();
        assert_eq!(text(&export.limits()), "none");
        for wrong in [("iops", "many"), ("bandwidth", "fast"), ("write_iops", "-1")] {
            let why = apply(&mut export, &[wrong]).unwrap_err();
            assert!(why.contains(wrong.0) && why.contains("none"), "{why}");
        }
    }
}
