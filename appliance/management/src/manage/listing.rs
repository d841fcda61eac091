//! `list` and `show` commands: selects rows, scales sizes, and prints a table, JSON or CSV.

use super::{exports, remote, volumes};
use crate::appliance::{Appliance, Told};
use crate::clients;
use crate::console::Managed;
use crate::report::Value;

/// A list, or its row called `name`, formatted by the options.
pub(super) fn list(
    appliance: &dyn Appliance,
    what: &str,
    name: Option<&str>,
    options: &[&str],
) -> Told {
    let storage = appliance.storage();
    let value = match what {
        "volume" => Value::List(volumes::rows(appliance, 0, usize::MAX)),
        "remote" => remote::remotes(appliance),
        "mirror" => remote::mirrors(appliance),
        "export" => {
            Value::list(storage.server.iter().flat_map(|s| exports::rows(s, storage.volumes)))
        }
        _ => match storage.server {
            None => return Err("the storage server does not run".into()),
            Some(server) => {
                let volumes = storage.volumes;
                let mut rows: Vec<Value> = match what {
                    "session" => clients::sessions(server).collect(),
                    "device" => clients::devices(volumes, server).collect(),
                    _ => server.transport().paths().map(|p| clients::path(server, &p)).collect(),
                };
                for other in &storage.others {
                    rows.extend_from_slice(match what {
                        "session" => &other.sessions,
                        "device" => &other.devices,
                        _ => &other.paths,
                    });
                }
                Value::List(rows)
            }
        },
    };
    let Value::List(mut rows) = value else { return Err("there is nothing to list".into()) };
    if let Some(name) = name {
        rows.retain(|row| first(row) == name);
        if rows.is_empty() {
            return Err(format!("there is no {what} {name:?}; `{what} list` lists all"));
        }
    }
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
