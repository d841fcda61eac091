//! The sections of the page at `/` as tables of text, from the same reports.

use serde_json::Value;

use crate::snapshot::Snapshot;
use crate::text::{bytes, shown};

/// Rows of a section at most. The rest is counted.
pub const MOST_ROWS: usize = 500;

/// Severity of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// As the terminal prints text.
    #[default]
    Plain,
    /// Something does not work.
    Fault,
    /// Something may fail.
    Warning,
}

/// A column: its name, and whether its cells stand at the right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name.
    pub name: String,
    /// Numbers stand at the right.
    pub to_the_right: bool,
}

/// A row: cells, a line below the last cell, and its severity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// One text per column.
    pub cells: Vec<String>,
    /// A line below the last cell.
    pub note: String,
    /// Severity.
    pub tone: Tone,
}

/// A section as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Columns.
    pub columns: Vec<Column>,
    /// Rows.
    pub rows: Vec<Row>,
    /// What is shown if there is no row.
    pub empty: String,
    /// A line after the rows.
    pub end: String,
    /// Whether the last column is wrapped, not cut.
    pub wraps: bool,
}

/// A section: its title, the path of its report, and its table.
pub struct Section {
    /// Title.
    pub title: &'static str,
    /// Path of the report.
    pub path: &'static str,
    /// The table of the last two rounds.
    pub table: fn(&Snapshot, Option<&Snapshot>) -> Table,
}

/// Path of the report of everything.
pub const STATUS: &str = "/status";
/// Path of the checks.
pub const DOCTOR: &str = "/api/doctor";
/// Path of the sessions.
pub const SESSIONS: &str = "/api/rtrs-server";
/// Path of the log.
pub const LOG: &str = "/api/log";

/// Number of sections.
pub const COUNT: usize = 10;

/// All sections, in the order of the page.
pub static SECTIONS: [Section; COUNT] = [
    Section { title: "What is wrong", path: DOCTOR, table: wrong },
    Section { title: "Sessions", path: SESSIONS, table: sessions },
    Section { title: "Volumes", path: STATUS, table: volumes },
    Section { title: "Exports", path: "/api/exports", table: exports },
    Section { title: "Mirrors", path: "/api/mirrors", table: mirrors },
    Section { title: "Links and throughput", path: STATUS, table: links },
    Section { title: "Rules", path: "/api/smc/rules", table: rules },
    Section { title: "Cores", path: STATUS, table: cores },
    Section { title: "Refusals", path: "/api/refused", table: refusals },
    Section { title: "Log", path: LOG, table: log },
];

/// Columns by name; a name that begins with `>` stands at the right.
fn columns(names: &[&str]) -> Vec<Column> {
    let column = |name: &&str| Column {
        name: name.trim_start_matches('>').into(),
        to_the_right: name.starts_with('>'),
    };
    names.iter().map(column).collect()
}

fn table(names: &[&str], rows: Vec<Row>, empty: &str) -> Table {
    Table { columns: columns(names), rows, empty: empty.into(), ..Table::default() }
}

fn row<const N: usize>(cells: [String; N]) -> Row {
    Row { cells: cells.into(), ..Row::default() }
}

/// A list of a report; empty if there is none.
fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The entries of an object, with their names made harmless.
fn pairs(value: &Value) -> impl Iterator<Item = (String, &Value)> {
    value
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| (shown(&name.as_str().into()), value))
}

fn size(value: &Value) -> String {
    value.as_f64().map_or_else(String::new, bytes)
}

/// What a counter has grown by in a second. Nothing after a restart.
fn rate(now: &Value, before: Option<&Value>, seconds: f64) -> String {
    let change = now.as_f64().zip(before.and_then(Value::as_f64)).map(|(now, before)| now - before);
    match change {
        Some(change) if change >= 0.0 && seconds > 0.0 => bytes(change / seconds) + "/s",
        _ => String::new(),
    }
}

/// Seconds between two rounds.
fn between(now: &Snapshot, before: Option<&Snapshot>) -> f64 {
    before.map_or(0.0, |before| (now.at - before.at).as_secs_f64())
}

/// The state of something: red if it is one that does not work.
fn tone_of(state: &Value) -> Tone {
    match state.as_str() {
        Some("down" | "out" | "unreachable" | "failed" | "missing") => Tone::Fault,
        Some("degraded" | "reconnecting" | "connecting" | "disconnected" | "resync") => {
            Tone::Warning
        }
        _ => Tone::Plain,
    }
}

fn wrong(now: &Snapshot, _: Option<&Snapshot>) -> Table {
    let checks = list(&now.page(DOCTOR)["checks"]);
    let rows = checks.iter().filter(|check| check["state"] != "ok").map(|check| {
        let remedy = shown(&check["remedy"]);
        Row {
            cells: vec![shown(&check["state"]), shown(&check["check"]), shown(&check["cause"])],
            note: if remedy.is_empty() { remedy } else { format!("Remedy: {remedy}") },
            tone: if check["state"] == "fault" { Tone::Fault } else { Tone::Warning },
        }
    });
    let good = checks.iter().filter(|check| check["state"] == "ok").count();
    Table {
        end: format!("{good} checks are in order"),
        wraps: true,
        ..table(&["state", "check", "cause"], rows.collect(), "")
    }
}

fn sessions(now: &Snapshot, before: Option<&Snapshot>) -> Table {
    let seconds = between(now, before);
    let mut rows = Vec::new();
    for (name, session) in pairs(now.page(SESSIONS)) {
        for (path, entry) in pairs(&session["paths"]) {
            let rdma = &entry["stats"]["rdma"];
            let old = before.map(|before| {
                let session = before.page(SESSIONS).get(&name).unwrap_or(&Value::Null);
                &session["paths"][path.as_str()]["stats"]["rdma"]
            });
            let rate = |key: &str| rate(&rdma[key], old.map(|old| &old[key]), seconds);
            let latency = entry["cur_latency_seconds"].as_f64().filter(|latency| *latency > 0.0);
            rows.push(Row {
                tone: tone_of(&entry["state"]),
                ..row([
                    name.clone(),
                    path.clone(),
                    shown(&entry["state"]),
                    shown(&rdma["inflight"]),
                    latency.map_or_else(String::new, |latency| format!("{:.1} µs", latency * 1e6)),
                    rate("wr_bytes"),
                    rate("rd_bytes"),
                    size(&rdma["wr_bytes"]),
                    size(&rdma["rd_bytes"]),
                    shown(&rdma["errors"]),
                ])
            });
        }
    }
    let names = [
        "session",
        "path",
        "state",
        ">in flight",
        ">latency",
        ">writes",
        ">reads",
        ">written",
        ">read",
        ">errors",
    ];
    table(&names, rows, "no storage client is connected to the first core")
}

/// A list of objects with the keys of the first one as columns.
fn generic(rows: &Value, empty: &str) -> Table {
    let rows = list(rows);
    let keys: Vec<&String> =
        rows.first().and_then(Value::as_object).map_or_else(Vec::new, |row| row.keys().collect());
    let is_size = |key: &str| matches!(key, "size" | "free" | "rx" | "tx") || key.contains("bytes");
    let column = |key: &&String| Column {
        name: shown(&key.replace('_', " ").into()),
        to_the_right: rows.iter().all(|row| row[key.as_str()].is_number()),
    };
    let cells = |row: &Value| {
        let cell = |key: &&String| match &row[key.as_str()] {
            value if is_size(key) && value.is_number() => size(value),
            value => shown(value),
        };
        Row {
            cells: keys.iter().map(cell).collect(),
            tone: tone_of(&row["state"]),
            ..Row::default()
        }
    };
    Table {
        columns: keys.iter().map(column).collect(),
        rows: rows.iter().map(cells).collect(),
        empty: empty.into(),
        ..Table::default()
    }
}

fn volumes(now: &Snapshot, _: Option<&Snapshot>) -> Table {
    generic(&now.page(STATUS)["volumes"], "there is no volume")
}

fn exports(now: &Snapshot, _: Option<&Snapshot>) -> Table {
    generic(now.page("/api/exports"), "nothing is exported")
}

fn mirrors(now: &Snapshot, _: Option<&Snapshot>) -> Table {
    let member = |one: &Value| {
        let out = shown(&one["left_out"]);
        let out = if out.is_empty() { out } else { format!(" ({out})") };
        format!("{}: {}{out}", shown(&one["name"]), shown(&one["state"]))
    };
    let rows = pairs(now.page("/api/mirrors")).map(|(name, mirror)| Row {
        tone: if mirror["state"] == "in sync" { Tone::Plain } else { Tone::Warning },
        ..row([
            name,
            shown(&mirror["state"]),
            size(&mirror["size"]),
            size(&mirror["stale_bytes"]),
            list(&mirror["members"]).iter().map(member).collect::<Vec<_>>().join(", "),
        ])
    });
    let names = ["mirror", "state", ">size", ">to copy", "members"];
    Table { wraps: true, ..table(&names, rows.collect(), "there is no mirror") }
}

fn links(now: &Snapshot, before: Option<&Snapshot>) -> Table {
    let seconds = between(now, before);
    let rows = list(&now.page(STATUS)["interfaces"]).iter().map(|port| {
        let old = before.and_then(|before| {
            let ports = list(&before.page(STATUS)["interfaces"]);
            ports.iter().find(|old| old["name"] == port["name"])
        });
        let rate = |key: &str| rate(&port[key], old.map(|old| &old[key]), seconds);
        let errors =
            port["rx_errors"].as_f64().unwrap_or(0.0) + port["rx_missed"].as_f64().unwrap_or(0.0);
        Row {
            tone: tone_of(&port["link"]),
            ..row([
                shown(&port["name"]),
                shown(&port["link"]),
                shown(&port["mtu"]),
                rate("rx_bytes"),
                rate("tx_bytes"),
                format!("{errors}"),
                shown(&port["addresses"]),
                shown(&port["location"]),
            ])
        }
    });
    let names =
        ["interface", "link", ">MTU", ">receives", ">sends", ">errors", "addresses", "place"];
    table(&names, rows.collect(), "there is no network interface")
}

fn rules(now: &Snapshot, _: Option<&Snapshot>) -> Table {
    let server = |one: &Value| format!("{} {}", shown(&one["address"]), shown(&one["state"]));
    let rows = list(now.page("/api/smc/rules")).iter().map(|rule| {
        let left_out = shown(&rule["left_out"]);
        let clients = format!("{}, {}", shown(&rule["smc_clients"]), shown(&rule["tcp_clients"]));
        Row {
            tone: if left_out.is_empty() { Tone::Plain } else { Tone::Fault },
            ..row([
                shown(&rule["name"]),
                shown(&rule["listen"]),
                shown(&rule["connections"]),
                if left_out.is_empty() { clients } else { left_out },
                size(&rule["bytes_in"]),
                size(&rule["bytes_out"]),
                list(&rule["backends"]).iter().map(server).collect::<Vec<_>>().join(", "),
            ])
        }
    });
    let names = ["rule", "listens on", ">connections", "SMC-R, TCP", ">in", ">out", "servers"];
    Table { wraps: true, ..table(&names, rows.collect(), "there is no rule") }
}

fn cores(now: &Snapshot, _: Option<&Snapshot>) -> Table {
    let share = |value: &Value| {
        value.as_f64().map_or_else(String::new, |share| format!("{:.1} %", share * 100.0))
    };
    let rows = list(&now.page(STATUS)["loops"]).iter().map(|core| {
        row([
            shown(&core["loop"]),
            shown(&core["state"]),
            shown(&core["ports"]),
            share(&core["busy"]),
            share(&core["idle"]),
            share(&core["halted"]),
            shown(&core["rounds"]),
        ])
    });
    let names = [">core", "state", "ports", ">busy", ">idle", ">halted", ">rounds"];
    table(&names, rows.collect(), "no core reports")
}

fn refusals(now: &Snapshot, _: Option<&Snapshot>) -> Table {
    let rows = list(now.page("/api/refused")).iter().map(|one| Row {
        note: shown(&one["advice"]),
        ..row([
            shown(&one["from"]),
            format!("{} {}", shown(&one["what"]), shown(&one["asked"])),
            shown(&one["times"]),
            shown(&one["reason"]),
        ])
    });
    let names = ["from", "asked", ">times", "reason"];
    Table { wraps: true, ..table(&names, rows.collect(), "nothing was refused") }
}

fn log(now: &Snapshot, _: Option<&Snapshot>) -> Table {
    let rows = list(now.page(LOG)).iter().rev().map(|line| {
        let time = if line["time"].is_null() { &line["seconds"] } else { &line["time"] };
        Row {
            tone: match line["level"].as_str() {
                Some("error" | "ERROR") => Tone::Fault,
                Some("warn" | "WARN") => Tone::Warning,
                _ => Tone::Plain,
            },
            ..row([shown(time), shown(&line["level"]), shown(&line["message"])])
        }
    });
    Table {
        wraps: true,
        ..table(&["time", "level", "message"], rows.collect(), "the log is empty")
    }
}
