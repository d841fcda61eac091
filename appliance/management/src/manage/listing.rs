//! `list` and `show` commands: selects rows, scales sizes, and prints a table, JSON or CSV.

use super::{exports, remote, volumes};
use crate::appliance::{Appliance, Told};
use crate::clients;
use crate::console::Managed;
use crate::report::Value;

/// Objects that have lists.
#[derive(Clone, Copy)]
pub(super) enum Objects {
    Volumes,
    Exports,
    Remotes,
    Mirrors,
    Sessions,
    Devices,
    Paths,
}

impl Objects {
    /// One of them, as commands and errors name it.
    fn noun(self) -> &'static str {
        match self {
            Objects::Volumes => "volume",
            Objects::Exports => "export",
            Objects::Remotes => "remote",
            Objects::Mirrors => "mirror",
            Objects::Sessions => "session",
            Objects::Devices => "device",
            Objects::Paths => "path",
        }
    }

    /// A row for each.
    fn rows(self, appliance: &dyn Appliance) -> Result<Vec<Value>, String> {
        let storage = appliance.storage();
        let server = || storage.server.ok_or("the storage server does not run");
        let mut rows: Vec<Value> = match self {
            Objects::Volumes => volumes::rows(appliance, 0, usize::MAX),
            Objects::Remotes => remote::remotes(appliance),
            Objects::Mirrors => remote::mirrors(appliance),
            Objects::Exports => {
                storage.server.iter().flat_map(|s| exports::rows(s, storage.volumes)).collect()
            }
            Objects::Sessions => clients::sessions(server()?).collect(),
            Objects::Devices => clients::devices(storage.volumes, server()?).collect(),
            Objects::Paths => {
                let server = server()?;
                server.transport().paths().map(|path| clients::path(server, &path)).collect()
            }
        };
        for other in &storage.others {
            rows.extend_from_slice(match self {
                Objects::Sessions => &other.sessions,
                Objects::Devices => &other.devices,
                Objects::Paths => &other.paths,
                Objects::Volumes | Objects::Exports | Objects::Remotes | Objects::Mirrors => &[],
            });
        }
        Ok(rows)
    }
}

/// A list, formatted by the options.
pub(super) fn list(appliance: &dyn Appliance, objects: Objects, options: &[&str]) -> Told {
    formatted(objects.rows(appliance)?, options)
}

/// The row of an object, whose name is the first word. The other words are options.
pub(super) fn show(appliance: &dyn Appliance, objects: Objects, words: &[&str]) -> Told {
    let (name, options) = words.split_first().ok_or("missing name")?;
    let mut rows = objects.rows(appliance)?;
    rows.retain(|row| first(row) == *name);
    if rows.is_empty() {
        let noun = objects.noun();
        return Err(format!("there is no {noun} {name:?}; `{noun} list` lists all"));
    }
    if let (Objects::Volumes, Some(Value::Object(entries))) = (objects, rows.first_mut()) {
        entries.extend(volumes::abilities(appliance, name));
    }
    formatted(rows, options)
}

/// Rows, formatted by the options.
pub(super) fn formatted(mut rows: Vec<Value>, options: &[&str]) -> Told {
    let mut format = "";
    for option in options {
        match *option {
            "json" | "--json" | "csv" => format = option,
            unit => rows.iter_mut().try_for_each(|row| scale(row, unit))?,
        }
    }
    let value = Value::List(rows);
    Ok(Managed::Told(match format {
        "csv" => csv(&value),
        "" => value.to_text(),
        _ => value.to_json() + "\n",
    }))
}

/// The first value of a row: its name.
fn first(row: &Value) -> &str {
    match row {
        Value::Object(entries) => match entries.first() {
            Some((_, Value::Text(name))) => name,
            _ => "",
        },
        _ => "",
    }
}

/// Shows sizes in a unit, as plain numbers.
fn scale(row: &mut Value, unit: &str) -> Result<(), String> {
    let shift = match unit.to_ascii_uppercase().as_str() {
        "B" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(format!("unknown option {unit:?}; accepted: json, csv, B, K, M, G, T")),
    };
    if let Value::Object(entries) = row {
        for (_, value) in entries {
            if let Value::Bytes(bytes) = *value {
                *value = match shift {
                    0 => Value::Number(bytes),
                    _ => Value::Float(bytes as f64 / (1u64 << shift) as f64),
                };
            }
        }
    }
    Ok(())
}

/// CSV as in RFC 4180, with LF as the line end.
fn csv(value: &Value) -> String {
    let Value::List(rows) = value else { return String::new() };
    let mut out = String::new();
    for (number, row) in rows.iter().enumerate() {
        let Value::Object(entries) = row else { continue };
        if number == 0 {
            let names: Vec<&str> = entries.iter().map(|(name, _)| name.as_ref()).collect();
            out += &(names.join(",") + "\n");
        }
        let cell = |value: &Value| match value {
            Value::None => String::new(),
            Value::Text(text) if !text.contains([',', '"', '\n']) => text.to_string(),
            Value::Text(text) => format!("\"{}\"", text.replace('"', "\"\"")),
            Value::List(items) => {
                let items: Vec<String> =
                    items.iter().map(|i| i.to_json().replace('"', "")).collect();
                items.join(" ")
            }
            other => other.to_json(),
        };
        let cells: Vec<String> = entries.iter().map(|(_, value)| cell(value)).collect();
        out += &(cells.join(",") + "\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Value> {
        let row = |name: &str, size, list: &[&str]| {
            let list = list.iter().map(Value::display);
            Value::object([
                ("name", Value::display(name)),
                ("size", Value::Bytes(size)),
                ("disk", Value::None),
                ("sessions", Value::list(list)),
            ])
        };
        vec![row("a", 3 << 20, &[]), row("b,\"c\"", 512, &["h1", "h2"])]
    }

    #[test]
    fn rows_are_scaled_and_written_as_csv() {
        let plain = csv(&Value::List(rows()));
        assert_eq!(plain, "name,size,disk,sessions\na,3145728,,\n\"b,\"\"c\"\"\",512,,h1 h2\n");
        let mut scaled = rows();
        scaled.iter_mut().try_for_each(|row| scale(row, "M")).unwrap();
        assert!(csv(&Value::List(scaled)).starts_with("name,size,disk,sessions\na,3"));
        let why = scale(&mut rows()[0], "X").unwrap_err();
        assert_eq!(why, "unknown option \"X\"; accepted: json, csv, B, K, M, G, T");
        assert_eq!(first(&rows()[0]), "a");
    }
}
